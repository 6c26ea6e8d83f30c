// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sluice::transport {

using NamedCounters = std::vector<std::pair<std::string, uint64_t>>;

// What the driver of a network interface counts of pause frames (IEEE 802.3x and 802.1Qbb), under
// the driver's own names; empty where it counts none, as virtual interfaces do. A few system calls.
// Thread: any.
NamedCounters ReadPauseCounters(const std::string& interface);

// Whether a driver's statistic is about pause frames.
bool IsPauseCounter(const std::string& name);

// How many pause frames came in altogether: those of the priorities where they are counted one by
// one, else all. Nothing: none are counted.
std::optional<uint64_t> ReceivedPauseFrames(const NamedCounters& counters);

}  // namespace sluice::transport
