// SPDX-License-Identifier: Apache-2.0
// Servers and workers as a whole, on a libsluice within this process that misbehaves at will.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "fake_sluice.h"
#include "server.h"
#include "worker.h"

namespace sluice_ps {
namespace {

constexpr uint32_t kShards = 3;
constexpr uint32_t kWorkers = 2;
constexpr int kDrainTurns = 20'000;  // Reconnecting waits for real milliseconds.
constexpr TableShape kShape{.shards = kShards, .rows = 300, .dim = 8};

// Two servers with three shards, two workers.
class Cluster : public testing::Test {
 protected:
  Cluster() {
    fake_sluice::Reset();
    for (uint32_t first : {0u, 2u}) {
      ServerOptions options;
      options.service = static_cast<uint16_t>(100 + first);
      options.first_shard = first;
      options.last_shard = first == 0 ? 1 : 2;
      options.shape = kShape;
      endpoints_.push_back(std::make_unique<Endpoint>());
      EXPECT_TRUE(endpoints_.back()->Open("", "server"));
      servers_.push_back(std::make_unique<Server>(*endpoints_.back(), options));
      EXPECT_TRUE(servers_.back()->Listen());
    }
    for (uint32_t worker = 0; worker < kWorkers; ++worker) {
      StartWorker(worker, 1);
    }
  }

  ~Cluster() override {
    workers_.clear();
    servers_.clear();
    endpoints_.clear();
    EXPECT_EQ(fake_sluice::BadFrees(), 0u);
    EXPECT_EQ(fake_sluice::Buffers(), 0u);
  }

  void StartWorker(uint32_t worker, uint64_t run) {
    WorkerOptions options;
    options.servers = {"a:100", "a:101", "b:102"};
    options.workload.shape = kShape;
    options.workload.worker = worker;
    options.workload.workers = kWorkers;
    options.workload.run = run;
    options.workload.outstanding = 8;
    options.workload.mean_bytes = 400;
    options.workload.p99_bytes = 1000;
    options.workload.seed = worker + 1;
    endpoints_.push_back(std::make_unique<Endpoint>());
    EXPECT_TRUE(endpoints_.back()->Open("", "worker"));
    workers_.push_back(std::make_unique<Worker>(*endpoints_.back(), options));
  }

  void Turn(bool begin_operations = true, size_t deliver = 5) {
    for (auto& worker : workers_) {
      worker->RunOnce(begin_operations, 0);
    }
    for (auto& server : servers_) {
      server->RunOnce(0);
    }
    fake_sluice::Deliver(deliver);
  }

  // True: all came to an end.
  bool Drain() {
    const auto all_over = [&] {
      return std::ranges::all_of(workers_, [](const auto& worker) { return worker->AllOver(); });
    };
    for (int turn = 0; !all_over() && turn < kDrainTurns; ++turn) {
      Turn(false, 50);
    }
    return all_over();
  }

  void ExpectGood() {
    ASSERT_TRUE(Drain());
    uint64_t applied = 0;
    uint64_t pushed = 0;
    for (auto& server : servers_) {
      const ServerStats stats = server->Finish();
      EXPECT_EQ(stats.rows_wrong, 0u);
      EXPECT_EQ(stats.sends_lost, 0u);
      applied += stats.shards.pushes_applied;
    }
    for (auto& worker : workers_) {
      const WorkerStats stats = worker->Finish();
      EXPECT_TRUE(stats.Good());
      EXPECT_TRUE(stats.workload.complaints.empty()) << stats.workload.complaints.front();
      EXPECT_GT(stats.workload.values_verified, 1000u);
      EXPECT_EQ(stats.workload.push.outcomes.ok, stats.workload.push.outcomes.begun);
      pushed += stats.workload.push.outcomes.ok;
    }
    EXPECT_EQ(applied, pushed * kShards);
  }

