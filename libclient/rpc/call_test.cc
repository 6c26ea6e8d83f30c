// SPDX-License-Identifier: Apache-2.0
#include <coroutine>

#include "libclient/rpc/rpc_fixture_testing.h"
#include "libclient/rpc/wire.h"

namespace sluice::rpc {
namespace {

constexpr Method kPlainEcho{.id = kEcho};
constexpr Method kIdempotentEcho{.id = kEcho, .idempotent = true};
constexpr Method kPlainKeep{.id = kKeep};
constexpr Method kIdempotentKeep{.id = kKeep, .idempotent = true};
constexpr Method kTokenKeep{.id = kKeep, .token = true};

using Rpc = RpcWorld;

TEST_F(Rpc, EchoesSmallAndLargeRequests) {
  Begin(1);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{100'000}}) {
    const std::string request(bytes, 'x');
    Start(kPlainEcho, request);
    ASSERT_TRUE(Wait());
    EXPECT_EQ(Wait()->code, Code::kOk);
    EXPECT_EQ(Wait()->outcome, SLUICE_OK);
    EXPECT_EQ(Wait()->text(), request);
  }
}

TEST_F(Rpc, PrefersTheNearReplica) {
  Begin(3);
  for (int i = 0; i < 10; ++i) {
    Start(kPlainEcho);
    ASSERT_TRUE(Wait());
  }
  EXPECT_EQ(server(0).handled, 10);
}

TEST_F(Rpc, GoesToAnotherReplicaWhenTheNearOneIsStopped) {
  Begin(2);
  stopped_ = 0;
  Start(kIdempotentEcho);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kOk);
  EXPECT_EQ(Wait()->replica, 1);
  EXPECT_EQ(Metric("timeouts_total"), 1u);
}

TEST_F(Rpc, PrefersAnotherReplicaWhileThePathToTheNearOneIsDegraded) {
  Begin(2);
  Start(kPlainEcho);
  ASSERT_TRUE(Wait());
  ASSERT_EQ(Wait()->replica, 0);
  fake_sluice::Degrade(kFirstService);
  Start(kPlainEcho);  // The one that finds out.
  ASSERT_TRUE(Wait());
  for (int i = 0; i < 5; ++i) {
    Start(kPlainEcho);
    ASSERT_TRUE(Wait());
    EXPECT_EQ(Wait()->replica, 1) << channel_->Explain();
  }
  Turns(1500);
  Start(kPlainEcho);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->replica, 1) << "asked now and then, it still is";
  EXPECT_LE(Metric("probes_total"), 4u);
  fake_sluice::Mend(kFirstService);
  Turns(1000);
  Start(kPlainEcho);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->replica, 0) << channel_->Explain();
  const uint64_t probes = Metric("probes_total");
  Turns(1500);
  EXPECT_EQ(Metric("probes_total"), probes) << "nothing is left to ask";
}

TEST_F(Rpc, AvoidsAReplicaThatFailsAndComesBackAfterAProbe) {
  Begin(2);
  stopped_ = 0;
  for (int i = 0; i < 5; ++i) {
    Start(kIdempotentEcho);
    ASSERT_TRUE(Wait());
  }
  EXPECT_EQ(Metric("timeouts_total"), 3u) << "after three nobody waits for it any more";
  stopped_ = SIZE_MAX;
  const int before = server(0).handled;
  Turns(1500);
  Start(kIdempotentEcho);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->replica, 0) << channel_->Explain();
  EXPECT_GT(server(0).handled, before);
}

TEST_F(Rpc, DoesNotRepeatWhatMayHaveBeenDone) {
  Begin(2);
  Start(kPlainKeep);
  Turns(5);
  ASSERT_EQ(server(0).handled, 1);
  servers_[0].reset();
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kUnknown);
  EXPECT_EQ(Wait()->outcome, SLUICE_UNKNOWN);
  EXPECT_EQ(server(1).handled, 0);
}

