// SPDX-License-Identifier: Apache-2.0
#include "daemon/io/io_thread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "daemon/io/io_thread_testing.h"

namespace sluice::io::testing {
namespace {

TEST_F(IoThreadTest, CarriesAMessageFromOneClientToAnother) {
  Begin();
  const auto [from, to] = OpenPair();
  std::memcpy(dialer->pool, "hello", 5);
  dialer->Send(from, 3, 1000);
  Settle();
  const auto sent = dialer->Take();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].token, 3u);
  EXPECT_EQ(sent[0].result.outcome, static_cast<uint32_t>(Outcome::kOk));
  const auto got = listener->Take();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].socket, to);
  EXPECT_EQ(got[0].region.length, 1000u);
  EXPECT_EQ(std::memcmp(listener->pool + got[0].region.offset, "hello", 5), 0);
}

TEST_F(IoThreadTest, ASendAboveTheLongestMessageIsRefusedAlone) {
  Begin();
  const auto [from, to] = OpenPair();
  dialer->Send(from, 1, kMaxMessageBytes + 1);
  dialer->Send(from, 2, kMaxMessageBytes);
  Settle();
  const auto sent = dialer->Take();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].token, 1u);
  EXPECT_EQ(sent[0].result.outcome, static_cast<uint32_t>(Outcome::kFailed));
  EXPECT_EQ(sent[0].result.error, EMSGSIZE);
  EXPECT_EQ(sent[1].result.outcome, static_cast<uint32_t>(Outcome::kOk));
  EXPECT_EQ(listener->Take().size(), 1u);
}

// Its library would take a longer one for our fault and detach.
TEST_F(IoThreadTest, AMessageAboveTheReceiversLimitClosesTheSocketAndNothingElse) {
  Begin(kMiB);
  const auto [from, to] = OpenPair();
  dialer->Send(from, 1, kMiB);
  Settle();
  dialer->Send(from, 2, kMiB + 1);
  Settle();
  const auto got = listener->Take();
  ASSERT_EQ(got.size(), 2u);
  EXPECT_TRUE(Is(got[0], CompletionOp::kMessage));
  EXPECT_EQ(got[0].region.length, kMiB);
  EXPECT_TRUE(Is(got[1], CompletionOp::kClosed));
  EXPECT_EQ(got[1].result.error, EMSGSIZE);
  const auto sent = dialer->Take();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].result.outcome, static_cast<uint32_t>(Outcome::kOk));
  EXPECT_EQ(sent[1].result.outcome, static_cast<uint32_t>(Outcome::kFailed));
  EXPECT_TRUE(Is(sent[2], CompletionOp::kClosed));
  EXPECT_EQ(sent[2].result.error, EMSGSIZE);
}

