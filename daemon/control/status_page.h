// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "daemon/control/status.h"

namespace sluice::control {

// The picture as one HTML page without scripts: for a first look at a node, never a place to change
// anything. Long lists are cut and say so.
std::string StatusPage(const NodeStatus& status);

}  // namespace sluice::control