TEST_F(Rpc, RepeatsAnyMethodThatWasCertainlyNotDelivered) {
  Begin(2);
  fake_sluice::FailNext();
  Start(kPlainEcho);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kOk);
  EXPECT_EQ(Wait()->attempts, 2u);
  EXPECT_EQ(server(0).handled + server(1).handled, 1);
}

TEST_F(Rpc, RepeatsAnIdempotentMethodAtAnotherReplicaWhenTheServerDies) {
  Begin(2);
  stopped_ = 0;
  Start(kIdempotentEcho);
  Turns(2);
  servers_[0].reset();
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kOk);
  EXPECT_EQ(Wait()->replica, 1);
}

TEST_F(Rpc, WithATokenAsksTheSameServerAgainAndGetsTheFirstReply) {
  Begin(2);
  Start(kTokenKeep);
  Turns(3);
  ASSERT_EQ(server(0).kept.size(), 1u);
  fake_sluice::LoseNext();  // The reply, though its sender believes otherwise.
  server(0).kept[0].ReplyCopy("done", 4);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kOk);
  EXPECT_EQ(Wait()->text(), "done");
  EXPECT_EQ(server(0).handled, 1) << "carried out twice";
  EXPECT_EQ(server(1).handled, 0) << "another server cannot know";
}

TEST_F(Rpc, WithATokenIsToldWhenTheServerThatKnewHasRestarted) {
  Begin(1);
  Start(kTokenKeep);
  Turns(3);
  ASSERT_EQ(server(0).handled, 1);
  StartServer(0);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kForgotten);
  EXPECT_EQ(Wait()->outcome, SLUICE_UNKNOWN);
  EXPECT_EQ(server(0).handled, 0);
}

TEST_F(Rpc, EndsByItsDeadlineWhateverDies) {
  Begin(1);
  stopped_ = 0;
  const uint64_t begun = now_ns_;
  CallOptions options;
  options.deadline_ns = now_ns_ + 70 * kMs;
  Start(kPlainEcho, "hello", options);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kDeadline);
  EXPECT_EQ(Wait()->outcome, SLUICE_UNKNOWN);
  EXPECT_LE(now_ns_ - begun, 73 * kMs);
}

TEST_F(Rpc, OfAServiceThatIsNotThereFailsForCertain) {
  Begin(1);
  servers_[0].reset();
  Turns(2);
  Start(kPlainEcho);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->outcome, SLUICE_FAILED);
}

TEST_F(Rpc, WaitsForAServerThatComesBackBeforeTheDeadline) {
  Begin(1);
  servers_[0].reset();
  Start(kPlainEcho);
  Turns(300);
  ASSERT_FALSE(results_.back());
  StartServer(0);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kOk);
}

TEST_F(Rpc, GivesUpAConnectThatGetsNoAnswer) {
  fake_sluice::HoldConnects(true);
  Begin(1);
  Turns(15);
  EXPECT_GE(Metric("connect_failures_total"), 1u);
  fake_sluice::HoldConnects(false);
  Start(kPlainEcho);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kOk);
}

TEST_F(Rpc, TheServerDropsWhatExpiredWhileItWaited) {
  Begin(1, {}, {.max_running = 1});
  Start(kPlainKeep);
  Turns(2);
  CallOptions options;
  options.deadline_ns = now_ns_ + 30 * kMs;
  Start(kPlainKeep, "late", options);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kDeadline);
  Turns(3);
  server(0).kept[0].ReplyCopy("", 0);
  Turns(3);
  EXPECT_EQ(server(0).handled, 1) << "the second was carried out though nobody waited";
}

TEST_F(Rpc, TheServerIsToldHowMuchTimeIsLeft) {
  Begin(1);
  CallOptions options;
  options.deadline_ns = now_ns_ + 500 * kMs;
  options.trace_id = 77;
  Start(kPlainKeep, "x", options);
  Turns(3);
  ASSERT_EQ(server(0).kept.size(), 1u);
  EXPECT_NEAR(static_cast<double>(server(0).kept[0].deadline_ns()),
              static_cast<double>(options.deadline_ns), 3 * kMs);
  EXPECT_EQ(server(0).kept[0].trace_id(), 77u);
  EXPECT_FALSE(server(0).kept[0].cancelled());
  Turns(600);
  EXPECT_TRUE(server(0).kept[0].cancelled());
}

