// SPDX-License-Identifier: Apache-2.0
// How threads' caches fill, shrink and pass buffers back.
#include <algorithm>
#include <array>

#include "shm_proto/base/check.h"
#include "shm_proto/bemalloc/bemalloc.h"

namespace sluice {

using bemalloc::kMaxBinBytes;
using bemalloc::kMaxRunsInBin;
using bemalloc::kPageShift;
using bemalloc::kSmallClasses;

namespace {

constexpr uint32_t kMaxBinBuffers = 256;

// How many buffers a bin of this class may ever hold.
constexpr uint32_t MaxInBin(uint32_t size_class) {
  if (size_class >= kSmallClasses) return kMaxRunsInBin;
  const uint64_t count = kMaxBinBytes / bemalloc::SmallClassBytes(size_class);
  return static_cast<uint32_t>(std::min<uint64_t>(count, kMaxBinBuffers));
}

}  // namespace

// The bin is full: it may hold more from now on, or else half of it goes to the heap.
void Bemalloc::CacheSmall(ThreadCache& cache, uint32_t size_class, CachedBuffer buffer) {
  CacheBin& bin = cache.bins[size_class];
  if (!RaiseLimit(cache, size_class, bin.limit() == 0)) Flush(bin, (bin.count() + 1) / 2);
  SLUICE_CHECK(bin.Top() < bin.end, "a flushed bin has room");
  *bin.Top() = buffer;
  bin.SetTop(bin.Top() + 1);
}

// Another thread's buffer: to that thread, or to the heap when the thread is gone or has enough to
// take back already.
Result<> Bemalloc::ReturnToShard(ThreadCache& cache, const Located& found) {
  auto* shard = map_[found.start >> kPageShift]->shard();
  // Every shard but the heap's own is a thread's cache, and lives as long as we do.
  if (shard != &heap_.shared_ && shard != &heap_.parked_ &&
      !shard->idle.load(std::memory_order_relaxed) &&
      static_cast<ThreadCache*>(shard)->returned.Put(base_ + found.start, cache.next_hint++)) {
    return {};
  }
  const std::scoped_lock lock(mutex_);
  return heap_.Free(found.start);
}

// A buffer of a small class on its way back, with its state's place.
Bemalloc::CachedBuffer Bemalloc::CachedSmall(void* buffer) const {
  auto* address = static_cast<std::byte*>(buffer);
  const Span* span = SpanOf(buffer);
  const uint64_t offset = static_cast<uint64_t>(address - base_) - span->start;
  const auto product = static_cast<unsigned __int128>(offset) * span->magic;
  return {address, span->states + static_cast<uint64_t>(product >> 64)};
}

// What other threads gave back goes into the thread's bins as far as those have room.
void Bemalloc::TakeReturned(ThreadCache& cache) {
  std::array<CachedBuffer, bemalloc::kMaxReturned> rest;
  uint32_t rest_count = 0;
  cache.returned.TakeAll([&](void* buffer) {
    const CachedBuffer item = CachedSmall(buffer);
    CacheBin& bin = cache.bins[SpanOf(buffer)->size_class];
    if (bin.Top() < bin.end) {
      *bin.Top() = item;
      bin.SetTop(bin.Top() + 1);
    } else if (rest_count < rest.size()) {
      rest[rest_count++] = item;
    } else {
      FreeToHeap({&item, 1});  // Others kept putting while we took.
    }
  });
  if (rest_count > 0) FreeToHeap({rest.data(), rest_count});
}

// What lies in any thread's list goes to the heap: before the pool grows or shrinks, no memory
// shall wait for a thread that may be asleep. With the lock held.
void Bemalloc::ReclaimReturned() {
  for (const auto& cache : caches_) {
    cache->returned.TakeAll([&](void* buffer) { FreeCached(CachedSmall(buffer)); });
  }
}

void Bemalloc::CacheRun(ThreadCache& cache, uint32_t size_class, CachedBuffer buffer) {
  CacheBin& bin = cache.bins[size_class];
  if (bin.Begin() == nullptr) {
    cache.storage[size_class].reset(new CachedBuffer[kMaxRunsInBin]);
    bin.SetStorage(cache.storage[size_class].get());
  }
  uint64_t run_bytes = cache.run_bytes.load(std::memory_order_relaxed);
  if (bin.count() == kMaxRunsInBin) {
    Flush(bin, kMaxRunsInBin / 2);
    run_bytes -= kMaxRunsInBin / 2 * bemalloc::ClassBytes(size_class);
  }
  *bin.Top() = buffer;
  bin.SetTop(bin.Top() + 1);
  run_bytes += bemalloc::ClassBytes(size_class);
  while (run_bytes > run_cache_bytes_.load(std::memory_order_relaxed)) {
    CacheBin& victim = cache.bins[cache.next_run_victim];
    run_bytes -= victim.count() * bemalloc::ClassBytes(cache.next_run_victim);
    Flush(victim, victim.count());
    if (++cache.next_run_victim == bemalloc::kClasses) cache.next_run_victim = kSmallClasses;
  }
  cache.run_bytes.store(run_bytes, std::memory_order_relaxed);
}

// Lets the bin hold more, at others' cost when `steal` and the thread's bound is reached. False: it
// holds no more.
bool Bemalloc::RaiseLimit(ThreadCache& cache, uint32_t size_class, bool steal) {
  CacheBin& bin = cache.bins[size_class];
  const uint32_t most = MaxInBin(size_class);
  if (bin.Begin() == nullptr) {
    cache.storage[size_class].reset(new CachedBuffer[most]);
    bin.end = cache.storage[size_class].get();
    bin.SetStorage(bin.end);
  }
  const uint64_t slot_bytes = bemalloc::SmallClassBytes(size_class);
  const uint32_t more = std::min(most - bin.limit(), std::max(bin.limit() / 2, 1u));
  if (more == 0) return false;
  if (cache.limit_bytes + more * slot_bytes > small_cache_bytes_.load(std::memory_order_relaxed)) {
    if (!steal) return false;
    uint64_t lowered = 0;
    for (uint32_t tries = 0; tries < kSmallClasses && lowered < more * slot_bytes; ++tries) {
      lowered += LowerSomeLimit(cache, size_class);
    }
  }
  cache.limit_bytes += more * slot_bytes;
  bin.end += more;
  return true;
}

// Lowers the limit of the next bin in turn that has one; by how many bytes.
uint64_t Bemalloc::LowerSomeLimit(ThreadCache& cache, uint32_t but_not) {
  const uint32_t victim = cache.next_victim;
  cache.next_victim = (victim + 1) % kSmallClasses;
  CacheBin& bin = cache.bins[victim];
  if (victim == but_not || bin.limit() <= 1) return 0;
  const uint32_t less = (bin.limit() + 3) / 4;
  if (bin.count() > bin.limit() - less) Flush(bin, bin.count() - (bin.limit() - less));
  bin.end -= less;
  const uint64_t bytes = less * uint64_t{bemalloc::SmallClassBytes(victim)};
  cache.limit_bytes -= bytes;
  return bytes;
}

void Bemalloc::FreeToHeap(std::span<const CachedBuffer> buffers) {
  const std::scoped_lock lock(mutex_);
  for (const CachedBuffer& buffer : buffers) FreeCached(buffer);
}

// With the lock held. Only a double free that raced with itself puts one buffer into two caches;
// then it may be live again by way of the other one, which its state tells.
void Bemalloc::FreeCached(CachedBuffer buffer) {
  if (!bemalloc::ChangeState(buffer.state, bemalloc::kCached, bemalloc::kFree) ||
      !heap_.Free(static_cast<uint64_t>(buffer.address - base_))) {
    ++statistics_.racing_double_frees;
  }
}

// The oldest buffers of a bin go back to the heap.
void Bemalloc::Flush(CacheBin& bin, uint32_t count) {
  if (count == 0) return;
  FreeToHeap({bin.Begin(), count});
  std::copy(bin.Begin() + count, bin.Top(), bin.Begin());
  bin.SetTop(bin.Top() - count);
}

void Bemalloc::FlushAll(ThreadCache& cache) {
  for (CacheBin& bin : cache.bins) Flush(bin, bin.count());
  cache.run_bytes.store(0, std::memory_order_relaxed);
}

}  // namespace sluice
