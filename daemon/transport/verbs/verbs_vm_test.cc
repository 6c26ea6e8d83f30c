// SPDX-License-Identifier: Apache-2.0
// What real devices do beside carrying messages, which the conformance suite tests: they are
// chosen, come and go, move their addresses, and have limits. tests/vm brings the devices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/transport/verbs/device.h"
#include "daemon/transport/verbs/registry.h"
#include "daemon/transport/verbs/verbs_fabric.h"
#include "shm_proto/base/clock.h"
#include "shm_proto/base/units.h"

namespace sluice::transport {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

bool Shell(const std::string& command) { return std::system(command.c_str()) == 0; }

bool Eventually(const std::function<bool()>& condition) {
  const MonotonicClock clock;
  const uint64_t deadline_ns = clock.NowNs() + 30 * kNsPerSecond;
  while (!condition()) {
    if (clock.NowNs() > deadline_ns) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::unique_ptr<VerbsDevice> Open(const std::string& name, VerbsSettings settings = {}) {
  settings.device = name;
  auto opened = VerbsDevice::Open(settings);
  EXPECT_TRUE(opened.has_value()) << opened.error().message;
  return opened ? std::move(*opened) : nullptr;
}

std::string WhyNot(const VerbsSettings& settings) {
  auto opened = VerbsDevice::Open(settings);
  return opened ? "it was opened" : opened.error().message;
}

TEST(VerbsDevice, IsTheOneWithAnAddressThatPeersAreToldAndSaysWhatItIsInsteadOf) {
  VerbsSettings settings;
  settings.addresses = {"10.88.1.1"};
  auto opened = VerbsDevice::Open(settings);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  EXPECT_EQ((*opened)->name(), "rxe2");
  EXPECT_THAT((*opened)->notes(), Contains(HasSubstr("10.88.1.1")));
  EXPECT_THAT((*opened)->notes(), Contains(HasSubstr("not used: rxe0")));
  EXPECT_THAT((*opened)->notes(), Contains(HasSubstr("not used: rxe3")));
}

TEST(VerbsDevice, SaysWhyNoneCanBeUsed) {
  VerbsSettings settings;
  settings.device = "nowhere";
  EXPECT_THAT(WhyNot(settings), HasSubstr("\"nowhere\" cannot be used: there is none"));
  settings.device = "rxe0";
  settings.port = 9;
  EXPECT_THAT(WhyNot(settings), HasSubstr("rxe0: port 9"));
  settings.port = 1;
  settings.gid_index = 200;
  EXPECT_THAT(WhyNot(settings), HasSubstr("rdma.gid_index: port 1 has no address 200"));
}

// Without the capability that lifts the limit, as a daemon of an ordinary user.
TEST(VerbsDevice, SaysWhichLimitKeepsMemoryFromBeingLocked) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> before{};
  ASSERT_EQ(syscall(SYS_capget, &header, before.data()), 0);
  auto without = before;
  without[0].effective &= ~(1u << CAP_IPC_LOCK);
  rlimit limit_before{};
  getrlimit(RLIMIT_MEMLOCK, &limit_before);
  const rlimit small{65'536, limit_before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);
  ASSERT_EQ(syscall(SYS_capset, &header, without.data()), 0);
  VerbsSettings settings;
  settings.device = "rxe0";
  const std::string why = WhyNot(settings);
  ASSERT_EQ(syscall(SYS_capset, &header, before.data()), 0);
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &limit_before), 0);
  EXPECT_THAT(why, HasSubstr("65536 bytes"));
  EXPECT_THAT(why, HasSubstr("LimitMEMLOCK"));
}

// A device that may be broken without breaking it for others.
class OwnDevice : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(
        Shell("ip link add own0 type veth peer name own1 && ip link set own1 up && "
              "ip link set own0 up && ip address add 10.89.0.1/24 dev own0"));
    ASSERT_TRUE(Add());
    device_ = Open("own_rxe");
    ASSERT_NE(device_, nullptr);
    device_->TakeEvents();  // Of its coming.
  }
  void TearDown() override {
    device_.reset();
    Shell("rdma link delete own_rxe 2>/dev/null");
    EXPECT_TRUE(Shell("ip link delete own0"));
  }

  static bool Add() {
    VerbsSettings settings;
    settings.device = "own_rxe";
    return Shell("rdma link add own_rxe type rxe netdev own0") &&
           Eventually([&] { return VerbsDevice::Open(settings).has_value(); });
  }
  // The first event that is a reason to leave the device.
  std::string Reason() {
    std::string reason;
    Eventually([&] {
      pollfd descriptor{device_->events_fd(), POLLIN, 0};
      if (poll(&descriptor, 1, 100) == 1) reason = device_->TakeEvents();
      return !reason.empty();
    });
    return reason;
  }

  std::unique_ptr<VerbsDevice> device_;
};

