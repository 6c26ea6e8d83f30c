// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "shm_proto/bemalloc/return_list.h"
#include "shm_proto/bemalloc/span.h"

namespace sluice::bemalloc {

constexpr uint32_t kMaxReturned = 64;
constexpr uint64_t kMaxBinBytes = 256 * kKiB;  // In one bin of a small class.
constexpr uint32_t kMaxRunsInBin = 16;

// What the state byte of a buffer says.
enum BufferState : uint8_t {
  kFree = 0,
  kCached = 1,      // In a thread's cache.
  kLive = 2,        // The application's.
  kHandedOver = 3,  // The application has given it away: in flight.
};

// A cached buffer: its address and where its state stands.
struct CachedBuffer {
  std::byte* address;
  uint8_t* state;
};

// The cached buffers of one class, last in, first out.
// Invariant: begin <= top, and top <= end but for runs. Two are atomic only so that statistics may
// read them; nobody else writes them.
struct CacheBin {
  std::atomic<CachedBuffer*> top{nullptr};
  std::atomic<CachedBuffer*> begin{nullptr};
  CachedBuffer* end = nullptr;  // What the bin may hold now, not what its storage could.

  CachedBuffer* Top() const { return top.load(std::memory_order_relaxed); }
  void SetTop(CachedBuffer* value) { top.store(value, std::memory_order_relaxed); }
  CachedBuffer* Begin() const { return begin.load(std::memory_order_relaxed); }
  uint32_t count() const { return static_cast<uint32_t>(Top() - Begin()); }
  // For another thread than the cache's: the two may not fit together yet.
  uint32_t CountSeenFromElsewhere() const {
    const CachedBuffer* first = Begin();
    const CachedBuffer* last = Top();
    return first == nullptr || last == nullptr || last < first
               ? 0
               : static_cast<uint32_t>(last - first);
  }
  void SetStorage(CachedBuffer* storage) {
    SetTop(storage);
    begin.store(storage, std::memory_order_relaxed);
  }
  uint32_t limit() const { return static_cast<uint32_t>(end - Begin()); }

  uint64_t padding = 0;  // 32 bytes are shifted, not multiplied.
};

// One thread's cached buffers of one allocator, and the spans they come from. The bins of small
// classes hold buffers of this shard's spans only and are bounded by limits that grow with use;
// those of runs are bounded by a sum of bytes. Thread: its own; the allocator reads the counts, and
// hands the cache to another thread when the first is gone.
struct ThreadCache : SpanShard {
  // The allocator, null once that is detached. Atomic because its last user may be another thread
  // than this cache's.
  std::atomic<const void*> owner{nullptr};
  std::array<CacheBin, kClasses + 1> bins;
  std::array<std::unique_ptr<CachedBuffer[]>, kClasses> storage;
  uint64_t limit_bytes = 0;             // What the limits of the small bins add up to.
  std::atomic<uint64_t> run_bytes = 0;  // What the bins of runs hold.
  uint32_t flush_epoch = 0;             // The allocator's when this was last emptied on its behalf.
  uint32_t refills = 0;
  uint32_t next_victim = 0;  // Whose limit is lowered next.
  uint32_t next_run_victim = kSmallClasses;
  uint32_t next_hint = 0;             // Where this thread starts to look in other threads' lists.
  ReturnList<kMaxReturned> returned;  // Small buffers of this shard that other threads freed.
};

}  // namespace sluice::bemalloc
