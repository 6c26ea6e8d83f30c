// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/fabrics.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <optional>

namespace sluice::control {
namespace {

// What the tests let happen to the device, seen from the worker's thread too.
struct World {
  std::atomic<int> devices{0}, fabrics{0}, openings{0};
  std::atomic<bool> refuse{false}, present{true};
  int events = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  std::string event;
  std::atomic<uint64_t> pause_frames{0}, pauses_at_each_look{0};
};

struct FakeFabric final : transport::Fabric {
  explicit FakeFabric(World& world) : world(world) { ++world.fabrics; }
  ~FakeFabric() override { --world.fabrics; }
  Result<std::unique_ptr<transport::FabricQueuePair>> Create(const transport::QueuePairLimits&,
                                                             std::span<std::byte>, void*) override {
    return Fail(ErrorCode::kUnavailable, "not here");
  }
  void SetRegions(std::shared_ptr<const transport::Regions>) override {}
  size_t Poll(std::span<transport::Completion>, uint64_t) override { return 0; }
  int fd() const override { return -1; }
  bool Arm() override { return true; }
  World& world;
};

struct FakeDevice final : FabricDevice {
  explicit FakeDevice(World& world) : world(world) { ++world.devices; }
  ~FakeDevice() override {
    EXPECT_EQ(world.fabrics, 0) << "the device was closed under its fabrics";
    --world.devices;
  }
  Result<std::unique_ptr<transport::Fabric>> MakeFabric() override {
    return std::make_unique<FakeFabric>(world);
  }
  int events_fd() const override { return world.events; }
  std::string OnEvents() override {
    uint64_t count;
    EXPECT_EQ(read(world.events, &count, sizeof(count)), 8);
    return world.event;
  }
  bool Present() const override { return world.present; }
  FabricDeviceInfo Info() const override { return {.name = "fake0"}; }
  std::optional<uint64_t> PauseFrames() const override {
    const uint64_t step = world.pauses_at_each_look;
    return world.pause_frames += step;
  }
  World& world;
};

class FabricsTest : public testing::Test {
 protected:
  FabricsTest() {
    fabrics_.emplace(loop_, std::vector{&io_[0], &io_[1]},
                     [this]() -> Result<std::unique_ptr<FabricDevice>> {
                       ++world_.openings;
                       if (world_.refuse) return Fail(ErrorCode::kNotFound, "no device");
                       return std::make_unique<FakeDevice>(world_);
                     });
  }
  ~FabricsTest() override {
    held_.clear();
    for (auto& mailbox : io_) {
      for (io::ToIo message = io::Stop{}; mailbox.Take(message);) message = io::Stop{};
    }
    fabrics_.reset();
    close(world_.events);
  }

  bool Until(const std::function<bool()>& condition) {
    for (const uint64_t deadline_ns = clock_.NowNs() + 20 * kNsPerSecond;
         clock_.NowNs() < deadline_ns;) {
      if (condition()) return true;
      loop_.RunOnce(10 * kNsPerMs);
    }
    return condition();
  }
  // As an I/O thread does: takes what it is given, lets the former go, and answers.
  void AnswerAll() {
    for (size_t i = 0; i < io_.size(); ++i) {
      for (io::ToIo message = io::Stop{}; io_[i].Take(message);) {
        auto* set = std::get_if<io::SetFabric>(&message);
        ASSERT_NE(set, nullptr);
        held_[i] = std::move(set->fabric);
        fabrics_->OnFabricSet();
      }
    }
  }
  void BringUp() {
    fabrics_->Start();
    ASSERT_TRUE(Until([&] { return fabrics_->state() == Fabrics::State::kUp; }));
    AnswerAll();
    ASSERT_EQ(world_.fabrics, 2);
  }

