// SPDX-License-Identifier: Apache-2.0
// Sessions that go on over new paths, and operations that end truthfully when they do not.

#include <gtest/gtest.h>

#include <cerrno>
#include <random>

#include "daemon/engine/engine_testing.h"

namespace sluice {
namespace {

using transport::LocalVerdict;

// Paths break at random moments, with requests delivered, lost, or delivered without the sender
// knowing; each time the session resumes. Nothing may be lost, doubled, reordered or damaged, and
// every operation ends once, as OK.
class EngineResume : public testing::TestWithParam<int> {};

TEST_P(EngineResume, NothingIsLostDoubledOrReorderedAcrossPaths) {
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  LocalLimits limits;
  if (random() % 2) limits.receive_depth = limits.send_queue_depth = 8;
  World world(limits);
  world.Connect(9, 1, false);
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  for (uint64_t i = 0; i < 4; ++i) {
    Socket* there;
    Socket* here = world.OpenPair(&there, i);
    pairs.push_back({here->id, there->id});
  }
  uint64_t token = 1000;
  uint32_t epoch = 1;
  for (int round = 0; round < 12; ++round) {
    auto until_break = static_cast<uint32_t>(random() % 60);
    const bool known = random() % 2;
    world.wire->SetPolicy([&, until_break](void*, const transport::SendRequest&) mutable {
      if (until_break-- != 0) return LocalVerdict::kDeliver;
      return known ? LocalVerdict::kBreak : LocalVerdict::kDeliverThenBreak;
    });
    for (int i = 0; i < 20; ++i) {
      auto [here, there] = pairs[random() % pairs.size()];
      const bool from_a = random() % 2;
      const size_t length = random() % 2 ? random() % 200'000 : random() % 100;
      Socket* socket = from_a ? world.a.sockets.Find(here) : world.b.sockets.Find(there);
      ASSERT_NE(socket, nullptr);
      world.Send(from_a ? world.a : world.b, *socket, token++, length);
    }
    const int paths_before = world.a.paths_lost;
    for (int i = 0; i < 3000 && world.a.paths_lost == paths_before; ++i) world.Step();
    world.Settle();
    if (world.a.paths_lost != paths_before) {
      world.wire->SetPolicy({});
      world.Connect(9, ++epoch, true);
      if (random() % 2) world.Settle();
    }
  }
  world.wire->SetPolicy({});
  world.Settle();
  for (auto [here, there] : pairs) {
    world.ExpectArrived(world.a, here, world.b, there);
    world.ExpectArrived(world.b, there, world.a, here);
  }
  EXPECT_GT(epoch, 2u);
  for (int i = 0; i < 3; ++i) {
    world.now_ns += kNsPerSecond;
    world.a.engine->Tick(world.now_ns);
    world.b.engine->Tick(world.now_ns);
    world.Settle();
  }
  EXPECT_EQ(world.a.used_bytes + world.b.used_bytes, 0u) << "no landing buffer is forgotten";
  EXPECT_EQ(world.a.sessions_over + world.b.sessions_over, 0);
  EXPECT_EQ(world.a.engine->window().in_flight_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, EngineResume, testing::Range(0, 100));

// Sockets that open, are accepted and close while paths come and go: both ends agree in the end.
TEST_P(EngineResume, OpeningAndClosingSurviveAPathChange) {
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  World world;
  world.Connect(9, 1, false);
  uint32_t epoch = 1;
  std::vector<uint32_t> opened;
  for (uint64_t round = 0; round < 12; ++round) {
    auto until_break = static_cast<uint32_t>(random() % 6);
    const bool known = random() % 2;
    world.wire->SetPolicy([&, until_break](void*, const transport::SendRequest&) mutable {
      if (until_break-- != 0) return LocalVerdict::kDeliver;
      return known ? LocalVerdict::kBreak : LocalVerdict::kDeliverThenBreak;
    });
    opened.push_back(world.a.engine->Open(&world.a, round, 5, world.now_ns)->id);
    for (int i = 0; i < 4; ++i) world.Step();
    const uint32_t victim = opened[random() % opened.size()];
    Socket* socket = random() % 4 == 0 ? world.a.sockets.Find(victim) : nullptr;
    if (socket != nullptr && socket->state == SocketState::kOpen) world.a.engine->Close(*socket);
    world.Settle();
    world.wire->SetPolicy({});
    if (world.a.paths_lost >= static_cast<int>(epoch)) {
      world.Connect(9, ++epoch, true);
      if (random() % 2) world.Settle();
    }
  }
  world.Settle();
  EXPECT_EQ(world.a.paths_lost, static_cast<int>(epoch) - 1) << world.a.last_reason;
  EXPECT_EQ(world.a.connected.size(), 12u);
  EXPECT_EQ(world.a.sockets.size(), world.b.sockets.size());
  EXPECT_EQ(world.a.sockets.size() + world.a.closed.size(), 12u);
  uint64_t token = 1000;
  for (uint32_t id : opened) {
    Socket* socket = world.a.sockets.Find(id);
    if (socket == nullptr) continue;
    ASSERT_NE(world.b.sockets.Find(socket->remote_id), nullptr);
    world.Send(world.a, *socket, token, 100);
    world.Settle();
    EXPECT_EQ(world.a.ends.at(token++).outcome, Outcome::kOk);
  }
}

// When the session ends instead, every operation still ends once and truthfully: OK and FAILED are
// checked against what the other side really received.
class EngineTruth : public testing::TestWithParam<int> {};

TEST_P(EngineTruth, OutcomesMatchWhatArrived) {
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  World world;
  world.Connect(9, 1, false);
  Socket* there;
  Socket* here = world.OpenPair(&there, 1);
  const uint32_t here_id = here->id, there_id = there->id;
  for (uint64_t token = 100; token < 160; ++token) {
    world.Send(world.a, *here, token, random() % 2 ? random() % 200'000 : random() % 100);
  }
  for (uint64_t i = random() % 80; i > 0; --i) world.Step();
  world.a.engine->EndSession(ECONNRESET, "test", world.now_ns);
  world.b.engine->EndSession(ECONNRESET, "test", world.now_ns);
  world.Settle();
  ASSERT_EQ(world.a.ends.size(), 60u);
  const size_t arrived = world.b.received[there_id].size();
  const auto& tokens = world.sent[{&world.a, here_id}];
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Outcome outcome = world.a.ends.at(tokens[i]).outcome;
    ASSERT_TRUE(outcome != Outcome::kOk || i < arrived);
    ASSERT_TRUE(outcome != Outcome::kFailed || i >= arrived);
  }
  EXPECT_EQ(world.a.sockets.size() + world.b.sockets.size(), 0u);
  EXPECT_EQ(world.a.used_bytes + world.b.used_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, EngineTruth, testing::Range(0, 100));

}  // namespace
}  // namespace sluice
