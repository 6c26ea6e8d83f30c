// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <unordered_map>

#include "daemon/transport/transport.h"

namespace sluice::transport {

// Memory that a peer may WRITE into, as one buffer made of pieces.
struct Grant {
  uint64_t bytes;
  uint32_t segment_count;
  LandingSegment segments[kMaxSlices];

  // The memory behind [offset, offset + length), which must lie inside. Returns how many of
  // `pieces` were filled.
  size_t Pieces(uint64_t offset, uint64_t length, std::span<iovec, kMaxSlices> pieces) const;
};

// What one queue pair that is made of software has exposed. The peer names a grant by its id (as
// the key) and by an offset in it (as the address), so every WRITE is checked here before a byte of
// it lands. Invariant: no memory of a withdrawn grant is reachable. Thread: its transport's.
// Allocates: when more grants are out than ever before.
class GrantTable {
 public:
  // kExists: the id is in use. kInvalid: no pieces, or too many.
  Result<size_t> Expose(uint32_t id, std::span<const LandingSegment> segments,
                        std::span<RemoteSlice, kMaxSlices> slices);
  void Withdraw(uint32_t id);
  const Grant* Find(uint32_t id) const;  // nullptr: withdrawn or never there.

 private:
  std::pmr::unsynchronized_pool_resource memory_;
  std::pmr::unordered_map<uint32_t, Grant> grants_{&memory_};
};

}  // namespace sluice::transport
