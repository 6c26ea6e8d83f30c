// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace sluice::ctl {

// A script for bash, made from the commands and options that there are.
std::string BashCompletion(const CLI::App& app);

}  // namespace sluice::ctl
