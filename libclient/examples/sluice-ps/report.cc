// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace sluice_ps {
namespace {

using nlohmann::json;

[[gnu::format(printf, 1, 2)]] std::string Format(const char* format, ...) {
  std::array<char, 512> text;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  return text.data();
}

double Us(double ns) { return ns / 1e3; }
double Us(uint64_t ns) { return static_cast<double>(ns) / 1e3; }

json ToJson(const OutcomeCounts& counts, uint64_t lost) {
  return {{"begun", counts.begun},           {"ok", counts.ok},
          {"failed", counts.failed},         {"unknown", counts.unknown},
          {"duplicated", counts.duplicated}, {"lost", lost}};
}

json ToJson(const OperationStats& stats) {
  const LatencyHistogram& latency = stats.latency;
  json histogram = json::array();
  for (size_t i = 0; i < LatencyHistogram::kBuckets; ++i) {
    if (latency.bucket(i) > 0) {
      histogram.push_back({i, latency.bucket(i)});
    }
  }
  json result = ToJson(stats.outcomes, 0);
  result["bytes"] = stats.bytes;
  result["mean_us"] = Us(latency.MeanNs());
  result["p50_us"] = Us(latency.QuantileNs(0.5));
  result["p99_us"] = Us(latency.QuantileNs(0.99));
  result["p999_us"] = Us(latency.QuantileNs(0.999));
  result["max_us"] = Us(latency.max_ns());
  result["histogram"] = {
      {"sum_ns", latency.sum_ns()}, {"max_ns", latency.max_ns()}, {"buckets", histogram}};
  return result;
}

std::string LatencyLine(const char* name, const LatencyHistogram& latency, uint64_t ended,
                        double seconds) {
  return Format("  %-6s %12llu %10.0f %10.0f %10.0f %10.0f %10.0f %10.0f\n", name,
                static_cast<unsigned long long>(ended),
                static_cast<double>(latency.count()) / seconds, Us(latency.MeanNs()),
                Us(latency.QuantileNs(0.5)), Us(latency.QuantileNs(0.99)),
                Us(latency.QuantileNs(0.999)), Us(latency.max_ns()));
}

std::string LatencyHeading() {
  return Format("  %-6s %12s %10s %10s %10s %10s %10s %10s\n", "", "operations", "ok/s", "mean us",
                "p50 us", "p99 us", "p99.9 us", "max us");
}

std::string CountsLine(const char* name, const OutcomeCounts& counts, uint64_t lost) {
  return Format(
      "  %-9s %10llu begun %10llu ok %6llu failed %6llu unknown %4llu lost %4llu duplicated\n",
      name, static_cast<unsigned long long>(counts.begun),
      static_cast<unsigned long long>(counts.ok), static_cast<unsigned long long>(counts.failed),
      static_cast<unsigned long long>(counts.unknown), static_cast<unsigned long long>(lost),
      static_cast<unsigned long long>(counts.duplicated));
}

}  // namespace

std::string ToJson(const WorkerOptions& options, const WorkerStats& stats) {
  const WorkloadStats& workload = stats.workload;
  json outages = json::array();
  for (const Outage& outage : stats.outages) {
    outages.push_back({{"at_s", outage.at_s}, {"outage_ms", outage.outage_ms}});
  }
  const json result = {{"role", "worker"},
                       {"name", options.name},
                       {"good", stats.Good()},
                       {"seconds", stats.measured_s},
                       {"outstanding", options.workload.outstanding},
                       {"fetch", ToJson(workload.fetch)},
                       {"push", ToJson(workload.push)},
                       {"operations_lost", stats.operations_lost},
                       {"bytes", workload.bytes()},
                       {"rows_verified", workload.rows_verified},
                       {"values_verified", workload.values_verified},
                       {"rows_wrong", workload.rows_wrong},
                       {"stray_replies", workload.stray_replies},
                       {"unordered_replies", workload.unordered_replies},
                       {"pushes_resent", workload.pushes_resent},
                       {"sends", ToJson(stats.sends, stats.sends_lost)},
                       {"connects", ToJson(stats.connects, stats.connects_lost)},
                       {"connections_lost", stats.connections_lost},
                       {"outages", outages},
                       {"longest_gap_ms", static_cast<double>(workload.longest_gap_ns) / 1e6},
                       {"cpu_s", stats.cpu_s},
                       {"complaints", workload.complaints}};
  return result.dump(1) + "\n";
}

std::string ToJson(const ServerOptions& options, const ServerStats& stats) {
  const json result = {
      {"role", "server"},
      {"name", options.name},
      {"good", stats.rows_wrong == 0 && stats.sends_lost == 0 && stats.sends.duplicated == 0},
      {"fetches", stats.shards.fetches},
      {"pushes_applied", stats.shards.pushes_applied},
      {"pushes_repeated", stats.shards.pushes_repeated},
      {"requests_refused", stats.shards.refused},
      {"connections", stats.connections},
      {"sends", ToJson(stats.sends, stats.sends_lost)},
      {"rows_wrong", stats.rows_wrong},
      {"cpu_s", stats.cpu_s}};
  return result.dump(1) + "\n";
}

std::string ToText(const WorkerStats& stats) {
  const WorkloadStats& workload = stats.workload;
  std::string text = LatencyHeading();
  text += LatencyLine("fetch", workload.fetch.latency, workload.fetch.outcomes.ended(),
                      stats.measured_s);
  text += LatencyLine("push", workload.push.latency, workload.push.outcomes.ended(),
                      stats.measured_s);
  text += CountsLine("fetches", workload.fetch.outcomes, 0);
  text += CountsLine("pushes", workload.push.outcomes, 0);
  text += CountsLine("sends", stats.sends, stats.sends_lost);
  text += CountsLine("connects", stats.connects, stats.connects_lost);
  text += Format(
      "  %.3f GB/s, %llu values verified, %llu rows wrong, %llu operations lost, %.2f CPU "
      "seconds\n",
      static_cast<double>(workload.bytes()) / 1e9 / stats.measured_s,
      static_cast<unsigned long long>(workload.values_verified),
      static_cast<unsigned long long>(workload.rows_wrong),
      static_cast<unsigned long long>(stats.operations_lost), stats.cpu_s);
  for (const Outage& outage : stats.outages) {
    text += Format("  outage of %.0f ms, %.2f s after the start\n", outage.outage_ms, outage.at_s);
  }
  for (const std::string& complaint : workload.complaints) {
    text += "  WRONG: " + complaint + "\n";
  }
  return text;
}

std::string ToText(const ServerStats& stats) {
  return CountsLine("replies", stats.sends, stats.sends_lost) +
         Format(
             "  %llu fetches, %llu pushes applied, %llu repeated, %llu refused, %llu rows wrong, "
             "%.2f CPU seconds\n",
             static_cast<unsigned long long>(stats.shards.fetches),
             static_cast<unsigned long long>(stats.shards.pushes_applied),
             static_cast<unsigned long long>(stats.shards.pushes_repeated),
             static_cast<unsigned long long>(stats.shards.refused),
             static_cast<unsigned long long>(stats.rows_wrong), stats.cpu_s);
}

bool WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) {
    std::fprintf(stderr, "sluice-ps: writing %s failed\n", path.c_str());
    return false;
  }
  return true;
}

}  // namespace sluice_ps
