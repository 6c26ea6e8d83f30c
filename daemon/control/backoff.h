// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "shm_proto/base/random.h"

namespace sluice::control {

// How long to wait before the next of an endless row of attempts: doubling from `first_ns` up to
// `cap_ns`, each shortened by up to a half at random, so that a crowd that failed together does not
// come back together. Invariant: NextNs() is in [base / 2, base], base = min(first_ns << attempts
// since Reset(), cap_ns). Thread: its owner's.
class Backoff {
 public:
  Backoff(uint64_t first_ns, uint64_t cap_ns)
      : first_ns_(std::max<uint64_t>(first_ns, 1)), cap_ns_(cap_ns), base_ns_(first_ns_) {}

  uint64_t NextNs(Random& random) {
    const uint64_t base = std::min(base_ns_, cap_ns_);
    base_ns_ = std::min(base, UINT64_MAX / 2) * 2;
    return base - random.Next() % (base / 2 + 1);
  }
  void Reset() { base_ns_ = first_ns_; }

 private:
  uint64_t first_ns_, cap_ns_, base_ns_;
};

}  // namespace sluice::control