TEST_F(Rpc, OverloadIsSaidAtOnceAndNothingWasDone) {
  Begin(1, {.max_attempts = 1}, {.max_running = 1, .max_waiting = 1});
  Start(kPlainKeep);
  Start(kPlainKeep);
  Turns(3);
  Start(kPlainKeep);
  ASSERT_TRUE(Wait(10));
  EXPECT_EQ(Wait()->code, Code::kOverloaded);
  EXPECT_EQ(Wait()->outcome, SLUICE_FAILED);
}

TEST_F(Rpc, AServerThatIsNotReadySaysSoAndTheNextReplicaAnswers) {
  Begin(2);
  server(0).server->SetServing(false);
  Start(kPlainEcho);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kOk);
  EXPECT_EQ(Wait()->replica, 1);
}

TEST_F(Rpc, CancelEndsTheCallAndTellsTheServer) {
  Begin(1);
  const CallId call = Start(kPlainKeep);
  Turns(3);
  bool told = false;
  server(0).kept[0].OnCancel([&] { told = true; });
  EXPECT_TRUE(channel_->Cancel(call));
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kCancelled);
  EXPECT_EQ(Wait()->outcome, SLUICE_UNKNOWN);
  Turns(3);
  EXPECT_TRUE(told);
  EXPECT_FALSE(channel_->Cancel(call));
}

TEST_F(Rpc, AClientThatVanishesCancelsWhatItAskedFor) {
  Begin(1, {}, {.max_running = 1});
  Start(kPlainKeep);
  Start(kPlainKeep);
  Turns(3);
  channel_.reset();
  client_.reset();
  client_ = std::move(*Endpoint::Open({.now_ns = Clock(), .seed = 6}));
  Turns(3);
  ASSERT_EQ(server(0).kept.size(), 1u);
  EXPECT_TRUE(server(0).kept[0].cancelled());
  server(0).kept.clear();
  Turns(3);
  EXPECT_EQ(server(0).handled, 1) << "the one that waited was carried out for nobody";
  EXPECT_EQ(server(0).server->running(), 0u);
}

TEST_F(Rpc, StreamsPartsInOrder) {
  Begin(1);
  int parts = 0;
  CallOptions options;
  options.on_part = [&](const Payload&) { ++parts; };
  Start({.id = kStream}, std::string(1, 20), options);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kOk);
  EXPECT_EQ(Wait()->text(), "end");
  EXPECT_EQ(parts, 20);
}

TEST_F(Rpc, ASlowCallOfAnIdempotentMethodIsHedged) {
  Begin(2, {.hedge_percentile = 90});
  for (int i = 0; i < 100; ++i) {
    Start(kIdempotentEcho);
    ASSERT_TRUE(Wait());
  }
  stopped_ = 0;
  const uint64_t begun = now_ns_;
  Start(kIdempotentEcho);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->replica, 1);
  EXPECT_LT(now_ns_ - begun, 20 * kMs) << "before its timeout";
  EXPECT_EQ(Metric("hedges_won_total"), 1u);
}

TEST_F(Rpc, RetriesStayWithinTheBudget) {
  Begin(1, {.deadline_ms = 300, .max_attempts = 100, .retry_share = 0.1, .retry_reserve = 5});
  stopped_ = 0;
  for (int i = 0; i < 200; ++i) Start(kIdempotentEcho);
  Turns(400);
  EXPECT_LE(Metric("retries_total"), 25u);
  EXPECT_GT(Metric("retries_over_budget_total"), 0u);
}

