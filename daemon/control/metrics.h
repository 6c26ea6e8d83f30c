// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "daemon/control/status.h"

namespace sluice::control {

// More peers than this are summed up as peer="other", so that the set of labels is bounded.
constexpr size_t kMaxPeersInMetrics = 256;

// The picture in Prometheus' text format, made anew for every scrape: no counting is done for it.
std::string MetricsText(const NodeStatus& status);

}  // namespace sluice::control
