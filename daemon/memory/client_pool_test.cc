// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/client_pool.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice::memory {
namespace {

std::unique_ptr<ClientPool> MakePool(uint64_t quota_bytes) {
  auto pool = ClientPool::Create(quota_bytes);
  EXPECT_TRUE(pool);
  return std::move(*pool);
}

// Plans, makes and activates an extent with room for `bytes`.
Result<BlockRun> Grow(ClientPool& pool, uint64_t bytes, uint64_t now_ns = 0) {
  const Result<BlockRun> plan = pool.Plan(bytes);
  if (!plan) return plan;
  auto memory = SharedMemory::Create("test", plan->bytes, pool.base() + plan->pool_offset);
  EXPECT_TRUE(memory);
  pool.Offer(plan->pool_offset, std::move(*memory));
  pool.Activate(plan->pool_offset, now_ns);
  return plan;
}

TEST(ClientPool, LeasesNothingBeforeAnExtentIsActive) {
  auto pool = MakePool(64 * kMiB);
  EXPECT_FALSE(pool->Lease(1, Lessee::Client()));
  const auto plan = pool->Plan(1);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->bytes, kExtentBytes);
  EXPECT_FALSE(pool->Lease(1, Lessee::Client()));
  auto memory = SharedMemory::Create("test", plan->bytes, pool->base() + plan->pool_offset);
  ASSERT_TRUE(memory);
  pool->Offer(plan->pool_offset, std::move(*memory));
  EXPECT_FALSE(pool->Lease(1, Lessee::Client())) << "the client has not confirmed";
  pool->Activate(plan->pool_offset, 0);
  const auto run = pool->Lease(1, Lessee::Client());
  ASSERT_TRUE(run);
  EXPECT_EQ(run->bytes, kBlockBytes);
}

TEST(ClientPool, AnExtentIsAsLargeAsOneBufferNeeds) {
  auto pool = MakePool(256 * kMiB);
  EXPECT_EQ(Grow(*pool, 33 * kMiB)->bytes, 36 * kMiB);
  EXPECT_EQ(pool->Lease(33 * kMiB, Lessee::Client())->bytes, 36 * kMiB);
}

TEST(ClientPool, TheQuotaCountsExtentsAndItsRestIsUsable) {
  auto pool = MakePool(40 * kMiB);
  ASSERT_TRUE(Grow(*pool, 1));
  EXPECT_EQ(pool->used_bytes(), 32 * kMiB);
  EXPECT_FALSE(pool->Plan(12 * kMiB));
  EXPECT_EQ(Grow(*pool, 1)->bytes, 8 * kMiB);
  const auto refused = pool->Plan(1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNoMemory);
}

TEST(ClientPool, ABlockHasOneLesseeAndOnlyItGivesBack) {
  auto pool = MakePool(32 * kMiB);
  ASSERT_TRUE(Grow(*pool, 1));
  const auto client = pool->Lease(8 * kMiB, Lessee::Client());
  const auto receiver = pool->Lease(4 * kMiB, Lessee::Receiver(0));
  ASSERT_TRUE(client && receiver);
  EXPECT_EQ(pool->leased_bytes(Lessee::Client()), 8 * kMiB);
  EXPECT_FALSE(pool->GiveBack(*receiver, Lessee::Client(), 0));
  EXPECT_FALSE(pool->GiveBack(*receiver, Lessee::Receiver(1), 0));
  EXPECT_FALSE(pool->GiveBack({0, 16 * kMiB}, Lessee::Client(), 0)) << "half of it is another's";
  EXPECT_FALSE(pool->GiveBack({1, kBlockBytes}, Lessee::Client(), 0));
  EXPECT_FALSE(pool->GiveBack({0, 0}, Lessee::Client(), 0));
  EXPECT_FALSE(pool->GiveBack({UINT64_MAX - kBlockBytes + 1, kBlockBytes}, Lessee::Client(), 0));
  EXPECT_FALSE(pool->GiveBack({kBlockBytes, UINT64_MAX - kBlockBytes + 1}, Lessee::Client(), 0));
  EXPECT_TRUE(pool->GiveBack(*client, Lessee::Client(), 0));
  EXPECT_FALSE(pool->GiveBack(*client, Lessee::Client(), 0)) << "twice";
  EXPECT_TRUE(pool->GiveBack(*receiver, Lessee::Receiver(0), 0));
}

