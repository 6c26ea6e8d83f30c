// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "daemon/memory/memory_worker.h"
#include "daemon/memory/shared_memory.h"

namespace sluice::memory {

// Where shared memory goes that the daemon is done with. Its bytes are free only when the client,
// too, has let go of it: a client that claims to have unmapped, or a child it left behind, may
// still hold it. Until the kernel says otherwise it stays here and stays counted. Thread: control.
// Owns: the memory that lingers.
class Reclaimer {
 public:
  using GoneCallback = std::move_only_function<void()>;

  // `on_linger` is called whenever something is found to linger: time for Poll() now and then.
  Reclaimer(MemoryWorker& worker, std::function<void()> on_linger)
      : worker_(worker), on_linger_(std::move(on_linger)) {}

  // Unmaps the memory and calls `gone` once nobody holds it any more.
  void Retire(SharedMemory memory, GoneCallback gone);

  // Looks again at everything that lingers.
  void Poll();

  size_t pending_count() const { return pending_ + lingering_.size(); }
  size_t lingering_count() const { return lingering_.size(); }
  uint64_t lingering_bytes() const { return lingering_bytes_; }

 private:
  struct Lingering {
    SharedMemory memory;
    GoneCallback gone;
  };

  void Free(SharedMemory memory, GoneCallback gone);

  MemoryWorker& worker_;
  const std::function<void()> on_linger_;
  std::vector<Lingering> lingering_;
  uint64_t lingering_bytes_ = 0;
  size_t pending_ = 0;  // With the worker.
};

}  // namespace sluice::memory
