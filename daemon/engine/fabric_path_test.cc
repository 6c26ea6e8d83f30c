// SPDX-License-Identifier: Apache-2.0
// Moving to a fabric, and back to the wire when it fails.

#include <gtest/gtest.h>

#include <random>

#include "daemon/engine/engine_testing.h"

namespace sluice {
namespace {

using transport::LocalVerdict;

class FabricPath : public testing::Test {
 protected:
  FabricPath() { world.features = kFeatureFabric; }
  void Connect() {
    world.GiveFabric();
    world.Connect(9, 1, false);
    world.Settle();
    here = world.OpenPair(&there, 1);
    here_id = here->id;
    there_id = there->id;
  }
  bool OnFabric() const { return world.a.engine->on_fabric() && world.b.engine->on_fabric(); }
  bool OnWire() const { return !world.a.engine->on_fabric() && !world.b.engine->on_fabric(); }
  void SendSome(size_t count = 10) {
    for (size_t i = 0; i < count; ++i) {
      world.Send(world.a, *here, next_token++, i % 2 == 0 ? 60'000 : 100);
      world.Send(world.b, *there, next_token++, i % 2 == 0 ? 100 : 60'000);
    }
  }
  void ExpectAllArrived() {
    world.ExpectArrived(world.a, here_id, world.b, there_id);
    world.ExpectArrived(world.b, there_id, world.a, here_id);
  }
  void BreakFabric() {
    world.fabric.loop->SetPolicy([](void*, const auto&) { return LocalVerdict::kBreak; });
  }
  void Pass(uint64_t ns) {
    for (uint64_t until_ns = world.now_ns + ns; world.now_ns < until_ns; world.now_ns += kNsPerMs) {
      world.a.engine->Tick(world.now_ns);
      world.b.engine->Tick(world.now_ns);
      world.Step();
    }
  }

  World world;
  Socket* here = nullptr;
  Socket* there = nullptr;
  uint32_t here_id = 0, there_id = 0;
  uint64_t next_token = 100;
};

TEST_F(FabricPath, MessagesTakeTheFabricWhereBothEndsHaveOne) {
  Connect();
  ASSERT_TRUE(OnFabric());
  size_t wire_requests = 0;
  world.wire->SetPolicy([&](void*, const auto&) {
    ++wire_requests;
    return LocalVerdict::kDeliver;
  });
  SendSome();
  world.Settle();
  ExpectAllArrived();
  EXPECT_EQ(wire_requests, 0u);
  EXPECT_STREQ(world.a.engine->transport_kind(), "loop");
}

TEST_F(FabricPath, StaysOnTheWireWhereThePeerHasNoFabric) {
  world.GiveFabric();
  world.b.own_fabric = nullptr;
  world.Connect(9, 1, false);
  world.Settle();
  here = world.OpenPair(&there, 1);
  here_id = here->id, there_id = there->id;
  SendSome();
  world.Settle();
  ExpectAllArrived();
  EXPECT_TRUE(OnWire());
  EXPECT_NE(world.a.engine->fabric_reason(), "");
  // It is asked again, and joins once the peer has one.
  world.b.own_fabric = &world.fabric_b;
  Pass(3 * kNsPerSecond);
  EXPECT_TRUE(OnFabric());
}

TEST_F(FabricPath, AFabricThatCarriesNothingIsNeverUsed) {
  world.fabric.loop->SetPolicy([](void*, const auto&) { return LocalVerdict::kHold; });
  Connect();
  SendSome();
  world.Settle();
  ExpectAllArrived();
  Pass(5 * kNsPerSecond);
  EXPECT_TRUE(OnWire());
  EXPECT_EQ(world.a.paths_lost + world.b.paths_lost, 0);
  world.fabric.loop->SetPolicy({});
  Pass(20 * kNsPerSecond);
  EXPECT_TRUE(OnFabric());
}

TEST_F(FabricPath, ReceivesAreLentWhereThePeersShareThemAndComeBackWhenTheFabricFails) {
  world.fabric_a.lender.emplace(256, 8);
  world.fabric_b.lender.emplace(256, 8);
  Connect();
  ASSERT_TRUE(OnFabric());
  EXPECT_LT(world.a.engine->credits(), 16u);
  const uint32_t at_first = world.fabric_b.lender->promised();
  for (int round = 0; round < 20; ++round) {
    SendSome();
    world.Settle();
  }
  ExpectAllArrived();
  EXPECT_GT(world.fabric_b.lender->promised(), at_first) << "a busy peer borrows more";
  BreakFabric();
  SendSome();
  world.Settle();
  ASSERT_TRUE(OnWire());
  EXPECT_EQ(world.fabric_a.lender->promised() + world.fabric_b.lender->promised(), 0u);
  ExpectAllArrived();
}

TEST_F(FabricPath, APeerForWhichNoReceivesAreLeftStaysOnTheWireUntilThereAre) {
  world.fabric_b.lender.emplace(8, 8);
  ASSERT_EQ(world.fabric_b.lender->Join(100), 8u);
  Connect();
  SendSome();
  world.Settle();
  ExpectAllArrived();
  EXPECT_TRUE(OnWire());
  EXPECT_NE(world.b.engine->fabric_reason().find("rdma.shared_receives"), std::string::npos);
  world.fabric_b.lender->GiveBack(8);
  Pass(5 * kNsPerSecond);
  EXPECT_TRUE(OnFabric());
}

TEST_F(FabricPath, FallsToTheWireAtOnceAndReturnsAfterASettleTime) {
  Connect();
  SendSome();
  BreakFabric();
  world.Settle();
  EXPECT_TRUE(OnWire());
  ExpectAllArrived();
  EXPECT_EQ(world.a.paths_lost + world.b.paths_lost + world.a.sessions_over, 0);
  world.fabric.loop->SetPolicy({});
  SendSome();
  world.Settle();
  EXPECT_TRUE(OnWire());  // Not at once.
  Pass(2 * kNsPerSecond);
  EXPECT_TRUE(OnFabric());
  SendSome();
  world.Settle();
  ExpectAllArrived();
}

TEST_F(FabricPath, IsDegradedFromTheFailureOfTheFabricUntilMessagesTakeItAgain) {
  const auto degraded = [&] { return world.a.engine->degraded() && world.b.engine->degraded(); };
  const auto sound = [&] { return !world.a.engine->degraded() && !world.b.engine->degraded(); };
  EXPECT_TRUE(sound()) << "nothing has failed yet";
  Connect();
  ASSERT_TRUE(OnFabric());
  EXPECT_TRUE(sound());
  BreakFabric();
  SendSome();
  world.Settle();
  EXPECT_TRUE(degraded());
  Pass(2 * kNsPerSecond);
  EXPECT_TRUE(degraded()) << "trying in vain changes nothing";
  world.fabric.loop->SetPolicy({});
  Pass(20 * kNsPerSecond);
  ASSERT_TRUE(OnFabric());
  EXPECT_TRUE(sound());
  world.a.engine->LeaveFabric("the device is being removed", world.now_ns);
  world.Settle();
  EXPECT_TRUE(degraded());
  world.a.engine->EndSession(ECONNRESET, "enough", world.now_ns);
  EXPECT_FALSE(world.a.engine->degraded()) << "it is over";
  world.Connect(10, 1, false);
  EXPECT_TRUE(sound()) << "a new session knows nothing of it";
}

TEST_F(FabricPath, WithoutAFabricAgreedUponTheWireIsNoDegradation) {
  world.features = 0;
  Connect();
  EXPECT_TRUE(OnWire());
  EXPECT_FALSE(world.a.engine->degraded() || world.b.engine->degraded());
}

TEST_F(FabricPath, ASilentFabricIsLeftForTheWire) {
  Connect();
  world.fabric.loop->SetPolicy([](void*, const auto&) { return LocalVerdict::kHold; });
  SendSome();
  Pass(2 * Tunables{}.keepalive_timeout_ns);
  world.Settle();
  EXPECT_TRUE(OnWire());
  ExpectAllArrived();
  EXPECT_EQ(world.a.sessions_over + world.b.sessions_over, 0);
}

TEST_F(FabricPath, ALostConnectionUnderAHealthyFabricIsReplacedInTheBackground) {
  Connect();
  world.wire->SetPolicy([](void*, const auto&) { return LocalVerdict::kBreak; });
  Pass(2 * kNsPerSecond);  // A keepalive finds out.
  EXPECT_EQ(world.a.paths_lost, 1);
  EXPECT_EQ(world.a.engine->state(), Engine::State::kUp);
  SendSome();
  world.Settle();
  ExpectAllArrived();
  world.wire->SetPolicy({});
  world.Connect(9, 2, true);
  SendSome();
  world.Settle();
  EXPECT_TRUE(OnFabric());
  EXPECT_EQ(world.a.engine->counters().fabric_paths, 1u);
  ExpectAllArrived();
  EXPECT_EQ(world.a.sessions_over + world.b.sessions_over, 0);
}

TEST_F(FabricPath, BothLostTheSessionGoesOnOverANewConnection) {
  Connect();
  SendSome();
  world.wire->SetPolicy([](void*, const auto&) { return LocalVerdict::kBreak; });
  Pass(2 * kNsPerSecond);
  BreakFabric();
  SendSome();
  world.Settle();
  EXPECT_EQ(world.a.engine->state(), Engine::State::kLost);
  world.wire->SetPolicy({});
  world.fabric.loop->SetPolicy({});
  world.Connect(9, 2, true);
  world.Settle();
  ExpectAllArrived();
}

TEST_F(FabricPath, OneEndThatLeftItWhileTheConnectionWasLostTakesTheOtherAlong) {
  Connect();
  world.wire->SetPolicy([](void*, const auto&) { return LocalVerdict::kBreak; });
  Pass(2 * kNsPerSecond);
  world.wire->SetPolicy({});
  // b's fabric goes; a has not noticed when the new connection comes up.
  world.fabric.loop->SetPolicy([](void*, const auto&) { return LocalVerdict::kHold; });
  SendSome();
  world.b.engine->LeaveFabric("the device went away", world.now_ns);
  world.b.own_fabric = nullptr;
  world.Connect(9, 2, true);
  world.Settle();
  EXPECT_TRUE(OnWire());
  ExpectAllArrived();
}

// a has said its last word on the wire and waits for b's when the fabric breaks: what b had said on
// the wire before is void, since both ends tell anew what they have.
TEST_F(FabricPath, WhatWasOnItsWayWhenAnEndFellBackIsVoid) {
  world.Connect(9, 1, false);
  here = world.OpenPair(&there, 1);
  here_id = here->id, there_id = there->id;
  SendSome();
  world.Settle();  // Both have granted landings ahead.
  bool answered = false;
  world.wire->SetPolicy([&](void* sender, const transport::SendRequest& request) {
    if (sender != world.b.engine.get()) return LocalVerdict::kDeliver;
    if (answered) return LocalVerdict::kHold;
    for (uint32_t i = 0; i < request.segment_count; ++i) {
      const auto* bytes = request.segments[i].address;
      for (uint32_t at = 0; at < request.segments[i].length; at += sizeof(wire::FrameHeader)) {
        answered |= static_cast<wire::FrameType>(bytes[at]) == wire::FrameType::kFabricAnswer;
      }
    }
    return LocalVerdict::kDeliver;
  });
  world.GiveFabric();
  for (int i = 0; i < 100 && !answered; ++i) world.Step();
  ASSERT_TRUE(answered);
  SendSome(4);
  for (int i = 0; i < 100 && !world.b.engine->on_fabric(); ++i) world.Step();
  ASSERT_TRUE(world.b.engine->on_fabric());
  ASSERT_FALSE(world.a.engine->on_fabric());
  BreakFabric();
  for (int i = 0; i < 20; ++i) world.Step();
  world.wire->SetPolicy({});
  world.Settle();
  SendSome(40);
  world.Settle();
  EXPECT_TRUE(OnWire());
  ExpectAllArrived();
  EXPECT_EQ(world.a.paths_lost + world.b.paths_lost, 0) << world.b.last_reason;
}

// A daemon that was killed and is back at once: its connection is here before the queue pair of
// its former run has failed.
TEST_F(FabricPath, APeerThatRestartedEndsTheSessionAlsoWhileItsFabricStillLooksHealthy) {
  Connect();
  ASSERT_TRUE(OnFabric());
  SendSome();
  world.fabric.loop->SetPolicy([](void*, const auto&) { return LocalVerdict::kHold; });
  world.Step();
  world.ConnectOne(10, 1, false, true, false);
  EXPECT_EQ(world.a.sessions_over, 1);
  EXPECT_FALSE(world.a.engine->on_fabric());
  EXPECT_EQ(world.a.closed.count(here_id), 1u);
  EXPECT_EQ(world.a.engine->window().in_flight_bytes(), 0u);
}

// What a peer says of a fabric that is not the one in use must not cost us what is under way there.
TEST_F(FabricPath, APathNobodyAgreedUponLosesNothingThatIsUnderWay) {
  Connect();
  world.fabric.loop->SetPolicy([](void*, const auto&) { return LocalVerdict::kHold; });
  world.Send(world.a, *here, next_token++, 5'000);
  world.Step();
  ASSERT_GT(world.a.engine->window().in_flight_bytes(), 0u);
  wire::FrameHeader mark{};
  mark.type = wire::FrameType::kPath;
  mark.argument = 77;
  world.Inject(mark);
  EXPECT_EQ(world.a.engine->window().in_flight_bytes(), 0u) << "of the queue pair that is gone";
  world.Settle();
  world.Connect(9, 2, true);  // The injected frame used a receive that was not there.
  world.Settle();
  ExpectAllArrived();
}

TEST_F(FabricPath, APeerThatOffersAgainAndAgainLosesItsPath) {
  world.GiveFabric();
  world.Connect(9, 1, false);
  std::vector<std::byte> offers;
  wire::FrameHeader header{};
  header.type = wire::FrameType::kFabricOffer;
  header.bytes = sizeof(transport::Endpoint);
  for (int i = 0; i < 150; ++i) {
    const auto bytes = std::as_bytes(std::span(&header, 1));
    offers.insert(offers.end(), bytes.begin(), bytes.end());
    offers.resize(offers.size() + sizeof(transport::Endpoint));
  }
  transport::Completion completion{};
  completion.kind = transport::CompletionKind::kReceived;
  completion.data = offers.data();
  completion.bytes = static_cast<uint32_t>(offers.size());
  world.b.engine->OnCompletion(completion, world.now_ns);
  EXPECT_LT(world.fabric.next_number, 40u) << "queue pairs made for a peer that takes no answer";
  world.b.engine->Flush(world.now_ns);
  EXPECT_EQ(world.b.paths_lost, 1);
}

TEST_F(FabricPath, AnOfferOfFewerReceivesThanNeededOrMoreThanThereAreBreaksThePath) {
  const auto breaks = [](uint64_t lent) {
    World world;
    world.features = kFeatureFabric;
    world.GiveFabric();
    world.Connect(9, 1, false);
    std::vector<std::byte> offer(sizeof(wire::FrameHeader) + sizeof(transport::Endpoint));
    wire::FrameHeader header{};
    header.type = wire::FrameType::kFabricOffer;
    header.argument = 1;
    header.sequence = lent;
    header.bytes = sizeof(transport::Endpoint);
    std::memcpy(offer.data(), &header, sizeof(header));
    transport::Completion completion{};
    completion.kind = transport::CompletionKind::kReceived;
    completion.data = offer.data();
    completion.bytes = static_cast<uint32_t>(offer.size());
    world.b.engine->OnCompletion(completion, world.now_ns);
    world.b.engine->Flush(world.now_ns);
    return world.b.paths_lost == 1;
  };
  const uint32_t depth = LocalLimits{}.receive_depth;
  EXPECT_TRUE(breaks(SharedReceives::kSmallestReserve - 1));
  EXPECT_TRUE(breaks(depth + 1));
  EXPECT_TRUE(breaks((uint64_t{1} << 32) + SharedReceives::kSmallestReserve));
  EXPECT_FALSE(breaks(depth));
  EXPECT_FALSE(breaks(0));
}

TEST_F(FabricPath, GoodbyeEndsTheSessionAlsoOverTheFabric) {
  Connect();
  world.a.engine->SayGoodbye(world.now_ns);
  world.Settle();
  EXPECT_EQ(world.b.sessions_over, 1);
  EXPECT_EQ(world.b.engine->state(), Engine::State::kConnecting);
}

TEST_F(FabricPath, WhatNoHonestPeerSaysAboutPathsBreaksThePath) {
  const auto breaks = [](wire::FrameType type, uint32_t argument, std::string payload) {
    World world;
    world.features = kFeatureFabric;
    world.Connect(9, 1, false);
    world.Settle();
    std::vector<std::byte> bytes(sizeof(wire::FrameHeader) + payload.size());
    wire::FrameHeader header{};
    header.type = type;
    header.argument = argument;
    header.bytes = static_cast<uint32_t>(payload.size());
    std::memcpy(bytes.data(), &header, sizeof(header));
    std::memcpy(bytes.data() + sizeof(header), payload.data(), payload.size());
    world.Inject(bytes);
    world.Step();
    return world.a.paths_lost == 1;
  };
  EXPECT_TRUE(breaks(wire::FrameType::kFabricOffer, 1, std::string(64, '\x08')));  // Not its turn.
  EXPECT_TRUE(breaks(wire::FrameType::kFabricOffer, 1, "short"));
  EXPECT_TRUE(breaks(wire::FrameType::kFabricAnswer, 1, std::string(64, '\x7f')));  // Too long.
  EXPECT_TRUE(breaks(wire::FrameType::kFabricProbe, 1, ""));                        // On the wire.
  EXPECT_FALSE(breaks(wire::FrameType::kFabricAnswer, 7, ""));  // An answer that came too late.
  EXPECT_FALSE(breaks(wire::FrameType::kPath, 0, ""));
}

// The fabric and the connection break at random moments, known to the sender or not.
class FabricPathSeeds : public testing::TestWithParam<int> {
 protected:
  FabricPathSeeds() : random(Seed()), delays(Seed() + 1000), world(Limits(), QuickToReturn()) {
    world.features = kFeatureFabric;
    world.GiveFabric();
  }
  static uint32_t Seed() { return static_cast<uint32_t>(GetParam()); }
  LocalLimits Limits() {
    LocalLimits limits;
    if (random() % 2) limits.receive_depth = limits.send_queue_depth = 8;
    return limits;
  }
  static Tunables QuickToReturn() {
    Tunables tunables;
    tunables.fabric_settle_ns = 100'000;
    return tunables;
  }
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random() % bound); }

  // Slow by turns, so that either path may run ahead of the other. 0: does not break.
  transport::LocalPolicy Network(uint32_t breaks_within) {
    const bool known = Below(2);
    const uint32_t held = Below(4);  // Of four.
    const uint32_t left = breaks_within == 0 ? UINT32_MAX : Below(breaks_within);
    return [=, this, left = left](void*, const auto&) mutable {
      if (delays() % 4 < held && delays() % 8 != 0) return LocalVerdict::kHold;
      if (left-- != 0) return LocalVerdict::kDeliver;
      return known ? LocalVerdict::kBreak : LocalVerdict::kDeliverThenBreak;
    };
  }

  void SendSome() {
    ASSERT_NE(world.a.engine->Open(&world.a, opened++, 5, world.now_ns), nullptr);
    for (int i = 0; i < 20; ++i) {
      auto [here, there] = pairs[Below(4)];
      const bool from_a = Below(2);
      const size_t length = Below(2) ? Below(200'000) : Below(100);
      Socket* socket = from_a ? world.a.sockets.Find(here) : world.b.sockets.Find(there);
      ASSERT_NE(socket, nullptr);
      world.Send(from_a ? world.a : world.b, *socket, token++, length);
      if (Below(8) == 0) world.Step();
    }
  }

  void Run() {
    const bool fabric_recovers = Below(2);
    for (int i = 0; i < 1500; ++i) {
      world.Step();
      if (i == 400 && fabric_recovers) world.fabric.loop->SetPolicy({});
      if (i % 50 != 49) continue;
      world.a.engine->Tick(world.now_ns);
      world.b.engine->Tick(world.now_ns);
    }
  }

  std::mt19937 random, delays;
  World world;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  uint64_t token = 1000, opened = 0;
};

TEST_P(FabricPathSeeds, NothingIsLostDoubledOrReorderedAcrossPathsOfBothKinds) {
  // On some seeds an end lends out of receives that all its peers share, with others about.
  for (auto* end : {&world.fabric_a, &world.fabric_b}) {
    if (Below(2)) continue;
    end->lender.emplace(40 + Below(100), SharedReceives::kSmallestReserve + Below(6));
    while (Below(4) != 0 && end->lender->free() > 20) end->lender->Join(100);
  }
  uint32_t epoch = 1;
  world.Connect(9, epoch, false);
  for (; opened < 4; ++opened) {
    Socket* there;
    Socket* here = world.OpenPair(&there, opened);
    pairs.push_back({here->id, there->id});
  }
  for (int round = 0; round < 12; ++round) {
    const bool wire_breaks = Below(3) == 0;
    world.fabric.loop->SetPolicy(Network(Below(4) != 0 ? 80 : 0));
    world.wire->SetPolicy(Network(wire_breaks ? 40 : 0));
    SendSome();
    const int lost_before = world.a.paths_lost + world.b.paths_lost;
    Run();
    world.wire->SetPolicy({});
    if (const int lost = world.a.paths_lost + world.b.paths_lost; lost != lost_before) {
      ASSERT_TRUE(wire_breaks) << world.a.last_reason;
      world.Settle();
      world.Connect(9, ++epoch, true);
    }
    ASSERT_EQ(world.a.sessions_over + world.b.sessions_over, 0) << world.a.last_reason;
  }
  world.fabric.loop->SetPolicy({});
  world.Settle();
  if (world.a.engine->state() != Engine::State::kUp) {
    world.Connect(9, ++epoch, true);
    world.Settle();
  }
  for (auto [here, there] : pairs) {
    world.ExpectArrived(world.a, here, world.b, there);
    world.ExpectArrived(world.b, there, world.a, here);
  }
  EXPECT_EQ(world.a.connected.size(), opened);
  EXPECT_EQ(world.a.engine->socket_count(), opened);
  EXPECT_EQ(world.b.engine->socket_count(), opened);
  EXPECT_GT(world.a.engine->counters().fabric_paths, 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, FabricPathSeeds, testing::Range(0, 100));

}  // namespace
}  // namespace sluice
