// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/reclaimer.h"

#include <utility>

namespace sluice::memory {

void Reclaimer::Retire(SharedMemory memory, GoneCallback gone) {
  memory.TakeClientFd().Reset();
  Free(std::move(memory), std::move(gone));
}

// Unmapping and freeing pages takes milliseconds, so the worker does both.
void Reclaimer::Free(SharedMemory memory, GoneCallback gone) {
  ++pending_;
  worker_.Run([this, memory = std::move(memory),
               gone = std::move(gone)]() mutable -> MemoryWorker::Completion {
    memory.Unmap();
    if (!memory.HeldElsewhere()) memory = SharedMemory();
    return [this, memory = std::move(memory), gone = std::move(gone)]() mutable {
      --pending_;
      if (!memory.valid()) return gone();
      lingering_bytes_ += memory.bytes();
      lingering_.push_back({std::move(memory), std::move(gone)});
      on_linger_();
    };
  });
}

void Reclaimer::Poll() {
  std::erase_if(lingering_, [this](Lingering& entry) {
    if (entry.memory.HeldElsewhere()) return false;
    lingering_bytes_ -= entry.memory.bytes();
    Free(std::move(entry.memory), std::move(entry.gone));
    return true;
  });
}

}  // namespace sluice::memory
