// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace sluice_ps {

// Counts durations in buckets that are 1/64 of their power of two wide: every quantile is right
// to 1.6 %, in 30 KB and without an allocation. The mean is exact. Merge() adds another process's
// figures.
class LatencyHistogram {
 public:
  static constexpr uint32_t kSubBuckets = 64;
  static constexpr size_t kBuckets = (64 - 6 + 1) * size_t{kSubBuckets};

  void Add(uint64_t value_ns) {
    ++counts_[IndexOf(value_ns)];
    ++count_;
    sum_ns_ += value_ns;
    max_ns_ = value_ns > max_ns_ ? value_ns : max_ns_;
  }

  // `count` values of the bucket `index`, as another histogram reported them; Sum and maximum are
  // added apart.
  bool AddBucket(size_t index, uint64_t count) {
    if (index >= kBuckets) {
      return false;
    }
    counts_[index] += count;
    count_ += count;
    return true;
  }
  void AddTotals(uint64_t sum_ns, uint64_t max_ns) {
    sum_ns_ += sum_ns;
    max_ns_ = max_ns > max_ns_ ? max_ns : max_ns_;
  }
  void Merge(const LatencyHistogram& other) {
    for (size_t i = 0; i < kBuckets; ++i) {
      AddBucket(i, other.counts_[i]);
    }
    AddTotals(other.sum_ns_, other.max_ns_);
  }

  // The largest value of the bucket in which the quantile lies, never above the maximum. 0 when
  // empty.
  uint64_t QuantileNs(double quantile) const {
    const auto rank = static_cast<uint64_t>(quantile * static_cast<double>(count_));
    uint64_t seen = 0;
    for (size_t i = 0; i < kBuckets; ++i) {
      seen += counts_[i];
      if (seen > rank || (seen == count_ && seen > 0)) {
        const uint64_t top = TopOf(i);
        return top < max_ns_ ? top : max_ns_;
      }
    }
    return 0;
  }

  uint64_t count() const { return count_; }
  uint64_t sum_ns() const { return sum_ns_; }
  uint64_t max_ns() const { return max_ns_; }
  double MeanNs() const {
    return count_ == 0 ? 0 : static_cast<double>(sum_ns_) / static_cast<double>(count_);
  }
  uint64_t bucket(size_t index) const { return counts_[index]; }

 private:
  // Values below 64 have a bucket each; above, the six bits after the leading one choose the
  // bucket.
  static size_t IndexOf(uint64_t value) {
    if (value < kSubBuckets) {
      return static_cast<size_t>(value);
    }
    const auto shift = static_cast<unsigned>(std::bit_width(value)) - 7;
    return (shift + 1) * size_t{kSubBuckets} +
           static_cast<size_t>((value >> shift) & (kSubBuckets - 1));
  }
  static uint64_t TopOf(size_t index) {
    if (index < kSubBuckets) {
      return index;
    }
    const size_t shift = index / kSubBuckets - 1;
    return ((uint64_t{kSubBuckets} + index % kSubBuckets + 1) << shift) - 1;
  }

  std::array<uint64_t, kBuckets> counts_{};
  uint64_t count_ = 0;
  uint64_t sum_ns_ = 0;
  uint64_t max_ns_ = 0;
};

}  // namespace sluice_ps
