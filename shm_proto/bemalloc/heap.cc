// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/bemalloc/heap.h"

#include <algorithm>
#include <bit>
#include <string>

#include "shm_proto/base/check.h"

namespace sluice {

using bemalloc::kGranuleBytes;
using bemalloc::kMaxSmallBytes;
using bemalloc::kPageBytes;
using bemalloc::kPageShift;
using bemalloc::kSmallClassTable;
using bemalloc::SmallClassInfo;
using bemalloc::SpanKind;

namespace {

// No pool is larger, and sums of sizes below it cannot overflow.
constexpr uint64_t kMaxBytes = uint64_t{1} << 43;

uint32_t SlotOf(const bemalloc::Span& span, uint64_t offset) {
  return static_cast<uint32_t>((offset - span.start) /
                               kSmallClassTable[span.size_class].slot_bytes);
}

bool IsFreeSlot(const bemalloc::Span& span, uint32_t slot) {
  return (span.free_bits()[slot / 64] >> (slot % 64)) & 1;
}

}  // namespace

Heap::Heap(uint64_t reserve_bytes) : pages_(reserve_bytes) {
  shared_.keeps_empty = true;
  parked_.idle = true;
}

void Heap::AddBlocks(uint64_t offset, uint64_t bytes) { pages_.AddBlocks(offset, bytes); }

bool Heap::OwnsAny(uint64_t offset, uint64_t bytes) const {
  for (uint64_t block = offset; block < offset + bytes; block += kBlockBytes) {
    if (Owns(block)) return true;
  }
  return false;
}

bool Heap::TakeEmptyRun(uint64_t* offset, uint64_t* bytes, uint64_t max_bytes) {
  ReleaseKeptSpans();
  return pages_.TakeEmptyRun(max_bytes, offset, bytes);
}

uint64_t Heap::BytesToAcquire(uint64_t bytes) {
  return bytes > kMaxBytes ? kNone : RoundUp(std::max<uint64_t>(bytes, 1), kBlockBytes);
}

uint64_t Heap::Allocate(uint64_t bytes, uint64_t alignment) {
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment || bytes > kMaxBytes)
    return kNone;
  const uint64_t size = std::max<uint64_t>(bytes, 1);
  // Spans start on a page, so a slot size that is a multiple of the alignment aligns every slot.
  // What holds a multiple of a power of two up to a page is one itself.
  const uint64_t rounded = RoundUp(size, alignment);
  if (rounded <= kMaxSmallBytes && alignment <= kPageBytes)
    return AllocateSmall(bemalloc::SmallClass(rounded));
  return AllocateRun(size, alignment);
}

uint64_t Heap::AllocateSmall(uint32_t size_class) {
  uint64_t found = kNone;
  AllocateSlots(shared_, size_class, 1, [&found](uint64_t offset, uint8_t* state) {
    found = offset;
    *state = 0;
  });
  return found;
}

uint64_t Heap::AllocateRun(uint64_t bytes, uint64_t alignment) {
  const Span* span = AllocateRunSpan((bytes + kPageBytes - 1) / kPageBytes,
                                     std::max<uint64_t>(alignment / kPageBytes, 1));
  return span != nullptr ? span->start : kNone;
}

bemalloc::Span* Heap::AllocateRunSpan(uint64_t pages, uint64_t alignment_pages) {
  Span* span = AllocatePages(pages, alignment_pages);
  if (span == nullptr) return nullptr;
  span->magic = 1;
  span->states = &span->run_state;
  span->run_state = 0;
  span->objects = 1;
  span->size_class = static_cast<uint8_t>(bemalloc::RunClassIfExact(pages));
  live_bytes_ += span->bytes();
  ++live_buffers_;
  return span;
}

bemalloc::Span* Heap::AllocatePages(uint64_t pages, uint64_t alignment_pages) {
  Span* span = pages_.Allocate(pages, alignment_pages);
  if (span == nullptr && ReleaseKeptSpans()) span = pages_.Allocate(pages, alignment_pages);
  return span;
}

bemalloc::Span* Heap::SpanWithSlots(bemalloc::SpanShard& shard, uint32_t size_class) {
  if (Span* span = shard.partial[size_class].first(); span != nullptr) return span;
  Span* span = shared_.partial[size_class].first();
  if (span == nullptr) return NewSmallSpan(shard, size_class);
  shared_.partial[size_class].Remove(span);
  span->set_shard(&shard);
  shard.partial[size_class].Push(span);
  return span;
}

bemalloc::Span* Heap::NewSmallSpan(bemalloc::SpanShard& shard, uint32_t size_class) {
  const SmallClassInfo& info = kSmallClassTable[size_class];
  Span* span = AllocatePages(info.pages, 1);
  if (span == nullptr) return nullptr;
  auto& spare = spare_metadata_[size_class];
  if (spare.empty()) {
    // One more state than slots: what lies behind the last slot is never live.
    metadata_.push_back(std::make_unique<uint64_t[]>(info.bit_words + info.objects / 8u + 1));
    spare.push_back(metadata_.back().get());
  }
  uint64_t* free_bits = spare.back();
  spare.pop_back();
  for (uint32_t word = 0; word < info.bit_words; ++word) {
    const uint32_t bits = info.objects - word * 64;
    free_bits[word] = bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  }
  span->states = reinterpret_cast<uint8_t*>(free_bits + info.bit_words);
  span->kind = SpanKind::kSmall;
  span->size_class = static_cast<uint8_t>(size_class);
  span->magic = info.magic;
  span->objects = span->free_objects = info.objects;
  span->set_shard(&shard);
  shard.partial[size_class].Push(span);
  return span;
}

