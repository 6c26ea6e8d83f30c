// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace sluice_ps {

// What every row of the table holds, as a function of its number and of how many pushes it has
// taken. Anybody can compute it, so a fetched row proves that exactly the first `version` pushes
// were applied, each once.
//
// A value is a whole number in [-2^21, 2^21), and the gradient of push v is the difference of the
// values at v and at v - 1. Sums of such numbers are exact in float32, so the comparison is bit for
// bit.
constexpr uint32_t kMaxDim = 1024;

// What the row holds after `version` pushes.
void FillValues(uint32_t row, uint32_t version, std::span<float> values);

// What push number `version` (from 1) adds to the row.
void FillGradient(uint32_t row, uint32_t version, std::span<float> gradient);

// Column of the first value at `bytes` (any alignment; dim values) that is not what it must be;
// dim: none.
uint32_t FirstWrongColumn(uint32_t row, uint32_t version, const void* bytes, uint32_t dim);

}  // namespace sluice_ps
