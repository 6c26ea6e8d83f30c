// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "daemon/sched/send_budget.h"
#include "shm_proto/base/check.h"

namespace sluice {

// Which bytes of one engine are posted and not yet done, as its transport reports
// (ByteExpress 6.3). Invariant: in_flight_bytes_ <= window_bytes_, or the window was just lowered
// and nothing has been posted since. Thread: its engine's. Allocates: never.
class SendWindow {
 public:
  // `budget`: what it shares with others; null: nothing.
  explicit SendWindow(uint64_t window_bytes, SendBudget* budget = nullptr)
      : window_bytes_(window_bytes), budget_(budget) {}

  // Bytes that may be posted now.
  uint64_t Available() const {
    const uint64_t own = in_flight_bytes_ < window_bytes_ ? window_bytes_ - in_flight_bytes_ : 0;
    return budget_ == nullptr ? own : std::min(own, budget_->Available(in_flight_bytes_));
  }

  // Requires bytes <= Available().
  void OnPosted(uint64_t bytes) {
    SLUICE_CHECK(bytes <= Available(), "nothing is posted beyond the send window");
    in_flight_bytes_ += bytes;
    if (budget_ != nullptr) budget_->OnPosted(bytes);
  }

  void OnDone(uint64_t bytes) {
    SLUICE_CHECK(bytes <= in_flight_bytes_, "a transport completes what was posted, once");
    in_flight_bytes_ -= bytes;
    if (budget_ != nullptr) budget_->OnDone(bytes);
  }

  // Live; never drops what is in flight.
  void Resize(uint64_t window_bytes) { window_bytes_ = window_bytes; }

  // A fragment never exceeds the window, so that any window makes progress.
  uint64_t EffectiveFragment(uint64_t fragment_bytes) const {
    const uint64_t fragment = std::min(fragment_bytes, window_bytes_);
    return budget_ == nullptr ? fragment : std::min(fragment, budget_->Share());
  }

  uint64_t in_flight_bytes() const { return in_flight_bytes_; }
  uint64_t window_bytes() const { return window_bytes_; }

 private:
  uint64_t window_bytes_;
  uint64_t in_flight_bytes_ = 0;
  SendBudget* budget_;
};

}  // namespace sluice
