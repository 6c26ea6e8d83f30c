// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/bemalloc/page_heap.h"

#include <algorithm>

#include "shm_proto/base/check.h"

namespace sluice::bemalloc {

PageHeap::PageHeap(uint64_t reserve_bytes)
    : reserve_bytes_(RoundUp(reserve_bytes, kBlockBytes)),
      map_(reserve_bytes_),
      owned_(reserve_bytes_ / kBlockBytes),
      parked_(reserve_bytes_ / kBlockBytes) {}

void PageHeap::AddBlocks(uint64_t offset, uint64_t bytes) {
  SLUICE_CHECK(offset % kBlockBytes == 0 && bytes % kBlockBytes == 0 &&
                   InRange(offset, bytes, reserve_bytes_),
               "a heap is given whole blocks inside its reserved range");
  map_.Extend((offset + bytes) >> kPageShift);
  for (uint64_t block = offset / kBlockBytes; block < (offset + bytes) / kBlockBytes; ++block) {
    SLUICE_CHECK(!owned_[block], "a block joins a heap once");
    owned_[block] = true;
    ++owned_blocks_;
    InsertFree(block * kBlockPages, kBlockPages);
  }
}

void PageHeap::InsertFree(uint64_t first_page, uint64_t pages) {
  Span* run = records_.New();
  run->start = first_page * kPageBytes;
  run->pages = static_cast<uint32_t>(pages);
  run->kind = SpanKind::kFree;
  map_.Set(first_page, run);
  map_.Set(first_page + pages - 1, run);
  if (IsParked(run)) {
    parked_runs_.Push(run);
  } else {
    PushBin(run);
  }
  free_pages_ += pages;
  if (pages == kBlockPages) {
    parked_[run->start / kBlockBytes] = false;
    ++empty_blocks_;
  }
}

void PageHeap::PushBin(Span* run) {
  bins_[run->pages].Push(run);
  occupied_[run->pages / 64] |= uint64_t{1} << (run->pages % 64);
}

void PageHeap::Park(uint64_t block) {
  if (parked_[block]) return;  // Its free runs are out of the bins already.
  parked_[block] = true;
  const uint64_t end = (block + 1) * kBlockPages;
  for (uint64_t page = block * kBlockPages; page < end;) {
    Span* span = map_[page];
    if (span->kind == SpanKind::kFree) {
      bins_[span->pages].Remove(span);
      if (bins_[span->pages].empty())
        occupied_[span->pages / 64] &= ~(uint64_t{1} << (span->pages % 64));
      parked_runs_.Push(span);
    }
    page = span->end() >> kPageShift;
  }
}

void PageHeap::Unpark(uint64_t block) {
  if (!parked_[block]) return;
  parked_[block] = false;
  const uint64_t end = (block + 1) * kBlockPages;
  for (uint64_t page = block * kBlockPages; page < end;) {
    Span* span = map_[page];
    if (span->kind == SpanKind::kFree) {
      parked_runs_.Remove(span);
      PushBin(span);
    }
    page = span->end() >> kPageShift;
  }
}

// Out of its bin, its marks out of the map; the caller decides about the record.
Span* PageHeap::RemoveFree(Span* run) {
  if (IsParked(run)) {
    parked_runs_.Remove(run);
  } else {
    bins_[run->pages].Remove(run);
    if (bins_[run->pages].empty())
      occupied_[run->pages / 64] &= ~(uint64_t{1} << (run->pages % 64));
  }
  const uint64_t first_page = run->start >> kPageShift;
  map_.Set(first_page, PageMap::Nothing());
  map_.Set(first_page + run->pages - 1, PageMap::Nothing());
  free_pages_ -= run->pages;
  if (run->pages == kBlockPages) least_empty_ = std::min(least_empty_, --empty_blocks_);
  return run;
}

// The smallest occupied bin of at least `pages`, or kBins.
uint32_t PageHeap::FirstBinFrom(uint64_t pages) const {
  uint64_t word = pages / 64;
  uint64_t bits = occupied_[word] & (~uint64_t{0} << (pages % 64));
  while (bits == 0) {
    if (++word == kWords) return kBins;
    bits = occupied_[word];
  }
  return static_cast<uint32_t>(word * 64 + static_cast<uint64_t>(std::countr_zero(bits)));
}

Span* PageHeap::Allocate(uint64_t pages, uint64_t alignment_pages) {
  if (pages > kBlockPages) return AllocateBlocks(pages);
  // A run this long contains an aligned one wherever it starts; a whole block does because blocks
  // are aligned.
  const uint64_t enough_pages = std::min<uint64_t>(pages + alignment_pages - 1, kBlockPages);
  const uint32_t bin = FirstBinFrom(enough_pages);
  if (bin == kBins) return nullptr;
  Span* run = RemoveFree(bins_[bin].first());
  return Carve(run, RoundUp(run->start >> kPageShift, alignment_pages), pages);
}

// Makes the removed free run a live one of `pages` from first_page on; what is left on either side
// stays free.
Span* PageHeap::Carve(Span* run, uint64_t first_page, uint64_t pages) {
  const uint64_t run_first = run->start >> kPageShift, run_end = run_first + run->pages;
  if (first_page > run_first) InsertFree(run_first, first_page - run_first);
  if (run_end > first_page + pages) InsertFree(first_page + pages, run_end - first_page - pages);
  run->start = first_page * kPageBytes;
  run->pages = static_cast<uint32_t>(pages);
  run->kind = SpanKind::kRun;
  map_.Fill(first_page, pages, run);
  return run;
}

bool PageHeap::IsEmptyBlock(uint64_t block) const {
  if (block >= owned_.size() || !owned_[block]) return false;
  const Span* first = map_[block * kBlockPages];
  return first->kind == SpanKind::kFree && first->pages == kBlockPages;
}

// First fit over the blocks: rare, and the buffer is at least 4 MiB.
Span* PageHeap::AllocateBlocks(uint64_t pages) {
  const uint64_t blocks = (pages + kBlockPages - 1) / kBlockPages;
  if (blocks > owned_blocks_) return nullptr;
  uint64_t found = 0, end = 0;
  for (uint64_t block = 0; block < owned_.size() && found < blocks; ++block) {
    found = IsEmptyBlock(block) ? found + 1 : 0;
    end = block + 1;
  }
  if (found < blocks) return nullptr;
  const uint64_t first_page = (end - blocks) * kBlockPages;
  Span* span = RemoveFree(map_[first_page]);
  for (uint64_t block = end - blocks + 1; block < end; ++block) {
    records_.Delete(RemoveFree(map_[block * kBlockPages]));
  }
  // What the last block has left over serves smaller runs.
  if (pages < blocks * kBlockPages) InsertFree(first_page + pages, blocks * kBlockPages - pages);
  span->pages = static_cast<uint32_t>(pages);
  span->kind = SpanKind::kRun;
  map_.Fill(first_page, pages, span);
  return span;
}

void PageHeap::Free(Span* span) {
  uint64_t first_page = span->start >> kPageShift;
  uint64_t left = span->pages;
  map_.Fill(first_page, left, PageMap::Nothing());
  records_.Delete(span);
  while (left > 0) {
    const uint64_t pages = std::min<uint64_t>(left, kBlockPages - first_page % kBlockPages);
    FreeWithinBlock(first_page, pages);
    first_page += pages;
    left -= pages;
  }
}

void PageHeap::FreeWithinBlock(uint64_t first_page, uint64_t pages) {
  if (first_page % kBlockPages != 0) {
    if (Span* left = map_[first_page - 1]; left->kind == SpanKind::kFree) {
      RemoveFree(left);
      first_page -= left->pages;
      pages += left->pages;
      records_.Delete(left);
    }
  }
  if ((first_page + pages) % kBlockPages != 0) {
    if (Span* right = map_[first_page + pages]; right->kind == SpanKind::kFree) {
      RemoveFree(right);
      pages += right->pages;
      records_.Delete(right);
    }
  }
  InsertFree(first_page, pages);
}

bool PageHeap::TakeEmptyRun(uint64_t max_bytes, uint64_t* offset, uint64_t* bytes) {
  if (bins_[kBlockPages].empty() || max_bytes < kBlockBytes) return false;
  uint64_t first = bins_[kBlockPages].first()->start / kBlockBytes, end = first + 1;
  while (end - first < max_bytes / kBlockBytes) {
    if (IsEmptyBlock(end)) {
      ++end;
    } else if (first > 0 && IsEmptyBlock(first - 1)) {
      --first;
    } else {
      break;
    }
  }
  for (uint64_t block = first; block < end; ++block) {
    records_.Delete(RemoveFree(map_[block * kBlockPages]));
    owned_[block] = false;
    --owned_blocks_;
  }
  *offset = first * kBlockBytes;
  *bytes = (end - first) * kBlockBytes;
  return true;
}

}  // namespace sluice::bemalloc
