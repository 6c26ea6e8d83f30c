// SPDX-License-Identifier: Apache-2.0
// sluice-bench: the programs that scripts/bench measures with.
#include <algorithm>
#include <csignal>
#include <iterator>

#include "bench/commands.h"

namespace sluice::bench {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

void StopOnSignals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested = 1; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

bool StopRequested() { return stop_requested != 0; }

}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  CLI::App app("The programs that scripts/bench measures with; they print one JSON object a line");
  app.require_subcommand(1);
  std::vector<Command> commands;
  for (const auto& add : {AddNetCommands, AddShmCommands, AddIdleCommands}) {
    std::ranges::move(add(app), std::back_inserter(commands));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  StopOnSignals();
  for (const Command& command : commands) {
    if (*command.app) {
      return command.run() ? 0 : 1;
    }
  }
  return 2;
}
