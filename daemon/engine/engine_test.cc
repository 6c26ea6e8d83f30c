// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/engine.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <random>

#include "daemon/engine/engine_testing.h"

namespace sluice {
namespace {

using transport::LocalVerdict;

class EngineSizes : public testing::TestWithParam<size_t> {};

TEST_P(EngineSizes, CarriesMessagesOfThisSizeInOrder) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  for (uint64_t token = 100; token < 120; ++token) world.Send(world.a, *here, token, GetParam());
  world.Settle();
  world.ExpectArrived(world.a, here->id, world.b, there->id);
  EXPECT_EQ(world.b.traces.front(), 300u);
}

INSTANTIATE_TEST_SUITE_P(Boundaries, EngineSizes,
                         testing::Values(0, 1, 40, 41, 255, 256, 257, 4096, 16304, 16305, 65535,
                                         65536, 65537, 1 << 20, (3 << 20) + 1));

TEST(Engine, MixesSizesOnManySocketsInBothDirections) {
  World world;
  world.Connect(9, 1, false);
  std::vector<std::pair<Socket*, Socket*>> pairs(20);
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i].first = world.OpenPair(&pairs[i].second, i);
  std::mt19937 random(7);
  for (uint64_t token = 1000; token < 3000; ++token) {
    auto& [here, there] = pairs[random() % pairs.size()];
    const size_t length = random() % 3 == 0 ? random() % 100'000 : random() % 300;
    world.Send(token % 2 ? world.a : world.b, token % 2 ? *here : *there, token, length);
    if (token % 50 == 0) world.Settle();
  }
  world.Settle();
  for (auto& [here, there] : pairs) {
    world.ExpectArrived(world.a, here->id, world.b, there->id);
    world.ExpectArrived(world.b, there->id, world.a, here->id);
  }
  EXPECT_EQ(world.a.engine->window().in_flight_bytes(), 0u);
}

