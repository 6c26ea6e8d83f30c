// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "daemon/control/log.h"
#include "daemon/control/peers_impl.h"

// Addresses somebody asked for, until a daemon has answered there.
namespace sluice::control {
namespace {

constexpr size_t kMaxHostBytes = 255;

PeerRef RefOf(const Peer& peer) { return {peer.id, peer.io_thread}; }

bool IsHostName(std::string_view host) {
  return !host.empty() && host.size() <= kMaxHostBytes &&
         std::ranges::all_of(host, [](char c) { return c > 0x20 && c < 0x7f; });
}

std::string Lower(std::string_view host) {
  std::string lower(host);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

}  // namespace

Target::Target(PeersImpl& peers, const DialContext& context, const HostPort& where,
               uint16_t lane_number)
    : all(peers), lane(lane_number), dial(context, *this, where) {}

void PeersImpl::Resolve(std::string_view host, uint16_t port, PeerDirectory::ResolveCallback done) {
  if (stopped) return done(Fail(ErrorCode::kClosed, "the daemon is stopping"));
  if (!IsHostName(host))
    return done(Fail(ErrorCode::kInvalid, "a host is a name or a numeric address, without spaces"));
  const HostPort where{Lower(host), port != 0 ? port : settings.default_port};
  const auto lane = static_cast<uint16_t>(next_lane++ % settings.lanes);
  const uint64_t wanted_until_ns = loop.clock().NowNs() + settings.wanted_ns;
  if (const auto literal = SocketAddress::Parse(where.host, where.port)) {
    if (!Allowed(*literal)) {
      return done(Fail(ErrorCode::kPermission,
                       literal->Text() + " is outside the networks that peer.allow names"));
    }
    if (Peer* peer = FindAddress(*literal, lane)) {
      peer->wanted_until_ns = wanted_until_ns;
      Redial(*peer);
      return done(RefOf(*peer));
    }
  }
  const Target::Key key{where, lane};
  auto found = targets.find(key);
  if (waiters >= settings.max_waiters || (found == targets.end() && !MakeRoomForTarget())) {
    return done(Fail(ErrorCode::kNoMemory, "too many peers are being looked for; try again later"));
  }
  if (found == targets.end()) {
    found = targets.emplace(key, std::make_unique<Target>(*this, context, where, lane)).first;
    found->second->dial.Start(true);
  }
  Target& target = *found->second;
  target.wanted_until_ns = wanted_until_ns;
  const uint64_t id = next_waiter++;
  const auto timer = loop.After(settings.resolve_timeout_ns,
                                [this, key, id] { OnWaiterTimeout(key, id); });
  target.waiters.push_back({id, std::move(done), timer});
  ++waiters;
}

// One that nobody waits for any more makes room.
bool PeersImpl::MakeRoomForTarget() {
  if (targets.size() < settings.max_targets) return true;
  const auto idle = std::ranges::find_if(
      targets, [](const auto& entry) { return entry.second->waiters.empty(); });
  if (idle == targets.end()) return false;
  targets.erase(idle);
  return true;
}

void PeersImpl::OnWaiterTimeout(const Target::Key& key, uint64_t id) {
  const auto found = targets.find(key);
  if (found == targets.end()) return;
  Target& target = *found->second;
  const auto waiter = std::ranges::find(target.waiters, id, &Target::Waiter::id);
  if (waiter == target.waiters.end()) return;
  const auto done = std::move(waiter->done);
  target.waiters.erase(waiter);
  --waiters;
  std::string text = "no daemon answered at " + target.dial.where().Text() + " in time";
  if (!target.dial.last_error().empty()) text += "; last: " + target.dial.last_error();
  done(Fail(ErrorCode::kTimeout, text));
}

void PeersImpl::AnswerWaiters(Target& target, const Result<PeerRef>& answer) {
  const auto answered = std::move(target.waiters);
  target.waiters.clear();
  waiters -= answered.size();
  for (const Target::Waiter& waiter : answered) loop.Cancel(waiter.timer);
  for (const Target::Waiter& waiter : answered) waiter.done(answer);
}

void PeersImpl::EndTarget(Target& target, const Result<PeerRef>& answer) {
  const Target::Key key{target.dial.where(), target.lane};
  const std::unique_ptr<Target> ended = std::move(targets.at(key));
  targets.erase(key);  // Before anybody is told, who may ask for the same again.
  ended->dial.Stop();
  if (const auto peer = answer ? peers.find(answer->peer) : peers.end(); peer != peers.end()) {
    peer->second->wanted_until_ns = std::max(peer->second->wanted_until_ns, ended->wanted_until_ns);
    if (by_name.contains(key) || by_name.size() < settings.max_peers) by_name[key] = answer->peer;
    Redial(*peer->second);
  }
  AnswerWaiters(*ended, answer);
}

Result<PeerRef> PeersImpl::SelfAnswer(const HostPort& where) {
  if (!self) {
    self = PeerRef{next_peer, 0};
    next_peer += 2;
    self_name = where.Text();
    LinkSelf();
  }
  return *self;
}

void PeersImpl::LinkSelf() {
  self_session = random.Next() | 1;
  Tell(0, io::LinkSelf{self->peer, self->peer + 1, self_name, self_session});
}

bool Target::OnResolved(const std::vector<SocketAddress>& addresses) {
  for (const SocketAddress& address : addresses) {
    const Peer* peer = all.FindAddress(address, lane);
    if (peer == nullptr) continue;
    found = peer->id;
    return false;
  }
  return true;
}

// A daemon that is known by another address keeps its one engine; a path to it is that engine's
// business.
bool Target::OnProven(const handshake::PeerClaims& claims, const SocketAddress& address) {
  Peer* peer = all.FindInstance(claims.instance, lane);
  if (peer == nullptr) return true;
  all.Learn(*peer, address, claims.instance);
  found = peer->id;
  return false;
}

void Target::OnYielded() { all.EndTarget(*this, RefOf(*all.peers.at(found))); }

void Target::OnConnected(Fd connection, const SessionParameters& session,
                         const handshake::PeerClaims& claims, const SocketAddress& address) {
  ++all.counters.dials;
  if (const Peer* known = all.FindInstance(claims.instance, lane)) {
    return all.EndTarget(*this, RefOf(*known));  // It came by itself a moment ago.
  }
  Peer* peer = all.MakePeer(lane, dial.where());
  if (peer == nullptr) {
    return all.EndTarget(*this, Fail(ErrorCode::kNoMemory,
                                     "this daemon has as many peers as it can; see max_peers"));
  }
  all.Learn(*peer, address, claims.instance);
  all.Commit(*peer, session);
  all.HandOver(*peer, std::move(connection), session);
  all.EndTarget(*this, RefOf(*peer));
}

void Target::OnFailed(const DialError& error) {
  ++all.counters.dials;
  if (error.duplicate) return;  // The peer's own connection is on its way.
  if (error.self) return all.EndTarget(*this, all.SelfAnswer(dial.where()));
  ++all.counters.failed_dials;
  if (error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kTimeout) {
    // The name service may be away; what the name meant last still holds then.
    const auto known = all.by_name.find({dial.where(), lane});
    if (known != all.by_name.end())
      return all.EndTarget(*this, RefOf(*all.peers.at(known->second)));
  }
  if (error.code == ErrorCode::kNotFound) {
    return all.EndTarget(*this, std::unexpected(Error{error.code, error.text}));
  }
  LogWarning("peer not reached", {{"peer", dial.where().Text()}, {"reason", error.text}});
  const bool wanted = !waiters.empty() || all.loop.clock().NowNs() < wanted_until_ns;
  if (!wanted) return all.EndTarget(*this, std::unexpected(Error{error.code, error.text}));
  if (error.definite) all.AnswerWaiters(*this, std::unexpected(Error{error.code, error.text}));
}

}  // namespace sluice::control
