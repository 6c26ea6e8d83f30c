// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sluice::rpc {

// Whether a server takes one more request: so many run at a time, so many wait, and the next one is
// told at once that there is no room, rather than late that there was none.
// Invariant: running <= max_running and waiting <= max_waiting, or a limit was just lowered;
// nothing waits while there is room to run. Thread: its server's. Allocates: never.
class Admission {
 public:
  enum class Verdict { kRun, kWait, kOverloaded };

  Admission(uint32_t max_running, uint32_t max_waiting)
      : max_running_(max_running), max_waiting_(max_waiting) {}

  Verdict OnArrival() {
    if (running_ < max_running_ && waiting_ == 0) return ++running_, Verdict::kRun;
    if (waiting_ < max_waiting_) return ++waiting_, Verdict::kWait;
    return Verdict::kOverloaded;
  }
  void OnFinished() { --running_; }   // One that ran.
  void OnLeftQueue() { --waiting_; }  // One that waited was given up.
  bool StartNext() {                  // True: take the first that waits and run it.
    if (waiting_ == 0 || running_ >= max_running_) return false;
    --waiting_;
    ++running_;
    return true;
  }
  void Resize(uint32_t max_running, uint32_t max_waiting) {
    max_running_ = max_running;
    max_waiting_ = max_waiting;
  }

  uint32_t running() const { return running_; }
  uint32_t waiting() const { return waiting_; }

 private:
  uint32_t max_running_;
  uint32_t max_waiting_;
  uint32_t running_ = 0;
  uint32_t waiting_ = 0;
};

}  // namespace sluice::rpc
