// SPDX-License-Identifier: Apache-2.0
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "daemon/control/log.h"
#include "daemon/control/peers_impl.h"

// Connections that others make to us.
namespace sluice::control {

using handshake::Handshake;
using handshake::Phase;
using handshake::RefuseReason;

namespace {

constexpr int kBacklog = 1'024;

}  // namespace

Result<> PeersImpl::Listen() {
  for (const SocketAddress& address : settings.listen) {
    if (auto listening = ListenOn(address); !listening) return listening;
  }
  return {};
}

Result<> PeersImpl::ListenOn(const SocketAddress& address) {
  const std::string what = "listening for peers on " + address.Text();
  Fd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return FailErrno(what);
  const int on = 1;
  if (setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) return FailErrno(what);
  // So that 0.0.0.0 and [::] can be listened on side by side.
  if (address.family() == AF_INET6 &&
      setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) != 0) {
    return FailErrno(what);
  }
  sockaddr_storage storage;
  socklen_t length = address.ToSockaddr(storage);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&storage), length) != 0)
    return FailErrno(what);
  if (listen(fd.get(), kBacklog) != 0) return FailErrno(what);
  length = sizeof(storage);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0)
    return FailErrno(what);
  if (settings.handshake.listen_port == 0) {
    settings.handshake.listen_port = SocketAddress::FromSockaddr(storage).value_or(address).port;
  }
  auto acceptor = std::make_unique<Acceptor>(
      loop, std::move(fd), [this](Fd connection) { OnAccept(std::move(connection)); },
      [this](int connection) {
        ++counters.refused_busy;
        RefuseAtOnce(connection, RefuseReason::kBusy,
                     "the daemon is out of descriptors; try again later");
      });
  if (auto started = acceptor->Start(); !started) return started;
  acceptors.push_back(std::move(acceptor));
  return {};
}

void PeersImpl::RefuseAtOnce(int connection, RefuseReason reason, const std::string& text) {
  Handshake refusal = Handshake::Listen(settings.handshake, random, loop.now_ns());
  refusal.Reject(reason, text);
  // What was not read would turn the close into a reset that may overtake the refusal.
  std::byte unread[handshake::kMaxMessageBytes];
  (void)recv(connection, unread, sizeof(unread), MSG_DONTWAIT);
  (void)send(connection, refusal.Output().data(), refusal.Output().size(),
             MSG_NOSIGNAL | MSG_DONTWAIT);
}

void PeersImpl::OnAccept(Fd connection) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (getpeername(connection.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0)
    return;  // Gone already.
  const auto source = SocketAddress::FromSockaddr(storage);
  if (!source || !Allowed(*source)) {
    ++counters.refused_network;
    LogWarning("peer refused",
               {{"address", source ? source->Text() : "?"}, {"reason", "outside peer.allow"}});
    return RefuseAtOnce(
        connection.get(), RefuseReason::kNotAllowed,
        "the dialer's address is outside the networks that the listener's peer.allow names");
  }
  if (!MakeRoomForIncoming(*source)) {
    ++counters.refused_busy;
    LogWarning("peer refused",
               {{"address", source->Text()}, {"reason", "too many handshakes of this address"}});
    return RefuseAtOnce(connection.get(), RefuseReason::kBusy,
                        "too many handshakes at once; try again later");
  }
  ++counters.accepted;
  const uint64_t id = ++arrivals;
  const uint64_t now_ns = loop.clock().NowNs();
  Incoming& entry = incoming[id];
  entry.source = *source;
  entry.arrival = id;
  entry.socket = std::make_unique<HandshakeSocket>(
      loop, std::move(connection), Handshake::Listen(settings.handshake, random, now_ns),
      now_ns + settings.handshake_timeout_ns,
      HandshakeSocket::Callbacks{[this, id] { OnIncomingDecide(id); },
                                 [this, id] { OnIncomingEnded(id); }});
}

// The oldest goes when there are too many: an honest one ends within milliseconds, a silent one
// stays.
bool PeersImpl::MakeRoomForIncoming(const SocketAddress& source) {
  const auto same = std::ranges::count_if(
      incoming, [&](const auto& entry) { return entry.second.source.ip == source.ip; });
  if (static_cast<size_t>(same) >= settings.max_pending_per_source) return false;
  if (incoming.size() < settings.max_pending_handshakes) return true;
  ++counters.refused_busy;
  Incoming& oldest = incoming.begin()->second;
  LogWarning("peer refused",
             {{"address", oldest.source.Text()}, {"reason", "too many handshakes at once"}});
  oldest.socket->Reject(RefuseReason::kBusy, "too many handshakes at once; try again later");
  incoming.erase(incoming.begin());
  return true;
}

