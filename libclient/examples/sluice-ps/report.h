// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "server.h"
#include "worker.h"

namespace sluice_ps {

// One process's figures as JSON, for `sluice-ps report` and for other programs. The latency
// histograms are whole, so that several workers' quantiles can be had exactly.
std::string ToJson(const WorkerOptions& options, const WorkerStats& stats);
std::string ToJson(const ServerOptions& options, const ServerStats& stats);

// The same for people.
std::string ToText(const WorkerStats& stats);
std::string ToText(const ServerStats& stats);

bool WriteFile(const std::string& path, const std::string& text);  // Says on stderr why it failed.

struct SummaryOptions {
  std::vector<std::string> files;  // What workers and servers wrote with --json.
  std::vector<std::string> cpu;    // "name=seconds": further processes for the table.
  std::string demo = "ps";
  std::string fault;      // What was done to the run, if anything.
  std::string json_path;  // Empty: none.
};

// Adds the processes' figures up, prints the table. 0: everything is as it must be; 1: not, or a
// file is missing.
int Summarize(const SummaryOptions& options);

}  // namespace sluice_ps
