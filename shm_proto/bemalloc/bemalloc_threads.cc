// SPDX-License-Identifier: Apache-2.0
// Which thread has which cache of which allocator, through ends of threads, ends of allocators, and
// forks.
#include <pthread.h>

#include <algorithm>
#include <map>

#include "shm_proto/base/check.h"
#include "shm_proto/bemalloc/bemalloc.h"

namespace sluice {

using bemalloc::kBlockBytes;
using bemalloc::kPageBytes;
using bemalloc::kSmallClasses;

namespace bemalloc {
namespace {
constinit ThreadCache no_cache;
}  // namespace
constinit __thread ThreadCache* t_cache = &no_cache;
}  // namespace bemalloc

namespace {

// How many forks lie between this process and the first that loaded us.
std::atomic<uint64_t> fork_generation{0};

// Every allocator of this process by number, so that a thread that ends knows which of those it
// used still exist. Never destroyed: threads may end after main.
struct Registry {
  std::mutex mutex;
  std::map<uint64_t, Bemalloc*> allocators;
  uint64_t next_number = 1;

  uint64_t NewNumber(Bemalloc* allocator) {
    const std::scoped_lock lock(mutex);
    allocators[next_number] = allocator;
    return next_number++;
  }

  static Registry& Get() {
    static Registry* registry = [] {
      auto* made = new Registry;
      pthread_atfork([] { Get().mutex.lock(); }, [] { Get().mutex.unlock(); },
                     [] {
                       Get().mutex.unlock();
                       fork_generation.fetch_add(1,
                                                 std::memory_order_relaxed);  // One thread is left.
                       bemalloc::t_cache = &bemalloc::no_cache;
                     });
      return made;
    }();
    return *registry;
  }
};

}  // namespace

// The caches of one thread, one for each allocator it has used. Gives them back when the thread
// ends.
class ThreadCaches {
 public:
  static ThreadCaches& Mine() {
    thread_local ThreadCaches caches;
    return caches;
  }

  ~ThreadCaches() {
    bemalloc::t_cache = &bemalloc::no_cache;
    gone_ = true;
    Registry& registry = Registry::Get();
    const std::scoped_lock lock(registry.mutex);
    for (const auto& [number, cache] : caches_) {
      const auto found = registry.allocators.find(number);
      if (found != registry.allocators.end()) found->second->ReturnCache(*cache);
    }
  }

  bemalloc::ThreadCache* Find(uint64_t number) const {
    const auto found = caches_.find(number);
    return found != caches_.end() ? found->second.get() : nullptr;
  }

  bemalloc::ThreadCache* Add(uint64_t number, Bemalloc* allocator) {
    bemalloc::t_cache = &bemalloc::no_cache;
    Registry& registry = Registry::Get();
    const std::scoped_lock lock(registry.mutex);
    std::erase_if(caches_,
                  [&](const auto& known) { return !registry.allocators.contains(known.first); });
    auto& cache = caches_[number];
    cache = allocator->NewCache();
    return cache.get();
  }

  // Once set, what other thread_local destructors still allocate and free bypasses the caches.
  static bool gone() { return gone_; }

 private:
  static constinit thread_local bool gone_;
  std::map<uint64_t, std::shared_ptr<bemalloc::ThreadCache>> caches_;
};
constinit thread_local bool ThreadCaches::gone_ = false;

Bemalloc::Bemalloc(void* base, uint64_t reserve_bytes, BlockSource& source, const Options& options)
    : base_(static_cast<std::byte*>(base)),
      reserve_bytes_(reserve_bytes / kBlockBytes * kBlockBytes),
      number_(Registry::Get().NewNumber(this)),
      source_(source),
      options_(options),
      fork_generation_(fork_generation.load(std::memory_order_relaxed)),
      regions_(new std::atomic<uint64_t>[reserve_bytes_ / kBlockBytes]()),
      block_used_(new std::atomic<bool>[reserve_bytes_ / kBlockBytes]()),
      heap_(reserve_bytes_),
      small_cache_bytes_(options.small_cache_bytes),
      run_cache_bytes_(options.run_cache_bytes) {
  SLUICE_CHECK(reinterpret_cast<uintptr_t>(base) % kPageBytes == 0, "a pool starts on a page");
  map_ = heap_.pages_.map();
}

Bemalloc::~Bemalloc() {
  Registry& registry = Registry::Get();
  const std::scoped_lock lock(registry.mutex);
  registry.allocators.erase(number_);
  DisownCaches();
}

void Bemalloc::Detach() {
  Registry& registry = Registry::Get();
  const std::scoped_lock lock(registry.mutex);
  detached_.store(true, std::memory_order_relaxed);
  DisownCaches();
  end_.store(0, std::memory_order_relaxed);  // No buffer is freed by the fast path any more.
}

// With the registry locked no thread's cache can end meanwhile.
void Bemalloc::DisownCaches() {
  const std::scoped_lock lock(mutex_);
  for (const auto& cache : caches_) cache->owner.store(nullptr, std::memory_order_relaxed);
}

Result<> Bemalloc::CheckOpen() const {
  if (fork_generation_ != fork_generation.load(std::memory_order_relaxed)) {
    return Fail(ErrorCode::kClosed,
                "this pool belongs to the parent process; attach anew after fork()");
  }
  if (detached_.load(std::memory_order_relaxed)) {
    return Fail(ErrorCode::kClosed,
                "the pool was detached; its buffers cannot be allocated or freed any more");
  }
  return {};
}

// The calling thread's cache; null while the thread is ending.
Result<bemalloc::ThreadCache*> Bemalloc::Cache() {
  if (Result<> open = CheckOpen(); !open) return std::unexpected(open.error());
  ThreadCache* cache = bemalloc::t_cache;
  if (cache->owner.load(std::memory_order_relaxed) != this) {
    if (ThreadCaches::gone()) return nullptr;
    ThreadCaches& mine = ThreadCaches::Mine();
    cache = mine.Find(number_);
    if (cache == nullptr) cache = mine.Add(number_, this);
    bemalloc::t_cache = cache;
  }
  if (const uint32_t epoch = flush_epoch_.load(std::memory_order_relaxed);
      cache->flush_epoch != epoch) {
    cache->flush_epoch = epoch;
    FlushAll(*cache);
    for (uint32_t i = 0; i < kSmallClasses; ++i) cache->bins[i].end = cache->bins[i].Begin();
    cache->limit_bytes = 0;
  }
  return cache;
}

// A cache that no thread has, or a new one.
std::shared_ptr<bemalloc::ThreadCache> Bemalloc::NewCache() {
  const std::scoped_lock lock(mutex_);
  for (const auto& cache : caches_) {
    if (!cache->idle) continue;
    cache->idle = false;
    return cache;
  }
  caches_.push_back(std::make_shared<ThreadCache>());
  caches_.back()->owner.store(this, std::memory_order_relaxed);
  return caches_.back();
}

// The thread that had the cache is ending; the registry is locked, so this allocator lives.
void Bemalloc::ReturnCache(ThreadCache& cache) {
  if (!CheckOpen()) return;  // Nobody will use these buffers again.
  FlushAll(cache);
  const std::scoped_lock lock(mutex_);
  heap_.RetireShard(cache);
  ReclaimReturned();
}

}  // namespace sluice
