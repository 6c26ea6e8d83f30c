// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "p4_scheduler/core/switch.h"

// A picture of the running switch for whoever looks at it from another thread.
namespace sluice::rain {

struct PortCounts {
  uint64_t received_packets = 0;
  uint64_t received_bytes = 0;
  uint64_t sent_packets = 0;
  uint64_t sent_bytes = 0;
  uint64_t full_drops = 0;  // The device took no more.
};

struct SliceCounts {
  uint32_t waiting_tasks = 0;
  uint32_t waiting_tokens = 0;
  uint32_t task_limit = 0;
};

struct Snapshot {
  uint64_t at_ns = 0;
  std::array<uint64_t, static_cast<size_t>(Outcome::kCount_)> outcomes{};
  std::array<uint64_t, static_cast<size_t>(Malformed::kCount_)> malformed{};
  std::vector<SliceCounts> slices;
  std::vector<PortCounts> ports;
  uint64_t replicas = 0;
  uint64_t replica_bytes = 0;
  uint64_t flooded = 0;
  uint64_t no_buffer_drops = 0;
  uint64_t no_port_drops = 0;
  uint64_t memory_bytes = 0;
};

// Thread: one publishes a few times a second, any may look.
class SnapshotBoard {
 public:
  void Publish(const Snapshot& snapshot) {
    const std::lock_guard lock(mutex_);
    snapshot_ = snapshot;
  }
  Snapshot Look() const {
    const std::lock_guard lock(mutex_);
    return snapshot_;
  }

 private:
  mutable std::mutex mutex_;
  Snapshot snapshot_;
};

}  // namespace sluice::rain
