// SPDX-License-Identifier: Apache-2.0
// A parameter server: an embedding table of float32 rows, cut into shards that servers hold in
// memory and workers fetch from and push gradients to. Everything fetched is checked against what
// it must be.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <iterator>
#include <random>

#include "report.h"
#include "server.h"
#include "summary.h"
#include "worker.h"

namespace {

using namespace sluice_ps;

volatile std::sig_atomic_t stop_requested = 0;

void StopOnSignals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested = 1; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void AddTableOptions(CLI::App& app, TableShape& shape) {
  app.add_option("--rows", shape.rows, "Rows of the whole table")->capture_default_str();
  app.add_option("--dim", shape.dim, "Floats in a row")
      ->capture_default_str()
      ->check(CLI::Range(1u, kMaxDim));
}

// "2/4" or "0-1/4": which shards of how many.
bool ParseShards(const std::string& text, ServerOptions& options) {
  unsigned first = 0;
  unsigned last = 0;
  unsigned shards = 0;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%u-%u/%u%c", &first, &last, &shards, &rest) != 3) {
    if (std::sscanf(text.c_str(), "%u/%u%c", &first, &shards, &rest) != 2) {
      return false;
    }
    last = first;
  }
  options.first_shard = first;
  options.last_shard = last;
  options.shape.shards = shards;
  return first <= last && last < shards;
}

int RunServer(const ServerOptions& options, const std::string& json_path) {
  if (options.shape.rows < options.shape.shards ||
      options.service + (options.last_shard - options.first_shard) > 65535) {
    std::fprintf(stderr,
                 "%s: --rows must be at least the number of shards, services end at 65535\n",
                 options.name.c_str());
    return 2;
  }
  Endpoint endpoint;
  if (!endpoint.Open(options.socket_path, options.name)) {
    return 3;
  }
  Server server(endpoint, options);
  if (!server.Listen()) {
    return 3;
  }
  std::printf("%s ready: shards %u to %u of %u, %u rows of %u floats\n", options.name.c_str(),
              options.first_shard, options.last_shard, options.shape.shards, options.shape.rows,
              options.shape.dim);
  std::fflush(stdout);
  server.Run(stop_requested);
  const ServerStats stats = server.Finish();
  std::printf("%s\n%s", options.name.c_str(), ToText(stats).c_str());
  const bool written = json_path.empty() || WriteFile(json_path, ToJson(options, stats));
  return written && stats.rows_wrong == 0 && stats.sends_lost == 0 && stats.sends.duplicated == 0
             ? 0
             : 1;
}

int RunWorker(WorkerOptions& options, const std::string& json_path) {
  WorkloadOptions& workload = options.workload;
  workload.shape.shards = static_cast<uint32_t>(options.servers.size());
  workload.run = std::random_device()() | uint64_t{std::random_device()()} << 32;
  if (workload.worker >= workload.workers ||
      workload.shape.rows < workload.shape.shards * workload.workers ||
      !SizeModel::Possible(workload.mean_bytes, workload.p99_bytes)) {
    std::fprintf(stderr,
                 "%s: --worker must be below --workers, every worker needs a row in every shard, "
                 "and the sizes' p99 must "
                 "lie between the mean and 15 times the mean\n",
                 options.name.c_str());
    return 2;
  }
  Endpoint endpoint;
  if (!endpoint.Open(options.socket_path, options.name)) {
    return 3;
  }
  Worker worker(endpoint, options);
  worker.Run(stop_requested);
  const WorkerStats stats = worker.Finish();
  std::printf("%s\n%s", options.name.c_str(), ToText(stats).c_str());
  const bool written = json_path.empty() || WriteFile(json_path, ToJson(options, stats));
  return written && stats.Good() ? 0 : 1;
}

struct Options {
  ServerOptions server;
  WorkerOptions worker;
  std::string shards = "0/1";
  std::string steady;
  std::vector<std::string> faults;
  std::string name;
  std::string socket_path;
  std::string json_path;
};

