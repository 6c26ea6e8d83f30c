// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "daemon/control/client_host.h"
#include "daemon/memory/client_pool.h"

namespace sluice::control {

// One client's pool as it grows and shrinks: leases blocks to the client and to I/O threads, makes
// an extent when there are none, and takes extents back that nobody uses.
//
// An extent: planned -> made by the worker -> kRegion -> kMapped -> sealed -> AddExtent to every
// thread -> leased from -> unused for a while -> RemoveExtent -> ExtentReleased by every thread ->
// kUnmap -> kUnmapped -> gone when the kernel says that the client holds it no more. Invariant: at
// most one extent is being made; a need waits at most the mapping deadline for its answer. Thread:
// control. Owns: the pool.
class ClientMemory {
 public:
  static constexpr size_t kMaxClientNeeds = 64;
  static constexpr size_t kMaxReceiveNeedsPerThread = 4;

  ClientMemory(ClientHost& host, std::unique_ptr<memory::ClientPool> pool);
  ~ClientMemory();

  // Requests of the client; answered with kBlocks or kError.
  void OnGrow(uint32_t request, uint64_t bytes);
  Result<> OnShrink(uint64_t pool_offset, uint64_t bytes);
  Result<> OnUnmapped(uint32_t region);
  // False: the region is none of this pool's.
  bool OnMapped(uint32_t region, int error);

  // From I/O threads.
  void OnNeedReceiveBlocks(const io::NeedReceiveBlocks& need);
  void OnReceiveBlocksIdle(const io::ReceiveBlocksIdle& idle);
  void OnExtentReleased(const io::ExtentReleased& released);

  // The client leaves: nothing is answered any more.
  void Abandon();
  // For disposal once no job and no I/O thread touches it.
  std::unique_ptr<memory::ClientPool> TakePool();

  const memory::ClientPool& pool() const { return *pool_; }
  void ApplyQuota() { pool_->SetQuota(host_.tenant().rule.pool_quota_bytes); }

 private:
  struct Need {
    bool from_client;
    uint32_t request;    // from_client.
    uint32_t io_thread;  // Otherwise.
    uint64_t bytes;
    uint64_t deadline_ns;
  };
  struct Leaving {
    uint32_t region;
    size_t threads_left;  // That still may touch it.
    bool unmap_sent;
  };

  void Add(Need need);
  bool TryAnswer(const Need& need);
  void Refuse(const Need& need, const Error& error);
  void RefuseAll(const Error& error);
  void Pump();
  void OnMade(uint64_t offset, Result<memory::SharedMemory> memory);
  void DropGrowing(const Error& error);
  void OnIdleTimer();
  void ArmIdleTimer();
  void ArmDeadline();
  void OnDeadline();
  void BeginLeave(uint64_t offset);
  void SendUnmap(uint64_t offset);

  ClientHost& host_;
  std::unique_ptr<memory::ClientPool> pool_;
  std::deque<Need> needs_;
  std::map<uint64_t, uint32_t> regions_;  // Extent offset -> region.
  std::map<uint64_t, Leaving> leaving_;   // By extent offset.
  bool growing_ = false;
  uint64_t growing_offset_ = 0;
  bool abandoned_ = false;
  EventLoop::TimerId idle_timer_ = 0;
  EventLoop::TimerId deadline_timer_ = 0;
};

}  // namespace sluice::control
