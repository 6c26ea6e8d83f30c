// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace sluice::rain {

// Counts of values in buckets: exact below 64, above that at most 1/64 wide. Any number of samples
// costs the same memory, so a worker with tasks of a microsecond needs no more than another.
// Invariant: count() is the sum of all buckets. Thread: one. Allocates: never.
class Histogram {
 public:
  void Add(uint64_t value) {
    ++buckets_[BucketOf(value)];
    ++count_;
  }

  uint64_t count() const { return count_; }
  void Clear() {
    buckets_.fill(0);
    count_ = 0;
  }

  // The least value of the bucket that holds the smallest v such that at least `percent` % of the
  // samples are <= v: never more than what was measured. 0 without samples.
  uint64_t Percentile(uint32_t percent) const {
    if (count_ == 0) return 0;
    uint64_t rank = (count_ * percent + 99) / 100;
    rank = std::max<uint64_t>(rank, 1);
    uint64_t seen = 0;
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      seen += buckets_[bucket];
      if (seen >= rank) return LeastOf(bucket);
    }
    return LeastOf(kBuckets - 1);
  }

 private:
  static constexpr uint32_t kLinearBits = 6;
  static constexpr uint64_t kLinear = 1u << kLinearBits;
  static constexpr uint32_t kOctaves = 36;  // Above 2^42 all values share the last bucket.
  static constexpr size_t kBuckets = kLinear * (kOctaves + 1);

  static constexpr size_t BucketOf(uint64_t value) {
    if (value < kLinear) return value;
    const auto octave = static_cast<uint32_t>(std::bit_width(value)) - 1 - kLinearBits;
    if (octave >= kOctaves) return kBuckets - 1;
    return kLinear * (octave + 1) + (value >> octave) - kLinear;
  }
  static constexpr uint64_t LeastOf(size_t bucket) {
    if (bucket < kLinear) return bucket;
    return (kLinear + bucket % kLinear) << (bucket / kLinear - 1);
  }

  std::array<uint32_t, kBuckets> buckets_{};
  uint64_t count_ = 0;
};

}  // namespace sluice::rain