void AddCommonOptions(CLI::App& app, Options& options) {
  app.add_option("--socket", options.socket_path,
                 "The daemon's control socket; default: $SLUICE_SOCKET, /run/sluice/sluiced.sock");
  app.add_option("--name", options.name, "Shown in output and to the daemon's operator");
  app.add_option("--json", options.json_path, "Write the figures to this file");
}

CLI::App* AddServer(CLI::App& app, Options& options) {
  auto* server = app.add_subcommand("server", "Holds shards of the table, serves until SIGTERM");
  server
      ->add_option("--listen", options.server.service,
                   "Service of the first shard; each further one is on the next")
      ->required()
      ->check(CLI::Range(1, 65535));
  server->add_option("--shard", options.shards, "Which shards of how many: i/n, or i-j/n")
      ->capture_default_str();
  AddTableOptions(*server, options.server.shape);
  AddCommonOptions(*server, options);
  return server;
}

void AddWorkloadOptions(CLI::App& app, WorkloadOptions& workload) {
  app.add_option("--outstanding", workload.outstanding, "Operations at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--worker", workload.worker, "Which worker this is, from 0")
      ->capture_default_str();
  app.add_option("--workers", workload.workers,
                 "How many there are; each pushes to rows of its own")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--push-share", workload.push_share, "Of the operations")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--mean-bytes", workload.mean_bytes, "Of fetch replies and pushes, each shard")
      ->capture_default_str();
  app.add_option("--p99-bytes", workload.p99_bytes, "The same; the sizes are lognormal")
      ->capture_default_str();
  app.add_option("--seed", workload.seed, "Of sizes, rows and the order of operations")
      ->capture_default_str();
  AddTableOptions(app, workload.shape);
}

CLI::App* AddWorker(CLI::App& app, Options& options) {
  auto* worker = app.add_subcommand("worker",
                                    "Fetches and pushes, checks every value, prints figures");
  worker->add_option("--servers", options.worker.servers, "host:service of every shard, in order")
      ->required()
      ->delimiter(',');
  worker->add_option("--seconds", options.worker.seconds, "How long; 0: until SIGTERM")
      ->capture_default_str();
  worker
      ->add_option("--drain-seconds", options.worker.drain_seconds,
                   "How long the last operations may take")
      ->capture_default_str();
  worker->add_flag("--quiet", options.worker.quiet, "No progress lines");
  AddWorkloadOptions(*worker, options.worker.workload);
  AddCommonOptions(*worker, options);
  return worker;
}

CLI::App* AddReport(CLI::App& app, Options& options) {
  auto* report = app.add_subcommand(
      "report",
      "Adds up what workers and servers wrote with --json; exit status 1 if anything is wrong");
  report
      ->add_option("--steady", options.steady,
                   "The measured run: NAME,FILE...,PROCESS=CPU_SECONDS...")
      ->required();
  report
      ->add_option("--fault", options.faults,
                   "A run with a fault of that name; may be given several times")
      ->allow_extra_args(false);
  report->add_option("--json", options.json_path, "Write the table to this file");
  return report;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Parameter server on libsluice");
  app.require_subcommand(1);
  Options options;
  options.server.shape = options.worker.workload.shape = {.shards = 1, .rows = 100'000, .dim = 32};
  const CLI::App* server = AddServer(app, options);
  AddWorker(app, options);
  const CLI::App* report = AddReport(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (*report) {
    SummaryOptions summary{
        .steady = ParseRun(options.steady), .faults = {}, .json_path = options.json_path};
    std::ranges::transform(options.faults, std::back_inserter(summary.faults), ParseRun);
    return Summarize(summary);
  }
  StopOnSignals();
  if (*server) {
    if (!ParseShards(options.shards, options.server)) {
      std::fprintf(stderr, "sluice-ps: --shard %s: expected i/n or i-j/n with i <= j < n\n",
                   options.shards.c_str());
      return 2;
    }
    options.server.name = options.name.empty() ? options.server.name : options.name;
    options.server.socket_path = options.socket_path;
    return RunServer(options.server, options.json_path);
  }
  const std::string number = std::to_string(options.worker.workload.worker);
  options.worker.name = options.name.empty() ? "worker-" + number : options.name;
  options.worker.socket_path = options.socket_path;
  return RunWorker(options.worker, options.json_path);
}
