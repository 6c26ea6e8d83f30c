// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shm_proto/base/result.h"

namespace sluice::memory {

// How much memory may be allocated right now: the least of what the machine has available and what
// every memory cgroup from our own up to the root still allows (v2's memory.max and memory.high,
// v1's memory.limit_in_bytes), page cache that the kernel can drop not counted as used. Thread:
// any; reads files, so not an I/O thread.
class Headroom {
 public:
  // `root` stands before /proc and the cgroup mounts; empty but in tests. `keep_free_bytes` is
  // subtracted: what the rest of the daemon and the machine shall still have.
  explicit Headroom(std::string root = "", uint64_t keep_free_bytes = kDefaultKeepFreeBytes);

  uint64_t AvailableBytes() const;

  // kNoMemory with a sentence naming the limit that is in the way.
  Result<> Check(uint64_t bytes) const;

  static constexpr uint64_t kDefaultKeepFreeBytes = 16ull * 1024 * 1024;

 private:
  struct Limit {
    uint64_t available_bytes;
    std::string where;
  };
  // One directory per level, from our own cgroup to the mount's root.
  struct Hierarchy {
    bool v2;
    std::vector<std::string> directories;
  };

  void FindHierarchies();
  Limit Tightest() const;

  std::string root_;
  uint64_t keep_free_bytes_;
  std::vector<Hierarchy> hierarchies_;
};

}  // namespace sluice::memory
