// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

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

}  // namespace sluice_ps