TEST_F(OwnDevice, FindsItsAddressWhereItMovedTo) {
  const auto first = device_->GidIndex();
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(Shell("ip address del 10.89.0.1/24 dev own0"));
  ASSERT_TRUE(Eventually([&] { return !device_->GidIndex().has_value(); }));
  ASSERT_TRUE(
      Shell("ip address add 10.89.0.7/24 dev own0 && ip address add 10.89.0.1/24 dev own0"));
  ASSERT_TRUE(Eventually([&] { return device_->GidIndex().has_value(); }));
  EXPECT_NE(*device_->GidIndex(), *first);
}

TEST_F(OwnDevice, SaysThatItsAddressIsGone) {
  ASSERT_TRUE(Shell("ip address add 10.89.0.7/24 dev own0"));
  ASSERT_TRUE(Shell("ip address del 10.89.0.1/24 dev own0"));
  EXPECT_THAT(Reason(), HasSubstr("10.89.0.1 is gone"));
}

TEST_F(OwnDevice, SaysThatItsPortWentDown) {
  ASSERT_TRUE(Shell("ip link set own1 down"));
  EXPECT_EQ(Reason(), "the port went down");
}

TEST_F(OwnDevice, SeesThatItIsBeingRemovedAndHoldsThatUpOnlyUntilItIsClosed) {
  EXPECT_TRUE(device_->Present());
  bool deleted = false;
  std::thread removal([&] { deleted = Shell("rdma link delete own_rxe"); });
  EXPECT_TRUE(Eventually([&] { return !device_->Present(); }));
  device_.reset();
  removal.join();
  EXPECT_TRUE(deleted);
  EXPECT_TRUE(Add()) << "it may come again";
}

TEST(VerbsRegistry, TellsEveryNewDeviceOfAllMemory) {
  std::vector<std::byte> high(2 * kMiB), low(2 * kMiB);
  if (low.data() > high.data()) low.swap(high);
  std::shared_ptr<const Regions> published;
  VerbsRegistry registry([&](std::shared_ptr<const Regions> regions) { published = regions; });
  const auto addresses = [&] {
    std::vector<std::byte*> found;
    for (const Region& region : *published) found.push_back(region.address);
    return found;
  };
  ASSERT_TRUE(registry.Register(high.data(), high.size()).has_value());
  EXPECT_EQ(published, nullptr) << "there is no device yet";
  for (const char* name : {"rxe0", "rxe1"}) {
    SCOPED_TRACE(name);
    auto device = Open(name);
    ASSERT_NE(device, nullptr);
    ASSERT_TRUE(registry.Attach(*device).has_value());
    EXPECT_THAT(addresses(), ElementsAre(high.data()));
    ASSERT_TRUE(registry.Register(low.data(), low.size()).has_value());
    EXPECT_THAT(addresses(), ElementsAre(low.data(), high.data()));
    EXPECT_EQ(registry.counters().regions, 4u);
    EXPECT_EQ(registry.counters().bytes, low.size() + high.size());
    registry.Deregister(low.data());
    registry.Deregister(low.data());
    EXPECT_THAT(addresses(), ElementsAre(high.data()));
    registry.Detach();
    EXPECT_EQ(registry.counters().regions, 0u);
  }
}

