// SPDX-License-Identifier: Apache-2.0
#include "daemon/sched/send_budget.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "daemon/sched/send_window.h"

namespace sluice {
namespace {

TEST(SendBudget, BoundsAllWindowsTogether) {
  SendBudget budget;
  budget.Resize(1'000);
  SendWindow a(800, &budget), b(800, &budget);
  a.OnPosted(800);
  EXPECT_EQ(b.Available(), 200u);
  b.OnPosted(200);
  EXPECT_EQ(b.Available(), 0u);
  a.OnDone(300);
  EXPECT_EQ(b.Available(), 300u);
}

TEST(SendBudget, GivesEachThatHasSomethingToSendAnEqualShare) {
  SendBudget budget;
  budget.Resize(900);
  budget.SetSharers(3);
  SendWindow a(900, &budget), b(900, &budget);
  EXPECT_EQ(a.Available(), 300u);
  a.OnPosted(300);
  EXPECT_EQ(a.Available(), 0u) << "the rest is for the others";
  EXPECT_EQ(b.Available(), 300u);
  budget.SetSharers(1);
  EXPECT_EQ(a.Available(), 600u);
}

TEST(SendBudget, MakesProgressHoweverSmallItIs) {
  SendBudget budget;
  budget.Resize(2);
  budget.SetSharers(5);
  SendWindow window(1'000, &budget);
  EXPECT_EQ(window.EffectiveFragment(4'096), 1u);
  EXPECT_EQ(window.Available(), 1u);
}

TEST(SendBudget, LoweringItDropsNothingThatIsInFlight) {
  SendBudget budget;
  SendWindow window(1'000, &budget);
  window.OnPosted(1'000);
  budget.Resize(100);
  EXPECT_EQ(window.Available(), 0u);
  window.OnDone(950);
  EXPECT_EQ(window.Available(), 50u);
}

// Whatever the order: the sum stays below the limit, and whoever wants gets its turn.
TEST(SendBudget, NobodyStarvesAndTheSumStaysBelow) {
  std::mt19937 random(7);
  SendBudget budget;
  constexpr uint64_t kLimit = 64'000, kFragment = 4'000;
  budget.Resize(kLimit);
  std::vector<SendWindow> windows(8, SendWindow(kLimit, &budget));
  std::vector<uint64_t> sent(windows.size());
  budget.SetSharers(windows.size());
  for (int turn = 0; turn < 2'000; ++turn) {
    for (size_t i = 0; i < windows.size(); ++i) {  // Always in the same order.
      const uint64_t fragment = windows[i].EffectiveFragment(kFragment);
      while (windows[i].Available() >= fragment) {
        windows[i].OnPosted(fragment);
        sent[i] += fragment;
      }
    }
    ASSERT_LE(budget.in_flight_bytes(), kLimit);
    SendWindow& done = windows[random() % windows.size()];
    done.OnDone(std::min<uint64_t>(done.in_flight_bytes(), 2 * kFragment));
  }
  const auto [least, most] = std::ranges::minmax(sent);
  EXPECT_GT(least, most / 2);
}

}  // namespace
}  // namespace sluice
