// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "daemon/engine/engine.h"
#include "daemon/transport/local/local_transport.h"
#include "shm_proto/base/clock.h"
#include "shm_proto/base/units.h"

// Two engines, what they tell their hosts, and the wire between them.
namespace sluice {

inline std::vector<std::byte> Payload(uint64_t tag, size_t length) {
  std::vector<std::byte> bytes(length);
  std::mt19937_64 random(tag);
  for (size_t at = 0; at < length; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), length - at));
  }
  return bytes;
}

// A fabric whose queue pairs are joined by number, over a loop that all of them share.
struct LoopFabric : transport::Fabric {
  struct QueuePair;
  struct Net {
    std::unique_ptr<transport::LocalTransport> loop = *transport::LocalTransport::Create();
    std::map<uint32_t, QueuePair*> queue_pairs;
    uint32_t next_number = 1;
  };

  struct QueuePair final : transport::FabricQueuePair {
    QueuePair(Net& net, const transport::QueuePairLimits& limits, bool shared, void* context)
        : net(net), limits(limits), context(context), number(net.next_number++) {
      net.queue_pairs[number] = this;
      if (shared) memory.resize(size_t{limits.receive_queue_depth} * limits.receive_bytes);
    }
    ~QueuePair() override { net.queue_pairs.erase(number); }
    transport::Endpoint local_endpoint() const override {
      transport::Endpoint endpoint;
      endpoint.size = sizeof(number);
      std::memcpy(endpoint.bytes.data(), &number, sizeof(number));
      return endpoint;
    }
    Result<> Connect(const transport::Endpoint& endpoint) override {
      std::memcpy(&peer_number, endpoint.bytes.data(), sizeof(peer_number));
      auto peer = net.queue_pairs.find(peer_number);
      if (peer == net.queue_pairs.end()) return Fail(ErrorCode::kNotFound, "no such queue pair");
      if (peer->second->peer_number != number) return {};
      std::tie(inner, peer->second->inner) = net.loop->CreatePair(
          limits, context, peer->second->limits, peer->second->context);
      if (auto posted = inner->PostReceive(receives); !posted) return posted;
      return peer->second->inner->PostReceive(peer->second->receives);
    }
    size_t PostSend(std::span<const transport::SendRequest> requests) override {
      return inner ? inner->PostSend(requests) : 0;
    }
    Result<> PostReceive(std::span<const transport::ReceiveRequest> requests) override {
      std::vector<transport::ReceiveRequest> placed(requests.begin(), requests.end());
      for (auto& request : placed) {
        if (!memory.empty()) request.address = &memory[request.id * limits.receive_bytes];
      }
      if (inner) return inner->PostReceive(placed);
      receives.insert(receives.end(), placed.begin(), placed.end());
      return {};
    }
    Result<size_t> Expose(
        uint32_t grant, std::span<const transport::LandingSegment> segments,
        std::span<transport::RemoteSlice, transport::kMaxSlices> slices) override {
      return inner->Expose(grant, segments, slices);
    }
    void Withdraw(uint32_t grant) override { inner->Withdraw(grant); }
    void Shutdown() override { inner->Shutdown(); }
    const char* kind() const override { return "loop"; }
    std::string reason() const override { return inner->reason(); }

    Net& net;
    const transport::QueuePairLimits limits;
    void* const context;
    const uint32_t number;
    uint32_t peer_number = 0;
    std::vector<transport::ReceiveRequest> receives;  // Until it is joined.
    std::vector<std::byte> memory;                    // Of receives that are shared.
    std::unique_ptr<transport::QueuePair> inner;
  };

  explicit LoopFabric(Net& net) : net(net) {}
  Result<std::unique_ptr<transport::FabricQueuePair>> Create(
      const transport::QueuePairLimits& limits, std::span<std::byte>, void* context) override {
    return std::make_unique<QueuePair>(net, limits, lender.has_value(), context);
  }
  void SetRegions(std::shared_ptr<const transport::Regions>) override {}
  size_t Poll(std::span<transport::Completion>, uint64_t) override { return 0; }  // World does.
  int fd() const override { return -1; }
  bool Arm() override { return true; }
  SharedReceives* shared_receives() override { return lender ? &*lender : nullptr; }

  Net& net;
  std::optional<SharedReceives> lender;
};

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
  transport::Fabric* fabric() override { return own_fabric; }
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
  transport::Fabric* own_fabric = nullptr;
  SocketTable sockets;
  std::unique_ptr<Engine> engine;
};

// Two daemons' engines and the wire between them, on one thread and one hand-turned clock.
struct World {
  explicit World(LocalLimits limits = {}, Tunables tunables = {})
      : limits(limits),
        wire(std::move(*transport::LocalTransport::Create())),
        a(limits, tunables),
        b(limits, tunables) {}

  void Connect(uint64_t session, uint32_t epoch, bool resumed) {
    ConnectOne(session, epoch, resumed, true, true);
  }
  // Only those of the two hear of the connection that are told.
  void ConnectOne(uint64_t session, uint32_t epoch, bool resumed, bool tell_a, bool tell_b) {
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
    parameters.features = features;
    std::tie(parameters.local_instance, parameters.peer_instance) = std::pair(1, 2);
    if (tell_a) {
      ASSERT_TRUE(a.engine->OnPathUp(std::move(pair_a), parameters, now_ns));
    }
    std::swap(parameters.local_instance, parameters.peer_instance);
    if (tell_b) {
      ASSERT_TRUE(b.engine->OnPathUp(std::move(pair_b), parameters, now_ns));
    }
  }

  // Both ends have a fabric from now on.
  void GiveFabric() {
    for (auto [node, fabric] : {std::pair(&a, &fabric_a), std::pair(&b, &fabric_b)}) {
      node->own_fabric = fabric;
      node->engine->OnFabricChanged(now_ns);
    }
  }

  bool Step() {
    now_ns += 1000;
    std::array<transport::Completion, 64> completions;
    size_t count = wire->Poll(completions, now_ns);
    for (size_t i = 0; i < count; ++i) {
      static_cast<Engine*>(completions[i].context)->OnCompletion(completions[i], now_ns);
    }
    const size_t on_fabric = fabric.loop->Poll(completions, now_ns);
    for (size_t i = 0; i < on_fabric; ++i) {
      static_cast<Engine*>(completions[i].context)->OnFabricCompletion(completions[i], now_ns);
    }
    count += on_fabric;
    bool busy = count > 0;
    busy |= a.engine->Flush(now_ns);
    busy |= b.engine->Flush(now_ns);
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
    for (int step = 0; step < 200'000 && idle < 4; ++step) {
      idle = Step() ? 0 : idle + 1;
      if (idle > 0) now_ns += Tunables{}.ack_delay_ns;  // What waits for company goes alone.
    }
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
  uint32_t features = 0;
  std::unique_ptr<transport::LocalTransport> wire;
  LoopFabric::Net fabric;
  LoopFabric fabric_a{fabric}, fabric_b{fabric};
  Node a, b;
  std::map<uint64_t, std::vector<std::byte>> payloads;
  std::map<std::pair<Node*, uint32_t>, std::vector<uint64_t>> sent;
};

}  // namespace sluice
