// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "shm_proto/base/check.h"

namespace sluice {

// Receives that all peers of one I/O thread take from, and how many of them each was promised as
// credits. A peer has its reserve for as long as it is there, and borrows more while there are
// plenty. Invariant: while none are lost no more are promised than there are, so no message finds
// no receive. Thread: its I/O thread's. Allocates: never.
class SharedReceives {
 public:
  // With fewer a peer could not send data and still answer (SendCredits::kReserve).
  static constexpr uint32_t kSmallestReserve = 4;

  SharedReceives(uint32_t count, uint32_t reserve) : count_(count), reserve_(reserve) {
    SLUICE_CHECK(reserve >= kSmallestReserve && reserve <= count,
                 "a reserve is a part of them all");
  }

  // A new peer's reserve, or the `most` it can use; 0: all are promised, for now.
  uint32_t Join(uint32_t most) {
    const uint32_t lent = std::min(reserve_, most);
    if (free() < lent) return 0;
    promised_ += lent;
    return lent;
  }
  // More for a peer that uses what it has, at most `wish`. The last quarter stays for newcomers.
  uint32_t Borrow(uint32_t wish) {
    const uint32_t kept = count_ / 4;
    const uint32_t more = free() > kept ? std::min(wish, free() - kept) : 0;
    promised_ += more;
    return more;
  }
  void GiveBack(uint32_t count) {
    SLUICE_CHECK(count <= promised_, "only what was promised is given back");
    promised_ -= count;
  }
  // One is gone, with a queue pair of which nobody can tell what it had taken.
  void Lose() { lost_ += lost_ < count_ ? 1 : 0; }
  // Those who borrowed are to give back as they go.
  bool scarce() const { return free() < std::max(reserve_, count_ / 8); }

  uint32_t count() const { return count_ - lost_; }
  uint32_t reserve() const { return reserve_; }
  uint32_t promised() const { return promised_; }
  uint32_t free() const { return count() > promised_ ? count() - promised_ : 0; }

 private:
  uint32_t count_;
  uint32_t reserve_;
  uint32_t promised_ = 0;
  uint32_t lost_ = 0;
};

}  // namespace sluice
