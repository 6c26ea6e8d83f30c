// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/engine.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "daemon/transport/local/local_transport.h"
#include "shm_proto/base/clock.h"
#include "shm_proto/base/units.h"

namespace sluice {
namespace {

using transport::LocalTransport;
using transport::LocalVerdict;

std::vector<std::byte> Payload(uint64_t tag, size_t length) {
  std::vector<std::byte> bytes(length);
  std::mt19937_64 random(tag);
  for (size_t at = 0; at < length; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), length - at));
  }
  return bytes;
}

struct SendEnd {
  Outcome outcome;
  int error;
};

// A host that keeps everything it is told, with a memory and slots of limited size.
struct Node : EngineHost {
  explicit Node(const LocalLimits& limits, const Tunables& tunables)
      : engine(std::make_unique<Engine>(1, "peer", sockets, *this, limits, tunables)) {}

  std::optional<PoolBuffer> Allocate(Socket& socket, uint64_t bytes) override {
    if (used_bytes + bytes > memory_bytes) {
      starving.insert(socket.id);
      return std::nullopt;
    }
    used_bytes += bytes;
    auto& memory = buffers.emplace_back(std::make_unique<std::byte[]>(bytes));
    return PoolBuffer{memory.get(), reinterpret_cast<uint64_t>(memory.get()), bytes};
  }
  void Free(Socket&, const PoolBuffer& buffer) override {
    used_bytes -= buffer.bytes;
    ASSERT_EQ(std::erase_if(buffers, [&](auto& owned) { return owned.get() == buffer.address; }),
              1u);
  }
  bool Hold(Socket&, uint64_t bytes) override {
    if (held_bytes + bytes > most_held_bytes) return false;
    held_bytes += bytes;
    return true;
  }
  void Unhold(Socket&, uint64_t bytes) override { held_bytes -= bytes; }
  uint64_t LargestBuffer(Socket&) override { return largest_bytes; }
  bool Deliver(Socket& socket, const Delivery& message) override {
    if (slots == 0) {
      starving.insert(socket.id);
      return false;
    }
    --slots;
    const std::byte* data = message.inline_data != nullptr ? message.inline_data
                                                           : message.buffer.address;
    received[socket.id].emplace_back(data, data + message.length);
    traces.push_back(message.trace_id);
    if (message.inline_data == nullptr) Free(socket, message.buffer);
    return true;
  }
  void SendOver(Socket&, const SendOperation& operation, Outcome outcome, int error) override {
    ASSERT_TRUE(ends.emplace(operation.token, SendEnd{outcome, error}).second)
        << "operation " << operation.token << " ended twice";
  }
  void Connected(Socket& socket, Outcome outcome, int error) override {
    ASSERT_TRUE(connected.emplace(socket.token, SendEnd{outcome, error}).second);
  }
  void Incoming(Socket& socket) override { incoming.push_back(socket.id); }
  void Closed(Socket& socket, int error) override {
    ASSERT_TRUE(closed.emplace(socket.id, error).second) << "closed twice";
  }
  void Gone(Socket& socket) override { ASSERT_TRUE(gone.insert(socket.id).second); }
  void PathLost(Engine&, bool over, const std::string& reason) override {
    ++(over ? sessions_over : paths_lost);
    last_reason = reason;
  }

  void Feed() {
    auto hungry = std::exchange(starving, {});
    for (uint32_t id : hungry) {
      if (Socket* socket = sockets.Find(id)) engine->Retry(*socket);
    }
  }

  uint64_t memory_bytes = 64 * kMiB, used_bytes = 0, largest_bytes = 64 * kMiB;
  uint64_t held_bytes = 0, most_held_bytes = 64 * kMiB;
  size_t slots = 1 << 20;
  std::vector<std::unique_ptr<std::byte[]>> buffers;
  std::set<uint32_t> starving;
  std::map<uint32_t, std::vector<std::vector<std::byte>>> received;
  std::vector<uint64_t> traces;
  std::map<uint64_t, SendEnd> ends, connected;
  std::vector<uint32_t> incoming;
  std::map<uint32_t, int> closed;
  std::set<uint32_t> gone;
  int paths_lost = 0, sessions_over = 0;
  std::string last_reason;
  SocketTable sockets;
  std::unique_ptr<Engine> engine;
};

