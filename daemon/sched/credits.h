// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

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
  explicit SendCredits(uint32_t depth) : depth_(depth), available_(depth) {}

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

// Our own receives that were consumed and reposted but not yet told to the peer.
// Thread: its engine's. Allocates: never.
class CreditReturns {
 public:
  CreditReturns() = default;
  explicit CreditReturns(uint32_t depth) : depth_(depth) {}

  // False: the peer used a receive it had no credit for; it breaks the protocol.
  [[nodiscard]] bool OnConsumed() {
    if (owed_ == depth_) return false;
    ++owed_;
    return true;
  }

  // Whether a message must go out for the credits alone. batch 0: half the depth.
  bool Due(uint32_t batch) const {
    return owed_ >= (batch != 0 && batch <= depth_ / 2 ? batch : depth_ / 2);
  }

  uint32_t owed() const { return owed_; }

  uint32_t TakeAll() {
    const uint32_t owed = owed_;
    owed_ = 0;
    return owed;
  }

 private:
  uint32_t depth_ = 0;
  uint32_t owed_ = 0;
};

}  // namespace sluice
