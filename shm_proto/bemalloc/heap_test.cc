// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/bemalloc/heap.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace sluice {
namespace {

constexpr uint64_t kReserve = 256 * kMiB;

// Allocates, acquiring blocks one after another as an owner would.
struct GrowingHeap {
  Heap heap{kReserve};
  uint64_t next = 0;

  uint64_t Allocate(uint64_t bytes, uint64_t alignment = 64) {
    const uint64_t offset = heap.Allocate(bytes, alignment);
    if (offset != Heap::kNone) return offset;
    const uint64_t more = Heap::BytesToAcquire(bytes);
    if (!InRange(next, more, kReserve)) return Heap::kNone;
    heap.AddBlocks(next, more);
    next += more;
    return heap.Allocate(bytes, alignment);
  }
};

TEST(SizeClass, EverySizeFitsItsClassAndNoSmallerOne) {
  for (uint64_t bytes = 1; bytes <= bemalloc::kMaxSmallBytes; ++bytes) {
    const uint32_t size_class = bemalloc::SmallClass(bytes);
    ASSERT_LT(size_class, bemalloc::kSmallClasses);
    const uint64_t slot = bemalloc::SmallClassBytes(size_class);
    ASSERT_GE(slot, bytes);
    if (size_class > 0) {
      ASSERT_LT(bemalloc::SmallClassBytes(size_class - 1), bytes);
    }
    ASSERT_LE(slot - bytes, std::max<uint64_t>(slot / 8, 15)) << bytes;
  }
}

TEST(SizeClass, MagicTellsEverySlotStartFromEveryOtherOffset) {
  for (const bemalloc::SmallClassInfo& info : bemalloc::kSmallClassTable) {
    ASSERT_LE(info.objects, bemalloc::kMaxObjects);
    ASSERT_GE(info.objects, bemalloc::LeastObjects(info.slot_bytes));
    for (uint64_t offset = 0; offset < info.pages * bemalloc::kPageBytes; ++offset) {
      const auto product = static_cast<unsigned __int128>(offset) * info.magic;
      ASSERT_EQ(static_cast<uint64_t>(product >> 64), offset / info.slot_bytes);
      ASSERT_EQ(static_cast<uint64_t>(product) < info.magic, offset % info.slot_bytes == 0);
    }
  }
}

TEST(Heap, WithoutBlocksHasNothingToGive) {
  Heap heap(kReserve);
  EXPECT_EQ(heap.Allocate(1), Heap::kNone);
  EXPECT_EQ(heap.Allocate(100 * kMiB), Heap::kNone);
  EXPECT_EQ(heap.Free(0).error().code, ErrorCode::kInvalid);
  EXPECT_FALSE(heap.Find(0));
  EXPECT_FALSE(heap.Owns(0));
}

TEST(Heap, WhatBytesToAcquireSaysIsEnoughForEverySizeAndAlignment) {
  for (uint64_t bytes : {uint64_t{0}, uint64_t{1}, 32 * kKiB, 32 * kKiB + 1, kMiB, 4 * kMiB - 1,
                         4 * kMiB, 4 * kMiB + 1, 9 * kMiB, 64 * kMiB}) {
    for (uint64_t alignment = 1; alignment <= Heap::kMaxAlignment; alignment *= 2) {
      Heap heap(kReserve);
      heap.AddBlocks(8 * kMiB, Heap::BytesToAcquire(bytes));
      const uint64_t offset = heap.Allocate(bytes, alignment);
      ASSERT_NE(offset, Heap::kNone) << bytes << " aligned to " << alignment;
      EXPECT_EQ(offset % alignment, 0u);
      ASSERT_TRUE(heap.Free(offset));
      uint64_t run_offset, run_bytes;
      ASSERT_TRUE(heap.TakeEmptyRun(&run_offset, &run_bytes));
      EXPECT_EQ(run_offset, 8 * kMiB);
      EXPECT_EQ(run_bytes, Heap::BytesToAcquire(bytes));
      EXPECT_EQ(heap.block_bytes(), 0u);
    }
  }
  EXPECT_EQ(Heap::BytesToAcquire(~uint64_t{0}), Heap::kNone);
}

TEST(Heap, RefusesAlignmentsThatAreNone) {
  GrowingHeap growing;
  for (uint64_t alignment : {uint64_t{0}, uint64_t{3}, uint64_t{96}, 4 * kMiB}) {
    EXPECT_EQ(growing.heap.Allocate(64, alignment), Heap::kNone);
  }
  EXPECT_EQ(growing.heap.Allocate(~uint64_t{0}), Heap::kNone);
}

TEST(Heap, SaysWhatIsWrongWithABadFree) {
  GrowingHeap growing;
  for (uint64_t bytes : {uint64_t{100}, uint64_t{20'000}, uint64_t{100'000}, 5 * kMiB}) {
    const uint64_t offset = growing.Allocate(bytes);
    EXPECT_NE(growing.heap.Free(offset + 1).error().message.find("inside the buffer"),
              std::string::npos);
    EXPECT_NE(growing.heap.Free(offset + bytes - 1).error().message.find("inside the buffer"),
              std::string::npos);
    ASSERT_TRUE(growing.heap.Free(offset));
    EXPECT_NE(growing.heap.Free(offset).error().message.find("freed already"), std::string::npos);
    EXPECT_EQ(growing.heap.Free(kReserve + offset).error().code, ErrorCode::kInvalid);
    EXPECT_EQ(growing.heap.Free(~uint64_t{0}).error().code, ErrorCode::kInvalid);
  }
}

TEST(Heap, FindsTheBufferFromEveryByteOfIt) {
  GrowingHeap growing;
  for (uint64_t bytes : {uint64_t{1}, uint64_t{48}, uint64_t{4097}, uint64_t{33'000}, 5 * kMiB}) {
    const uint64_t start = growing.Allocate(bytes);
    const uint64_t usable = growing.heap.Find(start)->bytes;
    ASSERT_GE(usable, bytes);
    const uint64_t step = std::max<uint64_t>(1, bytes / 1000);
    for (uint64_t offset = start; offset < start + usable; offset += step) {
      ASSERT_EQ(growing.heap.Find(offset)->offset, start);
      ASSERT_EQ(growing.heap.Find(offset)->bytes, usable);
    }
    ASSERT_TRUE(growing.heap.Free(start));
    EXPECT_FALSE(growing.heap.Find(start));
  }
}

TEST(Heap, KeepsOneStateByteForEachLiveBuffer) {
  GrowingHeap growing;
  std::vector<uint64_t> buffers;
  for (uint64_t i = 0; i < 200; ++i) buffers.push_back(growing.Allocate(i * i * 10));
  for (size_t i = 0; i < buffers.size(); ++i)
    growing.heap.set_state(buffers[i], static_cast<uint8_t>(i));
  for (size_t i = 0; i < buffers.size(); ++i)
    EXPECT_EQ(growing.heap.state(buffers[i]), static_cast<uint8_t>(i));
  ASSERT_TRUE(growing.heap.Free(buffers[7]));
  EXPECT_EQ(growing.heap.state(growing.Allocate(490)), 0);
}

TEST(Heap, GivesTheLastBlockOfALargeBufferToSmallerOnes) {
  Heap heap(kReserve);
  heap.AddBlocks(0, 8 * kMiB);
  const uint64_t large = heap.Allocate(5 * kMiB);
  EXPECT_EQ(large, 0u);
  const uint64_t tail = heap.Allocate(3 * kMiB);
  ASSERT_NE(tail, Heap::kNone);
  ASSERT_TRUE(heap.Free(large));
  EXPECT_NE(heap.Allocate(4 * kMiB), Heap::kNone);
  EXPECT_TRUE(heap.Free(tail));
}

TEST(Heap, TakesBackNoMoreThanAskedFor) {
  Heap heap(kReserve);
  heap.AddBlocks(0, 64 * kMiB);
  const uint64_t keep = heap.Allocate(100);
  uint64_t offset, bytes;
  ASSERT_TRUE(heap.TakeEmptyRun(&offset, &bytes, 9 * kMiB));
  EXPECT_EQ(bytes, 8 * kMiB);
  EXPECT_FALSE(heap.Owns(offset));
  EXPECT_FALSE(heap.TakeEmptyRun(&offset, &bytes, 3 * kMiB));
  ASSERT_TRUE(heap.TakeEmptyRun(&offset, &bytes));
  while (heap.TakeEmptyRun(&offset, &bytes)) {
  }
  EXPECT_EQ(heap.block_bytes(), Heap::kBlockBytes);
  EXPECT_TRUE(heap.Owns(keep));
}

// The heap against a model that only knows which ranges are live.
// A pool that shrinks may close the same block again before it is empty.
TEST(PageHeap, ParkingABlockTwiceIsParkingItOnce) {
  constexpr uint64_t kPages = bemalloc::kBlockPages;
  bemalloc::PageHeap heap(2 * bemalloc::kBlockBytes);
  heap.AddBlocks(0, 2 * bemalloc::kBlockBytes);
  std::vector<bemalloc::Span*> live;
  while (bemalloc::Span* run = heap.Allocate(kPages / 4, 1)) live.push_back(run);
  ASSERT_EQ(live.size(), 8u);
  const uint64_t parked = live[0]->start / bemalloc::kBlockBytes;
  for (const size_t index : {0u, 4u, 6u}) heap.Free(live[index]);
  heap.Park(parked);
  heap.Park(parked);
  for (int i = 0; i < 2; ++i) {
    const bemalloc::Span* run = heap.Allocate(kPages / 4, 1);
    ASSERT_NE(run, nullptr);
    EXPECT_NE(run->start / bemalloc::kBlockBytes, parked);
  }
  EXPECT_EQ(heap.Allocate(kPages / 4, 1), nullptr);
  for (uint64_t block = 0; block < 2; ++block) heap.Unpark(block);
  EXPECT_NE(heap.Allocate(kPages / 4, 1), nullptr);
  EXPECT_EQ(heap.Allocate(1, 1), nullptr);
  EXPECT_EQ(heap.free_pages(), 0u);
}

TEST(Heap, NeverOverlapsAndAlwaysConservesOverRandomHistories) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    GrowingHeap growing;
    std::map<uint64_t, uint64_t> live;  // start -> usable bytes
    uint64_t live_bytes = 0;
    for (int step = 0; step < 5000; ++step) {
      if (random() % 100 < 55 || live.empty()) {
        const uint64_t bytes = random() % (uint64_t{1} << (random() % 23));
        const uint64_t alignment = uint64_t{1} << (random() % 8 == 0 ? random() % 22 : 6);
        const uint64_t start = growing.Allocate(bytes, alignment);
        if (start == Heap::kNone) continue;
        ASSERT_EQ(start % alignment, 0u);
        const auto found = growing.heap.Find(start);
        ASSERT_TRUE(found && found->offset == start && found->bytes >= bytes);
        ASSERT_TRUE(growing.heap.Owns(start) && growing.heap.Owns(start + found->bytes - 1));
        const auto after = live.lower_bound(start);
        if (after != live.end()) {
          ASSERT_LE(start + found->bytes, after->first);
        }
        if (after != live.begin()) {
          ASSERT_LE(std::prev(after)->first + std::prev(after)->second, start);
        }
        live[start] = found->bytes;
        live_bytes += found->bytes;
      } else {
        auto victim = live.lower_bound(random() % growing.next);
        if (victim == live.end()) victim = live.begin();
        ASSERT_TRUE(growing.heap.Free(victim->first));
        ASSERT_FALSE(growing.heap.Free(victim->first));
        live_bytes -= victim->second;
        live.erase(victim);
      }
      ASSERT_EQ(growing.heap.live_bytes(), live_bytes);
      ASSERT_EQ(growing.heap.live_buffers(), live.size());
    }
    for (const auto& [start, bytes] : live) ASSERT_TRUE(growing.heap.Free(start));
    uint64_t offset, bytes, returned = 0;
    while (growing.heap.TakeEmptyRun(&offset, &bytes)) returned += bytes;
    EXPECT_EQ(returned, growing.next);
    EXPECT_EQ(growing.heap.block_bytes(), 0u);
  }
}

}  // namespace
}  // namespace sluice
