// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "shm_proto/base/result.h"
#include "shm_proto/bemalloc/block_source.h"
#include "shm_proto/bemalloc/heap.h"
#include "shm_proto/bemalloc/spinning_mutex.h"
#include "shm_proto/bemalloc/thread_cache.h"

namespace sluice {

// The registered-memory allocator (ByteExpress 5.2, figure 3) for many threads: buffers inside
// blocks of one contiguous range of addresses. Each thread keeps a bounded cache of buffers and
// allocates and frees without a lock or an atomic operation; behind the caches stands one Heap.
// Invariant: live buffers never overlap, whatever is written into the pool; all metadata is private
// memory outside it. Thread: any, except where said. A buffer may be freed by any thread. In a
// forked child every call says kClosed: the pool belongs to the parent. Owns its metadata; borrows
// the range of addresses, the blocks and their source, which must outlive it.
class Bemalloc {
 public:
  struct Options {
    uint64_t small_cache_bytes = 4 *
                                 kMiB;    // Bound of each thread's cached buffers of up to 32 KiB,
    uint64_t run_cache_bytes = 2 * kMiB;  // and of those from there up to 1 MiB.
    uint64_t quiet_ns = 10'000'000'000;   // Blocks that nobody needed for so long go back to their
                                          // source.
    uint64_t spare_bytes = 4 * kMiB;      // Empty blocks that stay even then; 1/24 of a large pool.
  };

  struct Statistics {
    uint64_t live_bytes = 0;    // Usable bytes of the application's buffers.
    uint64_t cached_bytes = 0;  // Usable bytes of buffers in threads' caches.
    uint64_t block_bytes = 0;   // Held and registered.
    uint64_t peak_block_bytes = 0;
    uint64_t acquisitions = 0;  // Calls of the source that grew the pool, each a registration.
    uint64_t acquire_ns = 0;    // What they took altogether.
    uint64_t refusals = 0;      // Calls of the source that failed.
    uint64_t releases = 0;      // Calls that gave blocks back.
    uint64_t racing_double_frees = 0;  // Two threads freed one buffer at once, unseen until one of
                                       // them was flushed.
    uint32_t threads = 0;              // With a cache.
  };

  // `base`: where the pool lies, a multiple of 4 MiB for every alignment to be possible. Pool
  // offsets count from it.
  Bemalloc(void* base, uint64_t reserve_bytes, BlockSource& source, const Options& options);
  Bemalloc(void* base, uint64_t reserve_bytes, BlockSource& source)
      : Bemalloc(base, reserve_bytes, source, Options()) {}
  ~Bemalloc();  // Blocks are not released one by one: the pool goes with it. No thread may be
                // inside a call.
  Bemalloc(const Bemalloc&) = delete;
  Bemalloc& operator=(const Bemalloc&) = delete;

  // A buffer of at least `bytes` (0 counts as 1), aligned to 16. kNoMemory and what the source says
  // when it must grow and cannot; kInvalid when `bytes` exceeds the pool; kClosed after Detach().
  Result<void*> Allocate(uint64_t bytes) {
    if (void* buffer = PopCached(bytes); buffer != nullptr) [[likely]]
      return buffer;
    return AllocateSlow(bytes);
  }
  // The same, aligned to a power of two up to 2 MiB.
  Result<void*> AllocateAligned(uint64_t bytes, uint64_t alignment) {
    // Slots of a class that holds a multiple of a small power of two start at multiples of it
    // themselves.
    if (alignment - 1 < bemalloc::kPageBytes && (alignment & (alignment - 1)) == 0 &&
        bytes <= bemalloc::kMaxCachedBytes) {
      // Also 0 bytes have a place that is aligned.
      const uint64_t size = bytes != 0 ? bytes : 1;
      return Allocate((size + alignment - 1) & ~(alignment - 1));
    }
    return AllocateUncached(bytes, alignment);
  }
  // kInvalid: not this pool's, not a buffer's start, freed already, or handed over; nothing has
  // changed then.
  Result<> Deallocate(void* buffer) {
    if (PushCached(buffer)) [[likely]]
      return {};
    return DeallocateSlow(buffer);
  }

