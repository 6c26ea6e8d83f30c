// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "latency.h"
#include "ledger.h"
#include "size_model.h"

namespace sluice_ps {
namespace {

TEST(SizeModel, HasTheMeanAndTheP99ItWasMadeFor) {
  SizeModel model(20'000, 50'000);
  std::mt19937_64 random(1);
  std::vector<uint32_t> sizes(1'000'000);
  double sum = 0;
  for (uint32_t& size : sizes) {
    size = model.Next(random);
    sum += size;
  }
  std::ranges::sort(sizes);
  EXPECT_NEAR(sum / static_cast<double>(sizes.size()), 20'000, 200);
  EXPECT_NEAR(sizes[sizes.size() * 99 / 100], 50'000, 750);
  EXPECT_LE(sizes.back(), model.max_bytes());
}

TEST(SizeModel, KnowsWhichFiguresNoLognormalHas) {
  EXPECT_TRUE(SizeModel::Possible(20'000, 50'000));
  EXPECT_FALSE(SizeModel::Possible(20'000, 10'000));
  EXPECT_FALSE(SizeModel::Possible(20'000, 400'000));
  EXPECT_FALSE(SizeModel::Possible(0, 0));
}

TEST(LatencyHistogram, QuantilesAreRightToOneBucket) {
  auto histogram = std::make_unique<LatencyHistogram>();
  std::mt19937_64 random(2);
  std::lognormal_distribution<> spread(12, 2);
  std::vector<uint64_t> values(100'000);
  for (uint64_t& value : values) {
    value = static_cast<uint64_t>(spread(random));
    histogram->Add(value);
  }
  std::ranges::sort(values);
  for (const double quantile : {0.0, 0.5, 0.9, 0.99, 0.999}) {
    const auto exact = static_cast<double>(values[static_cast<size_t>(quantile * 100'000)]);
    EXPECT_NEAR(static_cast<double>(histogram->QuantileNs(quantile)), exact, exact * 0.017)
        << quantile;
  }
  EXPECT_EQ(histogram->QuantileNs(1), values.back());
}

TEST(LatencyHistogram, TakesTheSmallestAndTheLargestNumbersAndMerges) {
  auto one = std::make_unique<LatencyHistogram>();
  auto other = std::make_unique<LatencyHistogram>();
  EXPECT_EQ(one->QuantileNs(0.5), 0u);
  for (const uint64_t value :
       {uint64_t{0}, uint64_t{1}, uint64_t{63}, uint64_t{64}, uint64_t{127}, ~uint64_t{0}}) {
    one->Add(value);
    EXPECT_EQ(one->max_ns(), value);
    EXPECT_EQ(one->QuantileNs(1), value);
  }
  other->Add(5);
  one->Merge(*other);
  EXPECT_EQ(one->count(), 7u);
  EXPECT_FALSE(one->AddBucket(LatencyHistogram::kBuckets, 1));
}

TEST(OutcomeLedger, TellsASecondEndOfAnOldOperationFromTheEndOfANewOne) {
  OutcomeLedger ledger;
  const uint64_t first = ledger.Begin();
  EXPECT_TRUE(ledger.End(first, Outcome::kUnknown));
  const uint64_t second = ledger.Begin();
  EXPECT_NE(first, second);
  EXPECT_FALSE(ledger.End(first, Outcome::kOk));
  EXPECT_FALSE(ledger.End(12345, Outcome::kOk));
  EXPECT_EQ(ledger.outstanding(), 1u);
  EXPECT_TRUE(ledger.End(second, Outcome::kOk));
  const uint64_t third = ledger.Begin();
  ledger.Cancel(third);
  EXPECT_EQ(ledger.counts().begun, 2u);
  EXPECT_EQ(ledger.counts().duplicated, 2u);
  EXPECT_EQ(ledger.outstanding(), 0u);
}

}  // namespace
}  // namespace sluice_ps
