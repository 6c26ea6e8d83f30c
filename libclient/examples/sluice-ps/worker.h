// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "endpoint.h"
#include "ledger.h"
#include "operations.h"

namespace sluice_ps {

struct WorkerOptions {
  std::string socket_path;
  std::string name = "sluice-ps worker";
  std::vector<std::string> servers;  // One address a shard, in order.
  double seconds = 10;               // 0: until stopped.
  double drain_seconds = 10;         // How long the last operations may take.
  bool quiet = false;                // No progress lines.
  WorkloadOptions workload;
};

struct Outage {
  double
      at_s = 0;  // Since the start: the last operation that ended OK before a connection was lost.
  double outage_ms = 0;  // From there to the first that ended OK after all connections were back.
};

struct WorkerStats {
  WorkloadStats workload;
  OutcomeCounts sends;
  OutcomeCounts connects;
  uint64_t sends_lost = 0;
  uint64_t connects_lost = 0;
  uint64_t operations_lost = 0;  // Not over when the drain time was.
  uint64_t connections_lost = 0;
  std::vector<Outage> outages;  // The first kMaxOutages.
  double measured_s = 0;
  double cpu_s = 0;
  bool gave_up = false;

  bool Good() const;
};

// A worker: keeps `outstanding` operations under way on one channel with one connection a shard,
// and connects again for ever when one is lost. Invariant: a shard's requests are sent only while
// its link is up, and in order.
class Worker {
 public:
  static constexpr size_t kMaxOutages = 64;

  Worker(Endpoint& endpoint, const WorkerOptions& options);
  ~Worker();

  void Run(const volatile std::sig_atomic_t&
               stop);  // For options.seconds and the drain, or until `stop` and the drain.
  WorkerStats Finish();

  void RunOnce(bool begin_operations, int timeout_ms);  // One turn of Run()'s loop.
  bool AllOver() const { return operations_.outstanding() == 0 && sends_.outstanding() == 0; }
  const Operations& operations() const { return operations_; }

 private:
  enum class LinkState { kDown, kConnecting, kUp, kClosing };
  struct Link {
    LinkState state = LinkState::kDown;
    sluice_socket socket = 0;
    uint64_t connect_token = 0;
    uint64_t retry_at_ns = 0;
    uint64_t backoff_ns = 0;
    void* ready = nullptr;  // The next request, encoded and not yet taken by the library.
    size_t ready_bytes = 0;
  };

  void OnEvent(const sluice_event& event);
  void OnMessage(const sluice_event& event);
  Link* LinkOf(sluice_socket socket);
  uint32_t ShardOf(const Link& link) const { return static_cast<uint32_t>(&link - links_.data()); }
  void Connect(Link& link);
  void OnConnected(Link& link, const sluice_event& event);
  void Close(Link& link);
  void LinkLost(Link& link);
  bool Pump(Link& link);  // False: back-pressure.
  void TrackOutage();
  void PrintProgress();
  int WaitMs(int timeout_ms, bool blocked) const;

  Endpoint& endpoint_;
  WorkerOptions options_;
  Operations operations_;
  std::vector<Link> links_;
  OutcomeLedger sends_;
  OutcomeLedger connects_;
  uint64_t now_ns_;
  uint64_t start_ns_;
  uint64_t stop_ns_ = 0;
  uint64_t all_up_since_ns_ = 0;
  uint64_t disrupted_at_ns_ = 0;  // 0: no outage is under way.
  WorkerStats stats_;
  struct {
    uint64_t at_ns = 0;
    uint64_t fetches = 0;
    uint64_t pushes = 0;
    uint64_t bytes = 0;
  } printed_;
};

}  // namespace sluice_ps