TEST(VerbsRegistry, MemoryThatTheDeviceRefusesIsNotKept) {
  size_t published = 0;
  VerbsRegistry registry(
      [&](std::shared_ptr<const Regions> regions) { published = regions->size(); });
  auto device = Open("rxe0");
  ASSERT_NE(device, nullptr);
  ASSERT_TRUE(registry.Attach(*device).has_value());
  const auto nowhere = reinterpret_cast<std::byte*>(4096);
  const auto refused = registry.Register(nowhere, kMiB);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("1048576 bytes with rxe0"));
  EXPECT_EQ(registry.counters().failed, 1u);
  EXPECT_EQ(registry.counters().regions, 0u);
  EXPECT_EQ(published, 0u);
}

class LoopTest : public testing::Test {
 protected:
  static constexpr QueuePairLimits kLimits{8, 8, 256};
  static constexpr size_t kMemory = 8 * 256;

  void SetUp() override { Begin({}); }
  void Begin(const VerbsSettings& settings) {
    fabric_.reset();
    device_ = Open("rxe0", settings);
    ASSERT_NE(device_, nullptr);
    auto made = VerbsFabric::Create(*device_, random_);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    fabric_ = std::move(*made);
  }
  Result<std::unique_ptr<FabricQueuePair>> Make(std::span<std::byte> memory,
                                                const QueuePairLimits& limits = kLimits) {
    return fabric_->Create(limits, memory, nullptr);
  }
  static SendRequest Send(uint64_t id, std::initializer_list<Segment> segments) {
    SendRequest request{};
    request.id = id;
    request.opcode = Opcode::kSend;
    request.signalled = true;
    for (const Segment& segment : segments) request.segments[request.segment_count++] = segment;
    return request;
  }
  void Poll() {
    std::array<Completion, 16> completions;
    device_->TakeEvents();  // A control thread does.
    const size_t count = fabric_->Poll(completions, clock_.NowNs());
    seen_.insert(seen_.end(), completions.begin(),
                 completions.begin() + static_cast<ptrdiff_t>(count));
  }
  bool Saw(CompletionKind kind, Status status) {
    return Eventually([&] {
      Poll();
      return std::ranges::any_of(seen_, [&](const Completion& each) {
        return each.kind == kind && each.status == status;
      });
    });
  }

  SystemRandom random_;
  MonotonicClock clock_;
  std::unique_ptr<VerbsDevice> device_;
  std::unique_ptr<VerbsFabric> fabric_;
  std::vector<Completion> seen_;
};

