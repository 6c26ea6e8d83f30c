// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sluice {

// Where randomness comes from: instance ids, nonces, jitter. A simulation injects a seeded one.
class Random {
 public:
  virtual ~Random() = default;
  virtual uint64_t Next() = 0;
};

// getrandom(2).
class SystemRandom final : public Random {
 public:
  uint64_t Next() override;
};

}  // namespace sluice
