// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/core/adaptive.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

// "Line" is a line of Algorithm 1.
namespace sluice::rain {
namespace {

constexpr uint64_t kService = 1'000;

// A window of equal samples with this slowdown, share of waiting at the worker, and switch queue.
WorkerWindow Window(double slowdown, double ratio, uint32_t switch_tasks, int samples = 100) {
  WorkerWindow window;
  const double waited = (slowdown - 1) * kService;
  for (int i = 0; i < samples; ++i) {
    window.Add({.worker_ns = static_cast<uint64_t>(std::llround(waited * ratio)),
                .switch_ns = static_cast<uint64_t>(std::llround(waited * (1 - ratio))),
                .service_ns = kService,
                .switch_tasks = switch_tasks});
  }
  return window;
}

SliceState State(uint32_t overloaded, double idleness,
                 std::vector<std::pair<uint32_t, uint32_t>> workers) {
  SliceState state{.overloaded = overloaded, .idleness = idleness};
  for (const auto& [worker, quota] : workers) {
    state.workers.push_back({.worker = worker, .quota = quota});
  }
  return state;
}

const AdaptiveSettings kDefaults;  // S_th 10, R_th 0.3, n_max 8.

TEST(Histogram, IsExactForSmallValuesAndAtMostASixtyFourthLowForOthers) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t value = random() >> (22 + random() % 42);
    Histogram histogram;
    histogram.Add(value);
    const uint64_t read = histogram.Percentile(99);
    ASSERT_LE(read, value);
    ASSERT_GE(static_cast<double>(read), static_cast<double>(value) * 63 / 64);
    if (value < 64) {
      ASSERT_EQ(read, value);
    }
  }
}

TEST(Histogram, PercentileIsTheNearestRank) {
  Histogram histogram;
  for (uint64_t value = 0; value < 50; ++value) histogram.Add(value);
  EXPECT_EQ(histogram.Percentile(100), 49u);
  EXPECT_EQ(histogram.Percentile(99), 49u) << "99 % of 50 samples are 49.5, that is 50 of them";
  EXPECT_EQ(histogram.Percentile(98), 48u);
  EXPECT_EQ(histogram.Percentile(1), 0u);
  histogram.Add(~uint64_t{0});
  EXPECT_GT(histogram.Percentile(100), uint64_t{1} << 41) << "the last bucket takes the rest";
  histogram.Clear();
  EXPECT_EQ(histogram.Percentile(99), 0u);
}

TEST(Algorithm1, Line5DerivesSlowdownRatioAndQueueFromEachTask) {
  WorkerWindow window;
  window.Add({.worker_ns = 300, .switch_ns = 600, .service_ns = 100, .switch_tasks = 4});
  EXPECT_EQ(window.SlowdownP99(), 10.0);  // Exactly, since S_th is compared with it.
  EXPECT_NEAR(window.MeanRatio(), 1.0 / 3, 1e-9);
  EXPECT_EQ(window.QueueP99(), 4u);
}

TEST(Algorithm1, Line5TakesNoRatioFromATaskThatNeverWaited) {
  WorkerWindow window;
  window.Add({.service_ns = 100});
  EXPECT_EQ(window.MeanRatio(), 0);
  window.Add({.worker_ns = 50, .service_ns = 100});
  EXPECT_EQ(window.MeanRatio(), 1.0);
  EXPECT_EQ(window.samples(), 2u);
}

TEST(Algorithm1, Line5SurvivesTasksShorterThanTheClockCanSee) {
  WorkerWindow window;
  window.Add({.worker_ns = 9, .switch_ns = 0, .service_ns = 0});
  EXPECT_GT(window.SlowdownP99(), 9.0);
}

TEST(Algorithm1, Line10TakesThe99thPercentileNotTheWorst) {
  WorkerWindow window = Window(2, 0.5, 0, 99);
  window.Add({.worker_ns = 1'000'000, .service_ns = kService});
  EXPECT_NEAR(window.SlowdownP99(), 2, 0.04);
  window.Add({.worker_ns = 1'000'000, .service_ns = kService});
  EXPECT_GT(window.SlowdownP99(), 900);
}