  // The whole live buffer around `inside`; empty when there is none. Its size is the usable size.
  // O(1).
  std::span<std::byte> Find(const void* inside) const;
  bool Owns(const void* inside) const { return region_slot(inside) != nullptr; }
  // What the source said of the block that `inside` lies in; 0 where no block is. O(1), for any
  // address.
  uint64_t RegionOf(const void* inside) const {
    const std::atomic<uint64_t>* slot = region_slot(inside);
    return slot != nullptr ? slot->load(std::memory_order_relaxed) : 0;
  }

  // Ownership leaves the application (a send, another process) and comes back. Between the two the
  // buffer cannot be freed or handed over again: kInvalid. Of two threads that hand over the same
  // buffer exactly one succeeds.
  Result<> HandOver(void* buffer);
  Result<> TakeBack(void* buffer);

  // Gives back what nobody needed for quiet_ns; call it from time to time on any one thread, never
  // on a latency path.
  void Maintain(uint64_t now_ns);
  // Empties the calling thread's cache and gives every empty block back at once; how many bytes
  // went.
  uint64_t Trim();
  // Every call from now on says kClosed and blocks are no longer released. Pool memory stays as it
  // is.
  void Detach();

  Statistics statistics() const;

 private:
  friend class ThreadCaches;
  using Span = bemalloc::Span;
  using ThreadCache = bemalloc::ThreadCache;
  using CacheBin = bemalloc::CacheBin;
  using CachedBuffer = bemalloc::CachedBuffer;

  struct Located {
    uint64_t start, bytes;
    uint32_t size_class;
    uint8_t* state;
  };

  void* PopCached(uint64_t bytes);
  bool PushCached(void* buffer);
  template <typename Take>
  Result<> TakeOrGrow(uint64_t bytes, Take take);
  Result<void*> AllocateSlow(uint64_t bytes);
  Result<void*> AllocateRun(ThreadCache& cache, uint64_t bytes);
  Result<void*> AllocateUncached(uint64_t bytes, uint64_t alignment);
  Result<void*> Refill(ThreadCache& cache, uint32_t size_class);
  Result<> DeallocateSlow(void* buffer);
  void CacheRun(ThreadCache& cache, uint32_t size_class, CachedBuffer buffer);
  void CacheSmall(ThreadCache& cache, uint32_t size_class, CachedBuffer buffer);
  void FreeToHeap(std::span<const CachedBuffer> buffers);
  void FreeCached(CachedBuffer buffer);
  CachedBuffer CachedSmall(void* buffer) const;
  const Span* SpanOf(const void* buffer) const {
    return map_[static_cast<uint64_t>(static_cast<const std::byte*>(buffer) - base_) >>
                bemalloc::kPageShift];
  }
  void Flush(CacheBin& bin, uint32_t count);
  void FlushAll(ThreadCache& cache);
  bool RaiseLimit(ThreadCache& cache, uint32_t size_class, bool steal);
  uint64_t LowerSomeLimit(ThreadCache& cache, uint32_t but_not);

  Result<ThreadCache*> Cache();
  Result<> CheckOpen() const;
  void AddBlocks(const BlockSource::Blocks& blocks);
  std::optional<Located> Locate(const void* inside) const;
  Result<Located> LocateStart(void* buffer, const char* verb) const;
  uint64_t ReleaseBlocks(uint64_t max_bytes);
  std::shared_ptr<ThreadCache> NewCache();
  void ReturnCache(ThreadCache& cache);
  Result<> ReturnToShard(ThreadCache& cache, const Located& found);
  void TakeReturned(ThreadCache& cache);
  void ReclaimReturned();
  void Shrink(uint64_t live_bytes);
  uint64_t CachedBytes() const;
  void DisownCaches();

  const std::atomic<uint64_t>* region_slot(const void* inside) const {
    const uint64_t offset = static_cast<uint64_t>(static_cast<const std::byte*>(inside) - base_);
    if (offset >= reserve_bytes_) return nullptr;
    const uint64_t block = offset / bemalloc::kBlockBytes;
    return block_used_[block].load(std::memory_order_relaxed) ? &regions_[block] : nullptr;
  }

