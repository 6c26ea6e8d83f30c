// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/flight_recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "daemon/control/log.h"

namespace sluice::control {
namespace {

class FakeClock final : public Clock {
 public:
  uint64_t NowNs() const override { return now_ns; }
  uint64_t now_ns = 5 * kNsPerSecond;
};

class FakeStatus final : public StatusSource {
 public:
  void Collect(Callback done) override { done(status); }
  NodeStatus status;
};

class Recorder : public testing::Test {
 protected:
  Recorder() {
    char directory[] = "/tmp/sluice-recorder-XXXXXX";
    directory_ = mkdtemp(directory);
    SetLogWriter([](LogLevel, const std::string&) {});
    SetLog({.level = LogLevel::kInfo});
  }
  ~Recorder() override {
    recorder_.reset();
    SetLogWriter(nullptr);
    SetLog({.level = LogLevel::kWarning});
    std::filesystem::remove_all(directory_);
  }
  void Start() {
    auto started = FlightRecorder::Start(loop_, status_, directory_ + "/counters", 0600, 1);
    ASSERT_TRUE(started) << started.error().message;
    recorder_ = *std::move(started);
  }
  void PassSeconds(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      clock_.now_ns += kNsPerSecond;
      loop_.RunOnce(0);
    }
  }
  CountersImage Read() {
    return ReadCounters(directory_ + "/counters", clock_.now_ns).value_or(CountersImage{});
  }
  uint64_t Counter(const std::string& name) {
    const auto image = Read();
    const auto found = std::ranges::find(image.counters, name, &CountersImage::Counter::name);
    return found == image.counters.end() ? UINT64_MAX : found->value;
  }

  FakeClock clock_;
  EventLoop loop_{clock_};
  FakeStatus status_;
  std::string directory_;
  std::unique_ptr<FlightRecorder> recorder_;
};

TEST_F(Recorder, BeatsAsLongAsTheControlThreadTurns) {
  Start();
  PassSeconds(3);
  EXPECT_EQ(Read().heartbeat_age_ns, 0u);
  clock_.now_ns += 7 * kNsPerSecond;
  EXPECT_EQ(Read().heartbeat_age_ns, 7 * kNsPerSecond);
}

TEST_F(Recorder, TellsWhenAnIoThreadHangs) {
  Start();
  status_.status.threads.push_back({.answered = false});
  PassSeconds(10);
  EXPECT_EQ(Read().heartbeat_age_ns, 0u);
  EXPECT_EQ(Read().io_heartbeat_age_ns, 10 * kNsPerSecond);
}

TEST_F(Recorder, KeepsFigures) {
  Start();
  status_.status.clients.push_back({.pool_bytes = 4096});
  status_.status.numbers.push_back(
      {.name = "refused_total", .help = "", .labels = {{"why", "rate"}}, .value = 3});
  PassSeconds(FlightRecorder::kCollectEvery);
  EXPECT_EQ(Counter("pool_bytes"), 4096u);
  EXPECT_EQ(Counter("refused_total.rate"), 3u);
}

TEST_F(Recorder, KeepsEventsAndTheDistinctErrorsAmongThem) {
  Start();
  LogInfo("ready");
  LogError("dial failed", {{"peer", "a"}});
  LogError("dial failed", {{"peer", "b"}});
  const CountersImage image = Read();
  ASSERT_EQ(image.events.size(), 3u);
  EXPECT_EQ(image.events[0].text, "ready");
  ASSERT_EQ(image.errors.size(), 1u);
  EXPECT_EQ(image.errors[0].count, 2u);
  EXPECT_EQ(image.errors[0].text, "dial failed peer=b");
}

TEST_F(Recorder, SaysThatItsEndWasClean) {
  Start();
  EXPECT_FALSE(Read().stopped);
  recorder_.reset();
  EXPECT_TRUE(Read().stopped);
  LogInfo("nobody listens any more");
}

}  // namespace
}  // namespace sluice::control