TEST(Algorithm1, Line11AveragesTheRatios) {
  WorkerWindow window;
  window.Add({.worker_ns = 10, .switch_ns = 0, .service_ns = 100});
  window.Add({.worker_ns = 0, .switch_ns = 1'000, .service_ns = 100});
  EXPECT_NEAR(window.MeanRatio(), 0.5, 1e-9) << "of ratios, not of durations";
}

TEST(Algorithm1, Line12TakesThe99thPercentileOfTheSwitchQueue) {
  WorkerWindow window = Window(2, 0.5, 0, 99);
  window.Add({.service_ns = kService, .switch_tasks = 30});
  EXPECT_EQ(window.QueueP99(), 0u);
  window.Add({.service_ns = kService, .switch_tasks = 30});
  EXPECT_EQ(window.QueueP99(), 30u);
}

TEST(Algorithm1, Line13ComparesStrictly) {
  EXPECT_EQ(DecideQuota(kDefaults, Window(10, 0.9, 0), 4).reason, QuotaReason::kWithinTarget);
  EXPECT_NE(DecideQuota(kDefaults, Window(10.3, 0.9, 0), 4).reason, QuotaReason::kWithinTarget);
}

TEST(Algorithm1, Lines14And15LowerAQuotaWhoseOwnQueueBlocks) {
  const QuotaDecision decision = DecideQuota(kDefaults, Window(20, 0.9, 0), 4);
  EXPECT_EQ(decision.quota_before, 4u);
  EXPECT_EQ(decision.quota, 3u);
  EXPECT_EQ(decision.reason, QuotaReason::kWorkerQueueBlocks);
  EXPECT_FALSE(decision.overloaded);
  EXPECT_EQ(decision.idleness, 0);
  EXPECT_GT(decision.slowdown_p99, 19);
  EXPECT_NEAR(decision.mean_ratio, 0.9, 0.01);
  EXPECT_EQ(decision.samples, 100u);
}

TEST(Algorithm1, Line14NeedsAnEmptySwitchQueueAndMoreThanOneToken) {
  EXPECT_TRUE(DecideQuota(kDefaults, Window(20, 0.9, 1), 4).overloaded);
  EXPECT_TRUE(DecideQuota(kDefaults, Window(20, 0.9, 0), 1).overloaded);
  EXPECT_EQ(DecideQuota(kDefaults, Window(20, 0.9, 0), 1).quota, 1u);
}

TEST(Algorithm1, Lines16And17RaiseAQuotaWhileTheSwitchIsWhereTasksWait) {
  const QuotaDecision decision = DecideQuota(kDefaults, Window(20, 0.1, 50), 4);
  EXPECT_EQ(decision.quota, 5u);
  EXPECT_EQ(decision.reason, QuotaReason::kSwitchQueueWaits);
  EXPECT_FALSE(decision.overloaded);
}

TEST(Algorithm1, Lines18And19CountOverloadWhereNeitherHelps) {
  const QuotaDecision at_most = DecideQuota(kDefaults, Window(20, 0.1, 50), 8);
  EXPECT_TRUE(at_most.overloaded) << "the quota is at n_max";
  EXPECT_EQ(at_most.quota, 8u);
  EXPECT_EQ(at_most.reason, QuotaReason::kOverloaded);
  // Exactly R_th is neither above nor below.
  WorkerWindow window;
  window.Add({.worker_ns = 25'000, .switch_ns = 75'000, .service_ns = kService});
  AdaptiveSettings settings;
  settings.ratio_threshold = 0.25;
  EXPECT_TRUE(DecideQuota(settings, window, 4).overloaded);
}

TEST(Algorithm1, Lines20To22MeasureIdlenessOnlyBelowTheTarget) {
  WorkerWindow window = Window(2, 0.5, 0);
  window.AddIdle(kDefaults.control_interval_ns() / 4);
  EXPECT_NEAR(DecideQuota(kDefaults, window, 4).idleness, 0.25, 1e-9);
  window.AddIdle(kDefaults.control_interval_ns() * 2);
  EXPECT_EQ(DecideQuota(kDefaults, window, 4).idleness, 1) << "never more than one worker";
  WorkerWindow slow = Window(20, 0.9, 0);
  slow.AddIdle(kDefaults.control_interval_ns());
  EXPECT_EQ(DecideQuota(kDefaults, slow, 4).idleness, 0);
}

TEST(Algorithm1, AnIntervalWithoutTasksHasSlowdownOneAndIsIdle) {
  WorkerWindow window;
  window.AddIdle(kDefaults.control_interval_ns());
  const QuotaDecision decision = DecideQuota(kDefaults, window, 4);
  EXPECT_EQ(decision.slowdown_p99, 1);
  EXPECT_EQ(decision.idleness, 1);
  EXPECT_EQ(decision.quota, 4u);
}

TEST(Algorithm1, Line23ForgetsTheInterval) {
  WorkerWindow window = Window(20, 0.9, 7);
  window.AddIdle(5);
  window.Clear();
  EXPECT_EQ(window.samples(), 0u);
  EXPECT_EQ(window.SlowdownP99(), 1);
  EXPECT_EQ(window.MeanRatio(), 0);
  EXPECT_EQ(window.QueueP99(), 0u);
  EXPECT_EQ(window.Idleness(10), 0);
}

TEST(Algorithm1, AFixedQuotaStaysButOverloadStillCounts) {
  const QuotaDecision decision = DecideQuota(kDefaults, Window(20, 0.1, 50), 4, true);
  EXPECT_EQ(decision.quota, 4u);
  EXPECT_EQ(decision.reason, QuotaReason::kFixed);
  EXPECT_FALSE(decision.overloaded);
  EXPECT_TRUE(DecideQuota(kDefaults, Window(20, 0.1, 50), 8, true).overloaded);
}

TEST(Algorithm1, QuotasStayWithinOneAndTheMostWhateverIsMeasured) {
  std::mt19937 random(3);
  for (int i = 0; i < 3'000; ++i) {
    AdaptiveSettings settings;
    settings.max_quota = 1 + static_cast<uint32_t>(random() % 8);
    const uint32_t quota = 1 + static_cast<uint32_t>(random() % settings.max_quota);
    const WorkerWindow window = Window(1 + static_cast<double>(random() % 400) / 10,
                                       static_cast<double>(random() % 101) / 100,
                                       static_cast<uint32_t>(random() % 3), 5);
    const QuotaDecision decision = DecideQuota(settings, window, quota);
    ASSERT_GE(decision.quota, 1u);
    ASSERT_LE(decision.quota, settings.max_quota);
    ASSERT_LE(std::abs(static_cast<int>(decision.quota) - static_cast<int>(quota)), 1);
    ASSERT_FALSE(decision.overloaded && decision.quota != quota) << "lines 14, 16, 18: one of them";
    ASSERT_FALSE(decision.overloaded && decision.idleness > 0);
  }
}

TEST(Algorithm1, Lines24To27EqualiseASliceThatIsBothOverloadedAndIdle) {
  const auto decisions = Rebalance({{3, State(1, 1.5, {{1, 8}, {2, 1}, {4, 2}})}});
  ASSERT_EQ(decisions.size(), 3u);
  for (const RebalanceDecision& decision : decisions) {
    EXPECT_EQ(decision.kind, RebalanceDecision::Kind::kEqualise);
    EXPECT_EQ(decision.to_slice, 3);
  }
  EXPECT_EQ(decisions[0].quota, 4u) << "11 = 4 + 4 + 3: the remainder goes by number";
  EXPECT_EQ(decisions[1].quota, 4u);
  EXPECT_EQ(decisions[2].quota, 3u);
}

TEST(Algorithm1, Line27ListsOnlyChangesAndLeavesFixedQuotasAlone) {
  SliceState state = State(1, 1.5, {{1, 4}, {2, 2}, {3, 3}});
  state.workers[0].fixed = true;
  const auto decisions = Rebalance({{0, state}});
  ASSERT_EQ(decisions.size(), 2u);
  EXPECT_EQ(decisions[0].worker, 2u);
  EXPECT_EQ(decisions[0].quota, 3u);
  EXPECT_EQ(decisions[1].worker, 3u);
  EXPECT_EQ(decisions[1].quota, 2u);
}

TEST(Algorithm1, Lines28To31NeedMoreThanOneIdleWorker) {
  const auto busy = State(2, 0, {{1, 3}});
  EXPECT_TRUE(Rebalance({{0, busy}, {1, State(0, 1.0, {{5, 1}, {6, 1}})}}).empty());
  EXPECT_EQ(Rebalance({{0, busy}, {1, State(0, 1.1, {{5, 1}, {6, 1}})}}).size(), 1u);
  EXPECT_TRUE(Rebalance({{0, busy}}).empty()) << "nobody gives";
  EXPECT_TRUE(Rebalance({{1, State(0, 5, {{5, 1}, {6, 1}})}}).empty()) << "nobody needs";
}

TEST(Algorithm1, Lines33To37PairTheMostOverloadedWithTheMostIdle) {
  const auto decisions = Rebalance({{0, State(1, 0, {{1, 3}})},
                                    {1, State(4, 0, {{2, 3}})},
                                    {2, State(0, 1.5, {{3, 2}, {4, 1}})},
                                    {3, State(0, 3.5, {{5, 2}, {6, 4}, {7, 2}, {8, 5}})},
                                    {4, State(0, 0.5, {{9, 1}})}});
  ASSERT_EQ(decisions.size(), 2u);
  EXPECT_EQ(decisions[0].kind, RebalanceDecision::Kind::kMove);
  EXPECT_EQ(decisions[0].to_slice, 1);
  EXPECT_EQ(decisions[0].from_slice, 3);
  EXPECT_EQ(decisions[0].worker, 5u) << "line 35: the least quota; of equals the first";
  EXPECT_EQ(decisions[0].quota, 1u) << "line 36";
  EXPECT_EQ(decisions[0].overloaded, 4u);
  EXPECT_EQ(decisions[0].idleness, 3.5);
  EXPECT_EQ(decisions[1].to_slice, 0);
  EXPECT_EQ(decisions[1].from_slice, 2);
  EXPECT_EQ(decisions[1].worker, 4u);
}

TEST(Algorithm1, Line34TakesTheLowerSliceOfEquals) {
  const auto decisions = Rebalance({{5, State(2, 0, {{1, 3}})},
                                    {2, State(2, 0, {{2, 3}})},
                                    {7, State(0, 2, {{3, 2}, {4, 1}})},
                                    {6, State(0, 2, {{5, 2}, {6, 4}})}});
  ASSERT_EQ(decisions.size(), 2u);
  EXPECT_EQ(decisions[0].to_slice, 2);
  EXPECT_EQ(decisions[0].from_slice, 6);
}

TEST(Algorithm1, NoSliceLosesItsLastWorkerAndEachChangesOnce) {
  std::mt19937 random(5);
  for (int i = 0; i < 3'000; ++i) {
    std::map<uint8_t, SliceState> slices;
    uint32_t worker = 0;
    for (uint8_t id = 0; id < 6; ++id) {
      SliceState& slice = slices[id];
      slice.overloaded = static_cast<uint32_t>(random() % 3);
      slice.idleness = static_cast<double>(random() % 30) / 10;  // Also more than it has workers.
      for (uint64_t count = random() % 4; count > 0; --count) {
        slice.workers.push_back({.worker = worker++,
                                 .quota = 1 + static_cast<uint32_t>(random() % 8),
                                 .fixed = random() % 4 == 0});
      }
    }
    std::set<uint32_t> moved;
    std::map<uint8_t, int> given, taken;
    for (const RebalanceDecision& decision : Rebalance(slices)) {
      ASSERT_TRUE(moved.insert(decision.worker).second);
      ASSERT_GE(decision.quota, 1u);
      if (decision.kind != RebalanceDecision::Kind::kMove) continue;
      ASSERT_LE(++given[decision.from_slice], 1);
      ASSERT_LE(++taken[decision.to_slice], 1);
      ASSERT_GE(slices[decision.from_slice].workers.size(), 2u);
      ASSERT_GT(slices[decision.to_slice].overloaded, 0u);
      ASSERT_EQ(slices[decision.from_slice].overloaded, 0u);
    }
  }
}

AgentReport Report(uint32_t agent, uint64_t interval, uint32_t worker, uint64_t generation = 1) {
  return {.agent = agent,
          .generation = generation,
          .interval = interval,
          .slices = {{.slice = 2, .overloaded = 1, .idleness = 0.5, .workers = {{worker, 3}}}}};
}

TEST(ReportCollector, AddsUpOneIntervalOfAllAgentsOnce) {
  ReportCollector collector;
  collector.AddAgent(1, 1);
  collector.AddAgent(2, 1);
  EXPECT_EQ(collector.Add(Report(2, 7, 20)), ReportCollector::Taken::kKept);
  EXPECT_EQ(collector.Add(Report(2, 7, 20)), ReportCollector::Taken::kTwice);
  EXPECT_FALSE(collector.TakeComplete()) << "agent 1 is missing";
  EXPECT_EQ(collector.Add(Report(1, 7, 10)), ReportCollector::Taken::kKept);
  const auto slices = collector.TakeComplete();
  ASSERT_TRUE(slices);
  EXPECT_EQ(slices->at(2).overloaded, 2u);
  EXPECT_EQ(slices->at(2).idleness, 1.0);
  ASSERT_EQ(slices->at(2).workers.size(), 2u);
  EXPECT_EQ(slices->at(2).workers[0].worker, 10u) << "by number, whoever reported first";
  EXPECT_FALSE(collector.TakeComplete());
}

TEST(ReportCollector, DropsAndCountsLateReportsAndAbandonsIncompleteIntervals) {
  ReportCollector collector;
  collector.AddAgent(1, 1);
  collector.AddAgent(2, 1);
  collector.Add(Report(1, 5, 10));
  EXPECT_EQ(collector.Add(Report(1, 6, 10)), ReportCollector::Taken::kKept);
  EXPECT_EQ(collector.abandoned(), 1u);
  EXPECT_EQ(collector.Add(Report(2, 5, 20)), ReportCollector::Taken::kLate);
  EXPECT_EQ(collector.late(), 1u);
  EXPECT_EQ(collector.Add(Report(2, 6, 20)), ReportCollector::Taken::kKept);
  EXPECT_TRUE(collector.TakeComplete());
  EXPECT_EQ(collector.Add(Report(2, 6, 20)), ReportCollector::Taken::kLate);
}

TEST(ReportCollector, KnowsAgentsByTheirGeneration) {
  ReportCollector collector;
  collector.AddAgent(1, 2);
  EXPECT_EQ(collector.Add(Report(1, 5, 10, 1)), ReportCollector::Taken::kOtherGeneration);
  EXPECT_EQ(collector.Add(Report(9, 5, 10)), ReportCollector::Taken::kUnknownAgent);
  EXPECT_EQ(collector.Add(Report(1, 5, 10, 2)), ReportCollector::Taken::kKept);
}

TEST(ReportCollector, AnAgentThatGoesAwayIsNotWaitedFor) {
  ReportCollector collector;
  collector.AddAgent(1, 1);
  collector.AddAgent(2, 1);
  collector.Add(Report(1, 5, 10));
  collector.RemoveAgent(2);
  EXPECT_TRUE(collector.TakeComplete());
}

TEST(AdaptiveSettings, ImpossibleOnesAreRefusedWithAReason) {
  EXPECT_TRUE(Check(kDefaults));
  for (auto change : {+[](AdaptiveSettings& s) { s.sampling_interval_ns = 0; },
                      +[](AdaptiveSettings& s) { s.samplings_per_control = 0; },
                      +[](AdaptiveSettings& s) { s.slowdown_threshold = 0.5; },
                      +[](AdaptiveSettings& s) { s.slowdown_threshold = std::nan(""); },
                      +[](AdaptiveSettings& s) { s.ratio_threshold = 1; },
                      +[](AdaptiveSettings& s) { s.ratio_threshold = 0; },
                      +[](AdaptiveSettings& s) { s.max_quota = 0; }}) {
    AdaptiveSettings settings;
    change(settings);
    const auto checked = Check(settings);
    ASSERT_FALSE(checked);
    EXPECT_NE(checked.error().message.find("must be"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice::rain
