// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>

#include "bench/shm/shm.h"
#include "shm_proto/base/fd.h"
#include "shm_proto/ring.h"

namespace sluice::bench {
namespace {

constexpr int kBouncesAtOnce = 32;
constexpr uint32_t kRingEntries = 1024;
constexpr uint32_t kEntriesAtOnce = 32;

struct alignas(64) CacheLine {
  std::atomic<uint64_t> value{0};
};

// The threads' memory lies on lines of its own, and `stop` on another than what is measured.
struct alignas(64) StopFlag {
  std::atomic<bool> stop{false};
};

}  // namespace

bool PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0) {
    return true;
  }
  std::fprintf(stderr, "sluice-bench: cannot run on CPU %d\n", cpu);
  return false;
}

bool CacheLineRoundTrips(const Pinning& pinning, double seconds) {
  CacheLine line;
  StopFlag done;
  // Even: this side's turn. The acquires and releases are each other's partners.
  std::thread other([&] {
    PinTo(pinning.other_cpu);
    while (!done.stop.load(std::memory_order_relaxed)) {
      const uint64_t value = line.value.load(std::memory_order_acquire);
      if (value % 2 == 1) {
        line.value.store(value + 1, std::memory_order_release);
      }
    }
  });
  const bool pinned = PinTo(pinning.cpu);
  uint64_t value = 0;
  const auto latency = TimeRoundTrips(seconds, kBouncesAtOnce, [&] {
    line.value.store(value + 1, std::memory_order_release);
    value += 2;
    while (line.value.load(std::memory_order_acquire) != value) {
    }
    return true;
  });
  done.stop.store(true, std::memory_order_relaxed);
  other.join();
  PrintRoundTrips("round_trip_8B", "cache line", latency);
  return pinned;
}

bool EventfdRoundTrips(const Pinning& pinning, double seconds) {
  const Fd there(eventfd(0, EFD_CLOEXEC));
  const Fd back(eventfd(0, EFD_CLOEXEC));
  StopFlag done;
  std::thread other([&] {
    PinTo(pinning.other_cpu);
    eventfd_t count;
    while (eventfd_read(there.get(), &count) == 0 && eventfd_write(back.get(), 1) == 0 &&
           !done.stop.load(std::memory_order_relaxed)) {
    }
  });
  const bool pinned = PinTo(pinning.cpu);
  eventfd_t count;
  const auto latency = TimeRoundTrips(seconds, 1, [&] {
    return eventfd_write(there.get(), 1) == 0 && eventfd_read(back.get(), &count) == 0;
  });
  done.stop.store(true, std::memory_order_relaxed);
  eventfd_write(there.get(), 1);
  other.join();
  PrintRoundTrips("round_trip_8B", "eventfd", latency);
  return pinned;
}

bool BareRingRate(const Pinning& pinning, double seconds) {
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const std::unique_ptr<std::byte, Free> memory(
      static_cast<std::byte*>(std::aligned_alloc(4096, RoundUp(RingBytes(kRingEntries), 4096))));
  const RingMemory ring{memory.get(), kRingEntries};
  InitializeRing(ring, 0);
  StopFlag done;
  std::thread producer([&] {
    PinTo(pinning.other_cpu);
    RingProducer side(ring);
    Descriptor item{};
    while (!done.stop.load(std::memory_order_relaxed)) {
      while (side.staged() < kEntriesAtOnce && side.Stage(item)) {
        ++item.token;
      }
      side.Publish();
    }
  });
  const bool pinned = PinTo(pinning.cpu);
  RingConsumer side(ring);
  Descriptor item;
  uint64_t popped = 0;
  uint64_t batch = 0;
  bool in_order = true;
  RateMeter meter(seconds);
  do {
    batch = 0;
    for (uint32_t left = side.Available(); left > 0 && side.Pop(item); --left) {
      in_order &= item.token == popped++;
      ++batch;
    }
    side.Release();
  } while (meter.Count(batch));
  done.stop.store(true, std::memory_order_relaxed);
  producer.join();
  if (!in_order) {
    std::fprintf(stderr, "sluice-bench: the ring gave entries out of order\n");
  }
  PrintRate("rate_8B", "bare ring", meter, sizeof(Descriptor));
  return pinned && in_order;
}

}  // namespace sluice::bench