TEST(Engine, AWindowSmallerThanAFragmentStillMakesProgress) {
  Tunables tunables;
  tunables.send_window_bytes = 1000;
  World world({}, tunables);
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  world.Send(world.a, *here, 100, 50'000);
  world.Send(world.a, *here, 101, 900);
  world.Settle();
  world.ExpectArrived(world.a, here->id, world.b, there->id);
}

TEST(Engine, NeverPostsBeyondItsWindowEvenWhenItShrinks) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  bool hold = true;
  world.wire->SetPolicy([&](void*, const transport::SendRequest& request) {
    const bool data = request.opcode != transport::Opcode::kSend;
    return hold && data ? LocalVerdict::kHold : LocalVerdict::kDeliver;
  });
  for (uint64_t token = 100; token < 140; ++token) world.Send(world.a, *here, token, 100'000);
  for (int i = 0; i < 50; ++i) world.Step();
  EXPECT_LE(world.a.engine->window().in_flight_bytes(), 1024 * kKiB);
  EXPECT_GT(world.a.engine->window().in_flight_bytes(), 800 * kKiB);
  EXPECT_STREQ(world.a.engine->LimitedBy(), "window");
  Tunables smaller;
  smaller.send_window_bytes = 128 * kKiB;
  world.a.engine->Configure(smaller);
  hold = false;
  world.Settle();
  world.ExpectArrived(world.a, here->id, world.b, there->id);
}

TEST(Engine, TinyQueuesFullInBothDirectionsMakeProgress) {
  LocalLimits limits;
  limits.send_queue_depth = 8;
  limits.receive_depth = 8;
  limits.message_window = 4;
  World world(limits);
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  for (uint64_t token = 100; token < 1100; ++token) {
    world.Send(token % 2 ? world.a : world.b, token % 2 ? *here : *there, token,
               token % 7 == 0 ? 40'000 : 300);
  }
  world.Settle();
  world.ExpectArrived(world.a, here->id, world.b, there->id);
  world.ExpectArrived(world.b, there->id, world.a, here->id);
}

TEST(Engine, SocketsTakeTurnsFragmentByFragment) {
  World world;
  world.Connect(9, 1, false);
  Socket *there_large, *there_small;
  Socket* large = world.OpenPair(&there_large, 1);
  Socket* small = world.OpenPair(&there_small, 2);
  world.Send(world.a, *large, 100, 8 << 20);
  for (int i = 0; i < 5; ++i) world.Step();
  world.Send(world.a, *small, 101, 100);
  while (world.b.received[there_small->id].empty()) ASSERT_TRUE(world.Step());
  EXPECT_TRUE(world.b.received[there_large->id].empty())
      << "the small one did not wait for the large one";
  world.Settle();
  world.ExpectArrived(world.a, large->id, world.b, there_large->id);
}

TEST(Engine, GrantsLandingBuffersAheadOnceLargeMessagesCome) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  for (uint64_t token = 100; token < 140; ++token) {
    world.Send(world.a, *here, token, 50'000);
    world.Settle();
  }
  world.ExpectArrived(world.a, here->id, world.b, there->id);
  EXPECT_GT(world.a.engine->counters().grants_used, 30u);
  const uint64_t granted = world.b.used_bytes;
  EXPECT_GT(granted, 0u);
  for (int i = 0; i < 3; ++i) {
    world.now_ns += kNsPerSecond;
    world.a.engine->Tick(world.now_ns);
    world.b.engine->Tick(world.now_ns);
    world.Settle();
  }
  EXPECT_EQ(world.b.used_bytes, 0u) << "unused grants are recalled after a quiet second";
  world.Send(world.a, *here, 200, 50'000);
  world.Settle();
  world.ExpectArrived(world.a, here->id, world.b, there->id);
}

TEST(Engine, AReceiverShortOfMemoryStallsOnlyItsOwnSocket) {
  World world;
  world.Connect(9, 1, false);
  Socket *there, *other_there;
  Socket* here = world.OpenPair(&there, 1);
  Socket* other = world.OpenPair(&other_there, 2);
  world.b.memory_bytes = 0;
  for (uint64_t token = 100; token < 130; ++token)
    world.Send(world.a, *here, token, token % 3 == 0 ? 50'000 : 1000);
  world.Settle();
  EXPECT_TRUE(world.b.received[there->id].empty());
  EXPECT_TRUE(world.a.ends.empty())
      << "nothing is acknowledged before it is in the receiver's pool";
  world.Send(world.a, *other, 200, 30);  // Inline: needs no memory.
  world.Settle();
  EXPECT_EQ(world.a.ends.at(200).outcome, Outcome::kOk);
  world.b.memory_bytes = 64 * kMiB;
  for (int i = 0; i < 40; ++i) {
    world.b.Feed();
    world.Settle();
  }
  world.ExpectArrived(world.a, here->id, world.b, there->id);
}

TEST(Engine, AReceiverThatDoesNotDrainStopsItsSenderAtTheWindow) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  world.b.slots = 0;
  for (uint64_t token = 100; token < 300; ++token) world.Send(world.a, *here, token, 200);
  world.Settle();
  EXPECT_EQ(world.a.ends.size(), world.limits.message_window) << "placed, though not handed on";
  world.b.slots = 1000;
  for (int i = 0; i < 20; ++i) {
    world.b.Feed();
    world.Settle();
  }
  world.ExpectArrived(world.a, here->id, world.b, there->id);
}

TEST(Engine, AMessageLargerThanTheReceiversPoolClosesTheSocketWithAReason) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  const uint32_t id = here->id;
  world.b.largest_bytes = 1 * kMiB;
  world.Send(world.a, *here, 100, 2 << 20);
  world.Settle();
  EXPECT_EQ(world.a.ends.at(100).outcome, Outcome::kFailed);
  EXPECT_EQ(world.a.closed.at(id), EMSGSIZE);
}

TEST(Engine, ClosingSendsWhatIsQueuedFirst) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  const uint32_t here_id = here->id, there_id = there->id;
  for (uint64_t token = 100; token < 130; ++token) world.Send(world.a, *here, token, 30'000);
  world.a.engine->Close(*here);
  EXPECT_FALSE(world.a.engine->Send(*here, {nullptr, 0, 999, 0, 0, true})) << "closed is closed";
  world.Settle();
  world.ExpectArrived(world.a, here_id, world.b, there_id);
  EXPECT_EQ(world.a.closed.at(here_id), 0);
  EXPECT_EQ(world.b.closed.at(there_id), 0);
  EXPECT_EQ(world.a.sockets.size() + world.b.sockets.size(), 0u);
  EXPECT_EQ(world.b.used_bytes, 0u);
}

TEST(Engine, BothEndsMayCloseAtOnce) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  world.a.engine->Close(*here);
  world.b.engine->Close(*there);
  world.Settle();
  EXPECT_EQ(world.a.closed.size() + world.b.closed.size(), 2u);
  EXPECT_EQ(world.a.sockets.size() + world.b.sockets.size(), 0u);
}

TEST(Engine, BothEndsMayCloseWithMessagesUnderWay) {
  for (int steps = 0; steps < 80; ++steps) {
    World world;
    world.Connect(9, 1, false);
    Socket* there;
    Socket* here = world.OpenPair(&there, 1);
    const uint32_t there_id = there->id;
    for (uint64_t token = 100; token < 110; ++token) {
      world.Send(world.a, *here, token, token % 2 ? 30'000 : 300);
      world.Send(world.b, *there, token + 1000, token % 2 ? 300 : 30'000);
    }
    if (steps % 2) world.b.memory_bytes = 0;  // What b was to receive never finds room.
    world.a.engine->Close(*here);
    for (int i = 0; i < steps; ++i) world.Step();
    if (Socket* socket = world.b.sockets.Find(there_id)) world.b.engine->Close(*socket);
    world.Settle();
    ASSERT_EQ(world.a.closed.size() + world.b.closed.size(), 2u) << steps;
    ASSERT_EQ(world.a.sockets.size() + world.b.sockets.size(), 0u) << steps;
    ASSERT_EQ(world.a.ends.size() + world.b.ends.size(), 20u) << steps;
    ASSERT_EQ(world.a.paths_lost + world.b.paths_lost, 0) << steps;
  }
}

TEST(Engine, WhatArrivedBeforeTheReceiverClosedIsAcknowledged) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  const uint32_t there_id = there->id;
  world.Send(world.a, *here, 100, 30);
  world.Send(world.a, *here, 101, 5000);
  for (int i = 0; i < 100 && world.b.received[there_id].size() < 2; ++i) world.Step();
  world.b.engine->Close(*there);
  world.Settle();
  EXPECT_EQ(world.a.ends.at(100).outcome, Outcome::kOk);
  EXPECT_EQ(world.a.ends.at(101).outcome, Outcome::kOk);
}

TEST(Engine, APeerThatNeverConfirmsACloseLosesItsPath) {
  Tunables tunables;
  tunables.keepalive_timeout_ns = 3600 * kNsPerSecond;
  World world({}, tunables);
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  world.a.engine->Close(*here);
  for (int second = 0; second < 40; ++second) {  // b's side of it is never polled.
    world.a.engine->Tick(world.now_ns);
    world.a.engine->Flush(world.now_ns);
    EXPECT_EQ(world.a.paths_lost, second > 31 ? 1 : world.a.paths_lost);
    world.now_ns += kNsPerSecond;
  }
  EXPECT_EQ(world.a.paths_lost, 1);
  EXPECT_NE(world.a.last_reason.find("closing"), std::string::npos);
}

TEST(Engine, AcknowledgesNothingBeyondAMessageThatWaitsForMemory) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  world.b.memory_bytes = 0;
  world.Send(world.a, *here, 100, 1000);
  world.Send(world.a, *here, 101, 30);  // Inline: it is in place at once.
  world.Settle();
  EXPECT_TRUE(world.a.ends.empty());
  world.b.memory_bytes = 64 * kMiB;
  world.b.Feed();
  world.Settle();
  world.ExpectArrived(world.a, here->id, world.b, there->id);
}

TEST(Engine, KeepsNoMoreForAFullPoolThanTheHostAllows) {
  World world;
  world.Connect(9, 1, false);
  Socket *there, *there_too;
  Socket* here = world.OpenPair(&there, 1);
  Socket* other = world.OpenPair(&there_too, 2);
  world.b.memory_bytes = 0;
  world.b.most_held_bytes = 10'000;
  for (uint64_t token = 100; token < 120; ++token) world.Send(world.a, *here, token, 1000);
  world.Settle();
  EXPECT_LE(world.b.held_bytes, 10'000u);
  EXPECT_EQ(world.a.closed.at(here->id), ENOBUFS);
  EXPECT_EQ(world.a.ends.size(), 20u);
  EXPECT_EQ(world.a.paths_lost, 0) << "the other sockets of the engine go on";
  world.Send(world.a, *other, 200, 20);
  world.Settle();
  EXPECT_EQ(world.a.ends.at(200).outcome, Outcome::kOk);
  world.b.engine->Abort(*there);
  world.Settle();
  EXPECT_EQ(world.b.held_bytes, 0u);
}

// The receiver asks a grant back while a message has chosen it and not said so.
TEST(Engine, ARecalledGrantIsNotUsedByAMessageThatHadChosenIt) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  for (uint64_t token = 100; token < 120; ++token) world.Send(world.a, *here, token, 50'000);
  world.Settle();  // Which taught b to grant several ahead.
  bool hold = true;
  world.wire->SetPolicy([&](void*, const transport::SendRequest& request) {
    return hold && request.opcode != transport::Opcode::kSend ? LocalVerdict::kHold
                                                              : LocalVerdict::kDeliver;
  });
  Tunables narrow;
  narrow.send_window_bytes = 60'000;  // The first message is posted, the others only chose.
  world.a.engine->Configure(narrow);
  for (uint64_t token = 200; token < 206; ++token) world.Send(world.a, *here, token, 50'000);
  for (int i = 0; i < 50; ++i) world.Step();
  world.now_ns += 2 * kNsPerSecond;
  world.b.engine->Tick(world.now_ns);
  for (int i = 0; i < 50; ++i) world.Step();
  hold = false;
  world.Settle();
  EXPECT_EQ(world.a.paths_lost + world.b.paths_lost, 0) << world.b.last_reason;
  world.ExpectArrived(world.a, here->id, world.b, there->id);
}

// What was asked for on the old path may use a grant on the new one.
TEST(Engine, AMessageThatUsesAGrantFreesTheBufferAskedForBeforeAPathChange) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  for (uint64_t token = 100; token < 120; ++token) world.Send(world.b, *there, token, 50'000);
  world.Settle();
  ASSERT_NE(here->offered, nullptr);
  wire::FrameHeader request{};
  request.type = wire::FrameType::kWriteRequest;
  request.socket = here->id;
  request.sequence = here->expected;
  request.length = 40'000;
  world.Inject(request);
  world.Settle();
  ASSERT_NE(here->landing_head, nullptr);
  world.wire->SetPolicy([](void*, const transport::SendRequest&) { return LocalVerdict::kBreak; });
  world.Send(world.b, *there, 200, 10);
  world.Settle();
  world.wire->SetPolicy({});
  world.Connect(9, 2, true);
  request.flags = wire::kUsesGrant;
  request.argument = here->offered->id;
  const uint64_t before_bytes = world.a.used_bytes;
  world.Inject(request);
  ASSERT_NE(here->landing_head, nullptr);
  EXPECT_EQ(here->landing_head->next, nullptr) << "one buffer for one message";
  EXPECT_LT(world.a.used_bytes, before_bytes);
}

TEST(Engine, APeerThatAsksButTakesNoAnswersLosesItsPath) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  world.wire->SetPolicy([](void*, const transport::SendRequest&) { return LocalVerdict::kHold; });
  wire::FrameHeader recall{};
  recall.type = wire::FrameType::kRecall;
  recall.socket = here->id;
  std::vector<std::byte> many;
  for (int i = 0; i < 10'000; ++i) {
    const auto bytes = std::as_bytes(std::span(&recall, 1));
    many.insert(many.end(), bytes.begin(), bytes.end());
  }
  world.Inject(many);
  world.a.engine->Flush(world.now_ns);
  EXPECT_EQ(world.a.paths_lost, 1);
}

TEST(Engine, AResumeOutOfPlaceCostsThePeerItsPathOnly) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  const uint32_t id = here->id;
  world.wire->SetPolicy([](void*, const transport::SendRequest&) { return LocalVerdict::kHold; });
  world.Send(world.a, *here, 100, 10'000);
  for (int i = 0; i < 10; ++i) world.Step();
  wire::FrameHeader resume{};
  resume.type = wire::FrameType::kResume;
  resume.socket = id;
  resume.argument = here->remote_id;
  world.Inject(resume);
  world.a.engine->Abort(*here);
  world.Settle();
  EXPECT_EQ(world.a.paths_lost, 1);
  EXPECT_EQ(world.a.ends.at(100).outcome, Outcome::kUnknown) << "it was on its way";
}

TEST(Engine, AnOwnerThatDiesMidTransferLeavesNothingBehind) {
  for (int steps = 0; steps < 60; ++steps) {
    World world;
    world.Connect(9, 1, false);
    Socket* there;
    Socket* here = world.OpenPair(&there, 1);
    for (uint64_t token = 100; token < 130; ++token) {
      world.Send(world.a, *here, token, 30'000);
      world.Send(world.b, *there, token + 1000, 30'000);
    }
    for (int i = 0; i < steps; ++i) world.Step();
    world.a.engine->Abort(*here);
    world.Settle();
    EXPECT_EQ(world.a.sockets.size() + world.b.sockets.size(), 0u);
    EXPECT_EQ(world.a.used_bytes + world.b.used_bytes, 0u);
    EXPECT_EQ(world.a.ends.size(), 30u);
    EXPECT_EQ(world.b.ends.size(), 30u);
    EXPECT_EQ(world.a.closed.size(), 0u) << "nobody is there to be told";
    EXPECT_EQ(world.b.closed.size(), 1u);
  }
}

TEST(Engine, RefusedAndTimedOutConnectsSayWhy) {
  World world;
  world.a.engine->Open(&world.a, 1, 5, world.now_ns);
  world.now_ns += 6 * kNsPerSecond;
  world.a.engine->Tick(world.now_ns);
  EXPECT_EQ(world.a.connected.at(1).error, ETIMEDOUT);
  world.Connect(9, 1, false);
  world.a.engine->Open(&world.a, 2, 5, world.now_ns);
  while (world.b.incoming.empty()) {
    std::array<transport::Completion, 64> completions;
    const size_t count = world.wire->Poll(completions, world.now_ns);
    for (size_t i = 0; i < count; ++i) {
      static_cast<Engine*>(completions[i].context)->OnCompletion(completions[i], world.now_ns);
    }
    world.a.engine->Flush(world.now_ns);
  }
  world.b.engine->Refuse(*world.b.sockets.Find(world.b.incoming.front()), ECONNREFUSED);
  world.b.incoming.clear();
  world.Settle();
  EXPECT_EQ(world.a.connected.at(2).error, ECONNREFUSED);
  EXPECT_EQ(world.a.sockets.size() + world.b.sockets.size(), 0u);
}

TEST(Engine, SilenceForTheKeepaliveTimeoutEndsTheSession) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  const uint32_t id = here->id;
  world.wire->SetPolicy([](void*, const transport::SendRequest&) { return LocalVerdict::kHold; });
  world.Send(world.a, *here, 100, 100);
  for (int i = 0; i < 70; ++i) {
    world.now_ns += kNsPerSecond / 10;
    world.Step();
    world.a.engine->Tick(world.now_ns);
  }
  EXPECT_EQ(world.a.sessions_over, 1);
  EXPECT_EQ(world.a.ends.at(100).outcome, Outcome::kUnknown);
  EXPECT_EQ(world.a.closed.at(id), ETIMEDOUT);
  EXPECT_EQ(world.a.sockets.size(), 0u);
}

TEST(Engine, SilenceIsNoticedThoughTicksComeNoMoreOftenThanAsked) {
  Tunables tunables;
  tunables.keepalive_interval_ns = kNsPerSecond / 10;
  tunables.keepalive_timeout_ns = kNsPerSecond;
  World world({}, tunables);
  world.Connect(9, 1, false);
  Socket* there;
  world.OpenPair(&there, 1);
  world.a.engine->Tick(world.now_ns);
  world.wire->SetPolicy([](void*, const transport::SendRequest&) { return LocalVerdict::kHold; });
  for (int i = 0; i < 20 && world.a.sessions_over == 0; ++i) {
    const uint64_t next_ns = world.a.engine->NextDeadlineNs();
    ASSERT_LE(next_ns, world.now_ns + kNsPerSecond) << "somebody must wake the loop";
    world.now_ns = next_ns + kNsPerMs;  // As late as a sleeping loop is.
    world.Step();
    world.a.engine->Tick(world.now_ns);
  }
  EXPECT_EQ(world.a.sessions_over, 1);
}

// A deadline in the past that nothing takes away would turn a sleeping loop into a busy one.
TEST(Engine, AsksToBeWokenForAcknowledgementsOnlyWhileItCanSendThem) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  for (Node* node : {&world.a, &world.b}) node->engine->Tick(world.now_ns);
  bool hold = false;
  world.wire->SetPolicy([&](void*, const transport::SendRequest&) {
    return hold ? LocalVerdict::kHold : LocalVerdict::kDeliver;
  });
  world.Send(world.a, *here, 100, 100);
  world.Settle();
  hold = true;  // Nothing of b's gets through, so it runs out of credits and places.
  for (uint64_t token = 101; token < 400; ++token) world.Send(world.b, *there, token, 20);
  for (int i = 0; i < 2000; ++i) world.Step();
  EXPECT_GT(world.b.engine->NextDeadlineNs(), world.now_ns);
  world.a.engine->EndSession(ECONNRESET, "test", world.now_ns);
  world.b.engine->EndSession(ECONNRESET, "test", world.now_ns);
  EXPECT_GT(world.a.engine->NextDeadlineNs(), world.now_ns);
  EXPECT_GT(world.b.engine->NextDeadlineNs(), world.now_ns);
}

TEST(Engine, KeepalivesKeepAnIdleSessionAlive) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  world.OpenPair(&there, 1);
  for (int i = 0; i < 600; ++i) {
    world.now_ns += kNsPerSecond / 10;
    world.a.engine->Tick(world.now_ns);
    world.b.engine->Tick(world.now_ns);
    world.Step();
    world.Step();
  }
  EXPECT_EQ(world.a.sessions_over + world.b.sessions_over, 0);
  EXPECT_GE(world.a.engine->counters().keepalives_received, 50u);
}

TEST(Engine, ALoopThatWasStoppedDoesNotBlameItsPeer) {
  World world;
  world.Connect(9, 1, false);
  world.Settle();
  world.a.engine->Tick(world.now_ns);
  world.now_ns += 3600 * kNsPerSecond;
  world.a.engine->Tick(world.now_ns);
  EXPECT_EQ(world.a.sessions_over, 0);
}

TEST(Engine, GoodbyeEndsTheSessionAtTheOtherEndAtOnce) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  world.OpenPair(&there, 1);
  const uint32_t there_id = there->id;
  world.a.engine->SayGoodbye(world.now_ns);
  world.Settle();
  EXPECT_EQ(world.b.sessions_over, 1);
  EXPECT_EQ(world.b.closed.at(there_id), ESHUTDOWN);
}

