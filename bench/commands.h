// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <vector>

// The subcommands of sluice-bench. Each prints JSON, one object a line, and returns false after
// saying on stderr what went wrong.
namespace sluice::bench {

struct Command {
  CLI::App* app;
  std::function<bool()> run;
};

std::vector<Command> AddNetCommands(CLI::App& app);
std::vector<Command> AddShmCommands(CLI::App& app);
std::vector<Command> AddIdleCommands(CLI::App& app);

// SIGINT or SIGTERM came.
bool StopRequested();

}  // namespace sluice::bench
