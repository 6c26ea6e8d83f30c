// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

// What two daemons agree on before an engine may use a connection, and the settings an engine runs
// with.
namespace sluice {

// The control thread's number for one peer daemon and lane; never reused in one run of the daemon.
using PeerId = uint32_t;

// Features of the handshake, one bit each.
constexpr uint32_t kFeatureFabric = 1;  // Speaks of a second path (fabric_path.cc).

// What the handshake settled. A session is both daemons' instance ids and a number; sockets die
// with it.
struct SessionParameters {
  uint64_t local_instance = 0;
  uint64_t peer_instance = 0;
  uint64_t session = 0;              // Never 0.
  uint32_t path_epoch = 0;           // Rises with every path of one session; 1 for its first.
  bool resumed = false;              // The session existed before this path.
  uint16_t version = 0;              // Of the wire protocol.
  uint32_t features = 0;             // Both ends have them.
  uint32_t peer_receive_depth = 0;   // Receives the peer has posted at the start: our credits.
  uint32_t peer_receive_bytes = 0;   // Size of each: our longest SEND.
  uint32_t peer_message_window = 0;  // Messages per socket the peer takes before it must have
                                     // delivered one.
  std::string peer_name;             // For display.
};

// What we tell the peer about ourselves in the handshake; fixed for the life of the daemon.
struct LocalLimits {
  uint32_t send_queue_depth = 64;
  uint32_t receive_depth = 64;
  uint32_t receive_bytes = 16 * 1024;
  uint32_t message_window = 64;
};

// Everything that may change while connections are up. One immutable copy per thread, replaced as a
// whole.
struct Tunables {
  uint64_t send_window_bytes = 1024 * 1024;
  uint64_t thread_window_bytes = UINT64_MAX;  // Of all engines of one I/O thread together.
  uint32_t fragment_bytes = 64 * 1024;
  uint32_t credit_batch = 0;  // Receives consumed before credits go back; 0: half the depth (the
                              // paper's d/2).
  uint64_t ack_delay_ns = 100'000;
  uint64_t keepalive_interval_ns = 1'000'000'000;
  uint64_t keepalive_timeout_ns = 5'000'000'000;  // At least three intervals.
  uint64_t connect_timeout_ns = 5'000'000'000;
  uint64_t fabric_settle_ns = 1'000'000'000;  // On TCP after the fabric failed, before it is tried
                                              // again; longer when it keeps failing.
  uint32_t landing_ahead = 8;  // Landing buffers granted ahead to a socket that receives large
                               // messages; 0: never.
};

}  // namespace sluice
