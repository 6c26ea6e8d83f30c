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
  RetryBudget(double share, uint32_t reserve) { Resize(share, reserve); }

  void OnRequest() { parts_ = std::min(parts_ + share_parts_, limit_parts_); }

  // False: not allowed now; nothing was taken.
  bool Take() {
    if (parts_ < kPartsPerToken) return false;
    parts_ -= kPartsPerToken;
    return true;
  }

  // What was taken has put no load on anybody after all.
  void Return() { parts_ = std::min(parts_ + kPartsPerToken, limit_parts_); }

  // Live. A larger reserve is there at once; what was saved above a smaller one is gone.
  void Resize(double share, uint32_t reserve) {
    share_parts_ = static_cast<uint64_t>(std::clamp(share, 0.0, 1.0) * kPartsPerToken);
    const uint64_t former_parts = limit_parts_;
    // A share above 0 needs room to add up to a token.
    limit_parts_ = std::max<uint64_t>(reserve, share_parts_ > 0 ? 1 : 0) * kPartsPerToken;
    if (limit_parts_ > former_parts) parts_ += limit_parts_ - former_parts;
    parts_ = std::min(parts_, limit_parts_);
  }

 private:
  static constexpr uint64_t kPartsPerToken = 1'000'000;

  uint64_t share_parts_ = 0;
  uint64_t limit_parts_ = 0;
  uint64_t parts_ = 0;
};

}  // namespace sluice::rpc
