// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "daemon/control/event_loop.h"
#include "daemon/control/status.h"
#include "shm_proto/counters_file.h"

namespace sluice::control {

// Keeps the counters file, which is read when the daemon hangs or is dead: a heartbeat every
// second, figures every kCollectEvery-th, and whatever is logged as it happens. Invariant: while it
// lives it is the log's observer. Thread: control; the log calls in from any thread, one at a time.
// Owns: the file's mapping.
class FlightRecorder {
 public:
  static constexpr uint64_t kBeatNs = kNsPerSecond;
  static constexpr uint32_t kCollectEvery = 5;

  // `mode` is the file's, as in chmod.
  static Result<std::unique_ptr<FlightRecorder>> Start(EventLoop& loop, StatusSource& status,
                                                       const std::string& path, uint32_t mode,
                                                       uint64_t instance);
  ~FlightRecorder();  // A clean end: readers are told so.
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

 private:
  FlightRecorder(EventLoop& loop, StatusSource& status, CountersWriter writer);
  void Beat();
  void Record(const NodeStatus& status);

  EventLoop& loop_;
  StatusSource& status_;
  CountersWriter writer_;
  EventLoop::TimerId timer_ = 0;
  uint32_t beats_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace sluice::control
