// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "daemon/sched/shared_receives.h"
#include "shm_proto/base/check.h"

namespace sluice {

// What may use a posted receive of the peer.
enum class CreditUse {
  kData,             // Stops while the reserve is untouched, so that control always gets through.
  kControl,          // May dip into the reserve, but leaves the last credit.
  kControlReturning  // Brings credits back itself, so it may take the last: the peer can answer.
};

// Receives of the peer that are posted and not yet ours to have used (ByteExpress 5.4.2).
// Invariant: 0 <= available_ <= depth_. Both ends never sit at 0 at once: the last credit is only
// spent together with at least one credit for the other side. Thread: its engine's. Allocates:
// never.
class SendCredits {
 public:
  static constexpr uint32_t kReserve = 2;

  SendCredits() = default;
  explicit SendCredits(uint32_t depth) : SendCredits(depth, depth) {}
  // Of a peer that lends some to begin with, and more up to `depth` as it sees fit.
  SendCredits(uint32_t depth, uint32_t available) : depth_(depth), available_(available) {}

  bool May(CreditUse use) const {
    switch (use) {
      case CreditUse::kData: return available_ > kReserve;
      case CreditUse::kControl: return available_ > 1;
      case CreditUse::kControlReturning: return available_ > 0;
    }
    return false;
  }

  void Take() {
    SLUICE_CHECK(available_ > 0, "a receive of the peer is used only with a credit");
    --available_;
  }

  // False: the peer gives back more than it has; it breaks the protocol.
  [[nodiscard]] bool Return(uint32_t count) {
    if (count > depth_ - available_) return false;
    available_ += count;
    return true;
  }

  uint32_t available() const { return available_; }
  uint32_t depth() const { return depth_; }

 private:
  uint32_t depth_ = 0;
  uint32_t available_ = 0;
};

// What a peer may use of our receives: its own, all from the start, or some of those that all peers
// share. And how many of these were consumed and posted again but not yet told to it.
// Invariant: owed_ <= lent_ <= depth_. Thread: its engine's. Allocates: never.
class CreditReturns {
 public:
  CreditReturns() = default;
  explicit CreditReturns(uint32_t depth) : depth_(depth), lent_(depth) {}
  // `lent` were got from the lender, which outlives this or its End().
  CreditReturns(uint32_t depth, SharedReceives& lender, uint32_t lent)
      : lender_(&lender), depth_(depth), lent_(lent) {}

  // False: the peer used a receive it had no credit for; it breaks the protocol.
  [[nodiscard]] bool OnConsumed() {
    if (owed_ + kept_ == lent_) return false;
    ++used_;
    // Every other one, so that the peer also hears of some.
    keep_next_ = !keep_next_ && Surplus();
    ++(keep_next_ ? kept_ : owed_);
    return true;
  }

  // All consumed ones are posted again: those kept from the peer may be promised to another.
  void OnPosted() {
    if (kept_ == 0) return;
    lender_->GiveBack(kept_);
    lent_ -= std::exchange(kept_, 0);
  }

  // Whether a message must go out for the credits alone. batch 0: half of them.
  bool Due(uint32_t batch) const {
    return owed_ >= (batch != 0 && batch <= lent_ / 2 ? batch : lent_ / 2);
  }

  uint32_t owed() const { return owed_; }
  uint32_t lent() const { return lent_; }

  // To be told now. A peer that has used all it has got, once round, gets more.
  uint32_t TakeAll() {
    uint32_t told = std::exchange(owed_, 0);
    if (lender_ != nullptr && used_ >= lent_) {
      const uint32_t more = lender_->Borrow(std::min(lent_, depth_ - lent_));
      used_ = 0;
      lent_ += more;
      told += more;
    }
    return told;
  }

  // The peer's queue pair is gone, and what it was promised.
  void End() {
    if (lender_ != nullptr) lender_->GiveBack(lent_);
    *this = CreditReturns();
  }

 private:
  bool Surplus() const {
    return lender_ != nullptr && lender_->scarce() && lent_ - kept_ > lender_->reserve();
  }

  SharedReceives* lender_ = nullptr;
  uint32_t depth_ = 0;
  uint32_t lent_ = 0;
  uint32_t owed_ = 0;
  uint32_t kept_ = 0;  // Consumed, and to be given back to the lender.
  uint32_t used_ = 0;  // Since it last got more.
  bool keep_next_ = false;
};

}  // namespace sluice
