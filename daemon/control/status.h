// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/io/messages.h"

// One picture of the whole daemon, for sluicectl, /metrics, the status page and the watchdog. Plain
// values: whoever owns a part fills in its struct.
namespace sluice::control {

struct DaemonStatus {
  std::string name = {};
  std::string version = {};
  uint64_t instance = 0;
  int32_t process_id = 0;
  uint64_t uptime_ns = 0;
  std::string config_path = {};  // Empty: defaults only.
  std::string peer_auth = {};    // "key" or "none".
  std::vector<std::string> peer_listen = {};
  std::string idle = {};
  bool ready = false;     // Takes clients and peers.
  bool draining = false;  // Ends once what is in flight is over.
};

struct ClientStatus {
  io::ClientId client = 0;
  std::string name = {};  // As it calls itself: never an identity.
  std::string tenant = {};
  uint32_t uid = 0;
  uint32_t gid = 0;
  int32_t process_id = 0;    // For display.
  uint64_t attached_ns = 0;  // How long ago.
  uint32_t channels = 0;
  uint32_t sockets = 0;
  uint32_t listeners = 0;
  uint64_t pool_bytes = 0;  // Extents.
  uint64_t pool_quota_bytes = 0;
  uint64_t send_block_bytes = 0;     // Blocks the client allocates from.
  uint64_t receive_block_bytes = 0;  // Blocks lent to the I/O threads.
};

struct PeerStatus {
  PeerId peer = 0;
  std::string name = {};   // "host:port".
  std::string state = {};  // "resolving", "dialling", "handshake", "up", "waiting", "refused".
  uint32_t io_thread = 0;
  uint64_t instance = 0;  // Of the peer's daemon; 0 before the first handshake.
  bool authenticated = false;
  uint64_t attempts = 0;        // To reach it, in all.
  uint64_t next_dial_ns = 0;    // From now; 0: none is due.
  std::string last_error = {};  // Of the last attempt; empty after a success.
};

// The RDMA device, or why there is none.
struct DeviceStatus {
  std::string state = {};   // "off", "none", "opening", "up", "leaving".
  std::string name = {};    // Empty: none.
  std::string reason = {};  // Why there is none.
  std::vector<std::string> notes = {};
  std::vector<std::pair<std::string, uint64_t>> counters = {};
  uint64_t opened = 0;              // Times it was opened.
  uint64_t pause_frames_per_s = 0;  // Received, in the last second.
  uint64_t pause_storms = 0;
};

// A figure of any part of the control thread. The set of labels must be bounded.
struct NamedNumber {
  std::string name = {};  // As in /metrics without its prefix: "attaches_refused_total".
  std::string help = {};
  std::vector<std::pair<std::string, std::string>> labels = {};
  double value = 0;
  bool counter = true;  // Only grows; else a gauge.
};

struct ThreadStatus {
  uint32_t io_thread = 0;
  bool answered = false;   // Within the deadline; else `snapshot` is the last one it gave.
  uint64_t silent_ns = 0;  // Since its last answer.
  io::ThreadSnapshot snapshot = {};
};

struct NodeStatus {
  DaemonStatus daemon;
  std::vector<ThreadStatus> threads = {};
  std::vector<ClientStatus> clients = {};
  std::vector<PeerStatus> peers = {};
  DeviceStatus device = {};
  std::vector<NamedNumber> numbers = {};

  bool AllThreadsAnswered() const { return std::ranges::all_of(threads, &ThreadStatus::answered); }
};

// Sums over the whole node, of the peers known now.
struct NodeTotals {
  uint64_t engines_up = 0, sockets = 0, loops = 0;
  uint64_t sent_messages = 0, sent_bytes = 0, received_messages = 0, received_bytes = 0;
  uint64_t ok = 0, failed = 0, unknown = 0;  // Operations.
};

inline NodeTotals TotalsOf(const NodeStatus& status) {
  NodeTotals totals;
  for (const ThreadStatus& thread : status.threads) {
    totals.sockets += thread.snapshot.sockets.size();
    totals.loops += thread.snapshot.loops;
    for (const io::EngineSnapshot& engine : thread.snapshot.engines) {
      totals.engines_up += engine.state == "up" ? 1 : 0;
      totals.sent_messages += engine.sent_messages;
      totals.sent_bytes += engine.sent_bytes;
      totals.received_messages += engine.received_messages;
      totals.received_bytes += engine.received_bytes;
      totals.ok += engine.operations_ok;
      totals.failed += engine.operations_failed;
      totals.unknown += engine.operations_unknown;
    }
  }
  return totals;
}

// Where the picture comes from. Thread: control.
class StatusSource {
 public:
  using Callback = std::function<void(const NodeStatus&)>;

  virtual ~StatusSource() = default;

  // Calls `done` exactly once on the control thread, within a bounded time whatever hangs.
  virtual void Collect(Callback done) = 0;
};

}  // namespace sluice::control
