// SPDX-License-Identifier: Apache-2.0
// Calls to two replicas that are processes of another host, while those, their daemon or the
// network fail: every call ends, those that can succeed do, and nothing is carried out twice.
#include <gtest/gtest.h>

#include <cstring>
#include <sluice/rpc.hpp>

#include "tests/process/app.h"

namespace sluice::testing {
namespace {

constexpr int kFirstService = 720;
constexpr rpc::Method kAdd{.id = 1, .token = true};
constexpr rpc::Method kGet{.id = 2, .idempotent = true};

class RpcFaults : public TwoHosts {
 protected:
  bool BeginWithServers(double deadline_ms) {
    if (!Begin(Quick(), Quick())) return false;
    auto endpoint = rpc::Endpoint::Open({.socket_path = left_->control_socket()});
    EXPECT_TRUE(endpoint);
    if (!endpoint) return false;
    endpoint_ = std::move(*endpoint);
    rpc::ServiceMap map{.name = "counter", .domain = "dc/a"};
    map.tuning.connect_timeout_ms = 1000;  // A loaded machine is no fault.
    map.tuning.request_timeout_ms = 300;
    map.tuning.deadline_ms = deadline_ms;
    map.tuning.retry_reserve = 1'000;  // All calls fail at once here, and no others come.
    map.tuning.max_attempts = 20;
    for (size_t i = 0; i < 2; ++i) {
      StartServer(i);
      map.replicas.push_back({0, right_->Address() + ":" + std::to_string(kFirstService + i),
                              i == 0 ? "dc/a" : "dc/b"});
    }
    channel_ = std::make_unique<rpc::Channel>(*endpoint_, rpc::FixedSource(map));
    EXPECT_TRUE(PollUntil([&] { return channel_->connected(0, 0) && channel_->connected(0, 1); }))
        << channel_->Explain();
    return !HasFailure();
  }
  ~RpcFaults() override { channel_.reset(); }

  static DaemonOptions Quick() {
    return {.settings = {{"engine.keepalive_interval_ms", "100"},
                         {"engine.keepalive_timeout_ms", "3000"},
                         {"peer.dial_backoff_max_ms", "200"}}};
  }

  void StartServer(size_t i) {
    const std::string log = folder_.File("server-" + std::to_string(i));
    WriteFile(log, "");
    auto started = Process::Start(
        {.arguments = {SLUICE_RPC_SERVER, std::to_string(kFirstService + i)},
         .environment = {{"SLUICE_SOCKET", right_->control_socket()}},
         .output_file = log});
    ASSERT_TRUE(started);
    servers_[i] = std::move(*started);
    ASSERT_TRUE(WaitUntil([&] { return ReadFile(log).find("ready") != std::string::npos; }));
  }

  bool PollUntil(const std::function<bool()>& condition) {
    return WaitUntil([&] {
      endpoint_->Poll(1);
      return condition();
    });
  }

  rpc::Result Call(const rpc::Method& method) {
    std::optional<rpc::Result> ended;
    channel_->Call(method, 0, {}, [&](rpc::Result result) { ended = std::move(result); });
    EXPECT_TRUE(PollUntil([&] { return ended.has_value(); })) << "a call that never ends";
    return ended ? std::move(*ended) : rpc::Result();
  }

  void ExpectGetsSucceed(int replica) {
    for (int i = 0; i < 10; ++i) {
      const rpc::Result result = Call(kGet);
      ASSERT_EQ(result.code, rpc::Code::kOk) << channel_->Explain();
      EXPECT_EQ(result.replica, replica) << channel_->Explain();
    }
  }

  TemporaryFolder folder_;
  std::unique_ptr<rpc::Endpoint> endpoint_;
  std::unique_ptr<rpc::Channel> channel_;
  std::unique_ptr<Process> servers_[2];
};

TEST_F(RpcFaults, AKilledServersCallsGoToTheOtherReplica) {
  if (!BeginWithServers(10'000)) return;
  servers_[0]->Kill();
  ExpectGetsSucceed(1);
}

TEST_F(RpcFaults, AStoppedServersCallsGoToTheOtherReplica) {
  if (!BeginWithServers(10'000)) return;
  servers_[0]->Signal(SIGSTOP);
  ExpectGetsSucceed(1);
  servers_[0]->Signal(SIGCONT);
}

TEST_F(RpcFaults, OnABlackHoledLinkCallsEndByTheirDeadlineAndSucceedAfterwards) {
  if (!BeginWithServers(1'000)) return;
  ASSERT_TRUE(network_->Unplug(1));
  const rpc::Result lost = Call(kGet);
  EXPECT_NE(lost.code, rpc::Code::kOk);
  EXPECT_NE(lost.outcome, SLUICE_OK);
  ASSERT_TRUE(network_->Plug(1));
  EXPECT_TRUE(WaitUntil([&] { return Call(kGet).code == rpc::Code::kOk; })) << channel_->Explain();
}

// What each add says is what happened: one that ended OK is in the count, one that FAILED is not.
TEST_F(RpcFaults, ADaemonThatIsKilledUnderLoadMakesNothingHappenTwice) {
  if (!BeginWithServers(10'000)) return;
  uint64_t begun = 0, ok = 0, unknown = 0, failed = 0;
  const auto add = [&](rpc::Result result) {
    ++(result.outcome == SLUICE_OK ? ok : result.outcome == SLUICE_FAILED ? failed : unknown);
  };
  const auto load = [&](uint64_t count) {
    for (uint64_t i = 0; i < count; ++i, ++begun) {
      channel_->Call(kAdd, 0, {}, add);
      endpoint_->Poll(0);
    }
  };
  load(100);
  right_->Kill();
  load(50);
  ASSERT_TRUE(right_->Start());
  load(50);
  ASSERT_TRUE(PollUntil([&] { return ok + failed + unknown == begun; })) << "calls that never end";
  uint64_t counted = 0;
  for (int replica = 0; replica < 2; ++replica) {
    std::optional<rpc::Result> ended;
    const auto get = [&] {
      ended.reset();
      rpc::CallOptions options;
      options.replica = replica;
      channel_->Call(
          kGet, 0, {}, [&](rpc::Result result) { ended = std::move(result); }, options);
      PollUntil([&] { return ended.has_value(); });
      return ended && ended->code == rpc::Code::kOk;
    };
    ASSERT_TRUE(WaitUntil(get)) << channel_->Explain();
    uint64_t count = 0;
    std::memcpy(&count, ended->payload.data(), sizeof(count));
    counted += count;
  }
  EXPECT_GE(counted, ok);
  EXPECT_LE(counted, ok + unknown);
  EXPECT_GT(ok, 0u) << failed << " failed, " << unknown << " unknown\n"
                    << channel_->MetricsText() << channel_->Explain();
}

}  // namespace
}  // namespace sluice::testing
