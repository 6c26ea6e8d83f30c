// SPDX-License-Identifier: Apache-2.0
// sluice-bench serve, request and systems: one side of one workload, over one of the systems.
#include "bench/commands.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/net/workload.h"

namespace sluice::bench {
namespace {

const std::vector<const System*>& Systems() {
  static const std::vector<const System*> systems = {
      &kSluice,
      &kTcp,
#ifdef SLUICE_BENCH_ZEROMQ
      &kZeroMq,
#endif
#ifdef SLUICE_BENCH_GRPC
      &kGrpc,
#endif
  };
  return systems;
}

template <typename Range, typename Projection>
std::vector<std::string> Names(const Range& range, Projection name) {
  std::vector<std::string> names;
  std::ranges::transform(range, std::back_inserter(names),
                         [&](const auto& item) { return std::string(std::invoke(name, item)); });
  return names;
}

double PeakRssMb() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// What the command line says.
struct Settings {
  std::string system{kSluice.name};
  std::string workload{kWorkloads[0].name};
  uint32_t outstanding = 0;
  Endpoint endpoint;
  RunOptions run{.workload = kWorkloads[0]};

  const System& chosen() const {
    return **std::ranges::find(Systems(), system, [](const System* s) { return s->name; });
  }
};

void PrintResult(const Settings& settings, const Requests& requests) {
  const Requests::Result result = requests.Finish();
  const auto us = [&](double quantile) {
    return static_cast<double>(result.latency->QuantileNs(quantile)) / 1e3;
  };
  const auto operations = static_cast<double>(result.operations);
  const nlohmann::json row = {
      {"workload", settings.workload},
      {"system", settings.system},
      {"spin", settings.endpoint.spin},
      {"outstanding", settings.run.workload.outstanding},
      {"operations", result.operations},
      {"seconds", result.seconds},
      {"operations_per_s", operations / result.seconds},
      {"gb_per_s", static_cast<double>(result.bytes) / 1e9 / result.seconds},
      {"mean_us", result.latency->MeanNs() / 1e3},
      {"p50_us", us(0.5)},
      {"p99_us", us(0.99)},
      {"p999_us", us(0.999)},
      {"all_operations", result.all_operations},
      {"client_cpu_s", result.cpu_s},
      {"client_peak_rss_mb", PeakRssMb()}};
  std::printf("%s\n", row.dump().c_str());
}

bool RunRequest(Settings& settings) {
  settings.run.workload = *std::ranges::find(kWorkloads, std::string_view(settings.workload),
                                             &Workload::name);
  if (settings.outstanding != 0) {
    settings.run.workload.outstanding = settings.outstanding;
  }
  Requests requests(settings.run);
  if (!settings.chosen().request(settings.endpoint, settings.run, requests)) {
    return false;
  }
  if (requests.Finish().operations == 0) {
    std::fprintf(stderr, "sluice-bench: not one request was answered in the measured time\n");
    return false;
  }
  PrintResult(settings, requests);
  return true;
}

bool PrintSystems() {
  for (const System* system : Systems()) {
    std::printf("%s\n", std::string(system->name).c_str());
  }
  return true;
}

}  // namespace

std::vector<Command> AddNetCommands(CLI::App& app) {
  const auto settings = std::make_shared<Settings>();
  auto* serve = app.add_subcommand("serve", "Answers requests until SIGTERM");
  auto* request = app.add_subcommand("request", "Runs a workload against a server");
  auto* systems = app.add_subcommand("systems", "Lists the systems that are built in");
  for (auto* sub : {serve, request}) {
    sub->add_option("--system", settings->system, "What carries the messages")
        ->capture_default_str()
        ->check(CLI::IsMember(Names(Systems(), &System::name)));
    sub->add_option("--address", settings->endpoint.address,
                    "The server: HOST:PORT, over Sluice HOST:SERVICE; HOST is an IPv4 address")
        ->required();
    sub->add_option("--socket", settings->endpoint.socket_path,
                    "Sluice: the daemon's control socket");
    sub->add_flag("--spin", settings->endpoint.spin, "Poll without ever sleeping");
  }
  request->add_option("--workload", settings->workload, "What to do")
      ->capture_default_str()
      ->check(CLI::IsMember(Names(kWorkloads, &Workload::name)));
  request->add_option("--outstanding", settings->outstanding,
                      "Requests at a time; 0: the workload's");
  request
      ->add_option("--sockets", settings->endpoint.sockets,
                   "Sluice: sockets that the requests take in turn")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  request->add_option("--seconds", settings->run.seconds, "Measured time")->capture_default_str();
  request->add_option("--warm-up", settings->run.warm_up_seconds, "Seconds before it")
      ->capture_default_str();
  return {{serve, [settings] { return settings->chosen().serve(settings->endpoint); }},
          {request, [settings] { return RunRequest(*settings); }},
          {systems, PrintSystems}};
}

}  // namespace sluice::bench