  std::byte* const base_;
  const uint64_t reserve_bytes_;
  const uint64_t number_;  // Of this allocator in this process, never used again.
  std::atomic<bool> detached_{false};
  Span* const* map_ = nullptr;    // The heap's page map, to be read below end_.
  std::atomic<uint64_t> end_{0};  // Pool offset; only grows.
  BlockSource& source_;
  const Options options_;
  const uint64_t fork_generation_;

  std::unique_ptr<std::atomic<uint64_t>[]> regions_;  // By block.
  std::unique_ptr<std::atomic<bool>[]> block_used_;   // By block.

  std::mutex grow_mutex_;                  // Held while the source is asked; taken before mutex_.
  mutable bemalloc::SpinningMutex mutex_;  // Guards what follows.
  Heap heap_;
  std::vector<std::shared_ptr<ThreadCache>> caches_;  // A thread that has one shares it.
  Statistics statistics_;
  uint64_t window_start_ns_ = 0;
  uint64_t window_live_bytes_ = 0;  // At its end, the last time.

  // Lower while the pool shrinks after its load fell; a change of the epoch empties every thread's
  // cache.
  std::atomic<uint64_t> small_cache_bytes_;
  std::atomic<uint64_t> run_cache_bytes_;
  std::atomic<uint32_t> flush_epoch_{0};
};

namespace bemalloc {
// The cache that the calling thread used last; never null. Of no allocator at first.
[[gnu::tls_model("initial-exec")]] extern __thread ThreadCache* t_cache;

// State bytes cross threads together with the buffers they describe; the application orders that,
// we need only that no value is torn.
inline uint8_t State(const uint8_t* state) { return __atomic_load_n(state, __ATOMIC_RELAXED); }
inline void SetState(uint8_t* state, uint8_t value) {
  __atomic_store_n(state, value, __ATOMIC_RELAXED);
}
// Whether it was `from`.
inline bool ChangeState(uint8_t* state, uint8_t from, uint8_t to) {
  return __atomic_compare_exchange_n(state, &from, to, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
}  // namespace bemalloc

// Null when the cache has none, or is another allocator's.
inline void* Bemalloc::PopCached(uint64_t bytes) {
  ThreadCache& cache = *bemalloc::t_cache;
  if (bytes > bemalloc::kMaxSmallBytes || cache.owner.load(std::memory_order_relaxed) != this)
    return nullptr;
  CacheBin& bin = cache.bins[bemalloc::ClassOf(bytes)];
  CachedBuffer* top = bin.Top();
  if (top == bin.Begin()) return nullptr;
  bin.SetTop(--top);
  // Not so after a double free that raced with itself: then the buffer is somebody's already.
  if (bemalloc::State(top->state) != bemalloc::kCached) return nullptr;
  bemalloc::SetState(top->state, bemalloc::kLive);
  if (top->address == nullptr) __builtin_unreachable();
  return top->address;
}

// False when there is anything to look at more closely: no room, another allocator's cache, a run,
// a bad pointer.
inline bool Bemalloc::PushCached(void* buffer) {
  ThreadCache& cache = *bemalloc::t_cache;
  const uint64_t offset = static_cast<uint64_t>(static_cast<std::byte*>(buffer) - base_);
  if (offset >= end_.load(std::memory_order_relaxed)) return false;
  const Span* span = map_[offset >> bemalloc::kPageShift];
  // Another thread's span, or another allocator's cache. Slots stay with their span's thread.
  if (span->shard() != &cache) return false;
  // The low half is below the magic exactly when the offset is a slot's start; the high half is the
  // slot's number.
  const auto product = static_cast<unsigned __int128>(offset - span->start) * span->magic;
  if (static_cast<uint64_t>(product) >= span->magic) return false;
  uint8_t* state = span->states + static_cast<uint64_t>(product >> 64);
  CacheBin& bin = cache.bins[span->size_class];
  CachedBuffer* top = bin.Top();
  if (top == bin.end || bemalloc::State(state) != bemalloc::kLive) return false;
  bemalloc::SetState(state, bemalloc::kCached);
  *top = {static_cast<std::byte*>(buffer), state};
  bin.SetTop(top + 1);
  return true;
}

}  // namespace sluice
