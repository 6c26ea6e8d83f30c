// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/control/event_loop.h"
#include "daemon/control/peer_directory.h"
#include "daemon/control/resolver.h"
#include "daemon/control/socket_address.h"
#include "daemon/engine/handshake.h"
#include "daemon/io/messages.h"
#include "shm_proto/base/random.h"
#include "shm_proto/base/result.h"

namespace sluice::control {

struct PeersSettings {
  handshake::Settings handshake;  // Its listen_port is filled in by Listen().
  std::vector<SocketAddress> listen;
  std::vector<Network> allow;  // Who may connect and who may be dialled; empty: nobody.
  uint16_t default_port = 4500;
  uint16_t lanes = 1;
  uint32_t io_threads = 1;
  Resolver::SystemLookup lookup = Resolver::AskSystem;
  uint64_t lookup_timeout_ns = 5 * kNsPerSecond;
  uint64_t connect_timeout_ns = 3 * kNsPerSecond;
  uint64_t handshake_timeout_ns = 5 * kNsPerSecond;
  uint64_t
      resolve_timeout_ns = 5 *
                           kNsPerSecond;  // How long Resolve() waits for a peer nobody has met yet.
  uint64_t backoff_first_ns = 10 * kNsPerMs;
  uint64_t backoff_cap_ns = kNsPerSecond;
  uint64_t
      wanted_ns = 60 *
                  kNsPerSecond;  // After the last Resolve(), without a session, dialling stops.
  size_t max_pending_handshakes = 64;
  size_t max_pending_per_source = 32;
  size_t max_peers = 4'096;
  size_t max_targets = 1'024;
  size_t max_waiters = 16'384;
};

struct PeerCounters {
  uint64_t accepted = 0;           // Connections that passed the allow-list.
  uint64_t refused_network = 0;    // Outside the allow-list.
  uint64_t refused_busy = 0;       // Too many handshakes at once, or too many peers.
  uint64_t refused_duplicate = 0;  // Both ends dialled. Not an error.
  uint64_t failed_incoming = 0;    // Silence, rubbish, wrong key, ...
  uint64_t failed_dials = 0;
  uint64_t dials = 0;
  uint64_t paths = 0;    // Handshakes that ended well, both ways.
  uint64_t resumed = 0;  // Of them: paths of a session that existed before.
};

// What `sluicectl engines` adds to an engine's own figures; peers nobody has met yet have no
// PeerId.
struct PeerSnapshot {
  PeerId peer = 0;  // 0: being looked for.
  uint32_t io_thread = 0;
  uint16_t lane = 0;
  std::string address;  // Where it is dialled, "host:port"; empty: it cannot be dialled.
  std::string name;     // As it calls itself.
  std::string
      state;  // "up", or of the dial: "idle", "waiting", "resolving", "connecting", "handshaking".
  bool authenticated = false;  // The latest path's peer proved the cluster key.
  uint64_t instance = 0;
  uint64_t session = 0;
  uint32_t path_epoch = 0;
  uint64_t attempts = 0;
  std::string last_error;
  uint64_t next_retry_in_ns = 0;  // 0: no retry is due.
};

// How this daemon and others find, prove and connect to each other. Hands finished connections to
// the I/O threads as PathUp, tells them of failures as PathFailed, and dials again whenever a path
// is lost.
//
// A peer is a daemon that has proven itself; it keeps its PeerId over restarts at the same address.
// A target is an address somebody asked for where no known daemon has answered yet; it becomes a
// peer with the first handshake, so strangers and typing errors take up no engine. Peers, targets,
// look-ups and handshakes are bounded in number.
//
// Invariant: one live peer for each (instance, lane), and one PeerId for each address and lane;
// what Decide() of a peer's path granted is what its I/O thread hears of, in that order. Thread:
// control. Owns: the listening sockets, every connection until its PathUp.
class Peers final : public PeerDirectory {
 public:
  using PostToIo = std::function<void(uint32_t io_thread, io::ToIo message)>;

  Peers(EventLoop& loop, Random& random, PeersSettings settings, PostToIo post);
  ~Peers() override;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // Opens the listening sockets. Errors name the address.
  Result<> Listen();
  // Takes no more connections, ends what is on its way, answers every waiting Resolve() with
  // kClosed. Paths that are up belong to their I/O threads. Idempotent.
  void Stop();

  // PeerDirectory. A peer that was met before is answered at once, up or not; else when the first
  // handshake succeeds. Errors beside the interface's: kInvalid the address is this daemon's own;
  // kPermission, kVersion the peer and this daemon do not fit; kUnavailable, kTimeout nobody there,
  // with what the last attempt said.
  void Resolve(std::string_view host, uint16_t port, ResolveCallback done) override;

  void OnPathLost(const io::PathLost& lost);
  void SetResolveTimeout(uint64_t timeout_ns);  // Of calls from now on.

  uint16_t listen_port() const;  // As told to peers; 0: this daemon takes no connections.
  bool authenticated() const;    // False: peer.auth is "none".
  std::vector<PeerSnapshot> Snapshot() const;
  const PeerCounters& counters() const;
  size_t pending_handshakes() const;

 private:
  std::unique_ptr<class PeersImpl> impl_;
};

}  // namespace sluice::control
