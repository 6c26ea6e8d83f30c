// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/sched/shared_receives.h"
#include "daemon/transport/verbs/device.h"
#include "daemon/transport/verbs/event_flag.h"
#include "shm_proto/base/result.h"

namespace sluice::transport {

// The receives that all queue pairs of one I/O thread take from: a shared receive queue, a slot of
// memory for each place in it, and who was promised how many.
// Invariant: a slot is posted, or with the queue pair that took it. Thread: its fabric's; made on
// any. Owns: queue, memory and its registration. Allocates: at creation.
class SharedQueue {
 public:
  // All slots are posted at once.
  static Result<std::unique_ptr<SharedQueue>> Create(const VerbsDevice& device, ibv_pd* domain,
                                                     uint32_t slots, uint32_t slot_bytes,
                                                     uint32_t reserve);
  ~SharedQueue();
  SharedQueue(const SharedQueue&) = delete;
  SharedQueue& operator=(const SharedQueue&) = delete;

  ibv_srq* queue() const { return queue_; }
  uint32_t slots() const { return slots_; }
  uint32_t slot_bytes() const { return slot_bytes_; }
  const std::byte* Slot(uint32_t index) const {
    return memory_.get() + size_t{index} * slot_bytes_;
  }
  // Those that were taken and are done with. They complete with `kSlotBit | index` as their id.
  // Once that failed there is a failure().
  void Post(std::span<const uint32_t> slots);
  const std::string& failure() const { return failure_; }
  SharedReceives& lender() { return lender_; }
  // So many slots went with queue pairs that it is time for a new queue.
  bool worn() const { return lender_.count() < slots_ - slots_ / 4; }
  // How often fewer than an eighth of the slots were posted.
  uint64_t low() const { return limit_reached_.count(); }

  static constexpr uint64_t kReceiveBit = uint64_t{1} << 63;
  static constexpr uint64_t kSlotBit = kReceiveBit | uint64_t{1} << 61;
  static uint32_t SlotOf(uint64_t id) { return static_cast<uint32_t>(id & ~kSlotBit); }

 private:
  SharedQueue(uint32_t slots, uint32_t slot_bytes, uint32_t reserve)
      : slots_(slots),
        slot_bytes_(slot_bytes),
        lender_(slots, reserve),
        work_(slots),
        pieces_(slots) {}
  Result<> Make(const VerbsDevice& device, ibv_pd* domain);
  Result<> TryPost(std::span<const uint32_t> slots);
  Result<> Arm();

  const uint32_t slots_;
  const uint32_t slot_bytes_;
  SharedReceives lender_;
  std::string failure_;
  std::unique_ptr<std::byte[]> memory_;
  ibv_mr* region_ = nullptr;
  ibv_srq* queue_ = nullptr;
  EventFlag limit_reached_;
  uint64_t armed_after_ = 0;       // Events that were followed by a new arming.
  std::vector<ibv_recv_wr> work_;  // Scratch for one posting.
  std::vector<ibv_sge> pieces_;
};

}  // namespace sluice::transport
