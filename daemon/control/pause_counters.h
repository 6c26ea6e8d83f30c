// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shm_proto/base/result.h"

namespace sluice::control {

// The statistics that a network interface's driver keeps, by name. Which there are may change while
// it runs.
class InterfaceStatistics {
 public:
  using Named = std::pair<std::string, uint64_t>;
  virtual ~InterfaceStatistics() = default;
  virtual Result<std::vector<Named>> Read() = 0;
};

// Those of `ethtool -S`. A read makes a few system calls.
std::unique_ptr<InterfaceStatistics> EthtoolStatistics(std::string interface);

// Whether a driver means pause frames by that name. There is no standard for these names: mlx5 has
// rx_prio3_pause, bnxt_en rx_pfc_ena_frames_pri3, ice rx_priority_3_xoff.nic.
bool IsPauseCounter(std::string_view name);

// The pause frames, of the link and of its priorities (PFC), that such an interface has seen;
// empty: its driver counts none.
Result<std::vector<InterfaceStatistics::Named>> PauseCounters(InterfaceStatistics& statistics);

// How many of them came in altogether: those of the priorities where they are counted one by one,
// else all. Nothing: none are counted.
std::optional<uint64_t> ReceivedPauseFrames(
    const std::vector<InterfaceStatistics::Named>& counters);

// The network interface below a port of an RDMA device; empty: it has none. `devices` is
// /sys/class/infiniband.
std::string InterfaceBelow(const std::string& devices, const std::string& device, int port);

}  // namespace sluice::control