TEST_F(IoThreadTest, DeniedReceiveMemoryIsAskedForAgainWhenNothingOfTheClientIsFreed) {
  Begin();
  const auto [from, to] = OpenPair();
  deny = true;
  dialer->Send(from, 1, 100'000);
  Settle();
  ASSERT_EQ(Told<NeedReceiveBlocks>(), 1u);
  for (int times = 0; times < 200; ++times) {
    clock.now_ns += 50 * kNsPerMs;
    Settle();
  }
  const size_t asked = Told<NeedReceiveBlocks>();
  EXPECT_GE(asked, 10u) << "at least once a second";
  EXPECT_LE(asked, 20u) << "but not with every tick";
  deny = false;
  clock.now_ns += kNsPerSecond;
  Settle();
  ASSERT_EQ(listener->Take().size(), 1u);
  EXPECT_EQ(dialer->Take().size(), 1u);
}

TEST_F(IoThreadTest, WhatATimerSaysGoesOutInTheSameTurn) {
  Begin();
  dialer->Post(AddPeer{55, "nowhere"});
  dialer->Post(OpenSocket{dialer->id, 0, 4, 55, kService});
  Settle();
  EXPECT_TRUE(dialer->Take().empty());
  clock.now_ns += 2 * Tunables{}.connect_timeout_ns;
  Turn();
  const auto events = dialer->Take();
  ASSERT_EQ(events.size(), 1u) << "a client must not wait for the thread's next turn";
  EXPECT_EQ(events[0].result.error, ETIMEDOUT);
}

// The dialer takes no events: the places of its failed connects are not free before their events
// are out.
TEST_F(IoThreadTest, ASocketCountsUntilItsLastEventIsInTheRing) {
  Begin();
  constexpr size_t kConnects = 300;
  for (uint64_t token = 1; token <= kConnects; ++token) {
    dialer->Post(OpenSocket{dialer->id, 0, token, 55, kService});  // There is no such peer.
  }
  Settle();
  EXPECT_EQ(Told<SocketGone>(), kCapacity);
  uint64_t next = 1;
  while (next <= kConnects) {
    const auto events = dialer->Take();
    ASSERT_FALSE(events.empty());
    for (const Descriptor& event : events) EXPECT_EQ(event.token, next++);
    Settle();
  }
  EXPECT_EQ(Told<SocketGone>(), kConnects);
}

TEST_F(IoThreadTest, SocketsThatPeersOpenAndCloseOnAStoppedListenerGoOnCounting) {
  Begin();
  constexpr size_t kSockets = 100;
  for (uint64_t token = 1; token <= kSockets; ++token) {
    dialer->Connect(token);
    Settle();
    for (const Descriptor& event : dialer->Take()) {
      if (Is(event, CompletionOp::kConnected)) dialer->Close(event.socket);
    }
    Settle();
    dialer->Take();
  }
  const auto gone = [&](ClientId client) {
    return std::ranges::count_if(told, [client](const FromIo& message) {
      const auto* socket = std::get_if<SocketGone>(&message);
      return socket != nullptr && socket->client == client;
    });
  };
  EXPECT_EQ(gone(dialer->id), kSockets);
  EXPECT_EQ(gone(listener->id), kCapacity / 2) << "each has an accepted and a closed in the ring";
  listener->Post(RemovePort{listener->id, 0});
  Settle();
  EXPECT_EQ(gone(listener->id), kSockets) << "what waits for a closed channel is dropped";
  EXPECT_EQ(Told<PortRemoved>(), 1u);
}

TEST_F(IoThreadTest, ASocketStandsInTheQueueForASlotOnce) {
  Begin();
  ClientView view(9, "client", listener->pool, kReserveBytes, kMaxMessageBytes);
  Port port(view, 0, listener->submissions(), listener->completions(), Fd());
  Socket socket;
  socket.owner = &port;
  const Delivery message{0, 0, 0, listener->pool, {}};
  while (thread->Deliver(socket, message)) {
  }
  // As retries do because memory came free.
  for (int retry = 0; retry < 3; ++retry) EXPECT_FALSE(thread->Deliver(socket, message));
  EXPECT_EQ(port.waiting_sockets.size(), 1u);
}

TEST_F(IoThreadTest, RingCountersThatJumpAreTheClientsEndEvenWhenItAsksForNothing) {
  const std::pair<const char*, void (*)(TestClient&)> cases[] = {
      {"requests far ahead", [](TestClient& c) { c.submissions().header()->tail.fetch_add(1000); }},
      {"requests taken back", [](TestClient& c) { c.submissions().header()->tail.fetch_sub(1); }},
      {"more taken than answered",
       [](TestClient& c) { c.completions().header()->head.fetch_add(1); }},
      {"answers given back", [](TestClient& c) { c.completions().header()->head.fetch_sub(1); }},
  };
  Begin();
  OpenPair();
  for (const auto& [what, spoil] : cases) {
    told.clear();
    TestClient bad(*thread, 20, kCapacity, kMaxMessageBytes);
    Settle();
    spoil(bad);
    Settle();
    clock.now_ns += kNsPerSecond;
    Settle();
    ASSERT_EQ(Told<ClientBroken>(), 1u) << what;
    for (const FromIo& message : told) {
      const auto* broken = std::get_if<ClientBroken>(&message);
      EXPECT_TRUE(broken == nullptr || broken->client == 20u);
    }
    bad.Post(RemoveClient{20});
    Settle();
  }
}

}  // namespace
}  // namespace sluice::io::testing
