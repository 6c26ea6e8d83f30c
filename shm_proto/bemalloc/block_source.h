// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "shm_proto/base/result.h"

namespace sluice {

// Where an allocator's blocks come from and go to. Acquiring registers the memory (or has somebody
// register it), releasing deregisters it; both may take long and are never called while an
// allocator's lock is held.
class BlockSource {
 public:
  struct Blocks {
    uint64_t offset = 0;  // In the pool; a multiple of 4 MiB.
    uint64_t bytes = 0;   // At least what was asked for; a multiple of 4 MiB.
    uint64_t region = 0;  // Whatever the owner wants to look up by pointer later: a memory region's
                          // handle, its key.
  };

  virtual ~BlockSource() = default;
  // A contiguous run of at least `bytes` (a multiple of 4 MiB) that nobody else uses, readable and
  // writable. Any thread, one call at a time for each allocator.
  virtual Result<Blocks> Acquire(uint64_t bytes) = 0;
  // Takes whole blocks back: any part of what was acquired, or several adjoining runs at once. Any
  // thread.
  virtual void Release(uint64_t offset, uint64_t bytes) = 0;
};

}  // namespace sluice
