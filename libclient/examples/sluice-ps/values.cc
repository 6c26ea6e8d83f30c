// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <array>
#include <cstring>

namespace sluice_ps {
namespace {

// splitmix64's finaliser: neighbouring rows and versions get unrelated seeds.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

struct Seed {
  uint32_t step;
  uint32_t start;
};

Seed SeedOf(uint32_t row, uint32_t version) {
  const uint64_t mixed = Mix((uint64_t{row} << 32 | version) + 0x9e3779b97f4a7c15ULL);
  return {static_cast<uint32_t>(mixed) | 1u, static_cast<uint32_t>(mixed >> 32)};
}

// An arithmetic progression modulo 2^32 from a random start with a random odd step, of which the
// top 22 bits count: cheap enough to check every value, since it becomes one vector addition, and
// no two rows or versions share it.
int32_t WholeValue(Seed seed, uint32_t column) {
  return static_cast<int32_t>(seed.start + column * seed.step) >> 10;
}

}  // namespace

void FillValues(uint32_t row, uint32_t version, std::span<float> values) {
  const Seed seed = SeedOf(row, version);
  for (uint32_t column = 0; column < values.size(); ++column) {
    values[column] = static_cast<float>(WholeValue(seed, column));
  }
}

void FillGradient(uint32_t row, uint32_t version, std::span<float> gradient) {
  const Seed now = SeedOf(row, version);
  const Seed before = SeedOf(row, version - 1);
  for (uint32_t column = 0; column < gradient.size(); ++column) {
    gradient[column] = static_cast<float>(WholeValue(now, column) - WholeValue(before, column));
  }
}

uint32_t FirstWrongColumn(uint32_t row, uint32_t version, const void* bytes, uint32_t dim) {
  std::array<float, kMaxDim> expected;
  FillValues(row, version, std::span(expected).first(dim));
  if (std::memcmp(expected.data(), bytes, dim * sizeof(float)) == 0) {
    return dim;
  }
  for (uint32_t column = 0; column < dim; ++column) {
    const auto* at = static_cast<const unsigned char*>(bytes) + column * sizeof(float);
    if (std::memcmp(&expected[column], at, sizeof(float)) != 0) {
      return column;
    }
  }
  return dim;
}

}  // namespace sluice_ps
