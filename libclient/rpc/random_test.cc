// SPDX-License-Identifier: Apache-2.0
// Random faults in a replayable world: every call ends once and in time, and says no more than what
// is true about whether it was carried out.
#include <deque>
#include <random>

#include "libclient/rpc/rpc_fixture_testing.h"

namespace sluice::rpc {
namespace {

constexpr uint32_t kApply = 10;
constexpr int kServers = 3;

class RpcUnderFaults : public RpcWorld {
 protected:
  struct Asked {
    Method method;
    uint64_t deadline_ns = 0;
    int applied = 0;
    std::optional<Result> result;
  };

  void AddApply(size_t i) {
    server(i).server->Handle(kApply, "apply", [this](Request request) {
      ++asked_[std::stoul(request.payload().ToString())].applied;
      if (random_() % 4 == 0) {
        later_.push_back(std::move(request));
      } else {
        request.ReplyCopy("ok", 2);
      }
    });
  }

  void Ask() {
    const size_t number = asked_.size();
    asked_.emplace_back();
    Asked& asked = asked_.back();
    asked.method = {.id = kApply, .idempotent = random_() % 3 == 0, .token = random_() % 2 == 0};
    asked.deadline_ns = now_ns_ + (20 + random_() % 400) * kMs;
    CallOptions options;
    options.deadline_ns = asked.deadline_ns;
    std::string request = std::to_string(number) + " ";
    if (random_() % 4 == 0) request += std::string(3000, '.');
    channel_->Call(
        asked.method, 0, client_->Copy(request.data(), request.size()),
        [this, number](Result result) {
          EXPECT_FALSE(asked_[number].result) << "ended twice";
          EXPECT_LE(now_ns_, asked_[number].deadline_ns + 3 * kMs) << "ended late";
          asked_[number].result = std::move(result);
        },
        options);
  }

  void Fault() {
    const size_t i = random_() % kServers;
    switch (random_() % 8) {
      case 0: StopAndStart(i); break;
      case 1: stopped_ = i; break;
      case 2: stopped_ = SIZE_MAX; break;
      case 3: fake_sluice::BreakPaths(random_()); break;
      case 4: fake_sluice::FailNext(); break;
      case 5: fake_sluice::LimitInTransit(1 + random_() % 64); break;
      case 6:
        fake_sluice::StopDaemon(random_());
        fake_sluice::StartDaemon();
        break;
      case 7: fake_sluice::HoldConnects(random_() % 2 == 0); break;
    }
  }

  void StopAndStart(size_t i) {
    later_.clear();
    StartServer(static_cast<int>(i));
    AddApply(i);
  }

  void Heal() {
    stopped_ = SIZE_MAX;
    fake_sluice::LimitInTransit(64);
    fake_sluice::HoldConnects(false);
  }

  void Run(uint64_t seed) {
    random_.seed(seed);
    Begin(kServers, {.deadline_ms = 300, .max_attempts = 6, .hedge_percentile = 90});
    for (size_t i = 0; i < kServers; ++i) AddApply(i);
    for (int step = 0; step < 1500; ++step) {
      if (random_() % 2 == 0) Ask();
      if (random_() % 50 == 0) Fault();
      if (random_() % 3 == 0) later_.clear();
      Turn(random_() % 8);
    }
    Heal();
    Turns(600);
    later_.clear();
    for (const Asked& asked : asked_) {
      ASSERT_TRUE(asked.result) << "a call that never ends";
      if (!asked.method.idempotent) {
        ASSERT_LE(asked.applied, 1) << "carried out twice";
      }
      if (asked.result->outcome == SLUICE_OK) {
        ASSERT_GE(asked.applied, 1);
      }
      if (asked.result->outcome == SLUICE_FAILED) {
        ASSERT_EQ(asked.applied, 0) << CodeName(asked.result->code);
      }
    }
    // Liveness: with the faults gone, all is well again.
    Turns(3000);
    const size_t before = asked_.size();
    for (int i = 0; i < 20; ++i) {
      Ask();
      asked_.back().deadline_ns += 1;
      Turns(30);
    }
    later_.clear();
    Turns(500);
    size_t ok = 0;
    for (size_t i = before; i < asked_.size(); ++i) {
      ok += asked_[i].result && asked_[i].result->outcome == SLUICE_OK ? 1 : 0;
    }
    EXPECT_GE(ok, 10u) << channel_->Explain();
    for (int i = 0; i < 200 && Metric("outstanding") > 0; ++i) Turn();  // A probe may be under way.
    EXPECT_EQ(Metric("outstanding"), 0u);
  }

  std::mt19937_64 random_;
  std::deque<Asked> asked_;
  std::vector<Request> later_;
};

class Seeds : public RpcUnderFaults, public testing::WithParamInterface<uint64_t> {};

TEST_P(Seeds, EveryCallEndsOnceInTimeAndTellsTheTruth) { Run(GetParam()); }

INSTANTIATE_TEST_SUITE_P(RpcUnderFaults, Seeds, testing::Range<uint64_t>(1, 41));

}  // namespace
}  // namespace sluice::rpc
