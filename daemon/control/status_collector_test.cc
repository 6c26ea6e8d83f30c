// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/status_collector.h"

#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <thread>

namespace sluice::control {
namespace {

constexpr uint64_t kPatienceNs = 20 * kNsPerSecond;

// Time as the test wants it.
class FakeClock final : public Clock {
 public:
  uint64_t NowNs() const override { return now_ns; }
  uint64_t now_ns = kNsPerSecond;
};

// Two I/O threads whose mailboxes the test looks into.
class Collector : public testing::Test {
 protected:
  Collector() {
    StatusParts parts;
    parts.daemon = [] { return DaemonStatus{.name = "a"}; };
    for (auto& mailbox : mailboxes_) {
      parts.io_threads.push_back([&mailbox](io::ToIo message) {
        mailbox.push_back(std::get<io::Query>(std::move(message)));
      });
    }
    collector_.emplace(loop_, std::move(parts));
  }
  void Collect() {
    collector_->Collect([this](const NodeStatus& status) {
      ++pictures_;
      last_ = status;
    });
  }
  void Answer(size_t thread, uint64_t loops) {
    const io::Query query = std::move(mailboxes_[thread].front());
    mailboxes_[thread].pop_front();
    io::ThreadSnapshot snapshot;
    snapshot.loops = loops;
    std::thread([&] { query.done(snapshot); }).join();
    loop_.RunOnce(0);
  }
  void PassDeadline() {
    clock_.now_ns += StatusCollector::kDeadlineNs;
    loop_.RunOnce(0);
  }

  FakeClock clock_;
  EventLoop loop_{clock_};
  std::deque<io::Query> mailboxes_[2];
  std::optional<StatusCollector> collector_;
  int pictures_ = 0;
  NodeStatus last_;
};

TEST_F(Collector, AnswersOnceEveryThreadHas) {
  Collect();
  Answer(1, 11);
  EXPECT_EQ(pictures_, 0);
  Answer(0, 10);
  EXPECT_EQ(pictures_, 1);
  EXPECT_TRUE(last_.AllThreadsAnswered());
  EXPECT_EQ(last_.daemon.name, "a");
  EXPECT_EQ(last_.threads[1].snapshot.loops, 11u);
  EXPECT_EQ(loop_.timer_count(), 0u);
}

TEST_F(Collector, DoesNotWaitForAThreadThatHangs) {
  Collect();
  Answer(0, 10);
  PassDeadline();
  ASSERT_EQ(pictures_, 1);
  EXPECT_TRUE(last_.threads[0].answered);
  EXPECT_FALSE(last_.threads[1].answered);
  EXPECT_EQ(last_.threads[1].silent_ns, StatusCollector::kDeadlineNs);
}

TEST_F(Collector, DoesNotBuryAHangingThreadInQueries) {
  for (int i = 0; i < 10; ++i) {
    Collect();
    PassDeadline();
  }
  EXPECT_EQ(pictures_, 10);
  EXPECT_EQ(mailboxes_[1].size(), 1u);
  Collect();
  Answer(1, 3);
  Answer(0, 3);
  EXPECT_EQ(pictures_, 11);
  EXPECT_TRUE(last_.AllThreadsAnswered());
}

TEST_F(Collector, SharesOnePictureAmongThoseWhoAskMeanwhile) {
  Collect();
  Collect();
  EXPECT_EQ(mailboxes_[0].size(), 1u);
  Answer(0, 1);
  Answer(1, 1);
  EXPECT_EQ(pictures_, 2);
}

TEST_F(Collector, LeavesLateAnswersAlone) {
  Collect();
  collector_.reset();
  Answer(0, 1);
  Answer(1, 1);
  EXPECT_EQ(pictures_, 0);
}

}  // namespace
}  // namespace sluice::control