TEST_F(Rpc, ALateReplyAndASecondOneAreDropped) {
  Begin(1, {.deadline_ms = 30});
  Start(kPlainKeep);
  ASSERT_TRUE(Wait());
  server(0).kept[0].ReplyCopy("late", 4);
  Turns(3);
  EXPECT_EQ(Metric("late_replies_total"), 1u);
  Start(kPlainEcho);
  Turn();
  fake_sluice::DuplicateNext();
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kOk);
  Turns(3);
  EXPECT_EQ(results_.size(), 2u);
}

TEST_F(Rpc, AMethodThatTheServerDoesNotKnowIsNotTriedAgain) {
  Begin(2);
  Start({.id = 99});
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kNoMethod);
  EXPECT_EQ(Wait()->attempts, 1u);
}

TEST_F(Rpc, AHandlerThatForgetsToReplyIsAnsweredForIt) {
  Begin(1);
  Start(kPlainKeep);
  Turns(3);
  server(0).kept.clear();
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kApplication);
  EXPECT_EQ(Wait()->text(), "the handler gave no reply");
}

TEST_F(Rpc, FanOutIsOverWhenEnoughHaveAnswered) {
  Begin(3);
  stopped_ = 2;
  std::vector<Target> targets;
  for (int replica = 0; replica < 3; ++replica) targets.push_back({0, replica, {}});
  std::optional<bool> enough;
  std::vector<Result> results;
  channel_->FanOut(kPlainEcho, std::move(targets), {.need = 2, .wait_for_all = false},
                   [&](bool ok, std::vector<Result> all) {
                     enough = ok;
                     results = std::move(all);
                   });
  for (int i = 0; i < 20 && !enough; ++i) Turn();
  ASSERT_TRUE(enough);
  EXPECT_TRUE(*enough);
  EXPECT_EQ(results[0].code, Code::kOk);
  EXPECT_EQ(results[2].code, Code::kCancelled);
}

TEST_F(Rpc, FanOutOfAllFailsWhenOneDoes) {
  Begin(2, {.deadline_ms = 100});
  stopped_ = 1;
  std::vector<Target> targets(2);
  targets[1].replica = 1;
  std::optional<bool> enough;
  channel_->FanOut(kPlainEcho, std::move(targets), {},
                   [&](bool ok, const std::vector<Result>&) { enough = ok; });
  for (int i = 0; i < 300 && !enough; ++i) Turn();
  ASSERT_TRUE(enough);
  EXPECT_FALSE(*enough);
}

TEST_F(Rpc, RubbishFromAServerEndsItsConnectionAndNotTheClient) {
  Begin(2);
  Start(kIdempotentEcho);
  client_->Poll(0);
  fake_sluice::Deliver(1);
  server(0).endpoint->Poll(0);
  sluice_channel* raw = nullptr;
  sluice_channel_open(nullptr, 0, &raw);
  ASSERT_TRUE(Wait());
  // A server that speaks another protocol takes the first one's place.
  servers_[0].reset();
  sluice_listener listener;
  ASSERT_EQ(sluice_listen(raw, kFirstService, 0, &listener), 0);
  Turns(800);
  sluice_event event{};
  bool accepted = false;
  while (sluice_poll(raw, &event, 1) == 1) {
    if (event.type == SLUICE_EVENT_ACCEPTED) {
      accepted = true;
      sluice_send_copy(raw, event.socket, "rubbish", 7, SLUICE_SEND_SILENT, 0, 0);
    }
    if (event.data != nullptr) sluice_free(raw, event.data);
  }
  ASSERT_TRUE(accepted);
  Turns(5);
  EXPECT_GE(Metric("rubbish_total"), 1u);
  Start(kIdempotentEcho);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->replica, 1);
  sluice_channel_close(raw);
}

