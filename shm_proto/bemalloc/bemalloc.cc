// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/bemalloc/bemalloc.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "shm_proto/base/check.h"
#include "shm_proto/base/clock.h"

namespace sluice {

using bemalloc::kBlockBytes;
using bemalloc::kMaxBinBytes;
using bemalloc::kMaxCachedBytes;
using bemalloc::kMaxSmallBytes;
using bemalloc::kPageBytes;
using bemalloc::kPageShift;
using bemalloc::kSmallClasses;

namespace {

constexpr uint32_t kMaxBatch = 64;
constexpr uint32_t kRefillsPerSteal = 8;
constexpr uint64_t kSpareShare = 24;  // Of what a pool needs, what stays as a spare.

std::string Describe(const void* buffer, const char* verb) {
  char text[64];
  std::snprintf(text, sizeof(text), "%s of %p: ", verb, buffer);
  return text;
}

}  // namespace

void Bemalloc::AddBlocks(const BlockSource::Blocks& blocks) {
  heap_.AddBlocks(blocks.offset, blocks.bytes);
  // Relaxed: pointers into these blocks exist only later, and come with their own order.
  if (!detached_.load(std::memory_order_relaxed))
    end_.store(heap_.pages_.end(), std::memory_order_relaxed);
  for (uint64_t block = blocks.offset / kBlockBytes;
       block < (blocks.offset + blocks.bytes) / kBlockBytes; ++block) {
    regions_[block].store(blocks.region, std::memory_order_relaxed);
    block_used_[block].store(true, std::memory_order_relaxed);
  }
  statistics_.peak_block_bytes = std::max(statistics_.peak_block_bytes, heap_.block_bytes());
}

// Calls `take` under the lock until it says true, acquiring blocks for a buffer of `bytes` when it
// does not.
template <typename Take>
Result<> Bemalloc::TakeOrGrow(uint64_t bytes, Take take) {
  {
    const std::scoped_lock lock(mutex_);
    if (take()) return {};
  }
  const uint64_t needed = Heap::BytesToAcquire(bytes);
  if (needed > reserve_bytes_) {
    return Fail(ErrorCode::kInvalid,
                "a buffer of " + std::to_string(bytes) + " bytes exceeds the pool of " +
                    std::to_string(reserve_bytes_) + "; raise the quota or send less at once");
  }
  const std::scoped_lock growing(grow_mutex_);
  {
    const std::scoped_lock lock(mutex_);
    ReclaimReturned();
    if (take()) return {};  // Or another thread grew the pool meanwhile.
    while (heap_.UnparkFullestBlock()) {
      if (take()) return {};
    }
    small_cache_bytes_.store(options_.small_cache_bytes, std::memory_order_relaxed);
    run_cache_bytes_.store(options_.run_cache_bytes, std::memory_order_relaxed);
  }
  const uint64_t before_ns = MonotonicClock().NowNs();
  Result<BlockSource::Blocks> blocks = source_.Acquire(needed);
  const uint64_t took_ns = MonotonicClock().NowNs() - before_ns;
  const std::scoped_lock lock(mutex_);
  statistics_.acquire_ns += took_ns;
  if (!blocks) {
    ++statistics_.refusals;
    return std::unexpected(std::move(blocks.error()));
  }
  ++statistics_.acquisitions;
  if (blocks->bytes < needed || blocks->bytes % kBlockBytes != 0 ||
      blocks->offset % kBlockBytes != 0 ||
      !InRange(blocks->offset, blocks->bytes, reserve_bytes_) ||
      heap_.OwnsAny(blocks->offset, blocks->bytes)) {
    return Fail(ErrorCode::kProtocol, "the block source answered " + std::to_string(needed) +
                                          " bytes with offset " + std::to_string(blocks->offset) +
                                          ", " + std::to_string(blocks->bytes) +
                                          " bytes: not whole blocks of this pool that are free");
  }
  AddBlocks(*blocks);
  SLUICE_CHECK(take(), "what BytesToAcquire() says is enough");
  return {};
}

Result<void*> Bemalloc::AllocateSlow(uint64_t bytes) {
  Result<ThreadCache*> cache = Cache();
  if (!cache) return std::unexpected(std::move(cache.error()));
  if (*cache == nullptr || bytes > kMaxCachedBytes)
    return AllocateUncached(bytes, bemalloc::kGranuleBytes);
  if (bytes > kMaxSmallBytes) return AllocateRun(**cache, bytes);
  if (void* buffer = PopCached(bytes); buffer != nullptr)
    return buffer;  // It was only another allocator's cache.
  return Refill(**cache, bemalloc::ClassOf(bytes));
}

// Takes some buffers of a small class from the heap: one for the caller, the others for its cache.
Result<void*> Bemalloc::Refill(ThreadCache& cache, uint32_t size_class) {
  CacheBin& bin = cache.bins[size_class];
  TakeReturned(cache);
  if (void* buffer = PopCached(bemalloc::SmallClassBytes(size_class)); buffer != nullptr)
    return buffer;
  // Taking from other bins is dear and need not happen often to follow the load.
  RaiseLimit(cache, size_class, ++cache.refills % kRefillsPerSteal == 0);
  const uint32_t room = bin.limit() - bin.count();
  const uint32_t wanted = 1 + std::min(room / 2, kMaxBatch);
  std::byte* first = nullptr;
  const Result<> taken = TakeOrGrow(bemalloc::ClassBytes(size_class), [&] {
    return heap_.AllocateSlots(cache, size_class, wanted, [&](uint64_t offset, uint8_t* state) {
      if (first == nullptr) {
        first = base_ + offset;
        bemalloc::SetState(state, bemalloc::kLive);
        return;
      }
      bemalloc::SetState(state, bemalloc::kCached);
      *bin.Top() = {base_ + offset, state};
      bin.SetTop(bin.Top() + 1);
    }) > 0;
  });
  if (!taken) return std::unexpected(taken.error());
  return first;
}

Result<void*> Bemalloc::AllocateRun(ThreadCache& cache, uint64_t bytes) {
  const uint32_t size_class = bemalloc::ClassOf(bytes);
  const uint64_t run_bytes = bemalloc::ClassBytes(size_class);
  CacheBin& bin = cache.bins[size_class];
  if (bin.count() > 0) {
    CachedBuffer* top = bin.Top() - 1;
    bin.SetTop(top);
    cache.run_bytes.store(cache.run_bytes.load(std::memory_order_relaxed) - run_bytes,
                          std::memory_order_relaxed);
    if (bemalloc::State(top->state) == bemalloc::kCached) {
      bemalloc::SetState(top->state, bemalloc::kLive);
      return top->address;
    }
  }
  return AllocateUncached(run_bytes, kPageBytes);
}

Result<void*> Bemalloc::AllocateUncached(uint64_t bytes, uint64_t alignment) {
  if (Result<> open = CheckOpen(); !open) return std::unexpected(std::move(open.error()));
  if (!std::has_single_bit(alignment) || alignment > bemalloc::kMaxAlignment ||
      reinterpret_cast<uintptr_t>(base_) % alignment != 0) {
    return Fail(ErrorCode::kInvalid,
                "alignment " + std::to_string(alignment) +
                    ": must be a power of two up to 2 MiB, and the pool itself as aligned");
  }
  Span* span = nullptr;
  const uint64_t pages = (std::max<uint64_t>(bytes, 1) - 1) / kPageBytes + 1;
  const Result<> taken = TakeOrGrow(bytes, [&] {
    span = heap_.AllocateRunSpan(pages, std::max<uint64_t>(alignment / kPageBytes, 1));
    return span != nullptr;
  });
  if (!taken) return std::unexpected(taken.error());
  bemalloc::SetState(span->states, bemalloc::kLive);
  return base_ + span->start;
}

// The buffer around `inside` that is live or handed over. Needs no lock: of a live buffer nothing
// here changes.
std::optional<Bemalloc::Located> Bemalloc::Locate(const void* inside) const {
  if (!Owns(inside)) return std::nullopt;
  const auto offset = static_cast<uint64_t>(static_cast<const std::byte*>(inside) - base_);
  const Span* span = map_[offset >> kPageShift];
  if (span->magic == 0) return std::nullopt;
  uint64_t slot = 0, bytes = span->bytes();
  if (span->size_class < kSmallClasses) {
    slot = static_cast<uint64_t>(
        (static_cast<unsigned __int128>(offset - span->start) * span->magic) >> 64);
    bytes = bemalloc::SmallClassBytes(span->size_class);
  }
  uint8_t* state = span->states + slot;
  if (bemalloc::State(state) < bemalloc::kLive) return std::nullopt;
  return Located{span->start + slot * bytes, bytes, span->size_class, state};
}

// The same, but only for the buffer's start; `verb` says what failed otherwise.
Result<Bemalloc::Located> Bemalloc::LocateStart(void* buffer, const char* verb) const {
  if (Result<> open = CheckOpen(); !open) return std::unexpected(std::move(open.error()));
  if (!Owns(buffer))
    return Fail(ErrorCode::kInvalid, Describe(buffer, verb) + "not a buffer of this pool");
  const std::optional<Located> found = Locate(buffer);
  if (!found)
    return Fail(ErrorCode::kInvalid,
                Describe(buffer, verb) + "no buffer is there; it was freed already");
  const auto offset = static_cast<uint64_t>(static_cast<std::byte*>(buffer) - base_);
  if (found->start != offset) {
    return Fail(ErrorCode::kInvalid, Describe(buffer, verb) + "it lies " +
                                         std::to_string(offset - found->start) +
                                         " bytes inside a buffer; name a buffer by its start");
  }
  return *found;
}

Result<> Bemalloc::DeallocateSlow(void* buffer) {
  Result<ThreadCache*> cache = Cache();
  if (!cache) return std::unexpected(std::move(cache.error()));
  if (PushCached(buffer)) return {};  // It was only another allocator's cache.
  const Result<Located> found = LocateStart(buffer, "free");
  if (!found) return std::unexpected(found.error());
  // The exchange decides between threads that free the same buffer at once.
  const uint8_t before = __atomic_exchange_n(found->state, bemalloc::kCached, __ATOMIC_RELAXED);
  if (before == bemalloc::kHandedOver) {
    bemalloc::SetState(found->state, before);
    return Fail(ErrorCode::kInvalid, Describe(buffer, "free") +
                                         "it is handed over (in flight); free it when it is back");
  }
  if (before != bemalloc::kLive) {
    return Fail(ErrorCode::kInvalid,
                Describe(buffer, "free") + "no buffer is there; it was freed already");
  }
  const bemalloc::SpanShard* shard = map_[found->start >> kPageShift]->shard();
  if (*cache == nullptr || found->size_class == bemalloc::kUncached || shard == &heap_.parked_) {
    const std::scoped_lock lock(mutex_);
    return heap_.Free(found->start);
  }
  const CachedBuffer item{static_cast<std::byte*>(buffer), found->state};
  if (found->size_class < kSmallClasses && shard != *cache) {
    return ReturnToShard(**cache, *found);
  }
  if (found->size_class < kSmallClasses) {
    CacheSmall(**cache, found->size_class, item);
  } else {
    CacheRun(**cache, found->size_class, item);
  }
  return {};
}

std::span<std::byte> Bemalloc::Find(const void* inside) const {
  const std::optional<Located> found = Locate(inside);
  if (!found) return {};
  return {base_ + found->start, found->bytes};
}

Result<> Bemalloc::HandOver(void* buffer) {
  const Result<Located> found = LocateStart(buffer, "hand-over");
  if (!found) return std::unexpected(found.error());
  if (!bemalloc::ChangeState(found->state, bemalloc::kLive, bemalloc::kHandedOver)) {
    return Fail(ErrorCode::kInvalid,
                Describe(buffer, "hand-over") + "it is handed over (in flight) already");
  }
  return {};
}

Result<> Bemalloc::TakeBack(void* buffer) {
  const Result<Located> found = LocateStart(buffer, "taking back");
  if (!found) return std::unexpected(found.error());
  if (!bemalloc::ChangeState(found->state, bemalloc::kHandedOver, bemalloc::kLive)) {
    return Fail(ErrorCode::kInvalid, Describe(buffer, "taking back") + "it was not handed over");
  }
  return {};
}

uint64_t Bemalloc::ReleaseBlocks(uint64_t max_bytes) {
  const std::scoped_lock growing(grow_mutex_);
  uint64_t released = 0;
  while (released < max_bytes) {
    uint64_t offset = 0, bytes = 0;
    {
      const std::scoped_lock lock(mutex_);
      if (!heap_.TakeEmptyRun(&offset, &bytes, max_bytes - released)) break;
      for (uint64_t block = offset / kBlockBytes; block < (offset + bytes) / kBlockBytes; ++block) {
        block_used_[block].store(false, std::memory_order_relaxed);
      }
      ++statistics_.releases;
    }
    source_.Release(offset, bytes);
    released += bytes;
  }
  return released;
}

void Bemalloc::Maintain(uint64_t now_ns) {
  if (!CheckOpen()) return;
  uint64_t surplus = 0, spare = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (now_ns - window_start_ns_ < options_.quiet_ns) return;
    window_start_ns_ = now_ns;
    ReclaimReturned();
    heap_.ReleaseKeptSpans();
    // What stayed empty over a whole window was needed by nobody in it.
    surplus = heap_.pages_.TakeLeastEmpty() * kBlockBytes;
    const uint64_t live_bytes = heap_.live_bytes() - std::min(heap_.live_bytes(), CachedBytes());
    const uint64_t needed_bytes = std::max(live_bytes,
                                           std::exchange(window_live_bytes_, live_bytes));
    const uint64_t held_bytes = heap_.block_bytes() - heap_.pages_.empty_blocks() * kBlockBytes;
    spare = std::max(options_.spare_bytes, needed_bytes / kSpareShare);
    if (held_bytes > needed_bytes + needed_bytes / 4 + spare) Shrink(needed_bytes);
  }
  if (surplus > spare) ReleaseBlocks(surplus - spare);
}

