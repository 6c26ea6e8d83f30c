// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "shm_proto/base/check.h"

namespace sluice {

// What all engines of one I/O thread together may have posted and not yet done. A window per engine
// does not bound that: many peers at once overrun the NIC, or this host's link, all the same.
// Each engine that has something to send may hold an equal share, so that none starves the others.
// Invariant: in_flight_bytes_ <= limit_bytes_, or the limit was just lowered and nothing has been
// posted since. Thread: its I/O thread's. Allocates: never.
class SendBudget {
 public:
  static constexpr uint64_t kUnbounded = UINT64_MAX;

  void Resize(uint64_t limit_bytes) { limit_bytes_ = limit_bytes; }
  // How many engines have something to send, now.
  void SetSharers(uint64_t engines) { sharers_ = std::max<uint64_t>(engines, 1); }

  // Never 0, so that any limit makes progress.
  uint64_t Share() const { return std::max<uint64_t>(limit_bytes_ / sharers_, 1); }

  // What an engine that has `own_bytes` posted may post now.
  uint64_t Available(uint64_t own_bytes) const {
    const uint64_t share = Share();
    if (own_bytes >= share || in_flight_bytes_ >= limit_bytes_) return 0;
    return std::min(share - own_bytes, limit_bytes_ - in_flight_bytes_);
  }

  void OnPosted(uint64_t bytes) { in_flight_bytes_ += bytes; }
  void OnDone(uint64_t bytes) {
    SLUICE_CHECK(bytes <= in_flight_bytes_, "what is done was posted, once");
    in_flight_bytes_ -= bytes;
  }

  uint64_t in_flight_bytes() const { return in_flight_bytes_; }
  uint64_t limit_bytes() const { return limit_bytes_; }

 private:
  uint64_t limit_bytes_ = kUnbounded;
  uint64_t sharers_ = 1;
  uint64_t in_flight_bytes_ = 0;
};

}  // namespace sluice
