// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <utility>

#include "shm_proto/base/check.h"
#include "shm_proto/base/fd.h"

namespace sluice::io {

// A queue into one thread from the others; its descriptor becomes readable while something is in
// it. Off the data path, so a mutex serves. Thread: Post() any, the rest the owner.
template <typename Message>
class Mailbox {
 public:
  Mailbox() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    SLUICE_CHECK(event_.valid(), "a mailbox is made at start, when descriptors are there");
  }

  void Post(Message message) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(message));
      pending_.store(true, std::memory_order_release);  // Pairs with Pending()'s acquire.
    }
    const uint64_t one = 1;
    // Cannot fail but when the counter is full, and then the event is readable anyway.
    [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof(one));
  }

  // One load; for a polling loop.
  bool Pending() const { return pending_.load(std::memory_order_acquire); }

  bool Take(Message& message) {
    std::lock_guard lock(mutex_);
    if (queue_.empty()) {
      uint64_t count;
      [[maybe_unused]] const ssize_t got = read(event_.get(), &count, sizeof(count));
      pending_.store(false, std::memory_order_relaxed);
      return false;
    }
    message = std::move(queue_.front());
    queue_.pop_front();
    return true;
  }

  int fd() const { return event_.get(); }

 private:
  Fd event_;
  std::mutex mutex_;
  std::deque<Message> queue_;
  std::atomic<bool> pending_{false};
};

}  // namespace sluice::io
