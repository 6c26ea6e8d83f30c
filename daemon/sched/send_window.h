// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "shm_proto/base/check.h"

namespace sluice {

// Which bytes of one engine are posted and not yet done, as its transport reports
// (ByteExpress 6.3). Invariant: in_flight_bytes_ <= window_bytes_, or the window was just lowered
// and nothing has been posted since. Thread: its engine's. Allocates: never.
class SendWindow {
 public:
  explicit SendWindow(uint64_t window_bytes) : window_bytes_(window_bytes) {}

  // Bytes that may be posted now.
  uint64_t Available() const {
    return in_flight_bytes_ < window_bytes_ ? window_bytes_ - in_flight_bytes_ : 0;
  }

  // Requires bytes <= Available().
  void OnPosted(uint64_t bytes) {
    SLUICE_CHECK(bytes <= Available(), "nothing is posted beyond the send window");
    in_flight_bytes_ += bytes;
  }

  void OnDone(uint64_t bytes) {
    SLUICE_CHECK(bytes <= in_flight_bytes_, "a transport completes what was posted, once");
    in_flight_bytes_ -= bytes;
  }

  // Live; never drops what is in flight.
  void Resize(uint64_t window_bytes) { window_bytes_ = window_bytes; }

  // A fragment never exceeds the window, so that any window makes progress.
  uint64_t EffectiveFragment(uint64_t fragment_bytes) const {
    return std::min(fragment_bytes, window_bytes_);
  }

  uint64_t in_flight_bytes() const { return in_flight_bytes_; }
  uint64_t window_bytes() const { return window_bytes_; }

 private:
  uint64_t window_bytes_;
  uint64_t in_flight_bytes_ = 0;
};

}  // namespace sluice
