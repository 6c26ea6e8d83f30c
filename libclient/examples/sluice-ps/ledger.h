// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice_ps {

enum class Outcome : uint32_t {
  kOk = 0,
  kFailed = 1,
  kUnknown = 2
};  // The same numbers as enum sluice_outcome.

struct OutcomeCounts {
  uint64_t begun = 0;
  uint64_t ok = 0;
  uint64_t failed = 0;
  uint64_t unknown = 0;
  uint64_t duplicated = 0;  // Ends of operations that were over already, or never begun.

  uint64_t ended() const { return ok + failed + unknown; }
  void CountEnd(Outcome outcome) {
    ++(outcome == Outcome::kOk ? ok : outcome == Outcome::kFailed ? failed : unknown);
  }
};

// Book-keeping that shows whether every operation handed to the library ends exactly once. A token
// is a slot and that slot's generation, so a second end of an old operation is told from the end of
// a new one. Invariant: begun = ended + outstanding.
class OutcomeLedger {
 public:
  uint64_t Begin() {
    if (free_.empty()) {
      slots_.push_back({});
      free_.push_back(static_cast<uint32_t>(slots_.size() - 1));
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    slots_[slot].outstanding = true;
    ++counts_.begun;
    return uint64_t{slots_[slot].generation} << 32 | slot;
  }

  // The library refused to take the operation: it never began.
  void Cancel(uint64_t token) {
    if (Retire(token)) {
      --counts_.begun;
    }
  }

  // False, and counted: there is no such operation.
  bool End(uint64_t token, Outcome outcome) {
    if (!Retire(token)) {
      ++counts_.duplicated;
      return false;
    }
    counts_.CountEnd(outcome);
    return true;
  }

  uint64_t outstanding() const {
    return counts_.begun - counts_.ended();
  }  // At the very end: lost.
  const OutcomeCounts& counts() const { return counts_; }

 private:
  struct Slot {
    uint32_t generation = 1;
    bool outstanding = false;
  };

  bool Retire(uint64_t token) {
    const auto slot = static_cast<uint32_t>(token);
    if (slot >= slots_.size() || !slots_[slot].outstanding ||
        slots_[slot].generation != token >> 32) {
      return false;
    }
    slots_[slot].outstanding = false;
    ++slots_[slot].generation;
    free_.push_back(slot);
    return true;
  }

  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  OutcomeCounts counts_;
};

}  // namespace sluice_ps