TEST(ClientPool, AnExtentIsUnusedOnceAllOfItsBlocksAreBackForLongEnough) {
  auto pool = MakePool(64 * kMiB);
  ASSERT_TRUE(Grow(*pool, 1, 10));
  const auto upper = Grow(*pool, 1, 10);
  const auto first = pool->Lease(32 * kMiB, Lessee::Client());
  const auto second = pool->Lease(4 * kMiB, Lessee::Client());
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(pool->FindUnused(UINT64_MAX));
  ASSERT_TRUE(pool->GiveBack(*second, Lessee::Client(), 100));
  EXPECT_FALSE(pool->FindUnused(99));
  EXPECT_EQ(pool->FindUnused(100), upper->pool_offset);
  pool->Leave(upper->pool_offset);
  EXPECT_FALSE(pool->Lease(1, Lessee::Client())) << "a leaving extent leases nothing";
  EXPECT_TRUE(pool->TakeMemory(upper->pool_offset).valid());
  EXPECT_EQ(pool->used_bytes(), 64 * kMiB) << "counted until forgotten";
  pool->Forget(upper->pool_offset);
  EXPECT_EQ(pool->used_bytes(), 32 * kMiB);
}

TEST(ClientPool, ALoweredQuotaStopsGrowthAndTakesNothingAway) {
  auto pool = MakePool(128 * kMiB);
  ASSERT_TRUE(Grow(*pool, 1));
  ASSERT_TRUE(Grow(*pool, 1));
  pool->SetQuota(32 * kMiB);
  EXPECT_FALSE(pool->Plan(1));
  EXPECT_EQ(pool->used_bytes(), 64 * kMiB);
  pool->SetQuota(1024 * kMiB);
  EXPECT_EQ(pool->quota_bytes(), 128 * kMiB) << "no more than was reserved";
}

TEST(ClientPool, RandomLeasesNeverOverlapAndAllComesBack) {
  auto pool = MakePool(160 * kMiB);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Grow(*pool, 1));
  std::mt19937 random(7);
  std::vector<uint32_t> owner(160 * kMiB / kBlockBytes, 0);
  std::vector<std::pair<BlockRun, uint32_t>> leases;
  for (int step = 0; step < 5'000; ++step) {
    if (random() % 2 == 0) {
      const auto thread = static_cast<uint32_t>(random() % 3);
      const auto run = pool->Lease(1 + random() % (16 * kMiB), Lessee::Receiver(thread));
      if (!run) continue;
      ASSERT_EQ(run->pool_offset / kExtentBytes, (run->pool_offset + run->bytes - 1) / kExtentBytes)
          << "in one extent";
      for (uint64_t b = 0; b < run->bytes / kBlockBytes; ++b) {
        ASSERT_EQ(std::exchange(owner[run->pool_offset / kBlockBytes + b], thread + 1), 0u);
      }
      leases.push_back({*run, thread});
    } else if (!leases.empty()) {
      std::swap(leases[random() % leases.size()], leases.back());
      const auto [run, thread] = leases.back();
      leases.pop_back();
      ASSERT_TRUE(pool->GiveBack(run, Lessee::Receiver(thread), 0));
      for (uint64_t b = 0; b < run.bytes / kBlockBytes; ++b)
        owner[run.pool_offset / kBlockBytes + b] = 0;
    }
  }
  for (const auto& [run, thread] : leases)
    ASSERT_TRUE(pool->GiveBack(run, Lessee::Receiver(thread), 0));
  EXPECT_EQ(pool->CountUnused(), 5u);
}

}  // namespace
}  // namespace sluice::memory
