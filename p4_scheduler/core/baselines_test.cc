// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/core/baselines.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace sluice::rain {
namespace {

class SeededRandom final : public Random {
 public:
  uint64_t Next() override { return engine_(); }

 private:
  std::mt19937_64 engine_{7};
};

TEST(BoundedQueues, FindsAnIdleWorkerHoweverManyPassesItTakes) {
  BoundedQueues queues(10, 1);
  for (uint32_t worker = 0; worker < 9; ++worker) {
    auto task = queues.Begin();
    EXPECT_EQ(queues.Step(task), worker) << "tasks start one after the other";
  }
  auto task = BoundedQueues::Task{};  // Begins at worker 0; only 9 is idle.
  EXPECT_EQ(queues.Step(task), std::nullopt);
  EXPECT_EQ(queues.Step(task), std::nullopt);
  EXPECT_EQ(queues.Step(task), 9u) << "the third pass of four looks sees the tenth worker";
}

TEST(BoundedQueues, TheTargetRisesOnlyAfterAllWorkersAndNeverAboveTheBound) {
  BoundedQueues queues(4, 2);
  for (int i = 0; i < 4; ++i) {
    auto task = queues.Begin();
    ASSERT_TRUE(queues.Step(task));
  }
  auto task = queues.Begin();
  EXPECT_EQ(queues.Step(task), std::nullopt);
  EXPECT_EQ(task.target, 1u);
  EXPECT_TRUE(queues.Step(task)) << "now at two";
  EXPECT_EQ(task.target, 2u);
  for (int i = 0; i < 3; ++i) {
    auto next = queues.Begin();
    while (!queues.Step(next)) {
    }
  }
  auto last = queues.Begin();
  for (int pass = 0; pass < 100; ++pass) ASSERT_EQ(queues.Step(last), std::nullopt);
  EXPECT_EQ(last.target, 2u);
  queues.OnReport(3);
  std::optional<uint32_t> taken;
  for (int pass = 0; pass < 2 && !taken; ++pass) taken = queues.Step(last);
  EXPECT_EQ(taken, 3u);
}

TEST(BoundedQueues, ATaskThatGoesRoundIsOvertaken) {
  BoundedQueues queues(8, 1);
  for (int i = 0; i < 8; ++i) {
    auto task = queues.Begin();
    ASSERT_TRUE(queues.Step(task));
  }
  auto old = queues.Begin();  // Looks at 0 to 3.
  ASSERT_EQ(queues.Step(old), std::nullopt);
  queues.OnReport(2);
  auto young = queues.Begin();  // Looks at 1 to 4.
  EXPECT_EQ(queues.Step(young), 2u);
}

TEST(PowerOfTwo, TakesTheShorterOfTwoAsReported) {
  SeededRandom random;
  PowerOfTwo policy(2, random);
  policy.OnReport(0, 5);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(policy.Choose(), 1u) << "it does not know what it sent";
  policy.OnRefresh(1);
  for (int i = 0; i < 5; ++i) policy.OnRefresh(1);
  EXPECT_EQ(policy.depth(1), 6u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(policy.Choose(), 0u);
}

TEST(PowerOfTwo, LooksAtTwoDifferentWorkersEachEquallyOften) {
  SeededRandom random;
  PowerOfTwo policy(5, random);
  policy.OnReport(3, 1'000);  // Would be chosen only beside itself.
  std::map<uint32_t, int> chosen;
  for (int i = 0; i < 40'000; ++i) ++chosen[policy.Choose()];
  EXPECT_EQ(chosen.count(3), 0u);
  for (const uint32_t worker : {0u, 1u, 2u, 4u}) EXPECT_NEAR(chosen[worker], 10'000, 600) << worker;
  PowerOfTwo alone(1, random);
  EXPECT_EQ(alone.Choose(), 0u);
}

TEST(PullQueue, IsFirstInFirstOutAndCountsWhatItMustRepair) {
  PullQueue queue(2);
  EXPECT_EQ(queue.OnPull(), std::nullopt);
  EXPECT_TRUE(queue.OnTask(1));
  EXPECT_TRUE(queue.OnTask(2));
  EXPECT_FALSE(queue.OnTask(3));
  EXPECT_EQ(queue.repairs(), 2u);
  EXPECT_EQ(queue.OnPull(), 1u);
  EXPECT_TRUE(queue.OnTask(4));
  EXPECT_EQ(queue.OnPull(), 2u);
  EXPECT_EQ(queue.OnPull(), 4u);
  EXPECT_EQ(queue.waiting(), 0u);
}

TEST(WeightedRoundRobin, SpreadsByWeightAndKeepsClassesApart) {
  WeightedRoundRobin policy(3);
  policy.AddWorker(0, 10, 2);
  policy.AddWorker(0, 11, 1);
  policy.AddWorker(1, 20, 1);
  std::vector<uint32_t> order;
  for (int i = 0; i < 6; ++i) order.push_back(*policy.Choose(0));
  EXPECT_EQ(order, (std::vector<uint32_t>{10, 11, 10, 10, 11, 10})) << "evenly, not in bursts";
  EXPECT_EQ(policy.Choose(1), 20u);
  EXPECT_EQ(policy.Choose(2), std::nullopt) << "a class without workers";
  EXPECT_EQ(policy.Choose(3), std::nullopt) << "no such class";
}

}  // namespace
}  // namespace sluice::rain