  // One worker's verdict after a run in which something was broken on purpose.
  bool AnyWorkerComplains() {
    Drain();
    return std::ranges::any_of(workers_, [](auto& worker) { return !worker->Finish().Good(); });
  }

  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

TEST_F(Cluster, EveryValueIsRightAndEveryOperationEndsOnce) {
  for (int turn = 0; turn < 2000; ++turn) {
    Turn();
  }
  ExpectGood();
  const WorkerStats stats = workers_[0]->Finish();
  EXPECT_EQ(stats.workload.fetch.outcomes.unknown, 0u);
  EXPECT_GT(stats.workload.push.outcomes.ok, 100u);
}

TEST_F(Cluster, BackPressureDelaysAndLosesNothing) {
  fake_sluice::LimitInTransit(1);
  for (int turn = 0; turn < 2000; ++turn) {
    Turn();
  }
  ExpectGood();
}

TEST_F(Cluster, BrokenPathsEndFetchesAsUnknownAndApplyPushesOnce) {
  std::mt19937_64 random(3);
  for (int turn = 0; turn < 5000; ++turn) {
    Turn(true, 8);
    if (random() % 100 == 0) {
      fake_sluice::BreakPaths(random());
    }
  }
  ExpectGood();
  const WorkerStats stats = workers_[0]->Finish();
  EXPECT_GT(stats.workload.fetch.outcomes.unknown, 0u);
  EXPECT_GT(stats.workload.pushes_resent, 0u);
  EXPECT_GT(stats.connections_lost, 10u);
  EXPECT_FALSE(stats.outages.empty());
}

TEST_F(Cluster, ADaemonThatIsAwayForAWhileIsAnOutageAndNothingElse) {
  for (int round = 0; round < 5; ++round) {
    for (int turn = 0; turn < 500; ++turn) {
      Turn();
    }
    fake_sluice::StopDaemon(static_cast<uint64_t>(round) * 77);
    for (int turn = 0; turn < 20; ++turn) {
      Turn();
    }
    fake_sluice::StartDaemon();
  }
  ExpectGood();
  EXPECT_GT(workers_[0]->Finish().outages.size(), 3u);
}

TEST_F(Cluster, AWorkerStartedAnewTakesTheTableAsItIs) {
  for (int turn = 0; turn < 500; ++turn) {
    Turn();
  }
  ASSERT_TRUE(Drain());
  workers_.clear();
  StartWorker(0, 2);
  StartWorker(1, 3);
  for (int turn = 0; turn < 500; ++turn) {
    Turn();
  }
  ASSERT_TRUE(Drain());
  for (auto& worker : workers_) {
    EXPECT_TRUE(worker->Finish().Good());
  }
}

TEST_F(Cluster, AChangedBitShows) {
  for (int turn = 0; turn < 500; ++turn) {
    Turn();
  }
  fake_sluice::FlipBitInNext();
  for (int turn = 0; turn < 500; ++turn) {
    Turn();
  }
  EXPECT_TRUE(AnyWorkerComplains());
}

TEST_F(Cluster, ADuplicatedMessageShows) {
  bool shows = false;
  for (int attempt = 0; attempt < 20 && !shows; ++attempt) {
    for (int turn = 0; turn < 100; ++turn) {
      Turn();
    }
    fake_sluice::DuplicateNext();
    for (int turn = 0; turn < 100; ++turn) {
      Turn();
    }
    shows = AnyWorkerComplains();
  }
  EXPECT_TRUE(shows);
}

TEST_F(Cluster, ALostMessageShows) {
  for (int turn = 0; turn < 500; ++turn) {
    Turn();
  }
  fake_sluice::LoseNext();
  for (int turn = 0; turn < 500; ++turn) {
    Turn();
  }
  for (int turn = 0; turn < 200; ++turn) {
    Turn(false);
  }
  EXPECT_TRUE(std::ranges::any_of(workers_, [](auto& worker) { return !worker->Finish().Good(); }));
}

}  // namespace
}  // namespace sluice_ps
