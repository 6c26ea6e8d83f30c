// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/resolver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <optional>
#include <thread>

namespace sluice::control {
namespace {

constexpr uint64_t kLongNs = 30 * kNsPerSecond;

// Keeps a look-up in the system until it is opened.
struct Gate {
  std::atomic<int> entered{0};
  std::latch open{1};
};

class ResolverTest : public ::testing::Test {
 protected:
  using Answer = std::optional<Result<Resolver::Addresses>>;

  std::shared_ptr<Answer> Ask(Resolver& resolver, const std::string& host, uint16_t port = 7) {
    auto answer = std::make_shared<Answer>();
    resolver.Lookup(host, port, [answer](Result<Resolver::Addresses> result) {
      EXPECT_FALSE(answer->has_value()) << "answered once";
      *answer = std::move(result);
    });
    return answer;
  }
  bool Until(const std::function<bool()>& condition) {
    const uint64_t give_up_ns = clock_.NowNs() + 10 * kNsPerSecond;
    while (!condition()) {
      if (clock_.NowNs() > give_up_ns) return false;
      loop_.RunOnce(kNsPerMs);
    }
    return true;
  }
  static Resolver::SystemLookup Stuck(const std::shared_ptr<Gate>& gate) {
    return [gate](const std::string&) -> Result<Resolver::Addresses> {
      ++gate->entered;
      gate->open.wait();
      return Resolver::Addresses{*SocketAddress::Parse("10.0.0.1", 0)};
    };
  }

  MonotonicClock clock_;
  EventLoop loop_{clock_};
};

TEST_F(ResolverTest, AnswersOnTheLoopWithTheAskedPort) {
  Resolver resolver(loop_, kLongNs, [](const std::string& host) -> Result<Resolver::Addresses> {
    if (host != "a.test") return Fail(ErrorCode::kNotFound, "no " + host);
    return Resolver::Addresses{*SocketAddress::Parse("10.0.0.1", 0),
                               *SocketAddress::Parse("fd00::1", 0)};
  });
  const auto found = Ask(resolver, "a.test", 4'500), missing = Ask(resolver, "b.test");
  EXPECT_FALSE(found->has_value()) << "never inside the call";
  ASSERT_TRUE(Until([&] { return found->has_value() && missing->has_value(); }));
  ASSERT_TRUE(found->value());
  EXPECT_EQ(found->value()->at(0).Text(), "10.0.0.1:4500");
  EXPECT_EQ(found->value()->at(1).Text(), "[fd00::1]:4500");
  EXPECT_EQ(missing->value().error().code, ErrorCode::kNotFound);
  EXPECT_EQ(resolver.pending(), 0u);
  EXPECT_EQ(loop_.timer_count(), 0u);
}

TEST_F(ResolverTest, ALookUpThatHangsTimesOutAndItsLateAnswerIsDropped) {
  const auto gate = std::make_shared<Gate>();
  Resolver resolver(loop_, 20 * kNsPerMs, Stuck(gate));
  const auto answer = Ask(resolver, "slow.test");
  ASSERT_TRUE(Until([&] { return answer->has_value(); }));
  EXPECT_EQ(answer->value().error().code, ErrorCode::kTimeout);
  EXPECT_THAT(answer->value().error().message, ::testing::HasSubstr("slow.test"));
  gate->open.count_down();
  const auto next = Ask(resolver, "next.test");
  EXPECT_TRUE(Until([&] { return next->has_value(); })) << "the thread serves again";
}

TEST_F(ResolverTest, WhenAllThreadsHangTheRestTimesOutAndNothingPilesUp) {
  const auto gate = std::make_shared<Gate>();
  Resolver resolver(loop_, 20 * kNsPerMs, Stuck(gate));
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Answer>> answers;
    for (size_t i = 0; i < Resolver::kMaxPending; ++i) answers.push_back(Ask(resolver, "x.test"));
    const auto surplus = Ask(resolver, "y.test");
    ASSERT_TRUE(Until([&] { return surplus->has_value() && resolver.pending() == 0; }));
    EXPECT_EQ(surplus->value().error().code, ErrorCode::kNoMemory);
    for (const auto& answer : answers) EXPECT_EQ(answer->value().error().code, ErrorCode::kTimeout);
  }
  EXPECT_LE(gate->entered.load(), static_cast<int>(Resolver::kThreads))
      << "what timed out is never begun";
  gate->open.count_down();
}

TEST_F(ResolverTest, GoesAwayWhileAThreadIsStuckInTheSystem) {
  const auto gate = std::make_shared<Gate>();
  {
    Resolver resolver(loop_, kLongNs, Stuck(gate));
    const auto answer = Ask(resolver, "slow.test");
    ASSERT_TRUE(Until([&] { return gate->entered > 0; }));
  }
  gate->open.count_down();
  EXPECT_EQ(loop_.timer_count(), 0u);
  while (gate.use_count() > 1) std::this_thread::yield();  // Until the thread has gone.
  loop_.RunOnce(0);
}

TEST_F(ResolverTest, TheSystemKnowsLocalhostAndNumbers) {
  const auto local = Resolver::AskSystem("localhost");
  ASSERT_TRUE(local) << local.error().message;
  for (const SocketAddress& address : *local)
    EXPECT_TRUE(address.IpText() == "127.0.0.1" || address.IpText() == "::1");
  EXPECT_EQ(Resolver::AskSystem("10.1.2.3").value().at(0).IpText(), "10.1.2.3");
}

}  // namespace
}  // namespace sluice::control
