// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "libclient/src/granules.h"
#include "shm_proto/base/result.h"
#include "shm_proto/bemalloc/bemalloc.h"
#include "shm_proto/control.h"

namespace sluice::client {

// The memory that one run of a daemon shares with this client: a reserved range of addresses into
// which extents are mapped, so that pointer and pool offset differ by a constant. A restarted
// daemon brings a new pool; the old one is retired: its buffers stay readable until they are freed,
// but are never sent. Invariant: a block that buffers lie in is mapped; a block is the client's to
// send from or one I/O thread's to receive into, never both. Thread: any, but for what is marked
// control. Owns the mappings and all private state about the pool.
class Pool : private BlockSource {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};

  // Where the pool's blocks to send from come from and go to: whoever speaks with the daemon.
  class Daemon {
   public:
    virtual ~Daemon() = default;
    // Waits until AddSendBlocks() brought blocks of at least `needed_bytes`, better of
    // `wished_bytes`.
    virtual Result<> Grow(Pool& pool, uint64_t needed_bytes, uint64_t wished_bytes) = 0;
    virtual void Shrink(Pool& pool, uint64_t pool_offset, uint64_t bytes) = 0;
  };

  static Result<std::shared_ptr<Pool>> Reserve(Daemon& daemon, uint64_t reserve_bytes,
                                               uint32_t io_threads, uint64_t max_message_bytes);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() override;

  // Control. Each checks what the daemon says against what is there and changes nothing when it
  // makes no sense.
  Result<> MapExtent(uint32_t region, int memfd, uint64_t pool_offset, uint64_t bytes);
  Result<> UnmapExtent(uint32_t region);
  bool HasExtent(uint32_t region) const { return extents_.contains(region); }
  Result<> AddSendBlocks(uint64_t pool_offset, uint64_t bytes);
  // Gives blocks back that nobody needed for long.
  void Maintain(uint64_t now_ns) { allocator_.Maintain(now_ns); }
  void Retire();
  // After Retire(), once no channel uses the pool any more: whether all its buffers are freed.
  // Looks at a bounded piece a call and never at one twice: no buffer comes to life in a retired
  // pool.
  bool Drained();

  bool retired() const { return retired_.load(std::memory_order_relaxed); }  // Only ever rises.

  std::byte* base() const { return base_; }
  bool Contains(const void* pointer) const {
    return static_cast<uint64_t>(static_cast<const std::byte*>(pointer) - base_) < reserve_bytes_;
  }
  std::byte* At(uint64_t offset) const { return base_ + offset; }
  uint64_t OffsetOf(const void* pointer) const {
    return static_cast<uint64_t>(static_cast<const std::byte*>(pointer) - base_);
  }

  // A buffer to send from: its offset. Waits for the daemon when the pool must grow.
  Result<uint64_t> Allocate(uint64_t bytes);

  // A message came through the ring of `io_thread`. False: no such buffer can be.
  bool AcceptReceived(uint64_t offset, uint64_t length, uint32_t io_thread);

  enum class Freed {
    kDone,
    kToDaemon,    // Received: hand the offset to the I/O thread that is named.
    kNotABuffer,  // Of nobody: foreign, freed already, or not a buffer's start.
    kUnderWay,    // The library's until its send is over.
  };
  Freed Free(uint64_t offset, uint32_t* io_thread);

  // A send takes the buffer around [offset, offset + length); returns its start, or kNone.
  uint64_t BeginSend(uint64_t offset, uint64_t length);
  bool UnderWay(uint64_t start) const { return granules_.UnderWay(start); }
  void CancelSend(uint64_t start) { granules_.Return(start); }
  // It is over: the buffer is the application's again, or freed, in which case as for Free().
  void EndSendKeeping(uint64_t start) { granules_.Return(start); }
  Freed EndSendFreeing(uint64_t start, uint32_t* io_thread);

  // Received buffers freed by threads without a ring to their I/O thread wait here for a channel
  // that has one. True: the list was empty before.
  bool LeaveReturn(uint32_t io_thread, uint64_t offset);
  // Relaxed: only a hint whether looking pays; TakeReturns() locks.
  bool HasReturns(uint32_t io_thread) const {
    return returns_[io_thread].count.load(std::memory_order_relaxed) != 0;
  }
  void TakeReturns(uint32_t io_thread, std::vector<uint64_t>& offsets);

 private:
  struct Extent {
    uint64_t offset;
    uint64_t bytes;
  };
  struct ReturnList {
    std::mutex mutex;
    std::vector<uint64_t> offsets;  // At most one entry per received buffer of the pool.
    std::atomic<uint32_t> count{0};
  };
  // What a block is used for; kReceive + n: I/O thread n receives into it.
  enum Use : uint8_t { kUnmapped = 0, kIdle = 1, kSend = 2, kReceive = 128 };

  Pool(Daemon& daemon, std::byte* base, uint64_t reserve_bytes, uint32_t io_threads,
       uint64_t max_message_bytes);
  Result<Blocks> Acquire(uint64_t bytes) override;
  void Release(uint64_t offset, uint64_t bytes) override;
  bool TakeArrived(uint64_t bytes, Blocks& blocks);
  std::atomic<uint8_t>& use(uint64_t offset) const { return uses_[offset / control::kBlockBytes]; }
  Freed GiveUp(uint64_t offset, uint32_t* io_thread);

  Daemon& daemon_;
  std::byte* const base_;
  const uint64_t reserve_bytes_;
  const uint32_t io_threads_;
  const uint64_t max_message_bytes_;
  std::atomic<bool> retired_{false};
  Granules granules_;
  const std::unique_ptr<std::atomic<uint8_t>[]> uses_;
  const std::unique_ptr<ReturnList[]> returns_;
  std::map<uint32_t, Extent> extents_;  // Control.
  uint64_t drained_to_ = 0;             // Control.
  std::mutex arrived_mutex_;
  std::vector<Blocks> arrived_;  // Guarded by arrived_mutex_: from the daemon, not yet taken.
  uint64_t acquired_bytes_ = 0;  // The allocator asks one at a time.
  Bemalloc allocator_;
};

}  // namespace sluice::client
