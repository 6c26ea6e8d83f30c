// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/peers.h"

#include <algorithm>
#include <utility>

#include "daemon/control/log.h"
#include "daemon/control/peers_impl.h"

namespace sluice::control {

Peers::Peers(EventLoop& loop, Random& random, PeersSettings settings, PostToIo post)
    : impl_(std::make_unique<PeersImpl>(loop, random, std::move(settings), std::move(post))) {}

Peers::~Peers() = default;

Result<> Peers::Listen() { return impl_->Listen(); }
void Peers::Stop() { impl_->Stop(); }
void Peers::OnPathLost(const io::PathLost& lost) { impl_->OnPathLost(lost); }
void Peers::SetResolveTimeout(uint64_t timeout_ns) {
  impl_->settings.resolve_timeout_ns = timeout_ns;
}
uint16_t Peers::listen_port() const { return impl_->settings.handshake.listen_port; }
bool Peers::authenticated() const { return impl_->settings.handshake.key != nullptr; }
std::vector<PeerSnapshot> Peers::Snapshot() const { return impl_->Snapshot(); }
const PeerCounters& Peers::counters() const { return impl_->counters; }
size_t Peers::pending_handshakes() const { return impl_->incoming.size(); }

void Peers::Resolve(std::string_view host, uint16_t port, ResolveCallback done) {
  impl_->Resolve(host, port, std::move(done));
}

PeersImpl::PeersImpl(EventLoop& event_loop, Random& source, PeersSettings given,
                     Peers::PostToIo post_to_io)
    : loop(event_loop),
      random(source),
      settings(std::move(given)),
      post(std::move(post_to_io)),
      resolver(event_loop, settings.lookup_timeout_ns, settings.lookup),
      context{.loop = event_loop,
              .resolver = resolver,
              .random = source,
              .handshake = settings.handshake,
              .allow = settings.allow,
              .connect_timeout_ns = settings.connect_timeout_ns,
              .handshake_timeout_ns = settings.handshake_timeout_ns,
              .backoff_first_ns = settings.backoff_first_ns,
              .backoff_cap_ns = settings.backoff_cap_ns} {}

PeersImpl::~PeersImpl() { Stop(); }

void PeersImpl::Stop() {
  if (std::exchange(stopped, true)) return;
  acceptors.clear();
  for (auto& [arrival, connection] : incoming) {
    connection.socket->Reject(handshake::RefuseReason::kShuttingDown, "the daemon is stopping");
  }
  incoming.clear();
  for (auto& [id, peer] : peers) peer->dial.Stop();
  while (!targets.empty()) {
    EndTarget(*targets.begin()->second, Fail(ErrorCode::kClosed, "the daemon is stopping"));
  }
}

// --- the table ---

Peer::Peer(PeersImpl& peers, const DialContext& context, uint64_t local_instance, PeerId number,
           uint32_t thread, uint16_t lane_number, const HostPort& where)
    : all(peers),
      id(number),
      io_thread(thread),
      lane(lane_number),
      path(local_instance),
      dial(context, *this, where),
      can_dial(where.port != 0) {}

Peer* PeersImpl::FindInstance(uint64_t instance, uint16_t lane) {
  const auto found = by_instance.find({instance, lane});
  return found == by_instance.end() ? nullptr : peers.at(found->second).get();
}

Peer* PeersImpl::FindAddress(const SocketAddress& address, uint16_t lane) {
  const auto found = by_address.find({address, lane});
  return found == by_address.end() ? nullptr : peers.at(found->second).get();
}

Peer* PeersImpl::MakePeer(uint16_t lane, const HostPort& where) {
  if (peers.size() >= settings.max_peers) return ReusePeer(lane, where);
  const PeerId id = next_peer++;
  const uint32_t io_thread = next_io_thread++ % settings.io_threads;
  Tell(io_thread, io::AddPeer{.peer = id, .name = where.Text()});
  return (peers[id] = std::make_unique<Peer>(*this, context, settings.handshake.instance, id,
                                             io_thread, lane, where))
      .get();
}

// A daemon that is long gone leaves its engine to a new one, for which that is a new session like
// any other.
Peer* PeersImpl::ReusePeer(uint16_t lane, const HostPort& where) {
  const auto idle = std::ranges::find_if(peers, [this](const auto& entry) {
    return !entry.second->path.up() && !Wanted(*entry.second);
  });
  if (idle == peers.end()) return nullptr;
  const PeerId id = idle->first;
  const uint32_t io_thread = idle->second->io_thread;
  std::erase_if(by_instance, [id](const auto& entry) { return entry.second == id; });
  std::erase_if(by_address, [id](const auto& entry) { return entry.second == id; });
  std::erase_if(by_name, [id](const auto& entry) { return entry.second == id; });
  idle->second = std::make_unique<Peer>(*this, context, settings.handshake.instance, id, io_thread,
                                        lane, where);
  return idle->second.get();
}

// Remembers where a proven peer was found, and which run of its daemon that is.
void PeersImpl::Learn(Peer& peer, const SocketAddress& address, uint64_t instance) {
  if (peer.instance != instance) {
    if (peer.instance != 0) by_instance.erase({peer.instance, peer.lane});
    peer.instance = instance;
    by_instance[{instance, peer.lane}] = peer.id;
  }
  if (address.port == 0) return;
  const Peer* other = FindAddress(address, peer.lane);
  const bool room = other != nullptr || by_address.size() < 4 * settings.max_peers;
  if (room && (other == nullptr || !other->path.up())) by_address[{address, peer.lane}] = peer.id;
  peer.dial.SetKnownAddress(address);
  if (peer.can_dial) return;
  peer.can_dial = true;
  peer.dial.SetWhere({address.IpText(), address.port});
}

bool PeersImpl::Allowed(const SocketAddress& address) const {
  return std::ranges::any_of(settings.allow,
                             [&](const Network& network) { return network.Contains(address); });
}

// --- paths ---

void PeersImpl::Commit(Peer& peer, const SessionParameters& session) {
  peer.path.OnUp(session, ++arrivals);
  peer.up_since_ns = loop.clock().NowNs();
  peer.name = session.peer_name;
}

void PeersImpl::HandOver(Peer& peer, Fd connection, const SessionParameters& session) {
  ++counters.paths;
  if (session.resumed) ++counters.resumed;
  LogInfo("peer path up", {{"peer", peer.dial.where().Text()},
                           {"name", peer.name},
                           {"lane", peer.lane},
                           {"epoch", session.path_epoch},
                           {"resumed", session.resumed}});
  Tell(peer.io_thread,
       io::PathUp{.peer = peer.id, .connection = std::move(connection), .session = session});
}

void PeersImpl::OnPathLost(const io::PathLost& lost) {
  const auto found = peers.find(lost.peer);
  if (found == peers.end()) {
    // Within the host nothing fails but by our own fault: begin anew. Both ends tell of it.
    if (!stopped && self && lost.session == self_session) {
      LogError("the path within this host was lost", {{"reason", lost.reason}});
      LinkSelf();
    }
    return;
  }
  Peer& peer = *found->second;
  if (!peer.path.OnLost(lost.session, lost.path_epoch, lost.session_over)) return;
  LogWarning("peer path lost", {{"peer", peer.dial.where().Text()},
                                {"name", peer.name},
                                {"reason", lost.reason},
                                {"session_over", lost.session_over}});
  Redial(peer);
}

bool PeersImpl::Wanted(const Peer& peer) const {
  return peer.path.session_alive() || loop.clock().NowNs() < peer.wanted_until_ns;
}

void PeersImpl::Redial(Peer& peer) {
  if (stopped || !peer.can_dial || peer.path.up() || !Wanted(peer)) return;
  // A path that never lives long is a failure like any other and must not be hammered at.
  const bool lived = loop.clock().NowNs() - peer.up_since_ns >= settings.backoff_cap_ns;
  if (lived) peer.dial.ResetBackoff();
  peer.dial.Start(lived);
}

bool Peer::OnProven(const handshake::PeerClaims& peer, const SocketAddress&) {
  const Peer* known = all.FindInstance(peer.instance, lane);
  return known == nullptr || known == this;
}

// This address is now that of a daemon known by another one.
void Peer::OnYielded() {
  dial.Start(false);
  OnFailed({.text = dial.where().Text() + " is now another daemon, which is connected already"});
}

void Peer::OnConnected(Fd connection, const SessionParameters& session,
                       const handshake::PeerClaims& peer, const SocketAddress& address) {
  ++all.counters.dials;
  if (!path.Fits(session))
    return dial.Start(false);  // Ended here meanwhile: closed, and dialled anew.
  all.Learn(*this, address, peer.instance);
  all.Commit(*this, session);
  all.HandOver(*this, std::move(connection), session);
}

void Peer::OnFailed(const DialError& error) {
  ++all.counters.dials;
  if (!error.duplicate) {
    ++all.counters.failed_dials;
    LogWarning("peer not reached", {{"peer", dial.where().Text()}, {"reason", error.text}});
    all.Tell(io_thread, io::PathFailed{.peer = id,
                                       .definite = error.definite,
                                       .error = ToErrno(error.code),
                                       .reason = error.text});
  }
  if (!all.Wanted(*this)) dial.Stop();
}

// --- looking ---

std::vector<PeerSnapshot> PeersImpl::Snapshot() const {
  std::vector<PeerSnapshot> rows;
  const uint64_t now_ns = loop.clock().NowNs();
  const auto add = [&](const Dial& dial, uint16_t lane, bool can_dial) -> PeerSnapshot& {
    PeerSnapshot& row = rows.emplace_back();
    row.lane = lane;
    row.address = can_dial ? dial.where().Text() : "";
    row.state = StateText(dial.state());
    row.attempts = dial.attempts();
    row.last_error = dial.last_error();
    row.next_retry_in_ns = dial.next_retry_ns() > now_ns ? dial.next_retry_ns() - now_ns : 0;
    return row;
  };
  for (const auto& [id, peer] : peers) {
    PeerSnapshot& row = add(peer->dial, peer->lane, peer->can_dial);
    row.peer = id;
    row.io_thread = peer->io_thread;
    row.name = peer->name;
    if (peer->path.up()) row.state = "up";
    row.authenticated = settings.handshake.key != nullptr;
    row.instance = peer->instance;
    row.session = peer->path.session();
    row.path_epoch = peer->path.path_epoch();
  }
  for (const auto& [key, target] : targets) add(target->dial, target->lane, true);
  return rows;
}

}  // namespace sluice::control
