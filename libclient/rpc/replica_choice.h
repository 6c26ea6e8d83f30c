// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>

// Which of a shard's replicas gets a request. Pure functions.
namespace sluice::rpc {

// How far apart two domains are: "dc/pod/mini-pod" and the like, from the widest to the narrowest.
// 0: the same; otherwise how many levels lie below the last one that they share.
inline uint32_t DomainDistance(std::string_view a, std::string_view b) {
  const auto levels = [](std::string_view text) {
    return text.empty() ? 0u : 1u + static_cast<uint32_t>(std::ranges::count(text, '/'));
  };
  uint32_t shared = 0;
  const uint32_t deepest = std::max(levels(a), levels(b));
  while (!a.empty() && !b.empty() && a.substr(0, a.find('/')) == b.substr(0, b.find('/'))) {
    ++shared;
    a.remove_prefix(std::min(a.size(), a.substr(0, a.find('/')).size() + 1));
    b.remove_prefix(std::min(b.size(), b.substr(0, b.find('/')).size() + 1));
  }
  return deepest - shared;
}

// One replica, as the choice sees it.
struct Candidate {
  uint32_t distance = 0;
  uint32_t outstanding = 0;
  double load_share = 1;  // 0: in quarantine.
  bool doubted = false;   // Its last requests failed.
  bool degraded = false;  // Its path is TCP although RDMA is configured.
  bool tried = false;     // By this very call.
  bool usable = true;     // False: never, for this call.
};

// The best candidate: one not tried yet; not in quarantine, unless more than panic_share of all
// are, for then the fault is likely to be elsewhere and all of them count; not doubted; not
// degraded, even if farther; near; with few requests outstanding. A returning one is passed over as
// often as its load share says. nullopt: none is usable. random: from [0, 1).
inline std::optional<size_t> Choose(std::span<const Candidate> candidates, double panic_share,
                                    double random) {
  const auto excluded = std::ranges::count_if(
      candidates, [](const Candidate& one) { return one.load_share == 0; });
  const bool panic = static_cast<double>(excluded) >
                     panic_share * static_cast<double>(candidates.size());
  const auto rank = [&](const Candidate& one) {
    const bool passed_over = panic ? false : random >= one.load_share;
    return std::tuple(one.tried, passed_over, one.doubted, one.degraded, one.distance,
                      one.outstanding);
  };
  // Equals share the load: the search begins somewhere else each time.
  const auto start = static_cast<size_t>(random * static_cast<double>(candidates.size()));
  std::optional<size_t> best;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const size_t at = (start + i) % candidates.size();
    if (!candidates[at].usable) continue;
    if (!best || rank(candidates[at]) < rank(candidates[*best])) best = at;
  }
  return best;
}

}  // namespace sluice::rpc
