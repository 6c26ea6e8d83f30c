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

  void Resize(uint64_t limit_bytes) {
    limit_bytes_ = limit_bytes;
    SetSharers(1);
  }
  bool bounded() const { return limit_bytes_ != kUnbounded; }

  // How many engines have something to send, now. Divides, so that no message has to.
  void SetSharers(uint64_t engines) {
    share_bytes_ = std::max<uint64_t>(limit_bytes_ / std::max<uint64_t>(engines, 1), 1);
  }

  // Never 0, so that any limit makes progress.
  uint64_t Share() const { return share_bytes_; }

  // What an engine that has `own_bytes` posted may post now.
  uint64_t Available(uint64_t own_bytes) const {
    if (own_bytes >= share_bytes_ || in_flight_bytes_ >= limit_bytes_) return 0;
    return std::min(share_bytes_ - own_bytes, limit_bytes_ - in_flight_bytes_);
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
  uint64_t share_bytes_ = kUnbounded;
  uint64_t in_flight_bytes_ = 0;
};

}  // namespace sluice
