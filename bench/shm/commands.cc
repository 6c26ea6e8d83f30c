// SPDX-License-Identifier: Apache-2.0
// sluice-bench shm: the paths through shared memory on one host.
#include "bench/commands.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/shm/shm.h"

namespace sluice::bench {
namespace {

struct Settings {
  Pinning pinning;
  ShmRun run;
  bool rate = false;
};

bool Limits(const Settings& settings) {
  return CacheLineRoundTrips(settings.pinning, settings.run.seconds) &&
         EventfdRoundTrips(settings.pinning, settings.run.seconds) &&
         BareRingRate(settings.pinning, settings.run.seconds);
}

}  // namespace

void PrintRoundTrips(const std::string& workload, const std::string& system,
                     const sluice_ps::LatencyHistogram& latency) {
  const nlohmann::json row = {{"workload", workload},
                              {"system", system},
                              {"mean_us", latency.MeanNs() / 1e3},
                              {"p50_us", static_cast<double>(latency.QuantileNs(0.5)) / 1e3},
                              {"p99_us", static_cast<double>(latency.QuantileNs(0.99)) / 1e3}};
  std::printf("%s\n", row.dump().c_str());
}

void PrintRate(const std::string& workload, const std::string& system, const RateMeter& meter,
               uint32_t bytes) {
  const nlohmann::json row = {{"workload", workload},
                              {"system", system},
                              {"operations_per_s", meter.NinthDecilePerS()},
                              {"mean_operations_per_s", meter.MeanPerS()},
                              {"gb_per_s", meter.NinthDecilePerS() * bytes / 1e9}};
  std::printf("%s\n", row.dump().c_str());
}

bool RateMeter::Count(uint64_t count) {
  const uint64_t now_ns = NowNs();
  if (slice_start_ns_ == 0) {
    slice_start_ns_ = now_ns >= measure_from_ns_ ? now_ns : 0;
    return true;
  }
  slice_count_ += count;
  const uint64_t slice_ns = now_ns - slice_start_ns_;
  if (slice_ns >= kSliceNs) {
    slices_per_s_.push_back(static_cast<double>(slice_count_) / static_cast<double>(slice_ns) *
                            1e9);
    total_ += slice_count_;
    counted_ns_ += slice_ns;
    slice_start_ns_ = now_ns;
    slice_count_ = 0;
  }
  return now_ns < end_ns_;
}

double RateMeter::MeanPerS() const {
  return counted_ns_ == 0 ? 0
                          : static_cast<double>(total_) / static_cast<double>(counted_ns_) * 1e9;
}

double RateMeter::NinthDecilePerS() const {
  if (slices_per_s_.empty()) {
    return 0;
  }
  std::vector<double> sorted = slices_per_s_;
  const auto decile = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() * 9 / 10);
  std::ranges::nth_element(sorted, decile);
  return *decile;
}

std::vector<Command> AddShmCommands(CLI::App& app) {
  const auto settings = std::make_shared<Settings>();
  auto* shm = app.add_subcommand("shm", "Measures shared memory on one host");
  shm->require_subcommand(1);
  auto* limits = shm->add_subcommand(
      "limits", "What two threads can do: a cache line, an eventfd, the bare ring");
  auto* messages = shm->add_subcommand("messages",
                                       "Messages of one application through its daemon to itself");
  for (auto* sub : {limits, messages}) {
    sub->add_option("--seconds", settings->run.seconds, "Of each measurement")
        ->capture_default_str();
  }
  limits->add_option("--cpu", settings->pinning.cpu, "Of one thread")->capture_default_str();
  limits->add_option("--other-cpu", settings->pinning.other_cpu, "Of the other")
      ->capture_default_str();
  messages->add_option("--cpu", settings->run.cpu, "Of the application's thread; -1: any")
      ->capture_default_str();
  messages->add_option("--socket", settings->run.socket_path, "The daemon's control socket");
  messages->add_option("--address", settings->run.address, "Its own, as HOST:SERVICE")
      ->capture_default_str();
  messages->add_option("--bytes", settings->run.bytes, "Length of a message")
      ->capture_default_str()
      ->check(CLI::Range(8, 1024 * 1024));
  messages->add_flag("--spin", settings->run.spin, "Poll without ever sleeping");
  messages->add_flag("--rate", settings->rate, "As many at a time as go, instead of one");
  return {{limits, [settings] { return Limits(*settings); }},
          {messages, [settings] {
             return settings->rate ? SluiceRate(settings->run) : SluiceRoundTrips(settings->run);
           }}};
}

}  // namespace sluice::bench
