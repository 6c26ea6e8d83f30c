// SPDX-License-Identifier: Apache-2.0
// sluice-switch: reads its configuration, starts DPDK and runs the switch on one core.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "p4_scheduler/switch/config.h"
#include "p4_scheduler/switch/dataplane.h"
#include "p4_scheduler/switch/metrics.h"

namespace sluice::rain {
namespace {

// Exit codes: 0 a clean stop, 1 it could not start, 2 wrong usage or configuration.
constexpr int kCannotStart = 1;
constexpr int kUsage = 2;
constexpr uint64_t kPublishIntervalNs = 100 * kNsPerMs;
constexpr uint32_t kEmptyTurnsBeforeSleep = 1'000;

volatile sig_atomic_t stop_requested = 0;

int Fail(const Error& error, int code) {
  std::fprintf(stderr, "sluice-switch: %s\n", error.message.c_str());
  return code;
}

void RunLoop(const ProgramConfig& config, const Clock& clock, Dataplane& dataplane,
             SnapshotBoard& board) {
  Snapshot snapshot;
  uint64_t published_ns = 0;
  uint32_t empty_turns = 0;
  while (stop_requested == 0) {
    const uint64_t now_ns = clock.NowNs();
    empty_turns = dataplane.PollOnce(now_ns) > 0 ? 0 : empty_turns + 1;
    if (now_ns - published_ns >= kPublishIntervalNs) {
      published_ns = now_ns;
      dataplane.Read(now_ns, snapshot);
      board.Publish(snapshot);
    }
    if (config.idle_sleep_us > 0 && empty_turns >= kEmptyTurnsBeforeSleep) {
      usleep(config.idle_sleep_us);
    }
  }
}

int Run(const ProgramConfig& config) {
  const MonotonicClock clock;
  SnapshotBoard board;
  // Before DPDK, which binds this thread, and all that it starts, to its core.
  std::unique_ptr<MetricsServer> metrics;
  if (!config.metrics_listen.empty()) {
    auto started = MetricsServer::Start(config.metrics_listen, board, clock);
    if (!started) return Fail(started.error(), kCannotStart);
    metrics = std::move(*started);
  }
  auto ports = DpdkPorts::Start(config);
  if (!ports) return Fail(ports.error(), kCannotStart);
  auto rain = MakeSwitch(config);
  if (!rain) return Fail(rain.error(), kUsage);
  Dataplane dataplane(std::move(*rain), **ports);
  for (const int signal_number : {SIGTERM, SIGINT}) {
    signal(signal_number, [](int) { stop_requested = 1; });
  }
  std::printf("ready: %zu ports\n", config.ports.size());
  std::fflush(stdout);
  RunLoop(config, clock, dataplane, board);
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app{"A Rain switch in software: brings clients' tasks together with workers' tokens."};
  std::string path = "/etc/sluice/sluice-switch.toml";
  bool check = false, print_example = false;
  app.add_option("--config", path, "Configuration file (TOML)")->capture_default_str();
  app.add_flag("--check", check, "Only check the configuration");
  app.add_flag("--print-example", print_example, "Print a commented configuration file");
  app.set_version_flag("--version", std::string("sluice-switch ") + SLUICE_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (print_example) return std::fputs(ExampleConfig(), stdout) < 0;
  const auto config = LoadProgramConfig(path);
  if (!config) return Fail(config.error(), kUsage);
  return check ? 0 : Run(*config);
}

}  // namespace
}  // namespace sluice::rain

int main(int argc, char** argv) { return sluice::rain::Main(argc, argv); }
