// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libclient/src/name_map.h"
#include "libclient/src/operations.h"
#include "libclient/src/pool.h"
#include "shm_proto/base/fd.h"
#include "shm_proto/base/result.h"
#include "shm_proto/ring.h"

namespace sluice::client {

// One channel's ring pair with one I/O thread of the daemon, and what the channel has under way
// there. Invariant: no more sends are under way than half the ring holds, so that frees and closes
// find room in the other half. Thread: the control thread makes it, then its channel's. Owns: the
// rings' mapping and the doorbell.
class RingPort {
 public:
  static Result<std::unique_ptr<RingPort>> Map(int memfd, Fd doorbell, uint64_t bytes,
                                               uint32_t capacity, uint32_t io_thread,
                                               std::shared_ptr<Pool> pool);
  RingPort(const RingPort&) = delete;
  RingPort& operator=(const RingPort&) = delete;
  ~RingPort();

  uint32_t io_thread() const { return io_thread_; }
  uint32_t capacity() const { return capacity_; }
  Pool& pool() { return *pool_; }
  int doorbell() const { return doorbell_.get(); }

  RingConsumer& completions() { return completions_; }
  OperationTable& operations() { return operations_; }
  NameMap& names() { return names_; }

  // Writes a send's descriptor; Publish() shows it. False: the ring is full.
  bool StageSend(const Descriptor& descriptor) {
    refused_ = !submissions_.Stage(descriptor);
    return !refused_;
  }
  // Whether there is room again after a send found none; told once.
  bool TakeRoom() {
    if (!refused_ || !submissions_.HasRoom(1)) return false;
    refused_ = false;
    return true;
  }
  void StageFree(uint64_t offset) { frees_.push_back(offset); }
  void StageClose(uint32_t daemon_name) { closes_.push_back(daemon_name); }
  size_t staged_frees() const { return frees_.size(); }

  // Takes in what others left for this I/O thread, writes staged frees and closes as far as the
  // ring has room, shows everything, and rings the doorbell if the daemon sleeps.
  void Flush();
  // The part of it that a send needs at once.
  void Publish();

  // Lets the daemon reuse what was taken from the completion ring, and wakes it if it waits for
  // that.
  void ReleaseCompletions();
  // Before the channel sleeps: false when something wants room in the ring and there is some.
  bool WaitForRoom() {
    return (frees_.empty() && closes_.empty() && !refused_) || submissions_.WaitForRoom(1);
  }

  // Empties the doorbell. False: the daemon has hung up, it will never ring again.
  bool DrainDoorbell();

  // The daemon broke the rules: nothing more is read from it.
  bool broken() const { return broken_; }
  void set_broken() { broken_ = true; }

  // The daemon has let go of the rings: whatever was under way or not yet read returns to the pool.
  void Abandon();

 private:
  RingPort(std::byte* base, uint64_t bytes, uint32_t capacity, uint32_t io_thread, Fd doorbell,
           std::shared_ptr<Pool> pool);
  void RingDoorbell();
  void StageFrees();
  void StageCloses();

  std::byte* const base_;
  const uint64_t bytes_;
  const uint32_t capacity_;
  const uint32_t io_thread_;
  Fd doorbell_;
  const std::shared_ptr<Pool> pool_;
  RingProducer submissions_;
  RingConsumer completions_;
  OperationTable operations_;
  NameMap names_;
  std::vector<uint64_t> frees_;   // At most one entry per received buffer.
  std::vector<uint32_t> closes_;  // At most one entry per socket.
  bool refused_ = false;          // A send found the ring full.
  bool broken_ = false;
};

}  // namespace sluice::client
