// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "shm_proto/base/result.h"
#include "shm_proto/bemalloc/page_heap.h"

namespace sluice {

// Hands out buffers inside blocks of one contiguous range of addresses (a client's pool), by pool
// offset. Invariant: live buffers never overlap and lie inside blocks of this heap; all metadata is
// private memory outside the blocks, and the payload is never read or written, so nothing that
// scribbles over the pool changes what the heap does. Thread: one at a time. Owns its metadata;
// borrows the blocks until TakeEmptyRun gives them back.
class Heap {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};
  static constexpr uint64_t kBlockBytes = bemalloc::kBlockBytes;
  static constexpr uint64_t kMaxAlignment = bemalloc::kMaxAlignment;

  struct Buffer {
    uint64_t offset, bytes;  // bytes: usable, at least what was asked for.
  };

  explicit Heap(uint64_t reserve_bytes);  // Pool offsets lie in [0, reserve_bytes).

  // A contiguous run of 4 MiB blocks that from now on is this heap's.
  void AddBlocks(uint64_t offset, uint64_t bytes);
  // A wholly free run of adjacent blocks leaves the heap: false when there is none. The caller
  // decides when that pays.
  bool TakeEmptyRun(uint64_t* offset, uint64_t* bytes, uint64_t max_bytes = ~uint64_t{0});

  // The offset of a buffer of at least `bytes` (0 counts as 1) whose offset is a multiple of
  // `alignment` (a power of two up to 2 MiB). kNone: it needs BytesToAcquire(bytes) more, or the
  // alignment is none.
  uint64_t Allocate(uint64_t bytes, uint64_t alignment = 64);
  // The contiguous run of blocks that makes Allocate(bytes) succeed whatever the heap looks like;
  // kNone when bytes is too large for any pool.
  static uint64_t BytesToAcquire(uint64_t bytes);
  // kInvalid: not from this heap, not a buffer's start, or freed already; the heap is unchanged
  // then.
  Result<> Free(uint64_t offset);

  // The live buffer that contains this offset. O(1), for any offset whatever.
  std::optional<Buffer> Find(uint64_t offset) const;
  bool Owns(uint64_t offset) const { return pages_.Owns(offset); }

  // One byte of the owner's per live buffer, 0 at first. `start` must be a live buffer's offset.
  uint8_t state(uint64_t start) const;
  void set_state(uint64_t start, uint8_t state);

  uint64_t live_bytes() const { return live_bytes_; }  // Usable bytes of live buffers.
  uint64_t live_buffers() const { return live_buffers_; }
  uint64_t block_bytes() const { return pages_.block_bytes(); }

 private:
  friend class Bemalloc;
  using Span = bemalloc::Span;

  // Up to `count` slots of a small class, appended as pool offset and state byte to what `take` is
  // called with.
  template <typename Take>
  uint32_t AllocateSlots(bemalloc::SpanShard& shard, uint32_t size_class, uint32_t count,
                         Take take);
  bool OwnsAny(uint64_t offset, uint64_t bytes) const;
  Span* AllocateRunSpan(uint64_t pages, uint64_t alignment_pages);
  uint64_t AllocateSmall(uint32_t size_class);
  uint64_t AllocateRun(uint64_t bytes, uint64_t alignment);
  Span* AllocatePages(uint64_t pages, uint64_t alignment_pages);
  Span* SpanWithSlots(bemalloc::SpanShard& shard, uint32_t size_class);
  Span* NewSmallSpan(bemalloc::SpanShard& shard, uint32_t size_class);
  void FreeSlot(Span* span, uint32_t slot);
  // Its spans are everybody's from now on.
  void RetireShard(bemalloc::SpanShard& shard);
  void ReleaseSpan(Span* span);
  bool ReleaseKeptSpans();
  // Lets the emptiest blocks run dry while the others have `keep_bytes`; whether there were any.
  bool ParkSparseBlocks(uint64_t keep_bytes);
  void ParkBlock(uint64_t block);
  uint64_t UsedBytes(uint64_t block) const;
  // Opens again the one of them that will take longest to run dry; whether there was one.
  bool UnparkFullestBlock();
  void UnparkBlock(uint64_t block);
  uint8_t* StateOf(uint64_t start) const;

  bemalloc::PageHeap pages_;
  bemalloc::SpanShard shared_;  // Of Heap's own callers, and of whoever has used up its own.
  bemalloc::SpanShard
      parked_;  // What lies in blocks that are to run dry; idle while there are none.
  // Slot states and free bits of one span, for reuse by the next of the class.
  std::array<std::vector<uint64_t*>, bemalloc::kSmallClasses> spare_metadata_;
  std::vector<std::unique_ptr<uint64_t[]>> metadata_;
  uint64_t live_bytes_ = 0;
  uint64_t live_buffers_ = 0;
};

template <typename Take>
uint32_t Heap::AllocateSlots(bemalloc::SpanShard& shard, uint32_t size_class, uint32_t count,
                             Take take) {
  const uint64_t slot_bytes = bemalloc::kSmallClassTable[size_class].slot_bytes;
  uint32_t taken = 0;
  while (taken < count) {
    Span* span = SpanWithSlots(shard, size_class);
    if (span == nullptr) break;
    uint64_t* free_bits = span->free_bits();
    for (uint32_t word = 0; taken < count && span->free_objects > 0; ++word) {
      uint64_t bits = free_bits[word];
      while (bits != 0 && taken < count) {
        const uint32_t slot = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
        bits &= bits - 1;
        take(span->start + slot * slot_bytes, &span->states[slot]);
        --span->free_objects;
        ++taken;
      }
      free_bits[word] = bits;
    }
    if (span->free_objects == 0) shard.partial[size_class].Remove(span);
  }
  live_bytes_ += taken * slot_bytes;
  live_buffers_ += taken;
  return taken;
}

}  // namespace sluice