// Who has proven itself there: a known run of a daemon, or a known address where a new run has
// begun.
Peer* PeersImpl::PeerOf(const handshake::PeerClaims& claims, const SocketAddress& address) {
  if (Peer* peer = FindInstance(claims.instance, claims.lane)) return peer;
  return address.port == 0 ? nullptr : FindAddress(address, claims.lane);
}

bool PeersImpl::DialsTo(const Peer* peer, const handshake::PeerClaims& claims,
                        const SocketAddress& address) const {
  if (peer != nullptr && peer->dial.Reaches(address, claims.instance)) return true;
  return std::ranges::any_of(targets, [&](const auto& entry) {
    return entry.second->lane == claims.lane &&
           entry.second->dial.Reaches(address, claims.instance);
  });
}

// The peer came by itself: nobody need look for it any more.
void PeersImpl::StopDialsTo(Peer& peer, const SocketAddress& address) {
  peer.dial.Stop();
  std::vector<Target*> found;
  for (const auto& [key, target] : targets) {
    const HostPort& where = target->dial.where();
    if (target->lane != peer.lane) continue;
    if (target->dial.Reaches(address, peer.instance) ||
        SocketAddress::Parse(where.host, where.port) == address) {
      found.push_back(target.get());
    }
  }
  const PeerRef ref{peer.id, peer.io_thread};
  std::vector<Target::Key> keys;
  for (const Target* target : found) keys.emplace_back(target->dial.where(), target->lane);
  for (const Target::Key& key : keys) {  // By key: whoever is answered may change the table.
    if (const auto still = targets.find(key); still != targets.end())
      EndTarget(*still->second, ref);
  }
}

void PeersImpl::OnIncomingDecide(uint64_t id) {
  Incoming& entry = incoming.at(id);
  Handshake& handshake = entry.socket->state();
  const handshake::PeerClaims claims = handshake.peer();
  SocketAddress address = entry.source;
  address.port = claims.listen_port;
  Peer* peer = PeerOf(claims, address);
  const bool own_dial = DialsTo(peer, claims, address);
  const PeerPath unknown(settings.handshake.instance);
  const auto decision = (peer != nullptr ? peer->path : unknown)
                            .Decide(claims, own_dial, entry.arrival, random);
  if (!decision)
    return handshake.Reject(RefuseReason::kDuplicate, "another connection of both daemons is kept");
  if (peer == nullptr) peer = MakePeer(claims.lane, {address.IpText(), address.port});
  if (peer == nullptr) {
    return handshake.Reject(RefuseReason::kBusy, "the listener has as many peers as it can");
  }
  handshake.Grant(*decision);
  if (handshake.phase() != Phase::kDone) return;
  Learn(*peer, address, claims.instance);
  Commit(*peer, handshake.Parameters());
  peer->dial.Stop();  // What others look for is answered once this path is handed over.
  entry.granted = peer->id;
  entry.session = decision->session;
  entry.path_epoch = decision->path_epoch;
}

void PeersImpl::OnIncomingEnded(uint64_t id) {
  const auto found = incoming.find(id);
  Incoming entry = std::move(found->second);
  incoming.erase(found);
  const Handshake& handshake = entry.socket->state();
  const bool done = handshake.phase() == Phase::kDone;
  if (entry.granted == 0) {
    const handshake::Failure& failure = handshake.failure();
    if (failure.reason == RefuseReason::kDuplicate) {
      ++counters.refused_duplicate;
      return LogDebug("peer connection not needed", {{"address", entry.source.Text()}});
    }
    ++counters.failed_incoming;
    return LogWarning("peer refused", {{"address", entry.source.Text()}, {"reason", failure.text}});
  }
  Peer& peer = *peers.at(entry.granted);
  if (!done) {
    ++counters.failed_incoming;
    if (peer.path.OnLost(entry.session, entry.path_epoch, false)) Redial(peer);
    return;
  }
  const SessionParameters session = handshake.Parameters();
  // Not if a later path was granted while the last word of this one was on its way.
  if (!peer.path.up() || peer.path.session() != session.session ||
      peer.path.path_epoch() != session.path_epoch)
    return;
  HandOver(peer, entry.socket->Take(), session);
  SocketAddress address = entry.source;
  address.port = handshake.peer().listen_port;
  StopDialsTo(peer, address);
}

}  // namespace sluice::control
