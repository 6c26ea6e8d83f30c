// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "shm_proto/bemalloc/size_class.h"

namespace sluice::bemalloc {

enum class SpanKind : uint8_t {
  kUnused,  // The record waits for reuse.
  kFree,    // A free run of pages, no neighbour of which is free.
  kSmall,   // Slots of one size class.
  kRun,     // One buffer of whole pages.
};

struct SpanShard;

// A run of pages of the pool and what it is used for. Lives in private memory; never moves and is
// never given back to the system, so that a stale pointer to one reads a record, never garbage.
struct alignas(64) Span {
  uint64_t start = 0;           // Pool offset.
  uint64_t magic = 0;           // See SmallClassInfo; 1 for a run, 0 for what is not in use.
  uint8_t* states = nullptr;    // One byte of the owner's per buffer.
  SpanShard* shard_ = nullptr;  // kSmall: whose slots these are; null otherwise.
  Span* next = nullptr;
  Span* previous = nullptr;
  uint32_t pages = 0;
  uint16_t objects = 0;
  uint16_t free_objects = 0;
  uint8_t size_class = 0;
  SpanKind kind = SpanKind::kUnused;
  uint8_t run_state = 0;  // What `states` points to for a run.

  // Read without a lock by threads that only want to know whether it is theirs.
  SpanShard* shard() const { return __atomic_load_n(&shard_, __ATOMIC_RELAXED); }
  void set_shard(SpanShard* shard) { __atomic_store_n(&shard_, shard, __ATOMIC_RELAXED); }
  // kSmall: one bit per slot, set when free; stands before the states.
  uint64_t* free_bits() const {
    return reinterpret_cast<uint64_t*>(states) - kSmallClassTable[size_class].bit_words;
  }
  uint64_t bytes() const { return pages * kPageBytes; }
  uint64_t end() const { return start + bytes(); }
};
static_assert(sizeof(Span) == 64);

// A doubly linked list through Span::next and previous; a span is in one list at a time.
class SpanList {
 public:
  bool empty() const { return first_ == nullptr; }
  Span* first() const { return first_; }

  void Push(Span* span) {
    span->previous = nullptr;
    span->next = first_;
    if (first_ != nullptr) first_->previous = span;
    first_ = span;
  }

  void Remove(Span* span) {
    if (span->previous != nullptr) {
      span->previous->next = span->next;
    } else {
      first_ = span->next;
    }
    if (span->next != nullptr) span->next->previous = span->previous;
    span->next = span->previous = nullptr;
  }

 private:
  Span* first_ = nullptr;
};

// The spans of small slots that have free ones, by class, of those who allocate from the same
// spans. Keeping threads to spans of their own keeps the slots' states out of each other's cache
// lines.
struct SpanShard {
  std::array<SpanList, kSmallClasses> partial;
  bool keeps_empty = false;  // One empty span of each class stays.
  std::atomic<bool> idle{
      false};  // Nobody allocates from it: what comes free goes to everybody's shard.
};

// Hands out span records from slabs.
class SpanRecords {
 public:
  Span* New();
  void Delete(Span* span);

 private:
  static constexpr size_t kSlabSpans = 64;
  std::vector<std::unique_ptr<Span[]>> slabs_;
  size_t used_in_slab_ = kSlabSpans;
  SpanList unused_;
};

// Which span a page belongs to: one entry per page of the reserved range, in lazily committed
// memory. Invariant: below end_page() an entry is Nothing() unless its page lies in a live span or
// is the first or last of a free one; from there on it is not to be read.
class PageMap {
 public:
  explicit PageMap(uint64_t reserve_bytes);
  ~PageMap();
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;

  // What is neither live nor free: of no kind, with no magic.
  static Span* Nothing();
  uint64_t end_page() const { return end_page_; }
  void Extend(uint64_t end_page);

  Span* operator[](uint64_t page) const { return entries_[page]; }
  void Set(uint64_t page, Span* span) { entries_[page] = span; }
  void Fill(uint64_t page, uint64_t pages, Span* span);
  Span* const* entries() const { return entries_; }

 private:
  Span** entries_;
  uint64_t bytes_;
  uint64_t end_page_ = 0;
};

}  // namespace sluice::bemalloc
