// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "shm_proto/bemalloc/span.h"

namespace sluice::bemalloc {

// Runs of pages inside the blocks of one pool: best fit, merged with free neighbours when they come
// back. Invariant: a run of up to a block lies inside one block; a larger one starts with a block;
// free runs never touch one another within a block, and never span blocks. Thread: one at a time.
// Owns the span records and the page map; never reads or writes the pool.
class PageHeap {
 public:
  explicit PageHeap(uint64_t reserve_bytes);

  void AddBlocks(uint64_t offset, uint64_t bytes);
  // A run whose start is a multiple of `alignment_pages` (a power of two, at most a block), or null
  // when no free run fits.
  Span* Allocate(uint64_t pages, uint64_t alignment_pages);
  void Free(Span* span);
  // Takes up to max_bytes of adjacent empty blocks out of this heap.
  bool TakeEmptyRun(uint64_t max_bytes, uint64_t* offset, uint64_t* bytes);

  // Allocates nothing more from this block's free runs until Unpark(), or until the block is empty.
  void Park(uint64_t block);
  void Unpark(uint64_t block);
  bool IsParked(uint64_t block) const { return parked_[block]; }
  uint64_t blocks() const { return owned_.size(); }
  bool IsEmptyBlock(uint64_t block) const;

  // Never null: what is no live or free span has kind kUnused.
  Span* Lookup(uint64_t offset) const {
    return offset < end() ? map_[offset >> kPageShift] : PageMap::Nothing();
  }
  // Pool offsets from here on never belonged to this heap.
  uint64_t end() const { return map_.end_page() << kPageShift; }
  bool Owns(uint64_t offset) const {
    return offset < reserve_bytes_ && owned_[offset / kBlockBytes];
  }
  uint64_t block_bytes() const { return owned_blocks_ * kBlockBytes; }
  uint64_t free_pages() const { return free_pages_; }
  // How many blocks are empty now, and the fewest that were since the last call of
  // TakeLeastEmpty().
  uint64_t empty_blocks() const { return empty_blocks_; }
  uint64_t TakeLeastEmpty() { return std::exchange(least_empty_, empty_blocks_); }
  Span* const* map() const { return map_.entries(); }

 private:
  Span* AllocateBlocks(uint64_t pages);
  Span* Carve(Span* run, uint64_t first_page, uint64_t pages);
  void InsertFree(uint64_t first_page, uint64_t pages);
  Span* RemoveFree(Span* run);
  void FreeWithinBlock(uint64_t first_page, uint64_t pages);
  void PushBin(Span* run);
  bool IsParked(const Span* run) const {
    return run->pages < kBlockPages && parked_[run->start / kBlockBytes];
  }
  uint32_t FirstBinFrom(uint64_t pages) const;

  static constexpr uint32_t kBins = kBlockPages +
                                    1;  // Bin n holds the free runs of exactly n pages.
  static constexpr uint32_t kWords = kBins / 64 + 1;

  uint64_t reserve_bytes_;
  PageMap map_;
  SpanRecords records_;
  std::vector<bool> owned_;   // By block.
  std::vector<bool> parked_;  // By block.
  SpanList parked_runs_;
  uint64_t owned_blocks_ = 0;
  uint64_t free_pages_ = 0;
  uint64_t empty_blocks_ = 0;
  uint64_t least_empty_ = 0;
  std::array<SpanList, kBins> bins_;
  std::array<uint64_t, kWords> occupied_{};  // One bit per bin.
};

}  // namespace sluice::bemalloc