// Two daemons' engines and the wire between them, on one thread and one hand-turned clock.
struct World {
  explicit World(LocalLimits limits = {}, Tunables tunables = {})
      : limits(limits),
        wire(std::move(*LocalTransport::Create())),
        a(limits, tunables),
        b(limits, tunables) {}

  void Connect(uint64_t session, uint32_t epoch, bool resumed) {
    const transport::QueuePairLimits queue{limits.send_queue_depth, limits.receive_depth,
                                           limits.receive_bytes};
    auto [pair_a, pair_b] = wire->CreatePair(queue, a.engine.get(), queue, b.engine.get());
    SessionParameters parameters;
    parameters.session = session;
    parameters.path_epoch = epoch;
    parameters.resumed = resumed;
    parameters.peer_receive_depth = limits.receive_depth;
    parameters.peer_receive_bytes = limits.receive_bytes;
    parameters.peer_message_window = limits.message_window;
    ASSERT_TRUE(a.engine->OnPathUp(std::move(pair_a), parameters, now_ns));
    ASSERT_TRUE(b.engine->OnPathUp(std::move(pair_b), parameters, now_ns));
  }

  bool Step() {
    now_ns += 1000;
    std::array<transport::Completion, 64> completions;
    const size_t count = wire->Poll(completions, now_ns);
    for (size_t i = 0; i < count; ++i) {
      static_cast<Engine*>(completions[i].context)->OnCompletion(completions[i], now_ns);
    }
    bool busy = count > 0;
    busy |= a.engine->Flush(now_ns, !busy);
    busy |= b.engine->Flush(now_ns, !busy);
    for (Node* node : {&a, &b}) {
      for (uint32_t id : std::exchange(node->incoming, {})) {
        Socket* socket = node->sockets.Find(id);
        if (socket != nullptr) node->engine->Accept(*socket, node, 77);
      }
    }
    return busy;
  }

  void Settle() {
    int idle = 0;
    for (int step = 0; step < 200'000 && idle < 4; ++step) idle = Step() ? 0 : idle + 1;
    ASSERT_EQ(idle, 4) << "the engines never come to rest";
  }

  // A socket from a to b, open at both ends; returns a's end, and b's in `other`.
  Socket* OpenPair(Socket** other, uint64_t token) {
    Socket* socket = a.engine->Open(&a, token, 5, now_ns);
    Settle();
    EXPECT_EQ(a.connected.at(token).outcome, Outcome::kOk);
    *other = b.sockets.Find(socket->remote_id);
    EXPECT_NE(*other, nullptr);
    return socket;
  }

  void Send(Node& node, Socket& socket, uint64_t token, size_t length) {
    auto& memory = payloads[token] = Payload(token, length);
    const bool small = length <= kInlineBytes;
    ASSERT_TRUE(node.engine->Send(socket, {memory.data(), length, token, token * 3, 0, small}));
    sent[{&node, socket.id}].push_back(token);
  }

  // Everything sent on `from`'s socket arrived at `to`'s once, whole and in order.
  void ExpectArrived(Node& from, uint32_t from_id, Node& to, uint32_t to_id) {
    const auto& tokens = sent[{&from, from_id}];
    const auto& got = to.received[to_id];
    ASSERT_EQ(got.size(), tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_EQ(got[i], payloads[tokens[i]]) << "message " << i << " differs";
      ASSERT_EQ(from.ends.at(tokens[i]).outcome, Outcome::kOk);
    }
  }

  // As if b had sent these bytes to a.
  void Inject(std::span<const std::byte> bytes) {
    transport::Completion completion{};
    completion.kind = transport::CompletionKind::kReceived;
    completion.data = bytes.data();
    completion.bytes = static_cast<uint32_t>(bytes.size());
    a.engine->OnCompletion(completion, now_ns);
  }
  void Inject(const wire::FrameHeader& header) { Inject(std::as_bytes(std::span(&header, 1))); }

  LocalLimits limits;
  uint64_t now_ns = kNsPerSecond;
  std::unique_ptr<LocalTransport> wire;
  Node a, b;
  std::map<uint64_t, std::vector<std::byte>> payloads;
  std::map<std::pair<Node*, uint32_t>, std::vector<uint64_t>> sent;
};

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
    world.a.engine->Flush(world.now_ns, true);
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
  world.a.engine->Flush(world.now_ns, true);
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
    world.a.engine->Flush(world.now_ns, true);
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
