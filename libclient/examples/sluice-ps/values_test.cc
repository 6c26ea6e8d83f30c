// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

namespace sluice_ps {
namespace {

constexpr uint32_t kDim = 32;

TEST(Values, GradientsAppliedInOrderGiveExactlyTheNextVersions) {
  std::vector<float> values(kDim);
  std::vector<float> gradient(kDim);
  FillValues(7, 0, values);
  for (uint32_t version = 1; version <= 1000; ++version) {
    FillGradient(7, version, gradient);
    for (uint32_t column = 0; column < kDim; ++column) {
      values[column] += gradient[column];
    }
    ASSERT_EQ(FirstWrongColumn(7, version, values.data(), kDim), kDim);
  }
}

TEST(Values, AGradientAppliedTwiceOrLeftOutShows) {
  std::vector<float> values(kDim);
  std::vector<float> gradient(kDim);
  FillValues(3, 5, values);
  EXPECT_NE(FirstWrongColumn(3, 6, values.data(), kDim), kDim);
  FillGradient(3, 6, gradient);
  for (uint32_t column = 0; column < kDim; ++column) {
    values[column] += 2 * gradient[column];
  }
  EXPECT_NE(FirstWrongColumn(3, 6, values.data(), kDim), kDim);
  EXPECT_NE(FirstWrongColumn(3, 7, values.data(), kDim), kDim);
}

TEST(Values, RowsAndVersionsDifferAndValuesStayExactInFloat32) {
  std::vector<float> values(kMaxDim);
  for (uint32_t row = 0; row < 200; ++row) {
    FillValues(row, row % 7, values);
    for (const float value : values) {
      ASSERT_LE(std::fabs(value), 2097152.0f);
      ASSERT_EQ(value, std::trunc(value));
    }
    EXPECT_NE(FirstWrongColumn(row + 1, row % 7, values.data(), kMaxDim), kMaxDim);
    EXPECT_NE(FirstWrongColumn(row, row % 7 + 1, values.data(), kMaxDim), kMaxDim);
  }
}

TEST(Values, NamesTheWrongColumnAtAnyAlignment) {
  std::array<unsigned char, kDim * sizeof(float) + 1> bytes;
  std::vector<float> values(kDim);
  FillValues(1, 2, values);
  std::memcpy(bytes.data() + 1, values.data(), kDim * sizeof(float));
  EXPECT_EQ(FirstWrongColumn(1, 2, bytes.data() + 1, kDim), kDim);
  bytes[1 + 9 * sizeof(float)] ^= 1;
  EXPECT_EQ(FirstWrongColumn(1, 2, bytes.data() + 1, kDim), 9u);
}

}  // namespace
}  // namespace sluice_ps
