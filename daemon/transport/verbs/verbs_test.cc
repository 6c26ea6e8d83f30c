// SPDX-License-Identifier: Apache-2.0
// What needs no device: what an endpoint may say, and where memory is found. The rest is the
// conformance suite's (tests/conformance/verbs_network_test.cc), which wants one.

#include <gtest/gtest.h>

#include "daemon/transport/verbs/endpoint.h"
#include "daemon/transport/verbs/regions.h"

namespace sluice::transport {
namespace {

VerbsEndpoint Good() {
  VerbsEndpoint endpoint;
  endpoint.link_layer = 2;
  endpoint.queue_pair = 0xff'ffff;
  endpoint.first_psn = 0xff'ffff;
  endpoint.path_mtu = 4096;
  endpoint.gid = {1, 2, 3};
  return endpoint;
}

TEST(VerbsEndpoint, ComesBackAsItWas) {
  const auto back = Unpack(Pack(Good()));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->queue_pair, 0xff'ffffu);
  EXPECT_EQ(back->first_psn, 0xff'ffffu);
  EXPECT_EQ(back->path_mtu, 4096u);
  EXPECT_EQ(back->gid, Good().gid);
}

TEST(VerbsEndpoint, WhatNoPeerOfThisVersionSaysIsRefused) {
  Endpoint endpoint = Pack(Good());
  for (const int size : {0, 31, 33, 63}) {
    endpoint.size = static_cast<uint8_t>(size);
    EXPECT_FALSE(Unpack(endpoint).has_value()) << size;
  }
  VerbsEndpoint bad = Good();
  bad.version = 2;
  EXPECT_FALSE(Unpack(Pack(bad)).has_value());
  for (const uint32_t mtu : {0u, 128u, 1500u, 8192u, 0x8000'0000u}) {
    bad = Good();
    bad.path_mtu = mtu;
    EXPECT_FALSE(Unpack(Pack(bad)).has_value()) << mtu;
  }
  bad = Good();
  bad.queue_pair = 0x100'0000;
  EXPECT_FALSE(Unpack(Pack(bad)).has_value());
  bad = Good();
  bad.first_psn = 0x100'0000;
  EXPECT_FALSE(Unpack(Pack(bad)).has_value());
}

class RegionLookupTest : public testing::Test {
 protected:
  RegionLookupTest() {
    lookup_.Set(std::make_shared<Regions>(
        Regions{{At(100), 50, 1, 11}, {At(150), 50, 2, 12}, {At(300), 10, 3, 13}}));
  }
  std::byte* At(size_t offset) { return memory_ + offset; }
  uint32_t Key(size_t offset, uint64_t bytes) {
    const Region* region = lookup_.Find(At(offset), bytes);
    return region != nullptr ? region->local_key : 0;
  }
  std::byte memory_[400];
  RegionLookup lookup_;
};

TEST_F(RegionLookupTest, FindsTheRegionThatHoldsAllOfIt) {
  EXPECT_EQ(Key(100, 50), 1u);
  EXPECT_EQ(Key(149, 1), 1u);
  EXPECT_EQ(Key(150, 1), 2u);
  EXPECT_EQ(Key(309, 1), 3u);
  EXPECT_EQ(Key(100, 0), 1u);
}

TEST_F(RegionLookupTest, FindsNothingBesideOrAcrossRegions) {
  EXPECT_EQ(Key(99, 1), 0u);
  EXPECT_EQ(Key(149, 2), 0u) << "half of it lies in the next region";
  EXPECT_EQ(Key(200, 1), 0u);
  EXPECT_EQ(Key(309, 2), 0u);
  EXPECT_EQ(Key(100, ~uint64_t{0}), 0u);
  EXPECT_EQ(Key(310, 1), 0u);
}

TEST_F(RegionLookupTest, ForgetsWhatIsReplaced) {
  ASSERT_EQ(Key(100, 1), 1u);
  lookup_.Set(std::make_shared<Regions>(Regions{{At(120), 10, 9, 19}}));
  EXPECT_EQ(Key(100, 1), 0u);
  EXPECT_EQ(Key(120, 10), 9u);
  lookup_.Set(nullptr);
  EXPECT_EQ(Key(120, 10), 0u);
}

}  // namespace
}  // namespace sluice::transport
