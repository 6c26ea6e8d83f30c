// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace sluice_ps {

// One run of a cluster: what each of its workers and servers wrote with --json, and the CPU seconds
// of processes that write no such file (the daemons), as "name=seconds".
struct RunFiles {
  std::string name;  // Of the fault, for a run that had one.
  std::vector<std::string> files;
  std::vector<std::string> cpu;
};

struct SummaryOptions {
  RunFiles steady;               // The run that is measured.
  std::vector<RunFiles> faults;  // The runs in which something was broken.
  std::string json_path;         // Empty: none.
};

// "NAME,a.json,b.json,sluiced-a=1.5": the files and the CPU seconds of one run.
RunFiles ParseRun(const std::string& text);

// Adds the processes' figures up and prints the tables. 0: every operation ended once, every value
// was right, and every fault was followed by a recovery; 1: not so, or a file is missing.
int Summarize(const SummaryOptions& options);

}  // namespace sluice_ps
