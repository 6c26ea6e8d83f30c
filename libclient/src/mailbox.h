// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "libclient/src/pool.h"
#include "libclient/src/ring_port.h"
#include "shm_proto/base/fd.h"
#include "shm_proto/base/result.h"

namespace sluice::client {

// What the control thread has to say to a channel.
struct Notice {
  enum class Kind {
    kRing,           // A ring pair was mapped: `port`.
    kConnectFailed,  // The connect with `token` (or, where that is 0, with `request`) failed.
    kDetached,       // The daemon is gone.
    kReattached,     // It is back, with `pool`; `error` when not all listeners are.
    kLeftOut,        // It is back and does not take this channel: `error`.
  };
  Kind kind{};
  std::unique_ptr<RingPort> port;
  std::shared_ptr<Pool> pool;
  uint64_t token = 0;
  uint32_t request = 0;
  int32_t error = 0;
  std::string text;
};

// The way of notices from the control thread into one channel, in order.
// Invariant: at most one kDetached, one kLeftOut and one kReattached wait in it, so a channel that
// never polls does not make it grow. Thread: Post() and Kick() any; the rest the channel's. Owns:
// an eventfd that is readable after Post() and Kick().
class Mailbox {
 public:
  Result<> Start();

  void Post(Notice notice);
  void Kick();  // Wakes a channel that sleeps, to look at the returned buffers.

  bool Pending() const { return pending_.load(std::memory_order_acquire); }  // Pairs with Post().
  bool Take(Notice& notice);
  void DrainEvent();
  int fd() const { return event_.get(); }

 private:
  bool Coalesce(const Notice& notice);

  Fd event_;
  std::mutex mutex_;
  std::deque<Notice> queue_;  // Guarded by mutex_.
  std::atomic<bool> pending_{false};
};

}  // namespace sluice::client
