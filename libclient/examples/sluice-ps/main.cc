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

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Parameter server on libsluice");
  app.require_subcommand(1);

  ServerOptions server;
  server.shape = {.shards = 1, .rows = 100'000, .dim = 32};
  std::string shards = "0/1";
  std::string json_path;
  auto* server_app = app.add_subcommand("server",
                                        "Holds shards of the table and serves them until SIGTERM");
  server_app
      ->add_option("--listen", server.service,
                   "Service of the first shard; each further one is on the next")
      ->required()
      ->check(CLI::Range(1, 65535));
  server_app->add_option("--shard", shards, "Which shards of how many: i/n, or i-j/n")
      ->capture_default_str();
  AddTableOptions(*server_app, server.shape);

  WorkerOptions worker;
  worker.workload.shape = server.shape;
  auto* worker_app = app.add_subcommand("worker",
                                        "Fetches and pushes, checks every value, prints figures");
  worker_app->add_option("--servers", worker.servers, "host:service of every shard, in order")
      ->required()
      ->delimiter(',');
  worker_app->add_option("--seconds", worker.seconds, "How long; 0: until SIGTERM")
      ->capture_default_str();
  worker_app->add_option("--outstanding", worker.workload.outstanding, "Operations at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  worker_app->add_option("--worker", worker.workload.worker, "Which worker this is, from 0")
      ->capture_default_str();
  worker_app
      ->add_option("--workers", worker.workload.workers,
                   "How many there are; each pushes to rows of its own")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  worker_app->add_option("--push-share", worker.workload.push_share, "Of the operations")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  worker_app
      ->add_option("--mean-bytes", worker.workload.mean_bytes,
                   "Of fetch replies and pushes, each shard")
      ->capture_default_str();
  worker_app
      ->add_option("--p99-bytes", worker.workload.p99_bytes, "The same; the sizes are lognormal")
      ->capture_default_str();
  worker_app
      ->add_option("--seed", worker.workload.seed, "Of sizes, rows and the order of operations")
      ->capture_default_str();
  worker_app
      ->add_option("--drain-seconds", worker.drain_seconds, "How long the last operations may take")
      ->capture_default_str();
  worker_app->add_flag("--quiet", worker.quiet, "No progress lines");
  AddTableOptions(*worker_app, worker.workload.shape);

  std::string steady;
  std::vector<std::string> faults;
  auto* report_app = app.add_subcommand(
      "report",
      "Adds up what workers and servers wrote with --json; exit status 1 if anything is wrong");
  report_app
      ->add_option("--steady", steady, "The measured run: NAME,FILE...,PROCESS=CPU_SECONDS...")
      ->required();
  report_app
      ->add_option("--fault", faults, "A run with a fault of that name; may be given several times")
      ->allow_extra_args(false);
  report_app->add_option("--json", json_path, "Write the table to this file");

  std::string name;
  std::string socket_path;
  for (auto* sub : {server_app, worker_app}) {
    sub->add_option(
        "--socket", socket_path,
        "The daemon's control socket; default: $SLUICE_SOCKET, /run/sluice/sluiced.sock");
    sub->add_option("--name", name, "Shown in output and to the daemon's operator");
    sub->add_option("--json", json_path, "Write the figures to this file");
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (*report_app) {
    SummaryOptions summary{.steady = ParseRun(steady), .faults = {}, .json_path = json_path};
    std::ranges::transform(faults, std::back_inserter(summary.faults), ParseRun);
    return Summarize(summary);
  }
  StopOnSignals();
  if (*server_app) {
    if (!ParseShards(shards, server)) {
      std::fprintf(stderr, "sluice-ps: --shard %s: expected i/n or i-j/n with i <= j < n\n",
                   shards.c_str());
      return 2;
    }
    server.name = name.empty() ? server.name : name;
    server.socket_path = socket_path;
    return RunServer(server, json_path);
  }
  worker.name = name.empty() ? "worker-" + std::to_string(worker.workload.worker) : name;
  worker.socket_path = socket_path;
  return RunWorker(worker, json_path);
}