void Heap::ReleaseSpan(Span* span) {
  if (span->kind == SpanKind::kSmall) {
    span->shard()->partial[span->size_class].Remove(span);
    spare_metadata_[span->size_class].push_back(span->free_bits());
  }
  pages_.Free(span);
}

// Whether anything came free.
bool Heap::ReleaseKeptSpans() {
  bool released = false;
  for (auto& partial : shared_.partial) {
    Span* span = partial.first();
    while (span != nullptr) {
      Span* next = span->next;
      if (span->free_objects == span->objects) {
        ReleaseSpan(span);
        released = true;
      }
      span = next;
    }
  }
  return released;
}

void Heap::RetireShard(bemalloc::SpanShard& shard) {
  shard.idle = true;
  for (uint32_t size_class = 0; size_class < bemalloc::kSmallClasses; ++size_class) {
    while (Span* span = shard.partial[size_class].first()) {
      shard.partial[size_class].Remove(span);
      span->set_shard(&shared_);
      shared_.partial[size_class].Push(span);
    }
  }
}

void Heap::FreeSlot(Span* span, uint32_t slot) {
  span->free_bits()[slot / 64] |= uint64_t{1} << (slot % 64);
  live_bytes_ -= kSmallClassTable[span->size_class].slot_bytes;
  --live_buffers_;
  if (span->free_objects++ == 0) {
    if (span->shard()->idle) span->set_shard(&shared_);
    span->shard()->partial[span->size_class].Push(span);
  }
  if (span->free_objects < span->objects) return;
  const auto& partial = span->shard()->partial[span->size_class];
  const bool last_of_class = partial.first() == span && span->next == nullptr;
  if (!span->shard()->keeps_empty || !last_of_class) ReleaseSpan(span);
}

Result<> Heap::Free(uint64_t offset) {
  Span* span = pages_.Lookup(offset);
  if (span->kind != SpanKind::kSmall && span->kind != SpanKind::kRun) {
    return Fail(ErrorCode::kInvalid,
                "free of pool offset " + std::to_string(offset) +
                    ": no buffer is there; it was freed already or never came from this pool");
  }
  if (span->kind == SpanKind::kRun) {
    if (offset != span->start) {
      return Fail(ErrorCode::kInvalid, "free of pool offset " + std::to_string(offset) +
                                           ": it lies inside the buffer at " +
                                           std::to_string(span->start) +
                                           "; free a buffer by its start");
    }
    live_bytes_ -= span->bytes();
    --live_buffers_;
    ReleaseSpan(span);
    return {};
  }
  const uint64_t slot_bytes = kSmallClassTable[span->size_class].slot_bytes;
  const uint32_t slot = SlotOf(*span, offset);
  if (slot >= span->objects || IsFreeSlot(*span, slot)) {
    return Fail(ErrorCode::kInvalid,
                "free of pool offset " + std::to_string(offset) +
                    ": no buffer is there; it was freed already or never came from this pool");
  }
  if (offset != span->start + slot * slot_bytes) {
    return Fail(ErrorCode::kInvalid, "free of pool offset " + std::to_string(offset) +
                                         ": it lies inside the buffer at " +
                                         std::to_string(span->start + slot * slot_bytes) +
                                         "; free a buffer by its start");
  }
  FreeSlot(span, slot);
  return {};
}

std::optional<Heap::Buffer> Heap::Find(uint64_t offset) const {
  const Span* span = pages_.Lookup(offset);
  if (span->kind == SpanKind::kRun) return Buffer{span->start, span->bytes()};
  if (span->kind != SpanKind::kSmall) return std::nullopt;
  const uint32_t slot = SlotOf(*span, offset);
  if (slot >= span->objects || IsFreeSlot(*span, slot)) return std::nullopt;
  const uint64_t slot_bytes = kSmallClassTable[span->size_class].slot_bytes;
  return Buffer{span->start + slot * slot_bytes, slot_bytes};
}

uint8_t* Heap::StateOf(uint64_t start) const {
  const std::optional<Buffer> buffer = Find(start);
  SLUICE_CHECK(buffer && buffer->offset == start, "only a live buffer has a state; ask Find first");
  Span* span = pages_.Lookup(start);
  return span->kind == SpanKind::kRun ? &span->run_state : &span->states[SlotOf(*span, start)];
}

uint8_t Heap::state(uint64_t start) const { return *StateOf(start); }

void Heap::set_state(uint64_t start, uint8_t state) { *StateOf(start) = state; }

}  // namespace sluice
