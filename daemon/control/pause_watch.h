// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "shm_proto/base/clock.h"

namespace sluice::control {

// What is known of the pause frames that the network sends to the port in use.
// A storm is a rate that keeps the port silent for seconds: a NIC or switch that has gone wrong
// holds up everybody behind it, and RDMA waits where TCP would go another way (ByteExpress 7.2).
// Thread: its owner's.
class PauseWatch {
 public:
  static constexpr uint64_t kSampleNs = kNsPerSecond;
  static constexpr uint32_t kStormSamples = 3;  // In a row, before it is one,
  static constexpr uint32_t kCalmSamples = 10;  // and before it is over.

  // 0: whatever comes is no storm.
  void SetLimit(uint64_t frames_per_s) { limit_ = frames_per_s; }
  // Another device or none: nothing is known any more.
  void Begin() { *this = PauseWatch(limit_, storms_); }
  bool Due(uint64_t now_ns) const { return now_ns >= next_ns_; }

  enum class Change { kNone, kStorm, kCalm };
  // All pause frames received until now. A number that fell begins anew.
  Change Sample(uint64_t frames, uint64_t now_ns) {
    next_ns_ = now_ns + kSampleNs;
    const uint64_t passed_ns = now_ns - last_ns_;
    const bool first = last_ns_ == 0 || frames < last_frames_ || passed_ns == 0;
    rate_ = first ? 0
                  : static_cast<uint64_t>(static_cast<double>(frames - last_frames_) * 1e9 /
                                          static_cast<double>(passed_ns));
    last_frames_ = frames;
    last_ns_ = now_ns;
    const bool high = limit_ != 0 && rate_ > limit_;
    in_a_row_ = high == storm_ ? 0 : in_a_row_ + 1;
    if (in_a_row_ < (storm_ ? kCalmSamples : kStormSamples)) return Change::kNone;
    in_a_row_ = 0;
    storm_ = !storm_;
    if (storm_) ++storms_;
    return storm_ ? Change::kStorm : Change::kCalm;
  }

  uint64_t rate() const { return rate_; }  // Frames a second, of the last sample.
  bool storm() const { return storm_; }
  uint64_t storms() const { return storms_; }

  PauseWatch() = default;

 private:
  PauseWatch(uint64_t limit, uint64_t storms) : limit_(limit), storms_(storms) {}

  uint64_t limit_ = 0;
  uint64_t storms_ = 0;
  uint64_t next_ns_ = 0;
  uint64_t last_ns_ = 0;
  uint64_t last_frames_ = 0;
  uint64_t rate_ = 0;
  uint32_t in_a_row_ = 0;  // Samples that say otherwise than what holds.
  bool storm_ = false;
};

}  // namespace sluice::control
