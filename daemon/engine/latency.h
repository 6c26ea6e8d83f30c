// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace sluice {

// How long things took, in buckets whose bounds double from 8.2 us to 8.6 s; the last one has no
// upper bound. Thread: its owner's. Allocates: never.
struct LatencyCounts {
  static constexpr size_t kBuckets = 22;
  static constexpr int kFirstShift = 13;  // Bucket 0 reaches up to 2^13 ns.

  std::array<uint64_t, kBuckets> counts{};
  uint64_t sum_ns = 0;

  // Of the buckets but the last; inclusive.
  static constexpr uint64_t UpperBoundNs(size_t bucket) {
    return uint64_t{1} << (kFirstShift + bucket);
  }

  void Add(uint64_t took_ns) {
    const uint64_t above = took_ns == 0 ? 0 : (took_ns - 1) >> kFirstShift;
    ++counts[std::min<size_t>(static_cast<size_t>(std::bit_width(above)), kBuckets - 1)];
    sum_ns += took_ns;
  }

  void Add(const LatencyCounts& others) {
    for (size_t i = 0; i < kBuckets; ++i) counts[i] += others.counts[i];
    sum_ns += others.sum_ns;
  }
};

}  // namespace sluice
