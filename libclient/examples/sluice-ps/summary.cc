// SPDX-License-Identifier: Apache-2.0
#include "summary.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "latency.h"
#include "report.h"

namespace sluice_ps {
namespace {

using nlohmann::json;

struct Kind {
  std::string name;
  LatencyHistogram latency = {};
  uint64_t operations = 0;
  uint64_t failed = 0;
  uint64_t unknown = 0;
  uint64_t bytes = 0;
};

// One run, added up.
struct Total {
  Kind fetch{.name = "fetch"};
  Kind push{.name = "push"};
  double seconds = 0;  // Of the worker that ran longest.
  uint64_t values_verified = 0;
  uint64_t rows_wrong = 0;
  uint64_t lost = 0;
  uint64_t duplicated = 0;
  uint64_t sends = 0;
  uint64_t pushes_resent = 0;
  double outage_ms = -1;  // The longest of any worker; below 0: there was none.
  uint32_t workers = 0;
  bool good = true;
  std::vector<std::string> complaints;
  std::vector<std::pair<std::string, double>> cpu_s;
};

void AddKind(const json& from, Kind& to) {
  to.operations += from.at("begun").get<uint64_t>();
  to.failed += from.at("failed").get<uint64_t>();
  to.unknown += from.at("unknown").get<uint64_t>();
  to.bytes += from.at("bytes").get<uint64_t>();
  const json& histogram = from.at("histogram");
  for (const json& bucket : histogram.at("buckets")) {
    to.latency.AddBucket(bucket.at(0).get<size_t>(), bucket.at(1).get<uint64_t>());
  }
  to.latency.AddTotals(histogram.at("sum_ns").get<uint64_t>(),
                       histogram.at("max_ns").get<uint64_t>());
}

void AddCounts(const json& counts, Total& total) {
  total.lost += counts.at("lost").get<uint64_t>();
  total.duplicated += counts.at("duplicated").get<uint64_t>();
}

void AddWorker(const json& worker, Total& total) {
  ++total.workers;
  AddKind(worker.at("fetch"), total.fetch);
  AddKind(worker.at("push"), total.push);
  for (const char* counts : {"fetch", "push", "sends", "connects"}) {
    AddCounts(worker.at(counts), total);
  }
  total.lost += worker.at("operations_lost").get<uint64_t>();
  total.duplicated += worker.at("stray_replies").get<uint64_t>();
  total.seconds = std::max(total.seconds, worker.at("seconds").get<double>());
  total.values_verified += worker.at("values_verified").get<uint64_t>();
  total.pushes_resent += worker.at("pushes_resent").get<uint64_t>();
  for (const json& outage : worker.at("outages")) {
    total.outage_ms = std::max(total.outage_ms, outage.at("outage_ms").get<double>());
  }
  for (const json& complaint : worker.at("complaints")) {
    total.complaints.push_back(worker.at("name").get<std::string>() + ": " +
                               complaint.get<std::string>());
  }
}

void AddProcess(const json& process, Total& total) {
  if (process.at("role") == "worker") {
    AddWorker(process, total);
  } else {
    AddCounts(process.at("sends"), total);
  }
  const auto name = process.at("name").get<std::string>();
  if (!process.at("good").get<bool>()) {
    total.good = false;
    total.complaints.push_back(name + " reports that not all was right");
  }
  total.sends += process.at("sends").at("begun").get<uint64_t>();
  total.rows_wrong += process.at("rows_wrong").get<uint64_t>();
  total.cpu_s.emplace_back(name, process.at("cpu_s").get<double>());
}

std::unique_ptr<Total> AddUp(const RunFiles& run) {
  auto total = std::make_unique<Total>();
  for (const std::string& path : run.files) {
    std::ifstream file(path);
    try {
      AddProcess(json::parse(file), *total);
    } catch (const json::exception& error) {
      total->good = false;
      total->complaints.push_back(path + ": no figures of a finished process: " + error.what());
    }
  }
  for (const std::string& text : run.cpu) {
    const size_t equals = text.find('=');
    total->cpu_s.emplace_back(text.substr(0, equals),
                              std::strtod(text.c_str() + equals + 1, nullptr));
  }
  total->good = total->good && total->workers > 0 && total->values_verified > 0 &&
                total->rows_wrong == 0 && total->lost == 0 && total->duplicated == 0;
  return total;
}

json Machine() {
  std::string cpu = "unknown";
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) {
      cpu = line.substr(line.find(':') + 2);
      break;
    }
  }
  utsname names{};
  uname(&names);
  return {{"cores", sysconf(_SC_NPROCESSORS_ONLN)},
          {"cpu", cpu},
          {"kernel", std::string(names.sysname) + " " + names.release}};
}

double PerSecond(uint64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}
double Us(uint64_t ns) { return static_cast<double>(ns) / 1e3; }

json Row(const Kind& kind, double seconds) {
  return {{"workload", kind.name},
          {"system", "sluice"},
          {"operations", kind.operations},
          {"operations_per_s", PerSecond(kind.latency.count(), seconds)},
          {"gb_per_s", PerSecond(kind.bytes, seconds) / 1e9},
          {"mean_us", kind.latency.MeanNs() / 1e3},
          {"p50_us", Us(kind.latency.QuantileNs(0.5))},
          {"p99_us", Us(kind.latency.QuantileNs(0.99))},
          {"p999_us", Us(kind.latency.QuantileNs(0.999))}};
}