TEST_F(Rpc, RubbishFromAClientEndsItsConnectionAndNotTheServer) {
  Begin(1);
  sluice_channel* raw = nullptr;
  sluice_channel_open(nullptr, 0, &raw);
  sluice_socket socket = 0;
  ASSERT_EQ(sluice_connect(raw, AddressOf(0).c_str(), 0, &socket), 0);
  Turns(2);
  sluice_send_copy(raw, socket, "rubbish that is long enough to be a header", 42, 0, 0, 0);
  Turns(3);
  bool closed = false;
  sluice_event event{};
  while (sluice_poll(raw, &event, 1) == 1) {
    closed |= event.type == SLUICE_EVENT_CLOSED;
    if (event.data != nullptr) sluice_free(raw, event.data);
  }
  EXPECT_TRUE(closed);
  Start(kPlainEcho);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kOk);
  sluice_channel_close(raw);
}

// What an application writes to use co_await.
struct Task {
  struct promise_type {
    Task get_return_object() { return {}; }
    std::suspend_never initial_suspend() { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() {}
  };
};

Task CallTwice(Endpoint& endpoint, Channel& channel, std::string& text) {
  for (const char* word : {"one", "two"}) {
    const Result result = co_await channel.Await(kPlainEcho, 0, endpoint.Copy(word, 3));
    text += result.text();
  }
}

TEST_F(Rpc, CanBeAwaited) {
  Begin(1);
  std::string text;
  CallTwice(*client_, *channel_, text);
  Turns(20);
  EXPECT_EQ(text, "onetwo");
}

TEST_F(Rpc, CarriesItsDeadlineOverEveryHop) {
  Begin(2);
  // The first server asks the second, which never answers, within its own caller's time.
  Channel hop(*server(0).endpoint,
              FixedSource({.name = "hop", .replicas = {{0, AddressOf(1), ""}}, .tuning = {}}));
  std::optional<Result> inner;
  server(0).server->Handle(50, "hop", [&](Request request) {
    CallOptions options;
    options.deadline_ns = request.deadline_ns();
    options.trace_id = request.trace_id();
    const auto asked = std::make_shared<Request>(std::move(request));
    hop.Call(
        kPlainKeep, 0, {}, [&inner, asked](Result result) { inner = std::move(result); }, options);
  });
  CallOptions options;
  options.deadline_ns = now_ns_ + 100 * kMs;
  Start({.id = 50}, "", options);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Wait()->code, Code::kDeadline);
  Turns(5);
  ASSERT_TRUE(inner);
  EXPECT_EQ(inner->code, Code::kDeadline);
  ASSERT_EQ(server(1).kept.size(), 1u);
  EXPECT_TRUE(server(1).kept[0].cancelled());
  // What is left is counted when a message is sent: its time on the way is not.
  EXPECT_LE(server(1).kept[0].deadline_ns(), options.deadline_ns + 5 * kMs);
}

TEST(ServiceMaps, AreReadFromToml) {
  ServiceMap map;
  std::string error;
  ASSERT_TRUE(ParseServiceMap(R"(
name = "ps"
domain = "dc1/pod1/a"
[tuning]
request_timeout_ms = 25.5
max_attempts = 7
[[replica]]
shard = 1
address = "host:7000"
domain = "dc1/pod1/b"
)",
                              map, error))
      << error;
  EXPECT_EQ(map.name, "ps");
  EXPECT_EQ(map.tuning.request_timeout_ms, 25.5);
  EXPECT_EQ(map.tuning.max_attempts, 7u);
  ASSERT_EQ(map.replicas.size(), 1u);
  EXPECT_EQ(map.replicas[0].shard, 1u);
}

TEST(ServiceMaps, ThatAreWrongSayWhereAndChangeNothing) {
  ServiceMap map{.name = "before", .domain = "", .replicas = {}, .tuning = {}};
  std::string error;
  for (const char* text : {"name = ", "[tuning]\nmax_attempts = -1", "[tuning]\nretry_share = 2",
                           "[tuning]\nnot_a_key = 1", "[[replica]]\nshard = 0",
                           "[[replica]]\nshard = 70000\naddress='a:1'", "other = 1"}) {
    error.clear();
    EXPECT_FALSE(ParseServiceMap(text, map, error)) << text;
    EXPECT_FALSE(error.empty()) << text;
    EXPECT_EQ(map.name, "before");
  }
}

}  // namespace
}  // namespace sluice::rpc
