// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/memory/shared_memory.h"
#include "shm_proto/base/result.h"
#include "shm_proto/base/units.h"

namespace sluice::memory {

constexpr uint64_t kBlockBytes = 4 * kMiB;    // What a pool is leased out in.
constexpr uint64_t kExtentBytes = 32 * kMiB;  // An extent, unless one buffer needs a larger one.

// Contiguous blocks, inside one extent.
struct BlockRun {
  uint64_t pool_offset;
  uint64_t bytes;
};

// Whom a block is leased to: the client, to send from; or one I/O thread, to receive into. Never
// both.
class Lessee {
 public:
  static constexpr Lessee Client() { return Lessee(0); }
  static constexpr Lessee Receiver(uint32_t io_thread) { return Lessee(1 + io_thread); }
  constexpr uint32_t number() const { return number_; }

 private:
  explicit constexpr Lessee(uint32_t number) : number_(number) {}
  uint32_t number_;
};

enum class ExtentState : uint8_t {
  kBuilding,  // Planned: memory is being made.
  kOffered,   // Made, mapped here; the client has not confirmed its mapping.
  kActive,    // Blocks can be leased.
  kLeaving,   // Nothing is leased and nothing will be; on its way out.
};

// One client's pool: a range of reserved addresses as large as its quota, in which extents come and
// go, and who may use which of their blocks. All of this is private to the daemon; nothing of it is
// in shared memory. Invariant: extents do not overlap; used_bytes() = the sum of all extents <=
// quota_bytes(); a leased block lies in an active extent and has one lessee. Thread: control
// (building an extent at its planned address excepted). Owns: the addresses, the extents' memory.
class ClientPool {
 public:
  // `quota_bytes` is rounded down to whole blocks and is at least one; `extent_bytes` up.
  static Result<std::unique_ptr<ClientPool>> Create(uint64_t quota_bytes,
                                                    uint64_t extent_bytes = kExtentBytes);
  ~ClientPool();
  ClientPool(const ClientPool&) = delete;
  ClientPool& operator=(const ClientPool&) = delete;

  // Sets quota and addresses aside for an extent with room for a run of `bytes`. kNoMemory: the
  // quota (or what lowering it left of it) is used up, or no gap is large enough.
  Result<BlockRun> Plan(uint64_t bytes);
  void Offer(uint64_t extent_offset, SharedMemory memory);  // kBuilding -> kOffered.
  void Activate(uint64_t extent_offset, uint64_t now_ns);   // kOffered -> kActive.
  void Leave(uint64_t extent_offset);                       // kActive, nothing leased -> kLeaving.
  // Takes an extent out; the caller disposes of the memory (not valid if none was made). Its bytes
  // stay counted.
  SharedMemory TakeMemory(uint64_t extent_offset);
  void Forget(uint64_t extent_offset);  // Its addresses and quota are free again. Its memory must
                                        // have been taken.

  // First fit from below, so that upper extents run empty. nullopt: no active extent has such a
  // run.
  std::optional<BlockRun> Lease(uint64_t bytes, Lessee lessee);
  // kInvalid: not exactly this lessee's blocks; nothing is changed.
  Result<> GiveBack(BlockRun run, Lessee lessee, uint64_t now_ns);

  // The uppermost active extent in which nothing has been leased since `unused_since_ns` or longer.
  std::optional<uint64_t> FindUnused(uint64_t unused_since_ns) const;
  size_t CountUnused() const;

  // A live quota change; what is used beyond a lower one stays. Never above the reserved addresses.
  void SetQuota(uint64_t quota_bytes);

  std::byte* base() const { return base_; }
  uint64_t reserve_bytes() const { return reserve_bytes_; }
  uint64_t quota_bytes() const { return quota_bytes_; }
  uint64_t used_bytes() const {
    return used_bytes_;
  }  // Of the quota: all extents, in whatever state.
  uint64_t leased_bytes(Lessee lessee) const;

  struct Extent {
    uint64_t bytes;
    ExtentState state;
    SharedMemory memory;
    uint64_t leased_blocks;
    uint64_t unused_since_ns;  // Meaningful while active and leased_blocks == 0.
  };
  const std::map<uint64_t, Extent>& extents() const { return extents_; }  // By offset.
  SharedMemory& memory(uint64_t extent_offset) { return extents_.at(extent_offset).memory; }

  // Unmaps everything and hands out what the client may still hold. The pool is empty afterwards.
  std::vector<SharedMemory> Dismantle();

 private:
  ClientPool(std::byte* base, uint64_t bytes, uint64_t extent_bytes);
  std::optional<uint64_t> FindGap(uint64_t bytes) const;
  Extent& At(uint64_t extent_offset, ExtentState expected);

  static constexpr uint32_t kNobody = UINT32_MAX;
  std::byte* const base_;
  const uint64_t reserve_bytes_;
  const uint64_t extent_bytes_;
  uint64_t quota_bytes_;
  uint64_t used_bytes_ = 0;
  std::map<uint64_t, Extent> extents_;
  std::vector<uint32_t> blocks_;  // Per block of the reserve: Lessee::number(), or kNobody.
};

}  // namespace sluice::memory
