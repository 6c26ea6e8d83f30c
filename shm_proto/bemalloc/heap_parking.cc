// SPDX-License-Identifier: Apache-2.0
// How a pool shrinks after its load fell: what still lives is spread over all blocks, so some are
// closed for allocation until they are empty, and can go.
#include <algorithm>
#include <utility>

#include "shm_proto/bemalloc/heap.h"

namespace sluice {

using bemalloc::kBlockPages;
using bemalloc::kPageBytes;
using bemalloc::kPageShift;
using bemalloc::SpanKind;

// Of live buffers and cached ones.
uint64_t Heap::UsedBytes(uint64_t block) const {
  uint64_t used = 0;
  const uint64_t end = (block + 1) * kBlockPages;
  for (uint64_t page = block * kBlockPages; page < end;) {
    const Span* span = pages_.Lookup(page * kPageBytes);
    const uint64_t next = span->end() >> kPageShift;
    if (span->kind == SpanKind::kRun) used += (std::min(next, end) - page) * kPageBytes;
    if (span->kind == SpanKind::kSmall) {
      used += uint64_t{bemalloc::kSmallClassTable[span->size_class].slot_bytes} *
              static_cast<uint64_t>(span->objects - span->free_objects);
    }
    page = next;
  }
  return used;
}

bool Heap::ParkSparseBlocks(uint64_t keep_bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> used;  // bytes, block
  for (uint64_t block = 0; block < pages_.blocks(); ++block) {
    if (Owns(block * kBlockBytes) && !pages_.IsEmptyBlock(block))
      used.emplace_back(UsedBytes(block), block);
  }
  const uint64_t keep = keep_bytes / kBlockBytes + 1;
  if (used.size() <= keep) return false;
  std::ranges::sort(used);
  parked_.idle = false;
  for (uint64_t i = 0; i < used.size() - keep; ++i) ParkBlock(used[i].second);
  return true;
}

void Heap::ParkBlock(uint64_t block) {
  pages_.Park(block);
  const uint64_t end = (block + 1) * kBlockPages;
  for (uint64_t page = block * kBlockPages; page < end;) {
    Span* span = pages_.Lookup(page * kPageBytes);
    page = span->end() >> kPageShift;
    if (span->kind == SpanKind::kSmall && span->free_objects > 0) {
      span->shard()->partial[span->size_class].Remove(span);
      parked_.partial[span->size_class].Push(span);
    }
    // No thread keeps buffers of such spans: they come back here when they are freed.
    if (span->kind == SpanKind::kSmall || span->kind == SpanKind::kRun) span->set_shard(&parked_);
  }
}

bool Heap::UnparkFullestBlock() {
  if (parked_.idle) return false;
  std::pair<uint64_t, uint64_t> fullest;  // bytes, block
  bool any = false;
  for (uint64_t block = 0; block < pages_.blocks(); ++block) {
    if (!pages_.IsParked(block)) continue;
    fullest = std::max(fullest, {UsedBytes(block), block});
    any = true;
  }
  if (any) {
    UnparkBlock(fullest.second);
  } else {
    parked_.idle = true;  // The last one has run dry.
  }
  return any;
}

void Heap::UnparkBlock(uint64_t block) {
  pages_.Unpark(block);
  const uint64_t end = (block + 1) * kBlockPages;
  for (uint64_t page = block * kBlockPages; page < end;) {
    Span* span = pages_.Lookup(page * kPageBytes);
    page = span->end() >> kPageShift;
    if (span->kind == SpanKind::kRun) span->set_shard(nullptr);
    if (span->kind != SpanKind::kSmall || span->shard() != &parked_) continue;
    span->set_shard(&shared_);
    if (span->free_objects == 0) continue;
    parked_.partial[span->size_class].Remove(span);
    shared_.partial[span->size_class].Push(span);
  }
}

}  // namespace sluice
