// SPDX-License-Identifier: Apache-2.0
// The control thread's half of a client, driven by hand: no thread, no socket, no real time.
#include "libclient/src/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "libclient/src/client_messages.h"

namespace sluice::client {
namespace {

using control::Type;

class FakeClock final : public Clock {
 public:
  uint64_t NowNs() const override { return now_ns; }
  uint64_t now_ns = 5 * kNsPerSecond;
};

class FakeRandom final : public Random {
 public:
  uint64_t Next() override { return state_ = state_ * 6364136223846793005u + 1442695040888963407u; }

 private:
  uint64_t state_ = 42;
};

class FakePort final : public ControlPort {
 public:
  Result<> Connect() override {
    ++connects;
    if (!daemon_there) return Fail(ErrorCode::kNotFound, "no daemon");
    return {};
  }
  Result<bool> Send(std::span<const std::byte> packet) override {
    if (!takes_packets) return false;
    control::Header header;
    std::memcpy(&header, packet.data(), sizeof(header));
    sent.push_back(header);
    return true;
  }
  void Close() override { ++closes; }
  void Wake() override {}
  bool Await(std::unique_lock<std::mutex>& lock, std::condition_variable&, uint64_t) override {
    lock.unlock();
    const bool goes_on = while_waiting && while_waiting();
    lock.lock();
    return goes_on;
  }

  std::function<bool()> while_waiting;  // What happens meanwhile; false: time is up.
  bool daemon_there = true;
  bool takes_packets = true;
  int connects = 0, closes = 0;
  std::vector<control::Header> sent;
};

class ClientLogicTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(client_.Start()); }

  template <typename Message>
  void Hear(Message message, Type type, uint32_t request) {
    std::vector<Fd> none;
    client_.HandleMessage(Pack(message, type, request), none);
  }
  uint64_t Tick() {
    const uint64_t next_ns = client_.Tick(clock_.now_ns);
    client_.FlushOutbox();
    return next_ns;
  }
  void Attach() {
    Tick();
    ASSERT_FALSE(port_.sent.empty());
    control::Attached attached{};
    attached.version = control::kVersionMax;
    attached.io_threads = 1;
    attached.pool_reserve_bytes = 64 * kMiB;
    attached.max_message_bytes = kMiB;
    attached.max_channels = 4;
    attached.max_sockets = 4;
    Hear(attached, Type::kAttached, port_.sent.back().request);
  }
  // Ticks to the moment the client asked for and returns how long that was.
  uint64_t Pass() {
    const uint64_t before_ns = clock_.now_ns;
    clock_.now_ns = Tick();
    return clock_.now_ns - before_ns;
  }

  FakeClock clock_;
  FakeRandom random_;
  FakePort port_;
  Client client_{Client::Options{.name = "test"}, port_, clock_, random_};
};

TEST_F(ClientLogicTest, RetriesForEverWithBackoffThatIsCappedAndJittered) {
  Attach();
  port_.daemon_there = false;
  port_.connects = 0;
  client_.OnHangup("killed");
  std::set<uint64_t> waits;
  uint64_t last_try_ns = clock_.now_ns;
  uint64_t longest_ns = 0;
  while (port_.connects < 500) {
    const int before = port_.connects;
    Pass();
    if (port_.connects == before) continue;
    const uint64_t waited_ns = clock_.now_ns - last_try_ns;
    last_try_ns = clock_.now_ns;
    waits.insert(waited_ns);
    longest_ns = std::max(longest_ns, waited_ns);
    ASSERT_LE(waited_ns, 2 * kNsPerSecond);
  }
  EXPECT_GT(longest_ns, kNsPerSecond / 2);
  EXPECT_GT(waits.size(), 100u) << "all clients of a daemon would come back as one";
  port_.daemon_there = true;
  port_.sent.clear();
  while (port_.sent.empty()) Pass();
  EXPECT_EQ(port_.sent[0].type, Type::kAttach) << "after a long outage as after a short one";
}

TEST_F(ClientLogicTest, ComesBackWithinMillisecondsOfAShortOutage) {
  Attach();
  client_.OnHangup("killed");
  const uint64_t start_ns = clock_.now_ns;
  uint64_t tried_ns = 0;
  port_.sent.clear();
  while (port_.sent.empty()) {
    tried_ns = clock_.now_ns;
    Pass();
  }
  EXPECT_LE(tried_ns - start_ns, 10 * kNsPerMs);
}

TEST_F(ClientLogicTest, GivesUpOnAnAnswerThatDoesNotComeAndTriesAgain) {
  Attach();
  client_.OnHangup("killed");
  port_.sent.clear();
  while (port_.sent.empty()) Pass();
  const int closes = port_.closes;
  const uint64_t start_ns = clock_.now_ns;
  while (port_.closes == closes) Pass();
  EXPECT_GE(clock_.now_ns - start_ns, 5 * kNsPerSecond - kNsPerSecond);
  EXPECT_LE(clock_.now_ns - start_ns, 7 * kNsPerSecond);
  port_.sent.clear();
  while (port_.sent.empty()) Pass();
  EXPECT_EQ(port_.sent[0].type, Type::kAttach);
}

TEST_F(ClientLogicTest, KeepsPacketsThatTheSocketDoesNotTake) {
  port_.takes_packets = false;
  client_.Tick(clock_.now_ns);
  EXPECT_FALSE(client_.FlushOutbox());
  EXPECT_TRUE(port_.sent.empty());
  port_.takes_packets = true;
  EXPECT_TRUE(client_.FlushOutbox());
  ASSERT_EQ(port_.sent.size(), 1u);
  EXPECT_EQ(port_.sent[0].type, Type::kAttach);
}

TEST_F(ClientLogicTest, BoundsTheRequestsThatWait) {
  Attach();
  port_.while_waiting = [this] {
    Tick();
    Hear(control::ChannelOpened{}, Type::kChannelOpened, port_.sent.back().request);
    return true;
  };
  ASSERT_TRUE(client_.OpenChannel(16));
  port_.takes_packets = false;
  Answer<uint32_t> last = 0;
  for (int i = 0; i < 100'000 && last; ++i) last = client_.Connect(0, 1, "host", 7);
  ASSERT_FALSE(last);
  EXPECT_EQ(last.error().error, EAGAIN);
}

TEST_F(ClientLogicTest, ARequestThatNobodyAnswersEndsInTime) {
  Attach();
  const auto opened = client_.OpenChannel(16);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().error, ETIMEDOUT);
  Tick();
  EXPECT_EQ(port_.sent.back().type, Type::kCloseChannel) << "should it be opened later on";
}

}  // namespace
}  // namespace sluice::client