TEST(Engine, ANewInstanceOfThePeerIsANewSession) {
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  const uint32_t id = here->id;
  world.Send(world.a, *here, 100, 50'000);
  world.Connect(10, 1, false);
  world.Settle();
  EXPECT_EQ(world.a.closed.at(id), ECONNRESET);
  EXPECT_EQ(world.a.ends.at(100).outcome, Outcome::kFailed) << "it certainly did not arrive";
  EXPECT_EQ(world.a.sockets.size() + world.b.sockets.size(), 0u);
}

TEST(Engine, RefusesToResumeASessionThatIsOver) {
  World world;
  SessionParameters parameters;
  parameters.session = 4;
  parameters.resumed = true;
  auto [pair_a, pair_b] = world.wire->CreatePair({8, 8, 1024}, world.a.engine.get(), {8, 8, 1024},
                                                 world.b.engine.get());
  EXPECT_FALSE(world.a.engine->OnPathUp(std::move(pair_a), parameters, world.now_ns));
}

// An authenticated peer with a bug: any frame with any field wrong may cost the path, never more.
TEST(Engine, SurvivesAnyFrameAPeerCanSend) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 1000; ++round) {
    World world;
    world.Connect(9, 1, false);
    Socket* there;
    Socket* here = world.OpenPair(&there, 1);
    world.Send(world.a, *here, 100, 50'000);
    world.Send(world.b, *there, 101, 50'000);
    for (uint64_t i = random() % 8; i > 0; --i) world.Step();
    std::vector<std::byte> bytes;
    for (uint64_t frames = random() % 3 + 1; frames > 0; --frames) {
      wire::FrameHeader header{};
      header.type = static_cast<wire::FrameType>(random() % 20);
      header.flags = static_cast<uint8_t>(random() % 3);
      header.socket = random() % 4 ? here->id : static_cast<uint32_t>(random());
      header.sequence = random() % 4 ? random() % 4 : random();
      header.length = random() % 4 ? random() % 200 : random();
      header.argument = random() % 2 ? here->remote_id : static_cast<uint32_t>(random() % 300);
      header.bytes = static_cast<uint32_t>(random() % 60);
      const auto* raw = reinterpret_cast<const std::byte*>(&header);
      bytes.insert(bytes.end(), raw, raw + sizeof(header));
      bytes.resize(bytes.size() + (random() % 8 ? header.bytes : random() % 60));
    }
    transport::Completion completion{};
    completion.kind = random() % 4 ? transport::CompletionKind::kReceived
                                   : transport::CompletionKind::kWritten;
    completion.immediate = random() % 2 ? 1u << 20 : static_cast<uint32_t>(random());
    completion.data = bytes.data();
    completion.bytes = static_cast<uint32_t>(bytes.size());
    world.a.engine->OnCompletion(completion, world.now_ns);
    for (int i = 0; i < 200; ++i) world.Step();
    world.a.engine->EndSession(EPROTO, "end of test", world.now_ns);
    world.b.engine->EndSession(EPROTO, "end of test", world.now_ns);
    EXPECT_EQ(world.a.ends.count(100), 1u);
    EXPECT_EQ(world.b.ends.count(101), 1u);
  }
}

}  // namespace
}  // namespace sluice