// More blocks are in use than the live buffers would need: the emptiest are closed until they are
// empty, and threads keep little meanwhile. With the lock held.
void Bemalloc::Shrink(uint64_t live_bytes) {
  if (!heap_.ParkSparseBlocks(live_bytes + live_bytes / 8)) return;
  const uint64_t each_bytes = std::max<uint64_t>(
      live_bytes / 64 / std::max<uint64_t>(caches_.size(), 1), kMaxBinBytes);
  small_cache_bytes_.store(std::min(each_bytes, options_.small_cache_bytes),
                           std::memory_order_relaxed);
  run_cache_bytes_.store(std::min(each_bytes, options_.run_cache_bytes), std::memory_order_relaxed);
  flush_epoch_.fetch_add(1, std::memory_order_relaxed);
}

uint64_t Bemalloc::Trim() {
  if (!CheckOpen()) return 0;
  if (bemalloc::t_cache->owner.load(std::memory_order_relaxed) == this)
    FlushAll(*bemalloc::t_cache);
  {
    const std::scoped_lock lock(mutex_);
    ReclaimReturned();
  }
  return ReleaseBlocks(~uint64_t{0});
}

// In threads' caches and on the way to them; a little off while they move. With the lock held.
uint64_t Bemalloc::CachedBytes() const {
  uint64_t bytes = 0;
  for (const auto& cache : caches_) {
    cache->returned.ForEach([&](void* buffer) {
      const auto offset = static_cast<uint64_t>(static_cast<std::byte*>(buffer) - base_);
      bytes += bemalloc::SmallClassBytes(heap_.pages_.Lookup(offset)->size_class);
    });
    for (uint32_t i = 0; i < bemalloc::kClasses; ++i)
      bytes += cache->bins[i].CountSeenFromElsewhere() * bemalloc::ClassBytes(i);
  }
  return bytes;
}

Bemalloc::Statistics Bemalloc::statistics() const {
  const std::scoped_lock lock(mutex_);
  Statistics result = statistics_;
  result.threads = static_cast<uint32_t>(
      std::ranges::count_if(caches_, [](const auto& cache) { return !cache->idle; }));
  result.cached_bytes = CachedBytes();
  result.live_bytes = heap_.live_bytes() - std::min(heap_.live_bytes(), result.cached_bytes);
  result.block_bytes = heap_.block_bytes();
  return result;
}

}  // namespace sluice
