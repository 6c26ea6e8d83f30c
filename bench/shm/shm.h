// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/clock.h"
#include "libclient/examples/sluice-ps/latency.h"

// Shared memory between an application and its daemon, and what two threads of this machine can do
// at best. Everything runs on two CPUs: this side on `cpu`, the other on `other_cpu`.
namespace sluice::bench {

struct Pinning {
  int cpu = 1;
  int other_cpu = 0;
};

// Pins the calling thread; false: this machine or its container has no such CPU.
bool PinTo(int cpu);

// Calls `once` until the time is over and counts how long it took, `operations` at a time: reading
// the clock costs as much as a few of the shortest. The first tenth of the time is not counted.
template <typename Once>
sluice_ps::LatencyHistogram TimeRoundTrips(double seconds, int operations, const Once& once) {
  sluice_ps::LatencyHistogram latency;
  const uint64_t start_ns = NowNs();
  const uint64_t end_ns = start_ns + static_cast<uint64_t>(seconds * 1e9);
  const uint64_t measure_from_ns = start_ns + static_cast<uint64_t>(seconds * 1e8);
  uint64_t then_ns = start_ns;
  while (then_ns < end_ns) {
    for (int i = 0; i < operations; ++i) {
      if (!once()) {
        return latency;
      }
    }
    const uint64_t now_ns = NowNs();
    if (then_ns >= measure_from_ns) {
      latency.Add((now_ns - then_ns) / static_cast<uint64_t>(operations));
    }
    then_ns = now_ns;
  }
  return latency;
}

// How many a second, also in slices of about a millisecond: their median is what the threads do
// while nothing else takes their CPUs. The first tenth of the time is not counted.
class RateMeter {
 public:
  explicit RateMeter(double seconds)
      : start_ns_(NowNs()),
        measure_from_ns_(start_ns_ + static_cast<uint64_t>(seconds * 1e8)),
        end_ns_(start_ns_ + static_cast<uint64_t>(seconds * 1e9)) {}

  // `count` more are done now; false: the time is over.
  bool Count(uint64_t count);
  double MeanPerS() const;
  double NinthDecilePerS() const;

 private:
  static constexpr uint64_t kSliceNs = 1'000'000;
  uint64_t start_ns_;
  uint64_t measure_from_ns_;
  uint64_t end_ns_;
  uint64_t total_ = 0;
  uint64_t counted_ns_ = 0;
  uint64_t slice_start_ns_ = 0;
  uint64_t slice_count_ = 0;
  std::vector<double> slices_per_s_;
};

void PrintRoundTrips(const std::string& workload, const std::string& system,
                     const sluice_ps::LatencyHistogram& latency);
void PrintRate(const std::string& workload, const std::string& system, const RateMeter& meter,
               uint32_t bytes);

// The limits; each prints its row.
bool CacheLineRoundTrips(const Pinning& pinning, double seconds);
bool EventfdRoundTrips(const Pinning& pinning, double seconds);
bool BareRingRate(const Pinning& pinning, double seconds);

// Messages of one application to itself: its submission ring, the daemon, its completion ring.
struct ShmRun {
  std::string socket_path;
  std::string address = "127.0.0.1:7100";
  uint32_t bytes = 8;
  bool spin = false;
  double seconds = 1;
  int cpu = -1;  // -1: anywhere.
};
bool SluiceRoundTrips(const ShmRun& run);
bool SluiceRate(const ShmRun& run);

}  // namespace sluice::bench
