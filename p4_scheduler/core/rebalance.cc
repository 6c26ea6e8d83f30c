// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "p4_scheduler/core/adaptive.h"

// The controller's part of Algorithm 1, lines 24 to 37.
namespace sluice::rain {
namespace {

// Lines 25 to 27. The mean is rounded down; what remains goes to the first workers, one each, so
// that the slice keeps its sum. Fixed quotas are left alone and do not count.
void Equalise(uint8_t id, const SliceState& slice, std::vector<RebalanceDecision>& decisions) {
  uint64_t sum = 0, workers = 0;
  for (const SliceReport::Worker& worker : slice.workers) {
    if (worker.fixed) continue;
    sum += worker.quota;
    ++workers;
  }
  if (workers == 0) return;
  uint64_t remainder = sum % workers;
  for (const SliceReport::Worker& worker : slice.workers) {
    if (worker.fixed) continue;
    uint64_t quota = sum / workers;
    if (remainder > 0) {
      ++quota;
      --remainder;
    }
    quota = std::max<uint64_t>(quota, 1);
    if (quota == worker.quota) continue;
    decisions.push_back({.kind = RebalanceDecision::Kind::kEqualise,
                         .worker = worker.worker,
                         .from_slice = id,
                         .to_slice = id,
                         .quota = static_cast<uint32_t>(quota),
                         .overloaded = slice.overloaded,
                         .idleness = slice.idleness});
  }
}

}  // namespace

std::vector<RebalanceDecision> Rebalance(const std::map<uint8_t, SliceState>& slices) {
  std::vector<RebalanceDecision> decisions;
  std::set<uint8_t> overloaded, underloaded;
  for (const auto& [id, slice] : slices) {
    if (slice.overloaded > 0 && slice.idleness > 1) {  // Line 24.
      Equalise(id, slice, decisions);                  // Lines 25 to 27.
    } else if (slice.overloaded > 0) {                 // Line 28.
      overloaded.insert(id);                           // Lines 29 and 32.
    } else if (slice.idleness > 1) {                   // Line 30.
      underloaded.insert(id);                          // Lines 31 and 32.
    }
  }
  while (!overloaded.empty() && !underloaded.empty()) {  // Line 33.
    // Line 34; of equals the first, which is the lowest.
    const uint8_t to = *std::ranges::max_element(
        overloaded, {}, [&](uint8_t id) { return slices.at(id).overloaded; });
    const uint8_t from = *std::ranges::max_element(
        underloaded, {}, [&](uint8_t id) { return slices.at(id).idleness; });
    overloaded.erase(to);  // Line 37.
    underloaded.erase(from);
    const SliceState& giver = slices.at(from);
    if (giver.workers.size() < 2) continue;  // Its last worker stays, whatever was reported.
    const auto worker = std::ranges::min_element(giver.workers, {},
                                                 &SliceReport::Worker::quota);  // Line 35.
    decisions.push_back({.kind = RebalanceDecision::Kind::kMove,                // Line 36.
                         .worker = worker->worker,
                         .from_slice = from,
                         .to_slice = to,
                         .quota = 1,
                         .overloaded = slices.at(to).overloaded,
                         .idleness = giver.idleness});
  }
  return decisions;
}

}  // namespace sluice::rain
