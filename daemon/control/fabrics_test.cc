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
