// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/latency.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(LatencyCounts, PutsEveryTimeIntoTheFirstBucketWhoseBoundItDoesNotPass) {
  for (size_t bucket = 0; bucket + 1 < LatencyCounts::kBuckets; ++bucket) {
    const uint64_t bound_ns = LatencyCounts::UpperBoundNs(bucket);
    LatencyCounts latency;
    latency.Add(bound_ns);
    latency.Add(bound_ns + 1);
    EXPECT_EQ(latency.counts[bucket], 1u) << bound_ns;
    EXPECT_EQ(latency.counts[bucket + 1], 1u) << bound_ns;
    EXPECT_EQ(latency.sum_ns, 2 * bound_ns + 1);
  }
}

TEST(LatencyCounts, TakesAnyTime) {
  LatencyCounts latency;
  latency.Add(uint64_t{0});
  latency.Add(~uint64_t{0} / 2);
  EXPECT_EQ(latency.counts.front(), 1u);
  EXPECT_EQ(latency.counts.back(), 1u);
  LatencyCounts twice = latency;
  twice.Add(latency);
  EXPECT_EQ(twice.counts.back(), 2u);
}

}  // namespace
}  // namespace sluice
