// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice::transport {

// How often a queue's event was seen: raised where the device's events are taken, read where the
// queue is used. It is the queue's context, and destroying the queue waits for its events.
class EventFlag {
 public:
  void Raise() { count_.fetch_add(1, std::memory_order_release); }
  uint64_t count() const { return count_.load(std::memory_order_acquire); }

 private:
  std::atomic<uint64_t> count_{0};
};

}  // namespace sluice::transport
