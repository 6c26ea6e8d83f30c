// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::rpc {

// How many requests may be sent again, or twice at once: a bucket that every first request fills by
// a share of a token and every further attempt empties by one. A fault that hits everything
// therefore raises the load by that share and no more.
// Invariant: further attempts <= reserve + share x requests, whatever the order.
// Thread: its channel's. Allocates: never.
class RetryBudget {
 public:
  // share: further attempts per request, 0 to 1. reserve: how many a quiet channel may make at
  // once.
  RetryBudget(double share, uint32_t reserve) { Resize(share, reserve), parts_ = limit_parts_; }

  void OnRequest() { parts_ = std::min(parts_ + share_parts_, limit_parts_); }

  // False: not allowed now; nothing was taken.
  bool Take() {
    if (parts_ < kPartsPerToken) return false;
    parts_ -= kPartsPerToken;
    return true;
  }

  // Live; what was saved above the new reserve is gone.
  void Resize(double share, uint32_t reserve) {
    share_parts_ = static_cast<uint64_t>(std::clamp(share, 0.0, 1.0) * kPartsPerToken);
    // A share above 0 needs room to add up to a token.
    limit_parts_ = std::max<uint64_t>(reserve, share_parts_ > 0 ? 1 : 0) * kPartsPerToken;
    parts_ = std::min(parts_, limit_parts_);
  }

 private:
  static constexpr uint64_t kPartsPerToken = 1'000'000;

  uint64_t share_parts_ = 0;
  uint64_t limit_parts_ = 0;
  uint64_t parts_ = 0;
};

}  // namespace sluice::rpc