  MonotonicClock clock_;
  EventLoop loop_{clock_};
  std::array<io::Mailbox<io::ToIo>, 2> io_;
  World world_;
  std::map<size_t, std::unique_ptr<transport::Fabric>> held_;
  std::optional<Fabrics> fabrics_;
};

TEST_F(FabricsTest, EveryThreadGetsAFabricOfTheDevice) {
  BringUp();
  EXPECT_NE(held_[0], nullptr);
  EXPECT_NE(held_[1], nullptr);
  EXPECT_EQ(fabrics_->reason(), "");
}

TEST_F(FabricsTest, ADeviceThatIsBeingRemovedIsClosedOnceAllThreadsLetGoAndThenLookedForAgain) {
  BringUp();
  world_.present = false;
  world_.refuse = true;
  ASSERT_TRUE(Until([&] { return fabrics_->state() == Fabrics::State::kLeaving; }));
  EXPECT_EQ(world_.devices, 1);  // Its fabrics are still there.
  AnswerAll();
  ASSERT_TRUE(Until([&] { return world_.devices == 0 && world_.openings == 2; }));
  ASSERT_TRUE(Until([&] { return fabrics_->reason() == "no device"; }));
  world_.present = true;
  world_.refuse = false;
  ASSERT_TRUE(Until([&] { return fabrics_->state() == Fabrics::State::kUp; }));
  AnswerAll();
  EXPECT_EQ(fabrics_->opened(), 2u);
}

TEST_F(FabricsTest, AnEventThatEndsItsUseTakesItAway) {
  BringUp();
  world_.event = "the port went down";
  const uint64_t one = 1;
  ASSERT_EQ(write(world_.events, &one, sizeof(one)), 8);
  ASSERT_TRUE(Until([&] { return fabrics_->state() == Fabrics::State::kLeaving; }));
  EXPECT_EQ(fabrics_->reason(), "the port went down");
  AnswerAll();
  ASSERT_TRUE(Until([&] { return fabrics_->opened() == 2; }));
  AnswerAll();
}

TEST_F(FabricsTest, AStormOfPauseFramesIsCounted) {
  fabrics_->Configure({.storm_per_s = 1'000, .leave = false});
  BringUp();
  world_.pauses_at_each_look = 1'000'000;
  ASSERT_TRUE(Until([&] { return fabrics_->pauses().storms() == 1; }));
  EXPECT_EQ(fabrics_->state(), Fabrics::State::kUp);
  EXPECT_GT(fabrics_->pauses().rate(), 1'000u);
}

TEST_F(FabricsTest, AStormOfPauseFramesIsLeftForAWhileIfToldTo) {
  fabrics_->Configure({.storm_per_s = 1'000, .leave = true});
  BringUp();
  world_.pauses_at_each_look = 1'000'000;
  ASSERT_TRUE(Until([&] { return fabrics_->state() == Fabrics::State::kLeaving; }));
  EXPECT_EQ(fabrics_->reason().find("pause frames storm ("), 0u) << fabrics_->reason();
  AnswerAll();
  ASSERT_TRUE(Until([&] { return world_.devices == 0; }));
  const uint64_t soon_ns = clock_.NowNs() + 1500 * kNsPerMs;
  Until([&] { return clock_.NowNs() > soon_ns; });
  EXPECT_EQ(fabrics_->opened(), 1u) << "a device that was removed would be looked for by now";
}

TEST(PauseWatch, TellsAStormFromABurstAndItsEndFromALull) {
  PauseWatch watch;
  watch.SetLimit(1'000);
  uint64_t now_ns = kNsPerSecond, frames = 5'000'000'000;
  const auto second = [&](uint64_t more) {
    EXPECT_TRUE(watch.Due(now_ns));
    const auto change = watch.Sample(frames += more, now_ns);
    EXPECT_FALSE(watch.Due(now_ns + PauseWatch::kSampleNs - 1));
    now_ns += kNsPerSecond;
    return change;
  };
  using Change = PauseWatch::Change;
  EXPECT_EQ(second(0), Change::kNone) << "what came before is no rate";
  EXPECT_EQ(watch.rate(), 0u);
  for (int i = 0; i < 5; ++i) {  // Two bad seconds are a burst.
    EXPECT_EQ(second(2'000), Change::kNone);
    EXPECT_EQ(second(2'000), Change::kNone);
    EXPECT_EQ(second(1'000), Change::kNone) << "the limit itself is allowed";
  }
  for (int i = 0; i < 2; ++i) EXPECT_EQ(second(1'001), Change::kNone);
  EXPECT_EQ(second(1'001), Change::kStorm);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(second(0), Change::kNone);
  EXPECT_EQ(second(5'000), Change::kNone) << "a lull";
  for (int i = 0; i < 9; ++i) EXPECT_EQ(second(0), Change::kNone);
  EXPECT_EQ(second(0), Change::kCalm);
  EXPECT_EQ(watch.storms(), 1u);
  frames = 0;  // The driver was loaded anew.
  EXPECT_EQ(second(100), Change::kNone);
  EXPECT_EQ(watch.rate(), 0u);
}

TEST_F(FabricsTest, AnEventThatDoesNotMatterChangesNothing) {
  BringUp();
  const uint64_t one = 1;
  ASSERT_EQ(write(world_.events, &one, sizeof(one)), 8);
  uint64_t left;
  ASSERT_TRUE(Until([&] { return read(world_.events, &left, sizeof(left)) < 0; }));
  loop_.RunOnce(0);
  EXPECT_EQ(fabrics_->state(), Fabrics::State::kUp);
}

}  // namespace
}  // namespace sluice::control