TEST_F(LoopTest, ACompletionQueueTakesNoMoreQueuePairsThanItCanHoldCompletionsOf) {
  std::vector<std::byte> memory(64 * kKiB);
  constexpr QueuePairLimits kDeep{8'000, 8'000, 1};
  std::vector<std::unique_ptr<FabricQueuePair>> made;
  Result<std::unique_ptr<FabricQueuePair>> last;
  while ((last = Make(memory, kDeep)) && made.size() < 100) made.push_back(std::move(*last));
  ASSERT_FALSE(last.has_value());
  EXPECT_EQ(made.size(), static_cast<size_t>(device_->attributes().max_cqe) / 16'002);
  EXPECT_THAT(last.error().message, HasSubstr("the completion queue of this thread is full"));
  made.pop_back();
  EXPECT_FALSE(Make(memory, kDeep).has_value()) << "completions of it may still be in the queue";
  Poll();
  EXPECT_TRUE(Make(memory, kDeep).has_value());
}

// Soft-RoCE's provider has taken the request by then and names no bad one.
TEST_F(LoopTest, ASendBeforeItIsConnectedEndsItAndIsFlushedOnce) {
  std::vector<std::byte> memory(kMemory);
  auto made = Make(memory);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  const std::array requests{Send(1, {{memory.data(), 200, 0}}), Send(2, {{memory.data(), 200, 0}})};
  const size_t taken = (*made)->PostSend(requests);
  ASSERT_TRUE(Saw(CompletionKind::kDisconnected, Status::kFlushed));
  EXPECT_EQ(seen_.size(), taken + 1) << "each that was taken, then the end";
  EXPECT_THAT((*made)->reason(), HasSubstr("ibv_post_send"));
  EXPECT_EQ((*made)->PostSend(requests), 0u);
  EXPECT_FALSE((*made)->Connect((*made)->local_endpoint()).has_value());
}

TEST_F(LoopTest, EmptyPiecesAndRefusedReceivesLeaveNothingBehind) {
  std::vector<std::byte> memory(kMemory), outside(256);
  auto made = Make(memory);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  auto& queue_pair = **made;
  const ReceiveRequest good{7, memory.data(), 256, 0}, bad{8, outside.data(), 256, 0};
  EXPECT_EQ(queue_pair.PostReceive(std::array{good, bad}).error().code, ErrorCode::kInvalid);
  ASSERT_TRUE(queue_pair.PostReceive(std::array{good}).has_value());
  ASSERT_TRUE(queue_pair.Connect(queue_pair.local_endpoint()).has_value()) << "to itself";
  memory[300] = std::byte{42};
  const auto request = Send(1, {{nullptr, 0, 0}, {&memory[300], 1, 0}, {outside.data(), 0, 0}});
  ASSERT_EQ(queue_pair.PostSend({&request, 1}), 1u);
  ASSERT_TRUE(Saw(CompletionKind::kReceived, Status::kOk)) << queue_pair.reason();
  const auto received = std::ranges::find(seen_, CompletionKind::kReceived, &Completion::kind);
  EXPECT_EQ(received->id, 7u);
  EXPECT_EQ(received->bytes, 1u);
  EXPECT_EQ(memory[0], std::byte{42});
}

TEST_F(LoopTest, WhatWasLeftToTellOfADestroyedQueuePairIsNotTold) {
  std::vector<std::byte> memory(kMemory);
  auto made = Make(memory);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  const ReceiveRequest receive{7, memory.data(), 256, 0};
  ASSERT_TRUE((*made)->PostReceive({&receive, 1}).has_value());
  ASSERT_TRUE((*made)->Connect((*made)->local_endpoint()).has_value());
  const auto request = Send(1, {{memory.data(), 1, 0}});
  ASSERT_EQ((*made)->PostSend({&request, 1}), 1u);
  Completion one;
  ASSERT_TRUE(Eventually([&] { return fabric_->Poll({&one, 1}, clock_.NowNs()) == 1; }));
  made->reset();
  auto next = Make(memory);
  ASSERT_TRUE(next.has_value()) << next.error().message;
  Poll();
  EXPECT_TRUE(seen_.empty());
}

// What the device counts under that name.
uint64_t Counter(const VerbsDevice& device, const std::string& name) {
  const auto counters = device.PortCounters();
  const auto found = std::ranges::find(counters, name, &std::pair<std::string, uint64_t>::first);
  EXPECT_NE(found, counters.end()) << name;
  return found == counters.end() ? 0 : found->second;
}

TEST_F(LoopTest, ASenderThatOutrunsItsReceiverIsHeldUpAndLosesNothing) {
  std::vector<std::byte> memory(kMemory);
  auto made = Make(memory);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  auto& queue_pair = **made;
  ASSERT_TRUE(queue_pair.Connect(queue_pair.local_endpoint()).has_value());
  const uint64_t refused = Counter(*device_, "send_rnr_err");
  constexpr uint64_t kMessages = 60;
  uint64_t sent = 0, posted = 0, received = 0;
  ASSERT_TRUE(Eventually([&] {
    if (sent < kMessages) {
      const auto request = Send(sent, {{&memory[8 * 256 - 1], 1, 0}});
      sent += queue_pair.PostSend({&request, 1});
    }
    // A receive at a time, and late: when the device has refused a message for want of it.
    if (posted == received && Counter(*device_, "send_rnr_err") > refused + received / 4) {
      const ReceiveRequest receive{posted, memory.data(), 256, 0};
      posted += queue_pair.PostReceive({&receive, 1}).has_value() ? 1 : 0;
    }
    seen_.clear();
    Poll();
    for (const Completion& each : seen_) {
      EXPECT_EQ(each.status, Status::kOk) << queue_pair.reason();
      if (each.kind != CompletionKind::kReceived) continue;
      EXPECT_EQ(each.id, received);
      ++received;
    }
    return received == kMessages || !queue_pair.reason().empty();
  })) << received;
  EXPECT_EQ(queue_pair.reason(), "");
  EXPECT_GT(Counter(*device_, "send_rnr_err"), refused);
}

// Queue pairs of one fabric that take from receives they share, joined in pairs.
class SharedTest : public LoopTest {
 protected:
  static constexpr uint32_t kSlots = 32;
  static constexpr std::array<ReceiveRequest, 8> kNames{{{0, nullptr, 256, 0},
                                                         {1, nullptr, 256, 0},
                                                         {2, nullptr, 256, 0},
                                                         {3, nullptr, 256, 0},
                                                         {4, nullptr, 256, 0},
                                                         {5, nullptr, 256, 0},
                                                         {6, nullptr, 256, 0},
                                                         {7, nullptr, 256, 0}}};
  struct Both {
    std::vector<std::byte> memory{std::vector<std::byte>(1024)};
    std::unique_ptr<FabricQueuePair> from, to;
  };

  void SetUp() override {
    VerbsSettings settings;
    settings.shared_receives = kSlots;
    settings.shared_reserve = 8;
    settings.shared_bytes = 256;
    Begin(settings);
  }
  // `to` has names for as many messages.
  std::unique_ptr<Both> Join(size_t names = kNames.size()) {
    auto both = std::make_unique<Both>();
    both->from = std::move(Make(both->memory).value());
    both->to = std::move(Make(both->memory).value());
    EXPECT_TRUE(both->to->PostReceive(std::span(kNames).first(names)).has_value());
    EXPECT_TRUE(both->from->Connect(both->to->local_endpoint()).has_value());
    EXPECT_TRUE(both->to->Connect(both->from->local_endpoint()).has_value());
    return both;
  }
  // Sends some and waits until they have been received. They keep their slots.
  ::testing::AssertionResult Use(Both& both, size_t messages) {
    for (size_t i = 0; i < messages; ++i) {
      both.memory[i] = static_cast<std::byte>(i);
      const auto request = Send(i, {{&both.memory[i], 1, 0}});
      if (both.from->PostSend({&request, 1}) != 1) {
        return ::testing::AssertionFailure() << both.from->reason();
      }
    }
    size_t received = 0;
    const bool all = Eventually([&] {
      seen_.clear();
      Poll();
      for (const Completion& each : seen_) {
        if (each.kind != CompletionKind::kReceived || each.status != Status::kOk) continue;
        EXPECT_EQ(*each.data, static_cast<std::byte>(received));
        ++received;
      }
      return received == messages;
    });
    return all ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << received;
  }
};

TEST_F(SharedTest, ManyQueuePairsTakeFromThemAndGiveThemBack) {
  std::vector<std::unique_ptr<Both>> pairs;
  for (int i = 0; i < 6; ++i) pairs.push_back(Join());
  for (int round = 0; round < 20; ++round) {
    for (auto& both : pairs) {
      ASSERT_TRUE(Use(*both, 8));
      ASSERT_TRUE(both->to->PostReceive(kNames).has_value());
    }
  }
  EXPECT_EQ(fabric_->use().shared_receives, kSlots);
  EXPECT_EQ(fabric_->use().queue_pairs, 12u);
}

TEST_F(SharedTest, WhatADeadQueuePairHadIsThereForTheOthers) {
  auto living = Join();
  for (int round = 0; round < 6; ++round) {  // 6 slots each: more than there are.
    auto both = Join();
    ASSERT_TRUE(Use(*both, 6));
    seen_.clear();
    both->to->Shutdown();
    ASSERT_TRUE(Saw(CompletionKind::kDisconnected, Status::kFlushed));
  }
  ASSERT_TRUE(Use(*living, 8));
}

// The engine's fence: destroyed at once, whatever is under way. One receive may go with each, so
// there comes a time when new ones are made.
TEST_F(SharedTest, QueuePairsDestroyedAtOnceNeverLeaveTheOthersWithout) {
  auto living = Join();
  for (int round = 0; round < 40; ++round) {
    auto both = Join();
    ASSERT_TRUE(Use(*both, 8)) << round;
    EXPECT_GE(fabric_->use().shared_receives, kSlots - kSlots / 4);
  }
  ASSERT_TRUE(Use(*living, 8));
  living.reset();
  Poll();
  EXPECT_EQ(fabric_->use().completions_reserved, kSlots) << "of the old queues nothing is left";
}

// What a dying queue pair has told of is read after it died.
TEST_F(SharedTest, WhatADeadQueuePairReceivedStaysUntilItsOwnerLetsGo) {
  auto dying = Join(4);
  auto other = Join();
  const uint64_t before = Counter(*device_, "rdma_recvs");
  for (size_t i = 0; i < 4; ++i) {
    dying->memory[i] = std::byte{77};
    const auto request = Send(i, {{&dying->memory[i], 1, 0}});
    ASSERT_EQ(dying->from->PostSend({&request, 1}), 1u);
  }
  ASSERT_TRUE(Eventually([&] { return Counter(*device_, "rdma_recvs") == before + 4; }));
  dying->to->Shutdown();
  fabric_->Poll({}, clock_.NowNs());  // Its time to drain begins.
  std::array<Completion, 32> told;
  size_t count = 0;
  ASSERT_TRUE(Eventually([&] {
    device_->TakeEvents();
    const uint64_t later_ns = clock_.NowNs() + 10 * kNsPerSecond;  // And is over.
    count += fabric_->Poll(std::span(told).subspan(count), later_ns);
    return std::ranges::count(std::span(told).first(count), CompletionKind::kReceived,
                              &Completion::kind) >= 4 &&
           std::ranges::any_of(std::span(told).first(count), [](const Completion& each) {
             return each.kind == CompletionKind::kDisconnected;
           });
  }));
  for (int round = 0; round < 8; ++round) {  // Twice through all slots.
    ASSERT_TRUE(Use(*other, 8));
    ASSERT_TRUE(other->to->PostReceive(kNames).has_value());
  }
  int received = 0;
  for (const Completion& each : std::span(told).first(count)) {
    if (each.kind != CompletionKind::kReceived || each.status != Status::kOk) continue;
    EXPECT_EQ(*each.data, std::byte{77});
    ++received;
  }
  EXPECT_EQ(received, 4);
}

TEST_F(SharedTest, APeerThatTakesMoreThanItsShareIsLeft) {
  auto both = Join(2);
  auto other = Join();
  ASSERT_TRUE(Use(*both, 2));
  const auto request = Send(9, {{both->memory.data(), 1, 0}});
  ASSERT_EQ(both->from->PostSend({&request, 1}), 1u);
  ASSERT_TRUE(Saw(CompletionKind::kDisconnected, Status::kFlushed));
  EXPECT_THAT(both->to->reason(), HasSubstr("more than there are receives"));
  EXPECT_TRUE(Use(*other, 8));
}

TEST_F(SharedTest, TheDeviceTellsEachTimeFewAreLeft) {
  std::vector<std::unique_ptr<Both>> pairs;
  for (int i = 0; i < 4; ++i) pairs.push_back(Join());
  for (uint64_t times = 1; times <= 2; ++times) {
    for (auto& both : pairs) ASSERT_TRUE(Use(*both, both == pairs.back() ? 6 : 8));
    EXPECT_TRUE(Eventually([&] {
      Poll();
      return fabric_->use().shared_low == times;
    })) << fabric_->use().shared_low;
    for (auto& both : pairs) {
      ASSERT_TRUE(
          both->to->PostReceive(std::span(kNames).first(both == pairs.back() ? 6 : 8)).has_value());
    }
  }
}

}  // namespace
}  // namespace sluice::transport
