// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "shm_proto/base/result.h"

namespace sluice::client {

// The client's way to the daemon's control socket and to its own waiting threads, so that a
// simulation can stand in for both.
class ControlPort {
 public:
  virtual ~ControlPort() = default;

  // Control thread.
  virtual Result<> Connect() = 0;  // A fresh connection; the caller attaches over it.
  // One packet. False: it cannot be taken now; try again when the socket is writable.
  virtual Result<bool> Send(std::span<const std::byte> packet) = 0;
  virtual void Close() = 0;

  // Any thread: the control thread has something to send or to look at.
  virtual void Wake() = 0;
  // Any other thread: waits, with the lock released, until notified; false once the deadline has
  // passed.
  virtual bool Await(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                     uint64_t deadline_ns) = 0;
};

}  // namespace sluice::client
