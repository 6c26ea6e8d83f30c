// SPDX-License-Identifier: Apache-2.0
#include "daemon/sched/credits.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace sluice {
namespace {

constexpr uint32_t kDepth = 64;

// One peer's two ends: what it may use, and what is kept count of for it here.
struct Lent {
  Lent(SharedReceives& lender, uint32_t lent)
      : returns(kDepth, lender, lent), credits(kDepth, lent) {}
  // The peer uses one, it is worked off and posted again, and the peer is told what is owed.
  void UseOne() {
    credits.Take();
    ASSERT_TRUE(returns.OnConsumed());
    returns.OnPosted();
    Tell();
  }
  void Tell() { ASSERT_TRUE(credits.Return(returns.TakeAll())); }

  CreditReturns returns;
  SendCredits credits;
};

TEST(SharedReceives, EveryPeerGetsItsReserveUntilAllArePromised) {
  SharedReceives lender(100, 8);
  for (int peer = 0; peer < 12; ++peer) EXPECT_EQ(lender.Join(kDepth), 8u);
  EXPECT_EQ(lender.Join(kDepth), 0u);
  lender.GiveBack(8);
  EXPECT_EQ(lender.Join(kDepth), 8u);
}

TEST(SharedReceives, BorrowersLeaveAQuarterToNewcomers) {
  SharedReceives lender(128, 8);
  ASSERT_EQ(lender.Join(kDepth), 8u);
  EXPECT_EQ(lender.Borrow(1000), 88u);
  EXPECT_EQ(lender.Borrow(1), 0u);
  EXPECT_EQ(lender.Join(kDepth), 8u);
}

TEST(SharedReceives, WhatIsLostIsPromisedToNobody) {
  SharedReceives lender(16, 8);
  ASSERT_EQ(lender.Join(kDepth), 8u);
  lender.Lose();
  EXPECT_EQ(lender.count(), 15u);
  EXPECT_EQ(lender.Join(kDepth), 0u);
  for (int i = 0; i < 20; ++i) lender.Lose();
  EXPECT_EQ(lender.free(), 0u);
  lender.GiveBack(8);
  EXPECT_EQ(lender.free(), 0u);
}

TEST(CreditReturns, ABusyPeerBorrowsUpToItsDepth) {
  SharedReceives lender(1024, 8);
  Lent peer(lender, lender.Join(kDepth));
  for (int i = 0; i < 8; ++i) peer.UseOne();
  EXPECT_EQ(peer.credits.available(), 16u);
  for (int i = 0; i < 1000; ++i) peer.UseOne();
  EXPECT_EQ(peer.credits.available(), kDepth);
  EXPECT_EQ(lender.promised(), kDepth);
}

TEST(CreditReturns, ABorrowerGivesBackWhenReceivesBecomeScarceAndKeepsItsReserve) {
  SharedReceives lender(64, 8);
  Lent peer(lender, lender.Join(kDepth));
  for (int i = 0; i < 1000; ++i) peer.UseOne();
  ASSERT_EQ(peer.returns.lent(), 48u);
  ASSERT_EQ(lender.Join(kDepth) + lender.Join(kDepth), 16u);
  ASSERT_EQ(lender.Join(kDepth), 0u);
  for (int i = 0; i < 16; ++i) peer.UseOne();
  EXPECT_EQ(lender.Join(kDepth), 8u) << "what it gave back serves a newcomer";
  while (lender.Join(kDepth) != 0) {
  }
  for (int i = 0; i < 1000; ++i) {
    peer.UseOne();
    lender.Join(kDepth);
  }
  EXPECT_EQ(peer.returns.lent(), 8u);
  EXPECT_EQ(peer.credits.available(), 8u);
}

TEST(CreditReturns, NothingIsPromisedToAnotherBeforeItIsPostedAgain) {
  SharedReceives lender(32, 8);
  Lent peer(lender, lender.Join(kDepth));
  for (int i = 0; i < 100; ++i) peer.UseOne();
  while (lender.Join(kDepth) != 0) {
  }
  const uint32_t promised = lender.promised();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(peer.returns.OnConsumed());
  EXPECT_EQ(lender.promised(), promised);
  peer.returns.OnPosted();
  EXPECT_EQ(lender.promised(), promised - 2);
}

TEST(CreditReturns, APeerThatUsesMoreThanItWasLentIsFound) {
  SharedReceives lender(64, 8);
  CreditReturns returns(kDepth, lender, lender.Join(kDepth));
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(returns.OnConsumed());
  EXPECT_FALSE(returns.OnConsumed());
}

TEST(CreditReturns, TheEndGivesAllBackOnce) {
  SharedReceives lender(64, 8);
  Lent peer(lender, lender.Join(kDepth));
  for (int i = 0; i < 100; ++i) peer.UseOne();
  peer.returns.End();
  EXPECT_EQ(lender.promised(), 0u);
  peer.returns.End();
  EXPECT_EQ(lender.promised(), 0u);
}

// What is promised is never more than there is, and is what the peers have, whatever they do.
TEST(CreditReturns, RandomPeersNeverHaveMoreThanThereIs) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 bits(seed);
    const auto random = [&bits] { return static_cast<uint32_t>(bits()); };
    SharedReceives lender(32 + random() % 200, 4 + random() % 8);
    std::vector<Lent> peers;
    for (int step = 0; step < 2'000; ++step) {
      const uint32_t what = random() % 100;
      if (what < 3) {
        if (const uint32_t lent = lender.Join(kDepth)) peers.emplace_back(lender, lent);
      } else if (!peers.empty()) {
        Lent& peer = peers[random() % peers.size()];
        if (what < 4) {
          peer.returns.End();
          std::swap(peer, peers.back());
          peers.pop_back();
        } else if (what < 70 && peer.credits.available() > 0) {
          peer.credits.Take();
          ASSERT_TRUE(peer.returns.OnConsumed());
        } else {
          peer.returns.OnPosted();
          peer.Tell();
        }
      }
      uint32_t lent = 0;
      for (const Lent& peer : peers) {
        lent += peer.returns.lent();
        ASSERT_GE(peer.returns.lent(), lender.reserve());
        ASSERT_LE(peer.credits.available() + peer.returns.owed(), peer.returns.lent());
      }
      ASSERT_EQ(lender.promised(), lent) << "seed " << seed;
      ASSERT_LE(lent, lender.count());
    }
  }
}

}  // namespace
}  // namespace sluice
