// SPDX-License-Identifier: Apache-2.0
// sluice-bench: one side of one workload, over libsluice or over plain TCP. scripts/bench runs it
// in pairs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/net/workload.h"

namespace sluice::bench {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

void StopOnSignals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested = 1; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

double PeakRssMb() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void PrintResult(const std::string& system, const RunOptions& options, const Requests& requests) {
  const Requests::Result result = requests.Finish();
  const auto us = [&](double quantile) {
    return static_cast<double>(result.latency->QuantileNs(quantile)) / 1e3;
  };
  const auto operations = static_cast<double>(result.operations);
  const nlohmann::json row = {
      {"workload", options.workload.name},
      {"system", system},
      {"spin", options.spin},
      {"outstanding", options.workload.outstanding},
      {"operations", result.operations},
      {"seconds", result.seconds},
      {"operations_per_s", operations / result.seconds},
      {"gb_per_s", static_cast<double>(result.bytes) / 1e9 / result.seconds},
      {"mean_us", result.latency->MeanNs() / 1e3},
      {"p50_us", us(0.5)},
      {"p99_us", us(0.99)},
      {"p999_us", us(0.999)},
      {"all_operations", result.all_operations},
      {"client_cpu_s", CpuSeconds()},
      {"client_peak_rss_mb", PeakRssMb()}};
  std::printf("%s\n", row.dump().c_str());
}

}  // namespace

bool StopRequested() { return stop_requested != 0; }

}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  CLI::App app("Measures messages over libsluice beside plain TCP; prints one JSON object");
  app.require_subcommand(1);

  RunOptions options{.workload = kWorkloads[0]};
  std::string socket_path;
  std::string address;
  uint16_t port = 0;
  std::string workload(kWorkloads[0].name);

  auto* sluice_server = app.add_subcommand("sluice-server",
                                           "Answers requests over libsluice until SIGTERM");
  auto* sluice_client = app.add_subcommand("sluice-client", "Runs a workload over libsluice");
  auto* tcp_server = app.add_subcommand("tcp-server", "Answers requests over TCP until SIGTERM");
  auto* tcp_client = app.add_subcommand("tcp-client", "Runs a workload over TCP");
  for (auto* sub : {sluice_server, sluice_client}) {
    sub->add_option("--socket", socket_path, "The daemon's control socket");
  }
  for (auto* sub : {sluice_server, tcp_server}) {
    sub->add_option("--listen", port, "Service or TCP port")->required();
  }
  sluice_client->add_option("--server", address, "host:service")->required();
  for (auto* sub : {tcp_server, tcp_client}) {
    sub->add_option("--address", address, "IPv4 address")->required();
  }
  tcp_client->add_option("--port", port, "TCP port")->required();
  for (auto* sub : {sluice_server, sluice_client, tcp_server, tcp_client}) {
    sub->add_flag("--spin", options.spin, "Poll without ever sleeping");
  }
  std::vector<std::string> names;
  std::ranges::transform(kWorkloads, std::back_inserter(names),
                         [](const Workload& w) { return std::string(w.name); });
  for (auto* sub : {sluice_client, tcp_client}) {
    sub->add_option("--workload", workload, "What to do")
        ->capture_default_str()
        ->check(CLI::IsMember(names));
    sub->add_option("--outstanding", options.workload.outstanding,
                    "Requests at a time; default: the workload's");
    sub->add_option("--seconds", options.seconds,
                    "Measured time, after half a second of warming up")
        ->capture_default_str();
  }
  options.workload.outstanding = 0;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const uint32_t outstanding = options.workload.outstanding;
  options.workload = *std::ranges::find(kWorkloads, workload, &Workload::name);
  options.workload.outstanding = outstanding == 0 ? options.workload.outstanding : outstanding;

  StopOnSignals();
  if (*sluice_server) {
    return RunSluiceServer(socket_path, port, options.spin) ? 0 : 1;
  }
  if (*tcp_server) {
    return RunTcpServer(address, port, options.spin) ? 0 : 1;
  }
  Requests requests(options.workload, options.seconds, options.warm_up_seconds);
  const bool done = *sluice_client ? RunSluiceClient(socket_path, address, options, requests)
                                   : RunTcpClient(address, port, options, requests);
  if (done) {
    PrintResult(*sluice_client ? "sluice" : "tcp", options, requests);
  }
  return done ? 0 : 1;
}
