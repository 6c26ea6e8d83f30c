// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace sluice::bemalloc {

// Buffers on their way back to the thread whose spans they come from: a bounded bag without a lock.
// Invariant: what was put is taken exactly once; order means nothing. A slot is empty (null) or
// holds one buffer: only a producer fills an empty one, only a taker empties a full one, and each
// does so in one atomic step, so neither a slow thread nor one that never comes back hinders the
// others. Thread: any puts, any takes. `Atomic` and kSlots are parameters for the test that tries
// every interleaving.
template <uint32_t kSlots, template <typename> class Atomic = std::atomic>
class ReturnList {
 public:
  static constexpr uint32_t kProbes = kSlots < 8 ? kSlots : 8;

  // False when the slots it looked at, kProbes from `hint` on, are full.
  bool Put(void* buffer, uint32_t hint) {
    for (uint32_t i = 0; i < kProbes; ++i) {
      Atomic<void*>& slot = slots_[(hint + i) % kSlots];
      void* empty = nullptr;
      if (slot.load(std::memory_order_relaxed) != nullptr) continue;
      // Release: pairs with the acquire in TakeAll(); whoever reuses the buffer sees what its last
      // owner did to it.
      if (slot.compare_exchange_strong(empty, buffer, std::memory_order_release,
                                       std::memory_order_relaxed))
        return true;
    }
    return false;
  }

  template <typename Take>
  void TakeAll(Take take) {
    for (Atomic<void*>& slot : slots_) {
      if (slot.load(std::memory_order_relaxed) == nullptr) continue;
      // Acquire: pairs with the release in Put(). An exchange, since another taker may be here too.
      if (void* buffer = slot.exchange(nullptr, std::memory_order_acquire); buffer != nullptr)
        take(buffer);
    }
  }

  template <typename Look>
  void ForEach(Look look) const {
    for (const Atomic<void*>& slot : slots_) {
      if (void* buffer = slot.load(std::memory_order_relaxed); buffer != nullptr) look(buffer);
    }
  }

 private:
  alignas(64) std::array<Atomic<void*>, kSlots> slots_{};
};

}  // namespace sluice::bemalloc
