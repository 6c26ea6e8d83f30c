// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/event_loop.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>
#include <vector>

namespace sluice::control {
namespace {

class ManualClock final : public Clock {
 public:
  uint64_t NowNs() const override { return now_ns; }
  uint64_t now_ns = 1'000;
};

struct Pair {
  Pair() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    near = Fd(fds[0]);
    far = Fd(fds[1]);
  }
  Fd near, far;
};

TEST(EventLoop, CallsBackWhenADescriptorIsReadableUntilItIsRemoved) {
  ManualClock clock;
  EventLoop loop(clock);
  Pair pair;
  int calls = 0;
  ASSERT_TRUE(loop.Add(pair.near.get(), EPOLLIN, [&](uint32_t events) {
    EXPECT_TRUE(events & EPOLLIN);
    ++calls;
  }));
  EXPECT_EQ(loop.RunOnce(0), 0);
  ASSERT_EQ(write(pair.far.get(), "x", 1), 1);
  loop.RunOnce(0);
  loop.RunOnce(0);
  EXPECT_EQ(calls, 2) << "level-triggered";
  loop.Remove(pair.near.get());
  loop.RunOnce(0);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(loop.fd_count(), 0u);
}

TEST(EventLoop, ACallbackMayRemoveADescriptorThatIsReadyInTheSameTurn) {
  ManualClock clock;
  EventLoop loop(clock);
  Pair pairs[2];
  int calls = 0;
  for (Pair& pair : pairs) {
    ASSERT_EQ(write(pair.far.get(), "x", 1), 1);
    ASSERT_TRUE(loop.Add(pair.near.get(), EPOLLIN, [&](uint32_t) {
      ++calls;
      loop.Remove(pairs[0].near.get());
      loop.Remove(pairs[1].near.get());
    }));
  }
  loop.RunOnce(0);
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, AddingADescriptorTwiceIsAnError) {
  ManualClock clock;
  EventLoop loop(clock);
  Pair pair;
  ASSERT_TRUE(loop.Add(pair.near.get(), EPOLLIN, [](uint32_t) {}));
  EXPECT_EQ(loop.Add(pair.near.get(), EPOLLIN, [](uint32_t) {}).error().code, ErrorCode::kExists);
  EXPECT_FALSE(loop.Modify(pair.far.get(), EPOLLIN));
}

TEST(EventLoop, TimersFireInOrderOfTheirDeadlinesAndNotBefore) {
  ManualClock clock;
  EventLoop loop(clock);
  std::vector<int> fired;
  loop.After(300, [&] { fired.push_back(3); });
  loop.After(100, [&] { fired.push_back(1); });
  loop.After(200, [&] { fired.push_back(2); });
  clock.now_ns += 99;
  loop.RunOnce(0);
  EXPECT_TRUE(fired.empty());
  clock.now_ns += 101;
  loop.RunOnce(0);
  EXPECT_EQ(fired, (std::vector<int>{1, 2}));
  clock.now_ns += 100;
  loop.RunOnce(0);
  EXPECT_EQ(fired, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(loop.timer_count(), 0u);
}

TEST(EventLoop, ACancelledTimerNeverFiresEvenWhenItIsDueInTheSameTurn) {
  ManualClock clock;
  EventLoop loop(clock);
  int fired = 0;
  EventLoop::TimerId second = 0;
  loop.After(10, [&] {
    ++fired;
    loop.Cancel(second);
  });
  second = loop.After(20, [&] { ++fired; });
  clock.now_ns += 50;
  loop.RunOnce(0);
  EXPECT_EQ(fired, 1);
  loop.Cancel(second);
  loop.Cancel(0);
}

TEST(EventLoop, ATimerThatSetsItselfAgainAtOnceDoesNotKeepTheTurn) {
  ManualClock clock;
  EventLoop loop(clock);
  int fired = 0;
  std::function<void()> again = [&] {
    ++fired;
    loop.After(0, again);
  };
  loop.After(0, again);
  loop.RunOnce(0);
  EXPECT_EQ(fired, 1);
  loop.RunOnce(0);
  EXPECT_EQ(fired, 2);
}

TEST(EventLoop, AThreadsPostRunsOnTheLoopAndWakesIt) {
  MonotonicClock clock;
  EventLoop loop(clock);
  std::thread::id ran_on;
  std::thread poster([&] {
    loop.Post([&] {
      ran_on = std::this_thread::get_id();
      loop.Stop();
    });
  });
  loop.Run();
  poster.join();
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST(EventLoop, MorePostsThanOneTurnTakesAllRunInOrder) {
  ManualClock clock;
  EventLoop loop(clock);
  std::vector<size_t> order;
  const size_t total = EventLoop::kMaxPostsPerTurn * 2 + 5;
  for (size_t i = 0; i < total; ++i) loop.Post([&order, i] { order.push_back(i); });
  loop.RunOnce(0);
  EXPECT_EQ(order.size(), EventLoop::kMaxPostsPerTurn);
  loop.RunOnce(UINT64_MAX);
  loop.RunOnce(UINT64_MAX);
  ASSERT_EQ(order.size(), total);
  for (size_t i = 0; i < total; ++i) EXPECT_EQ(order[i], i);
}

}  // namespace
}  // namespace sluice::control