void PrintRow(const json& row) {
  std::printf("  %-8s %12llu %12.0f %8.3f %10.0f %10.0f %10.0f %10.0f\n",
              row["workload"].get<std::string>().c_str(),
              static_cast<unsigned long long>(row["operations"].get<uint64_t>()),
              row["operations_per_s"].get<double>(), row["gb_per_s"].get<double>(),
              row["mean_us"].get<double>(), row["p50_us"].get<double>(),
              row["p99_us"].get<double>(), row["p999_us"].get<double>());
}

json PrintSteady(const Total& total) {
  std::printf("\n  %-8s %12s %12s %8s %10s %10s %10s %10s\n", "", "operations", "operations/s",
              "GB/s", "mean us", "p50 us", "p99 us", "p99.9 us");
  auto all = std::make_unique<Kind>(Kind{.name = "both"});
  for (const Kind* kind : {&total.fetch, &total.push}) {
    all->latency.Merge(kind->latency);
    all->operations += kind->operations;
    all->bytes += kind->bytes;
  }
  json rows = json::array();
  for (const Kind* kind : {&total.fetch, &total.push, const_cast<const Kind*>(all.get())}) {
    rows.push_back(Row(*kind, total.seconds));
    PrintRow(rows.back());
  }
  std::printf("\n  CPU seconds of each process, in %.1f s:\n", total.seconds);
  for (const auto& [name, cpu_s] : total.cpu_s) {
    std::printf("    %-24s %8.2f\n", name.c_str(), cpu_s);
  }
  std::printf(
      "\n  values verified: %llu; wrong rows: %llu; operations lost: %llu, duplicated: %llu\n",
      static_cast<unsigned long long>(total.values_verified),
      static_cast<unsigned long long>(total.rows_wrong),
      static_cast<unsigned long long>(total.lost),
      static_cast<unsigned long long>(total.duplicated));
  return rows;
}

json PrintFault(const RunFiles& run, const Total& total) {
  const uint64_t operations = total.fetch.operations + total.push.operations;
  const uint64_t unknown = total.fetch.unknown + total.push.unknown;
  const std::string outage = total.outage_ms < 0 ? "none"
                                                 : std::to_string(std::lround(total.outage_ms));
  std::printf("  %-34s %9s %11llu %9llu %8llu %6llu %11llu %6llu\n", run.name.c_str(),
              outage.c_str(), static_cast<unsigned long long>(operations),
              static_cast<unsigned long long>(unknown),
              static_cast<unsigned long long>(total.pushes_resent),
              static_cast<unsigned long long>(total.lost),
              static_cast<unsigned long long>(total.duplicated),
              static_cast<unsigned long long>(total.rows_wrong));
  return {{"fault", run.name},
          {"outage_ms", total.outage_ms < 0 ? json(nullptr) : json(total.outage_ms)},
          {"operations", operations},
          {"messages", total.sends},
          {"unknown", unknown},
          {"failed", total.fetch.failed + total.push.failed},
          {"pushes_sent_again", total.pushes_resent},
          {"lost", total.lost},
          {"duplicated", total.duplicated},
          {"wrong", total.rows_wrong},
          {"values_verified", total.values_verified}};
}

bool PrintVerdict(const std::string& name, const Total& total, bool fault) {
  for (const std::string& complaint : total.complaints) {
    std::printf("  WRONG, %s: %s\n", name.c_str(), complaint.c_str());
  }
  if (fault && total.outage_ms < 0) {
    std::printf("  WRONG, %s: no worker noticed the fault, or none recovered from it\n",
                name.c_str());
    return false;
  }
  return total.good;
}

}  // namespace

RunFiles ParseRun(const std::string& text) {
  RunFiles run;
  std::istringstream parts(text);
  std::getline(parts, run.name, ',');
  for (std::string part; std::getline(parts, part, ',');) {
    (part.find('=') == std::string::npos ? run.files : run.cpu).push_back(part);
  }
  return run;
}

int Summarize(const SummaryOptions& options) {
  const json machine = Machine();
  std::printf("machine: %ld cores, %s, %s\n", machine["cores"].get<long>(),
              machine["cpu"].get<std::string>().c_str(),
              machine["kernel"].get<std::string>().c_str());
  const auto steady = AddUp(options.steady);
  const json rows = PrintSteady(*steady);
  bool verified = PrintVerdict("steady run", *steady, false);

  json faults = json::array();
  if (!options.faults.empty()) {
    std::printf("\n  %-34s %9s %11s %9s %8s %6s %11s %6s\n", "fault", "outage ms", "operations",
                "unknown", "resent", "lost", "duplicated", "wrong");
  }
  for (const RunFiles& run : options.faults) {
    const auto total = AddUp(run);
    faults.push_back(PrintFault(run, *total));
    verified = PrintVerdict(run.name, *total, true) && verified;
  }
  std::printf("\n%s\n",
              verified ? "verified: every operation ended exactly once and every value was right"
                       : "NOT VERIFIED: see above");
  json processes = json::array();
  for (const auto& [name, cpu_s] : steady->cpu_s) {
    processes.push_back({{"name", name}, {"cpu_s", cpu_s}});
  }
  const json result = {{"demo", "ps"},
                       {"verified", verified},
                       {"machine", machine},
                       {"seconds", steady->seconds},
                       {"rows", rows},
                       {"processes", processes},
                       {"faults", faults},
                       {"values_verified", steady->values_verified},
                       {"wrong", steady->rows_wrong}};
  const bool written = options.json_path.empty() ||
                       WriteFile(options.json_path, result.dump(1) + "\n");
  return verified && written ? 0 : 1;
}

}  // namespace sluice_ps
