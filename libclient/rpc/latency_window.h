// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <utility>

namespace sluice::rpc {

// How long calls have lately taken, to the nearest eighth of a power of two: when a call is slower
// than a percentile of these, a second copy of it is worth sending.
// Invariant: what is asked about is the last kSamples to 2 x kSamples samples.
// Thread: its channel's. Allocates: never.
class LatencyWindow {
 public:
  static constexpr uint32_t kSamples = 1024;
  static constexpr uint32_t kEnoughSamples = 64;  // Below this a percentile means nothing.

  void Add(uint64_t latency_ns) {
    ++current_.buckets[BucketOf(latency_ns)];
    if (++current_.samples == kSamples) former_ = std::exchange(current_, Generation{});
  }

  // The upper edge of the bucket in which the percentile lies; 0 while there are too few samples.
  uint64_t PercentileNs(double percentile) const {
    const uint32_t samples = current_.samples + former_.samples;
    if (samples < kEnoughSamples) return 0;
    auto left = static_cast<uint64_t>(percentile / 100 * samples);
    for (uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
      const uint64_t here = uint64_t{current_.buckets[bucket]} + former_.buckets[bucket];
      if (left < here) return EdgeOf(bucket);
      left -= here;
    }
    return EdgeOf(kBuckets - 1);
  }

 private:
  static constexpr uint32_t kStepBits = 3;
  static constexpr uint32_t kSteps = 1u << kStepBits;
  static constexpr uint32_t kBuckets = 64 * kSteps;

  struct Generation {
    std::array<uint32_t, kBuckets> buckets{};
    uint32_t samples = 0;
  };

  static uint32_t BucketOf(uint64_t ns) {
    if (ns < kSteps) return static_cast<uint32_t>(ns);
    const auto power = static_cast<uint32_t>(std::bit_width(ns)) - 1;  // >= kStepBits
    const auto step = static_cast<uint32_t>(ns >> (power - kStepBits)) & (kSteps - 1);
    return (power - kStepBits + 1) * kSteps + step;
  }
  static uint64_t EdgeOf(uint32_t bucket) {
    if (bucket < kSteps) return bucket;
    const uint32_t shift = bucket / kSteps - 1;
    return ((uint64_t{kSteps} + bucket % kSteps + 1) << shift) - 1;
  }

  Generation current_;
  Generation former_;
};

}  // namespace sluice::rpc
