// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::client {

// What the library remembers about one send under way.
struct Operation {
  uint64_t socket = 0;
  uint64_t user_data = 0;
  void* buffer = nullptr;  // Start of the buffer that the operation holds; null when it holds none.
  uint32_t flags = 0;      // sluice_send_flags
  uint32_t generation = 1;
  uint32_t next_free = 0;
  bool busy = false;
};

// The sends under way on one ring. A token is a slot's index and generation, so that an answer
// finds its operation without searching and an answer that came twice or was made up finds nothing.
// Invariant: size() slots are busy or on the free list, never both.
// Thread: its channel's. Allocates: at construction only.
class OperationTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit OperationTable(uint32_t slots) : slots_(slots) {
    for (uint32_t i = 0; i < slots; ++i) slots_[i].next_free = i + 1 < slots ? i + 1 : kNone;
    first_free_ = slots > 0 ? 0 : kNone;
  }

  bool full() const { return first_free_ == kNone; }
  uint32_t busy() const { return busy_; }
  uint32_t size() const { return static_cast<uint32_t>(slots_.size()); }

  // Requires !full(). The token stays good until End().
  uint64_t Begin(const Operation& operation) {
    const uint32_t index = first_free_;
    Operation& slot = slots_[index];
    first_free_ = slot.next_free;
    const uint32_t generation = slot.generation;
    slot = operation;
    slot.generation = generation;
    slot.busy = true;
    ++busy_;
    return (uint64_t{generation} << 32) | index;
  }

  // Ends the operation and copies it out; false: no such operation is under way.
  bool End(uint64_t token, Operation& operation) {
    const auto index = static_cast<uint32_t>(token);
    if (index >= slots_.size()) return false;
    Operation& slot = slots_[index];
    if (!slot.busy || slot.generation != static_cast<uint32_t>(token >> 32)) return false;
    operation = slot;
    Release(index);
    return true;
  }

  // Ends any one operation that is still under way; false: there is none.
  bool EndAny(Operation& operation) {
    if (busy_ == 0) return false;
    while (!slots_[scan_].busy) scan_ = (scan_ + 1) % size();
    operation = slots_[scan_];
    Release(scan_);
    return true;
  }

  template <typename Visitor>
  void ForEachBusy(Visitor visit) {
    for (Operation& slot : slots_) {
      if (slot.busy) visit(slot);
    }
  }

 private:
  void Release(uint32_t index) {
    Operation& slot = slots_[index];
    slot.busy = false;
    ++slot.generation;
    slot.next_free = first_free_;
    first_free_ = index;
    --busy_;
  }

  std::vector<Operation> slots_;
  uint32_t first_free_;
  uint32_t busy_ = 0;
  uint32_t scan_ = 0;
};

}  // namespace sluice::client
