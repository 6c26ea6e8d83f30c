// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "p4_scheduler/switch/snapshot.h"
#include "shm_proto/base/clock.h"
#include "shm_proto/base/result.h"

struct mg_connection;
struct mg_context;

namespace sluice::rain {

// The Prometheus text of a snapshot.
std::string MetricsText(const Snapshot& snapshot);

// /metrics and /healthz over HTTP; nothing can be changed here. Healthy is a switch whose loop has
// published within kPatienceNs. Thread: made and destroyed by one; its own few answer.
// Owns: the web server's threads.
class MetricsServer {
 public:
  static constexpr uint64_t kPatienceNs = 2 * kNsPerSecond;

  // `listen` is "ADDRESS:PORT".
  static Result<std::unique_ptr<MetricsServer>> Start(const std::string& listen,
                                                      const SnapshotBoard& board,
                                                      const Clock& clock);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

 private:
  MetricsServer(const SnapshotBoard& board, const Clock& clock) : board_(board), clock_(clock) {}
  static int OnRequest(mg_connection* connection, void* self);

  const SnapshotBoard& board_;
  const Clock& clock_;
  mg_context* context_ = nullptr;
};

}  // namespace sluice::rain
