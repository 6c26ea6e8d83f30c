// SPDX-License-Identifier: Apache-2.0
// One run of one allocator in this process: prints one JSON object. The same loop serves bemalloc
// and malloc; other mallocs come in by LD_PRELOAD. bench/alloc.py runs it over and over and makes
// the table.
#include <sys/resource.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "shm_proto/bemalloc/anonymous_source.h"
#include "shm_proto/bemalloc/bemalloc.h"

namespace sluice {
namespace {

constexpr uint64_t kReserve = 16 * kGiB;
constexpr size_t kPageBytes = 4096;
constexpr size_t
    kSizes = 1 << 14;  // Drawn beforehand, so that drawing costs the same nothing for everyone.
constexpr size_t kMailbox = 64;  // Buffers on their way from one thread to the next.

struct Pool {
  AnonymousBlockSource source{kReserve};
  Bemalloc allocator{source.base(), kReserve, source};
};
Pool* pool = nullptr;

struct System {
  [[gnu::noinline]] static void* Allocate(size_t bytes) { return malloc(bytes); }
  [[gnu::noinline]] static void Free(void* buffer) { free(buffer); }
};

struct Ours {
  [[gnu::noinline]] static void* Allocate(size_t bytes) {
    Result<void*> buffer = pool->allocator.Allocate(bytes);
    return buffer ? *buffer : nullptr;
  }
  [[gnu::noinline]] static void Free(void* buffer) {
    if (!pool->allocator.Deallocate(buffer)) abort();
  }
};

struct Settings {
  std::string system = "malloc", workload = "small";
  unsigned threads = 1;
  uint64_t operations = 200'000;  // Of each thread, measured.
  double max_cpu_s = 2;           // Warm-up and measurement each end then at the latest.
};

struct Workload {
  size_t live;  // Buffers each thread holds.
  size_t (*draw)(std::mt19937_64&);
};

double Uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

// 64 KiB to 1 MiB, exponentially fewer the larger.
size_t DrawLarge(std::mt19937_64& random) {
  constexpr double kLeast = 64 << 10, kMost = 1 << 20, kMean = (kMost - kLeast) / 5;
  while (true) {
    const double size = kLeast - kMean * std::log(1 - Uniform(random));
    if (size <= kMost) return static_cast<size_t>(size);
  }
}

// 16 bytes to 16 KiB, linearly fewer the larger.
size_t DrawSmall(std::mt19937_64& random) {
  return 16 + static_cast<size_t>(16'368 * (1 - std::sqrt(1 - Uniform(random))));
}

// Lognormal with a mean of 20 KB and 1 % above 50 KB.
size_t DrawTraining(std::mt19937_64& random) {
  constexpr double kSigma = 0.435;
  std::normal_distribution<double> normal(std::log(20'000.0) - kSigma * kSigma / 2, kSigma);
  return static_cast<size_t>(std::min(std::exp(normal(random)), 4e6)) + 1;
}

Workload Named(const std::string& name) {
  if (name == "large") return {600, DrawLarge};
  if (name == "small") return {16'000, DrawSmall};
  if (name == "training") return {4'000, DrawTraining};
  std::fprintf(stderr, "unknown workload '%s'\n", name.c_str());
  std::exit(2);
}

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Buffers that one thread allocated and the next one frees.
struct Mailbox {
  alignas(64) std::atomic<size_t> written{0};
  alignas(64) std::atomic<size_t> read{0};
  void* buffers[kMailbox];

  bool Put(void* buffer) {
    const size_t at = written.load(std::memory_order_relaxed);
    if (at - read.load(std::memory_order_acquire) == kMailbox) return false;
    buffers[at % kMailbox] = buffer;
    written.store(at + 1, std::memory_order_release);
    return true;
  }
  void* Take() {
    const size_t at = read.load(std::memory_order_relaxed);
    if (at == written.load(std::memory_order_acquire)) return nullptr;
    void* buffer = buffers[at % kMailbox];
    read.store(at + 1, std::memory_order_release);
    return buffer;
  }
};

template <typename Allocator>
void* AllocateAndWrite(size_t bytes) {
  auto* buffer = static_cast<char*>(Allocator::Allocate(bytes));
  if (buffer == nullptr) {
    std::fprintf(stderr, "out of memory\n");
    std::exit(1);
  }
  for (size_t at = 0; at < bytes; at += kPageBytes) buffer[at] = 1;
  buffer[bytes - 1] = 1;
  return buffer;
}

template <typename Allocator>
struct Runner {
  const Workload workload;
  std::vector<size_t> sizes;
  std::vector<void*> live;
  std::mt19937_64 random;
  size_t next_size = 0;

  Runner(const Workload& load, uint64_t seed) : workload(load), live(load.live), random(seed) {
    for (size_t i = 0; i < kSizes; ++i) sizes.push_back(load.draw(random));
  }

  void Fill() {
    for (void*& buffer : live) buffer = AllocateAndWrite<Allocator>(sizes[next_size++ % kSizes]);
  }

  // Replaces random buffers; every tenth goes to `out` and is freed by its reader. Returns how many
  // it did before the process had used its CPU time up.
  uint64_t Run(uint64_t operations, double cpu_deadline_s, Mailbox* in, Mailbox* out) {
    uint64_t state = random();
    for (uint64_t i = 0; i < operations; ++i) {
      if (i % 64 == 0 && CpuSeconds() > cpu_deadline_s) return i;
      state = state * 6364136223846793005u + 1442695040888963407u;
      void*& buffer = live[(state >> 33) % live.size()];
      const bool away = out != nullptr && (state >> 20) % 10 == 0;
      if (!away || !out->Put(buffer)) Allocator::Free(buffer);
      if (in != nullptr) {
        if (void* other = in->Take(); other != nullptr) Allocator::Free(other);
      }
      buffer = AllocateAndWrite<Allocator>(sizes[next_size++ % kSizes]);
    }
    return operations;
  }

  // Grows or shrinks to `count` live buffers.
  void Resize(size_t count) {
    while (live.size() > count) {
      std::swap(live[random() % live.size()], live.back());
      Allocator::Free(live.back());
      live.pop_back();
    }
    while (live.size() < count)
      live.push_back(AllocateAndWrite<Allocator>(sizes[next_size++ % kSizes]));
  }
};

// What the kernel says the process held at most, in MiB. A populated pool is all resident, so this
// is pinned and resident.
double PeakMiB() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:"))
      return static_cast<double>(std::strtoull(line.c_str() + 6, nullptr, 10)) / 1024;
  }
  return 0;
}

template <typename Allocator>
void RunThreads(const Settings& settings) {
  const Workload workload = Named(settings.workload);
  std::vector<Mailbox> mailboxes(settings.threads);
  double cpu_before = 0, wall_before = 0;
  const auto wall = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  uint64_t acquisitions_before = 0;
  std::barrier start(static_cast<std::ptrdiff_t>(settings.threads), [&]() noexcept {
    cpu_before = CpuSeconds();
    wall_before = wall();
    if (pool != nullptr) acquisitions_before = pool->allocator.statistics().acquisitions;
  });
  double cpu = 0, seconds = 0;
  std::atomic<uint64_t> done = 0;
  std::barrier stop(static_cast<std::ptrdiff_t>(settings.threads), [&]() noexcept {
    cpu = CpuSeconds() - cpu_before;
    seconds = wall() - wall_before;
  });
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < settings.threads; ++i) {
    threads.emplace_back([&, i] {
      Runner<Allocator> runner(workload, i + 1);
      Mailbox* in = settings.threads > 1 ? &mailboxes[i] : nullptr;
      Mailbox* out = settings.threads > 1 ? &mailboxes[(i + 1) % settings.threads] : nullptr;
      runner.Fill();
      runner.Run(settings.operations, CpuSeconds() + settings.max_cpu_s, in, out);  // Warm-up.
      start.arrive_and_wait();
      done += runner.Run(settings.operations, cpu_before + settings.max_cpu_s, in, out);
      stop.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  // One operation is an allocation or a free.
  const double operations = 2.0 * static_cast<double>(done);
  std::printf("{\"mops_per_cpu_s\": %.4f, \"wall_s\": %.3f, \"cpu_s\": %.3f, \"peak_mib\": %.1f",
              operations / cpu / 1e6, seconds, cpu, PeakMiB());
  if (pool != nullptr) {
    const Bemalloc::Statistics statistics = pool->allocator.statistics();
    std::printf(
        ", \"pool_mib\": %.1f, \"cached_mib\": %.2f, \"live_mib\": %.1f, \"registrations_per_s\": "
        "%.3f",
        static_cast<double>(statistics.peak_block_bytes) / kMiB,
        static_cast<double>(statistics.cached_bytes) / kMiB,
        static_cast<double>(statistics.live_bytes) / kMiB,
        static_cast<double>(statistics.acquisitions - acquisitions_before) / seconds);
  }
  std::printf("}\n");
}

// For callgrind: nothing but allocate and free of 20 KB.
template <typename Allocator>
void RunPairs(uint64_t operations) {
  Allocator::Free(Allocator::Allocate(20'000));
  for (uint64_t i = 0; i < operations; ++i) Allocator::Free(Allocator::Allocate(20'000));
  std::printf("{}\n");
}

// The registered footprint of a parameter server's clients: they come up, run, and after a minute
// four fifths of the load goes away. One tick is one second of the allocator's time; a sample is
// [second, registered MiB, live MiB].
void RunServer(unsigned threads) {
  constexpr unsigned kTicks = 180, kWarm = 30, kFall = 90, kFull = 6'000, kLow = 1'200,
                     kRampTicks = 5, kReplaced = 2'000;
  std::vector<Runner<Ours>> runners;
  for (unsigned i = 0; i < threads; ++i) runners.emplace_back(Workload{0, DrawTraining}, i + 1);
  uint64_t registrations_warm = 0, registrations = 0;
  double ratio = 0;
  std::printf("{\"samples\": [");
  std::barrier tick_done(static_cast<std::ptrdiff_t>(threads), [&, tick = 0u]() mutable noexcept {
    pool->allocator.Maintain((tick + 1) * 1'000'000'000ull);
    const Bemalloc::Statistics now = pool->allocator.statistics();
    std::printf("%s[%u, %.1f, %.1f]", tick > 0 ? ", " : "", tick,
                static_cast<double>(now.block_bytes) / kMiB,
                static_cast<double>(now.live_bytes) / kMiB);
    if (tick == kWarm) registrations_warm = now.acquisitions;
    if (tick == kFall - 1) registrations = now.acquisitions - registrations_warm;
    if (tick == kFall + 60)
      ratio = static_cast<double>(now.block_bytes) / static_cast<double>(now.live_bytes);
    ++tick;
  });
  std::vector<std::thread> workers;
  for (Runner<Ours>& runner : runners) {
    workers.emplace_back([&] {
      for (unsigned tick = 0; tick < kTicks; ++tick) {
        runner.Resize(tick < kFall ? std::min(kFull, kFull * (tick + 1) / kRampTicks) : kLow);
        runner.Run(kReplaced, 1e9, nullptr, nullptr);
        tick_done.arrive_and_wait();
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  std::printf(
      "], \"registrations_per_s\": %.4f, \"pinned_over_live_after_fall\": %.3f, "
      "\"registration_ms\": %.3f}\n",
      static_cast<double>(registrations) / (kFall - 1 - kWarm), ratio,
      static_cast<double>(pool->allocator.statistics().acquire_ns) / 1e6);
}

template <typename Allocator>
void Run(const Settings& settings) {
  if (settings.workload == "pairs") {
    RunPairs<Allocator>(settings.operations);
  } else {
    RunThreads<Allocator>(settings);
  }
}

int Main(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--system") settings.system = value;
    if (key == "--workload") settings.workload = value;
    if (key == "--threads") settings.threads = static_cast<unsigned>(std::stoul(value));
    if (key == "--max-cpu-s") settings.max_cpu_s = std::stod(value);
    if (key == "--operations") settings.operations = std::stoull(value);
  }
  if (settings.system == "bemalloc") {
    pool = new Pool;
    if (settings.workload == "server") {
      RunServer(settings.threads);
      return 0;
    }
    Run<Ours>(settings);
  } else {
    Run<System>(settings);
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
