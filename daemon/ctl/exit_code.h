// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace sluice::ctl {

// What every command of sluicectl ends with.
enum ExitCode : int {
  kOk = 0,
  kFailed = 1,       // Unhealthy, or it did not work.
  kUsage = 2,        // The command line is wrong.
  kUnreachable = 3,  // No daemon, or it does not answer.
  kRefused = 4,      // The daemon said no.
};

}  // namespace sluice::ctl
