// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "daemon/control/acceptor.h"
#include "daemon/control/dial.h"
#include "daemon/control/handshake_socket.h"
#include "daemon/control/peer_path.h"
#include "daemon/control/peers.h"
#include "daemon/control/resolver.h"

// The inside of Peers; included by peers*.cc only.
namespace sluice::control {

class PeersImpl;

// One peer daemon and lane that has proven itself at least once.
struct Peer final : Dial::Owner {
  Peer(PeersImpl& all, const DialContext& context, uint64_t local_instance, PeerId id,
       uint32_t io_thread, uint16_t lane, const HostPort& where);

  handshake::Wish MakeWish() override { return path.MakeWish(lane); }
  bool OnResolved(const std::vector<SocketAddress>&) override { return true; }
  bool OnProven(const handshake::PeerClaims& peer, const SocketAddress& address) override;
  void OnYielded() override;
  void OnConnected(Fd connection, const SessionParameters& session,
                   const handshake::PeerClaims& peer, const SocketAddress& address) override;
  void OnFailed(const DialError& error) override;

  PeersImpl& all;
  const PeerId id;
  const uint32_t io_thread;
  const uint16_t lane;
  std::string name;  // As it calls itself.
  PeerPath path;
  Dial dial;
  uint64_t instance = 0;  // Its key in by_instance.
  bool can_dial;          // It listens somewhere.
  uint64_t wanted_until_ns = 0;
  uint64_t up_since_ns = 0;
};

// An address and lane that somebody asked for.
struct Target final : Dial::Owner {
  using Key = std::tuple<HostPort, uint16_t>;  // With the lane.
  struct Waiter {
    uint64_t id;
    PeerDirectory::ResolveCallback done;
    EventLoop::TimerId timer;
  };

  Target(PeersImpl& all, const DialContext& context, const HostPort& where, uint16_t lane);

  handshake::Wish MakeWish() override { return {.lane = lane}; }
  bool OnResolved(const std::vector<SocketAddress>& addresses) override;
  bool OnProven(const handshake::PeerClaims& peer, const SocketAddress& address) override;
  void OnYielded() override;
  void OnConnected(Fd connection, const SessionParameters& session,
                   const handshake::PeerClaims& peer, const SocketAddress& address) override;
  void OnFailed(const DialError& error) override;

  PeersImpl& all;
  const uint16_t lane;
  Dial dial;
  std::list<Waiter> waiters;
  uint64_t wanted_until_ns = 0;
  PeerId found = 0;  // The known peer this turned out to be; valid in OnYielded().
};

// A connection somebody made to us, until its handshake ends.
struct Incoming {
  SocketAddress source;
  uint64_t arrival;
  PeerId granted = 0;  // The peer that its path was granted to, with the path's session and epoch.
  uint64_t session = 0;
  uint32_t path_epoch = 0;
  std::unique_ptr<HandshakeSocket> socket;
};

class PeersImpl {
 public:
  PeersImpl(EventLoop& loop, Random& random, PeersSettings settings, Peers::PostToIo post);
  ~PeersImpl();

  // peers.cc
  void Stop();
  void OnPathLost(const io::PathLost& lost);
  std::vector<PeerSnapshot> Snapshot() const;
  Peer* FindInstance(uint64_t instance, uint16_t lane);
  Peer* FindAddress(const SocketAddress& address, uint16_t lane);
  Peer* MakePeer(uint16_t lane, const HostPort& where);  // Null: too many.
  Peer* ReusePeer(uint16_t lane, const HostPort& where);
  void Learn(Peer& peer, const SocketAddress& address, uint64_t instance);
  void Commit(Peer& peer, const SessionParameters& session);
  void HandOver(Peer& peer, Fd connection, const SessionParameters& session);
  void Redial(Peer& peer);
  bool Wanted(const Peer& peer) const;
  bool Allowed(const SocketAddress& address) const;
  void Tell(uint32_t io_thread, io::ToIo message) { post(io_thread, std::move(message)); }

  // peers_resolve.cc
  void Resolve(std::string_view host, uint16_t port, PeerDirectory::ResolveCallback done);
  void AnswerWaiters(Target& target, const Result<PeerRef>& answer);
  void OnWaiterTimeout(const Target::Key& key, uint64_t id);
  void EndTarget(Target& target, const Result<PeerRef>& answer);  // Destroys it.
  bool MakeRoomForTarget();
  // What a daemon that looks for itself gets: a peer inside it, made when first asked for.
  Result<PeerRef> SelfAnswer(const HostPort& where);
  void LinkSelf();

  // peers_accept.cc
  Result<> Listen();
  Result<> ListenOn(const SocketAddress& address);
  void OnAccept(Fd connection);
  void RefuseAtOnce(int connection, handshake::RefuseReason reason, const std::string& text);
  bool MakeRoomForIncoming(const SocketAddress& source);  // False: this source has its share.
  void OnIncomingDecide(uint64_t id);
  void OnIncomingEnded(uint64_t id);
  Peer* PeerOf(const handshake::PeerClaims& claims, const SocketAddress& address);
  bool DialsTo(const Peer* peer, const handshake::PeerClaims& claims,
               const SocketAddress& address) const;
  void StopDialsTo(Peer& peer, const SocketAddress& address);

  EventLoop& loop;
  Random& random;
  PeersSettings settings;
  Peers::PostToIo post;
  Resolver resolver;
  DialContext context;
  PeerCounters counters;
  bool stopped = false;
  uint64_t arrivals = 0;  // Orders accepted connections and paths; see PeerPath.
  PeerId next_peer = 1;
  std::optional<PeerRef> self;
  std::string self_name;
  uint64_t self_session = 0;
  uint32_t next_io_thread = 0;
  uint32_t next_lane = 0;

  std::map<PeerId, std::unique_ptr<Peer>> peers;
  std::map<std::pair<uint64_t, uint16_t>, PeerId> by_instance;
  std::map<std::pair<SocketAddress, uint16_t>, PeerId> by_address;
  std::map<Target::Key, PeerId>
      by_name;  // What a name meant last, for when the name service is away.
  std::map<Target::Key, std::unique_ptr<Target>> targets;
  size_t waiters = 0;
  uint64_t next_waiter = 1;

  std::vector<std::unique_ptr<Acceptor>> acceptors;
  std::map<uint64_t, Incoming> incoming;  // By arrival: the oldest first.
};

}  // namespace sluice::control
