// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/bemalloc/bemalloc.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "shm_proto/bemalloc/anonymous_source.h"

namespace sluice {
namespace {

constexpr uint64_t kReserve = 256 * kMiB;

// Blocks of ordinary memory whose region number is their offset + 1; refuses and lies when told to.
class TestSource final : public BlockSource {
 public:
  TestSource() : memory_(kReserve) {}
  std::byte* base() const { return memory_.base(); }

  Result<Blocks> Acquire(uint64_t bytes) override {
    if (refuse) return Fail(ErrorCode::kNoMemory, "the quota is used up");
    if (answer) return *answer;
    Result<Blocks> blocks = memory_.Acquire(bytes);
    if (blocks) blocks->region = blocks->offset + 1;
    return blocks;
  }
  void Release(uint64_t offset, uint64_t bytes) override {
    released_bytes += bytes;
    memory_.Release(offset, bytes);
  }

  bool refuse = false;
  std::optional<Blocks> answer;
  uint64_t released_bytes = 0;

 private:
  AnonymousBlockSource memory_;
};

struct Pool {
  TestSource source;
  Bemalloc allocator{source.base(), kReserve, source};

  void* Get(uint64_t bytes) {
    const Result<void*> buffer = allocator.Allocate(bytes);
    EXPECT_TRUE(buffer) << buffer.error().message;
    return buffer ? *buffer : nullptr;
  }
};

// The sentence of a refusal, or nothing.
template <typename T>
std::string Why(const Result<T>& result) {
  return result ? "" : result.error().message;
}

TEST(Bemalloc, AllocatesWritesAndFreesEverySize) {
  Pool pool;
  for (uint64_t bytes = 0; bytes < 40 * kMiB; bytes = bytes * 5 / 4 + 1) {
    void* buffer = pool.Get(bytes);
    const std::span<std::byte> whole = pool.allocator.Find(buffer);
    ASSERT_EQ(whole.data(), buffer);
    ASSERT_GE(whole.size(), bytes);
    ASSERT_LE(whole.size() - bytes, std::max<uint64_t>(bytes / 7, 4095));
    std::memset(whole.data(), 7, whole.size());
    ASSERT_EQ(pool.allocator.Find(whole.data() + whole.size() - 1).data(), buffer);
    ASSERT_TRUE(pool.allocator.Deallocate(buffer));
    ASSERT_NE(Why(pool.allocator.Deallocate(buffer)).find("freed already"), std::string::npos);
    ASSERT_TRUE(pool.allocator.Find(buffer).empty());
  }
  EXPECT_EQ(pool.allocator.statistics().live_bytes, 0u);
  pool.allocator.Trim();
  EXPECT_EQ(pool.allocator.statistics().block_bytes, 0u);
  EXPECT_EQ(pool.allocator.statistics().cached_bytes, 0u);
}

TEST(Bemalloc, AlignsToEveryPowerOfTwoUpToTwoMiB) {
  Pool pool;
  for (uint64_t alignment = 1; alignment <= 2 * kMiB; alignment *= 2) {
    for (uint64_t bytes :
         {uint64_t{0}, uint64_t{1}, uint64_t{65}, uint64_t{20'000}, uint64_t{300'000}, 5 * kMiB}) {
      const Result<void*> buffer = pool.allocator.AllocateAligned(bytes, alignment);
      ASSERT_TRUE(buffer) << buffer.error().message;
      ASSERT_EQ(reinterpret_cast<uintptr_t>(*buffer) % alignment, 0u)
          << bytes << " to " << alignment;
      ASSERT_GE(pool.allocator.Find(*buffer).size(), std::max<uint64_t>(bytes, 1));
      ASSERT_TRUE(pool.allocator.Deallocate(*buffer));
    }
  }
  for (uint64_t alignment : {uint64_t{0}, uint64_t{48}, 4 * kMiB}) {
    EXPECT_NE(Why(pool.allocator.AllocateAligned(100, alignment)).find("power of two"),
              std::string::npos);
  }
}

// Not only where a span begins.
TEST(Bemalloc, AlignsEachOfManySmallBuffers) {
  Pool pool;
  for (uint64_t alignment = 16; alignment <= 4096; alignment *= 2) {
    for (uint64_t bytes = 0; bytes <= 300; bytes += 25) {
      std::vector<void*> buffers;
      for (int i = 0; i < 20; ++i) {
        const Result<void*> buffer = pool.allocator.AllocateAligned(bytes, alignment);
        ASSERT_TRUE(buffer) << buffer.error().message;
        ASSERT_EQ(reinterpret_cast<uintptr_t>(*buffer) % alignment, 0u)
            << bytes << " to " << alignment;
        buffers.push_back(*buffer);
      }
      for (void* buffer : buffers) ASSERT_TRUE(pool.allocator.Deallocate(buffer));
    }
  }
}

TEST(Bemalloc, SaysWhatIsWrongWithABadPointer) {
  Pool pool;
  int foreign = 0;
  EXPECT_NE(Why(pool.allocator.Deallocate(&foreign)).find("not a buffer of this pool"),
            std::string::npos);
  EXPECT_NE(Why(pool.allocator.Deallocate(nullptr)).find("not a buffer of this pool"),
            std::string::npos);
  EXPECT_FALSE(pool.allocator.Deallocate(pool.source.base()));
  for (uint64_t bytes : {uint64_t{100}, uint64_t{20'000}, uint64_t{500'000}, 6 * kMiB}) {
    auto* buffer = static_cast<std::byte*>(pool.Get(bytes));
    EXPECT_NE(Why(pool.allocator.Deallocate(buffer + 1)).find("1 bytes inside a buffer"),
              std::string::npos);
    EXPECT_FALSE(pool.allocator.Deallocate(buffer + bytes - 1));
    EXPECT_FALSE(pool.allocator.Deallocate(pool.source.base() + kReserve - 1));
    EXPECT_EQ(pool.allocator.Find(buffer).data(), buffer);
    EXPECT_TRUE(pool.allocator.Deallocate(buffer));
  }
}

TEST(Bemalloc, RefusesToFreeWhatIsHandedOver) {
  Pool pool;
  void* buffer = pool.Get(1000);
  EXPECT_NE(Why(pool.allocator.TakeBack(buffer)).find("was not handed over"), std::string::npos);
  ASSERT_TRUE(pool.allocator.HandOver(buffer));
  EXPECT_NE(Why(pool.allocator.HandOver(buffer)).find("already"), std::string::npos);
  EXPECT_NE(Why(pool.allocator.Deallocate(buffer)).find("in flight"), std::string::npos);
  EXPECT_EQ(pool.allocator.Find(buffer).data(), buffer);
  ASSERT_TRUE(pool.allocator.TakeBack(buffer));
  ASSERT_TRUE(pool.allocator.Deallocate(buffer));
  EXPECT_FALSE(pool.allocator.HandOver(buffer));
}

TEST(Bemalloc, KnowsTheRegionOfEveryPointer) {
  Pool pool;
  auto* small = static_cast<std::byte*>(pool.Get(100));
  auto* large = static_cast<std::byte*>(pool.Get(9 * kMiB));
  EXPECT_EQ(pool.allocator.RegionOf(small + 50), 1u);
  EXPECT_EQ(pool.allocator.RegionOf(large + 9 * kMiB - 1),
            static_cast<uint64_t>(large - pool.source.base()) + 1);
  EXPECT_EQ(pool.allocator.RegionOf(&pool), 0u);
  EXPECT_EQ(pool.allocator.RegionOf(pool.source.base() + kReserve - 1), 0u);
  ASSERT_TRUE(pool.allocator.Deallocate(large));
  pool.allocator.Trim();
  EXPECT_EQ(pool.allocator.RegionOf(large), 0u);
  EXPECT_FALSE(pool.allocator.Owns(large));
}

TEST(Bemalloc, PassesTheSourcesRefusalOnAndGoesOnAfterwards) {
  Pool pool;
  pool.source.refuse = true;
  for (uint64_t bytes : {uint64_t{1}, uint64_t{100'000}, 8 * kMiB}) {
    const Result<void*> buffer = pool.allocator.Allocate(bytes);
    ASSERT_FALSE(buffer);
    EXPECT_EQ(buffer.error().code, ErrorCode::kNoMemory);
    EXPECT_EQ(buffer.error().message, "the quota is used up");
  }
  EXPECT_EQ(pool.allocator.statistics().refusals, 3u);
  pool.source.refuse = false;
  EXPECT_TRUE(pool.allocator.Allocate(1));
  EXPECT_EQ(pool.allocator.Allocate(kReserve + 1).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(pool.allocator.Allocate(~uint64_t{0}).error().code, ErrorCode::kInvalid);
}

TEST(Bemalloc, TakesOneBufferOfTheWholePool) {
  Pool pool;
  void* all = pool.Get(kReserve);
  EXPECT_EQ(all, pool.source.base());
  EXPECT_EQ(pool.allocator.Allocate(1).error().code, ErrorCode::kNoMemory);
  EXPECT_TRUE(pool.allocator.Deallocate(all));
  EXPECT_TRUE(pool.allocator.Allocate(1));
}

TEST(Bemalloc, RefusesBlocksThatAreNone) {
  Pool pool;
  pool.Get(1);  // Holds the block at 0.
  for (const BlockSource::Blocks& blocks :
       {BlockSource::Blocks{0, 4 * kMiB, 0}, BlockSource::Blocks{4 * kMiB, 0, 0},
        BlockSource::Blocks{4096, 4 * kMiB, 0}, BlockSource::Blocks{kReserve, 4 * kMiB, 0},
        BlockSource::Blocks{4 * kMiB, kReserve, 0},
        BlockSource::Blocks{~uint64_t{0} - 4 * kMiB + 1, 4 * kMiB, 0}}) {
    pool.source.answer = blocks;
    EXPECT_EQ(pool.allocator.Allocate(4 * kMiB).error().code, ErrorCode::kProtocol)
        << blocks.offset;
  }
}

TEST(Bemalloc, AfterDetachEveryCallSaysClosed) {
  Pool pool;
  void* buffer = pool.Get(100);
  pool.allocator.Detach();
  EXPECT_EQ(pool.allocator.Deallocate(buffer).error().code, ErrorCode::kClosed);
  EXPECT_EQ(pool.allocator.Allocate(100).error().code, ErrorCode::kClosed);
  EXPECT_EQ(pool.allocator.Allocate(10 * kMiB).error().code, ErrorCode::kClosed);
  EXPECT_EQ(pool.allocator.AllocateAligned(100, 8192).error().code, ErrorCode::kClosed);
  EXPECT_EQ(pool.allocator.HandOver(buffer).error().code, ErrorCode::kClosed);
  EXPECT_EQ(pool.allocator.Trim(), 0u);
}

TEST(Bemalloc, GivesBlocksBackOnlyAfterAQuietTime) {
  Pool pool;
  const Bemalloc::Options options;
  uint64_t now_ns = 1;
  pool.allocator.Maintain(now_ns += options.quiet_ns);
  std::vector<void*> buffers;
  for (int i = 0; i < 20; ++i) buffers.push_back(pool.Get(4 * kMiB));
  for (void* buffer : buffers) ASSERT_TRUE(pool.allocator.Deallocate(buffer));
  // In this window the blocks were needed at some time.
  pool.allocator.Maintain(now_ns += options.quiet_ns);
  EXPECT_EQ(pool.source.released_bytes, 0u);
  pool.allocator.Maintain(now_ns += options.quiet_ns / 2);
  EXPECT_EQ(pool.source.released_bytes, 0u);
  // Five blocks are needed again for a moment; the other fifteen less the spare one go.
  for (int i = 0; i < 5; ++i) buffers[static_cast<size_t>(i)] = pool.Get(4 * kMiB);
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(pool.allocator.Deallocate(buffers[static_cast<size_t>(i)]));
  pool.allocator.Maintain(now_ns += options.quiet_ns);
  EXPECT_EQ(pool.source.released_bytes, 15 * Heap::kBlockBytes - options.spare_bytes);
}

TEST(Bemalloc, GivesBlocksBackAlsoWhereTheClockWraps) {
  Pool pool;
  const Bemalloc::Options options;
  uint64_t now_ns = ~uint64_t{0} - options.quiet_ns * 3 / 2;
  pool.allocator.Maintain(now_ns);
  std::vector<void*> buffers;
  for (int i = 0; i < 4; ++i) buffers.push_back(pool.Get(4 * kMiB));
  for (void* buffer : buffers) ASSERT_TRUE(pool.allocator.Deallocate(buffer));
  pool.allocator.Maintain(now_ns += options.quiet_ns);
  pool.allocator.Maintain(now_ns += options.quiet_ns / 4);
  EXPECT_EQ(pool.source.released_bytes, 0u);
  pool.allocator.Maintain(now_ns += options.quiet_ns);
  EXPECT_EQ(pool.source.released_bytes, 3 * Heap::kBlockBytes);
}

// What survives lies all over the pool, but the buffers that come after it need not.
TEST(Bemalloc, ShrinksUnderTrafficWhenMostOfTheLoadHasGone) {
  Pool pool;
  std::mt19937_64 random(3);
  std::vector<void*> live;
  for (int i = 0; i < 6000; ++i) live.push_back(pool.Get(10'000 + random() % 40'000));
  std::ranges::shuffle(live, random);
  for (; live.size() > 1200; live.pop_back()) ASSERT_TRUE(pool.allocator.Deallocate(live.back()));
  const uint64_t full_bytes = pool.allocator.statistics().block_bytes;
  for (uint64_t second = 1; second <= 60; ++second) {
    for (int i = 0; i < 400; ++i) {
      void*& buffer = live[random() % live.size()];
      ASSERT_TRUE(pool.allocator.Deallocate(buffer));
      buffer = pool.Get(10'000 + random() % 40'000);
    }
    pool.allocator.Maintain(second * 1'000'000'000);
  }
  const Bemalloc::Statistics statistics = pool.allocator.statistics();
  EXPECT_LT(statistics.block_bytes, full_bytes / 2);
  EXPECT_LT(statistics.block_bytes, statistics.live_bytes * 3 / 2);
  EXPECT_LT(statistics.block_bytes, statistics.live_bytes * 5 / 4 + 2 * Heap::kBlockBytes);
  // And it grows again, from what is parked first.
  const uint64_t acquisitions = statistics.acquisitions;
  while (pool.allocator.statistics().acquisitions < acquisitions + 10)
    live.push_back(pool.Get(30'000));
  for (void* buffer : live) ASSERT_TRUE(pool.allocator.Deallocate(buffer));
  pool.allocator.Trim();
  EXPECT_EQ(pool.allocator.statistics().block_bytes, 0u);
  EXPECT_EQ(pool.allocator.statistics().live_bytes, 0u);
}

TEST(Bemalloc, ASteadyLoadRegistersNothing) {
  Pool pool;
  std::mt19937_64 random(1);
  std::vector<void*> live(500);
  const Bemalloc::Options options;
  uint64_t acquisitions = 0;
  for (uint64_t round = 0; round < 40; ++round) {
    if (round == 20) acquisitions = pool.allocator.statistics().acquisitions;
    for (int i = 0; i < 2000; ++i) {
      void*& slot = live[random() % live.size()];
      if (slot != nullptr) {
        ASSERT_TRUE(pool.allocator.Deallocate(slot));
      }
      slot = pool.Get(random() % 60'000);
    }
    pool.allocator.Maintain(round * options.quiet_ns);
  }
  EXPECT_LE(pool.allocator.statistics().acquisitions, acquisitions + 1);
}

TEST(Bemalloc, AThreadThatEndsGivesItsCacheBack) {
  Pool pool;
  std::thread([&] {
    std::vector<void*> buffers;
    for (int i = 0; i < 100; ++i) buffers.push_back(pool.Get(5000));
    for (int i = 0; i < 10; ++i) buffers.push_back(pool.Get(100'000));
    for (void* buffer : buffers) ASSERT_TRUE(pool.allocator.Deallocate(buffer));
    EXPECT_GT(pool.allocator.statistics().cached_bytes, 0u);
    EXPECT_EQ(pool.allocator.statistics().threads, 1u);
  }).join();
  EXPECT_EQ(pool.allocator.statistics().threads, 0u);
  EXPECT_EQ(pool.allocator.statistics().cached_bytes, 0u);
  pool.allocator.Trim();
  EXPECT_EQ(pool.allocator.statistics().block_bytes, 0u);
}

TEST(Bemalloc, ABufferFreedElsewhereComesBackToItsThread) {
  Pool pool;
  std::vector<void*> buffers;
  for (int i = 0; i < 1000; ++i) buffers.push_back(pool.Get(1000));
  std::thread([&] {
    for (void* buffer : buffers) ASSERT_TRUE(pool.allocator.Deallocate(buffer));
    for (void* buffer : buffers) ASSERT_FALSE(pool.allocator.Deallocate(buffer));
  }).join();
  EXPECT_EQ(pool.allocator.statistics().live_bytes, 0u);
  const uint64_t acquisitions = pool.allocator.statistics().acquisitions;
  for (int i = 0; i < 1000; ++i) pool.Get(1000);
  EXPECT_EQ(pool.allocator.statistics().acquisitions, acquisitions);
}

TEST(Bemalloc, TwoPoolsOfOneThreadDoNotMix) {
  Pool one, two;
  for (int i = 0; i < 100; ++i) {
    void* a = one.Get(100);
    void* b = two.Get(100);
    EXPECT_TRUE(one.allocator.Owns(a) && !one.allocator.Owns(b) && two.allocator.Owns(b));
    EXPECT_FALSE(one.allocator.Deallocate(b));
    EXPECT_FALSE(two.allocator.Deallocate(a));
    EXPECT_TRUE(one.allocator.Deallocate(a));
    EXPECT_TRUE(two.allocator.Deallocate(b));
  }
}

TEST(Bemalloc, AThreadOutlivesThePoolsItUsed) {
  for (int i = 0; i < 10; ++i) {
    auto pool = std::make_unique<Pool>();
    ASSERT_TRUE(pool->allocator.Deallocate(pool->Get(100)));
  }
}

TEST(Bemalloc, AForkedChildIsRefusedAndTheParentGoesOn) {
  Pool pool;
  void* buffer = pool.Get(100);
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = pool.allocator.Allocate(100).error().code == ErrorCode::kClosed &&
                         pool.allocator.Deallocate(buffer).error().code == ErrorCode::kClosed;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(pool.allocator.Deallocate(buffer));
  EXPECT_TRUE(pool.allocator.Allocate(100));
}

// Two allocators get the same calls; the pool of one is filled with random bytes over and over.
TEST(Bemalloc, ScribblingOverTheWholePoolChangesNothing) {
  Pool clean, scribbled;
  std::mt19937_64 random(7);
  std::vector<uint64_t> noise(16 * kKiB);
  for (uint64_t& word : noise) word = random();
  std::vector<std::pair<void*, void*>> live;
  for (int step = 0; step < 20'000; ++step) {
    if (live.empty() || random() % 100 < 52) {
      const uint64_t bytes = random() % (uint64_t{1} << (random() % 19));
      void* a = clean.Get(bytes);
      void* b = scribbled.Get(bytes);
      ASSERT_EQ(static_cast<std::byte*>(a) - clean.source.base(),
                static_cast<std::byte*>(b) - scribbled.source.base());
      live.emplace_back(a, b);
    } else {
      std::swap(live[random() % live.size()], live.back());
      ASSERT_TRUE(clean.allocator.Deallocate(live.back().first));
      ASSERT_TRUE(scribbled.allocator.Deallocate(live.back().second));
      ASSERT_FALSE(scribbled.allocator.Deallocate(live.back().second));
      live.pop_back();
    }
    if (random() % 500 == 0) {  // Every byte of every block, live or not.
      const Bemalloc::Statistics statistics = scribbled.allocator.statistics();
      ASSERT_EQ(statistics.live_bytes, clean.allocator.statistics().live_bytes);
      ASSERT_EQ(statistics.cached_bytes, clean.allocator.statistics().cached_bytes);
      for (uint64_t block = 0; block < kReserve; block += Heap::kBlockBytes) {
        std::byte* start = scribbled.source.base() + block;
        if (!scribbled.allocator.Owns(start)) continue;
        constexpr uint64_t kChunk = 64 * kKiB;
        for (uint64_t at = 0; at < Heap::kBlockBytes; at += kChunk)
          std::memcpy(start + at, &noise[random() % (noise.size() - kChunk / 8)], kChunk);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
