// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/conformance.h"

#include <array>

#include "shm_proto/base/clock.h"

namespace sluice::transport {
namespace {

constexpr uint64_t kDeadlineNs = 20 * kNsPerSecond;

uint64_t NowNs() { return MonotonicClock().NowNs(); }

}  // namespace

std::vector<const End::Event*> End::Of(CompletionKind kind, Status status) const {
  std::vector<const Event*> found;
  for (const Event& event : events) {
    if (event.completion.kind == kind && event.completion.status == status) {
      found.push_back(&event);
    }
  }
  return found;
}

void End::PostReceives(size_t count, uint64_t first_id) {
  for (size_t i = 0; i < count; ++i) {
    // Exactly as large as promised, so that a sanitizer sees a byte too many.
    receive_memory.emplace_back(limits.receive_bytes);
    const ReceiveRequest request{.id = first_id + i,
                                 .address = receive_memory.back().data(),
                                 .length = limits.receive_bytes,
                                 .local_key = 0};
    const auto posted = queue_pair->PostReceive({&request, 1});
    ASSERT_TRUE(posted.has_value()) << posted.error().message;
  }
}

SendRequest MakeSend(uint64_t id, std::span<const std::byte> bytes, bool signalled) {
  SendRequest request{};
  request.id = id;
  request.opcode = Opcode::kSend;
  request.signalled = signalled;
  if (!bytes.empty()) {
    request.segment_count = 1;
    request.segments[0] = {bytes.data(), static_cast<uint32_t>(bytes.size()), 0};
  }
  return request;
}

SendRequest MakeWrite(uint64_t id, std::span<const std::byte> bytes, const RemoteSlice& slice,
                      uint64_t offset, bool signalled) {
  SendRequest request = MakeSend(id, bytes, signalled);
  request.opcode = Opcode::kWrite;
  request.remote_address = slice.address + offset;
  request.remote_key = slice.key;
  return request;
}

SendRequest MakeWriteImmediate(uint64_t id, std::span<const std::byte> bytes,
                               const RemoteSlice& slice, uint32_t immediate, uint64_t offset) {
  SendRequest request = MakeWrite(id, bytes, slice, offset);
  request.opcode = Opcode::kWriteImmediate;
  request.immediate = immediate;
  return request;
}

std::vector<std::byte> Pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> pattern(bytes);
  uint32_t state = seed * 2654435761u + 1;
  for (std::byte& byte : pattern) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return pattern;
}

void Conformance::SetUp() {
  auto network = GetParam().make_network();
  if (!network && GetParam().needs_device && network.error().code == ErrorCode::kUnavailable)
    GTEST_SKIP() << network.error().message;
  ASSERT_TRUE(network.has_value()) << network.error().message;
  network_ = std::move(*network);
}

void Conformance::TearDown() {
  a_.queue_pair.reset();
  b_.queue_pair.reset();
}

void Conformance::Connect(End& a, End& b, QueuePairLimits limits_a, QueuePairLimits limits_b) {
  a.limits = limits_a;
  b.limits = limits_b;
  auto pair = network_->Connect(limits_a, &a, limits_b, &b);
  ASSERT_TRUE(pair.has_value()) << pair.error().message;
  a.queue_pair = std::move(pair->first);
  b.queue_pair = std::move(pair->second);
}

size_t Conformance::Poll() {
  std::array<Completion, 64> completions;
  size_t total = 0;
  for (Transport* transport : network_->transports()) {
    const size_t count = transport->Poll(std::span(completions).first(completions_per_poll_),
                                         NowNs());
    for (const Completion& completion : std::span(completions).first(count)) {
      End::Event event{.completion = completion, .data = {}};
      if (completion.kind == CompletionKind::kReceived && completion.status == Status::kOk) {
        event.data.assign(completion.data, completion.data + completion.bytes);
      }
      static_cast<End*>(completion.context)->events.push_back(std::move(event));
    }
    total += count;
  }
  return total;
}

bool Conformance::PollUntil(const std::function<bool()>& condition) {
  const uint64_t deadline_ns = NowNs() + kDeadlineNs;
  while (!condition()) {
    if (NowNs() > deadline_ns) return false;
    Poll();
  }
  return true;
}

void Conformance::PollUntilQuiet() {
  uint64_t quiet_since_ns = NowNs();
  while (NowNs() - quiet_since_ns < 20 * kNsPerMs) {
    if (Poll() > 0) quiet_since_ns = NowNs();
  }
}

RemoteSlice Conformance::Expose(End& end, uint32_t grant, std::span<std::byte> memory,
                                size_t pieces) {
  std::vector<LandingSegment> segments;
  const size_t piece_bytes = memory.size() / pieces;
  for (size_t i = 0; i < pieces; ++i) {
    const size_t bytes = i + 1 < pieces ? piece_bytes : memory.size() - i * piece_bytes;
    segments.push_back({memory.data() + i * piece_bytes, bytes, 0});
  }
  std::array<RemoteSlice, kMaxSlices> slices{};
  const auto exposed = end.queue_pair->Expose(grant, segments, slices);
  EXPECT_TRUE(exposed.has_value()) << exposed.error().message;
  return slices[0];
}

void Conformance::ExpectAlive(End& a, End& b) {
  for (auto [from, to] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    const size_t before = to->Count(CompletionKind::kReceived);
    const auto bytes = Pattern(100, 77);
    to->PostReceives(1, 7'000'000);
    ASSERT_TRUE(from->Post(MakeSend(8'000'000, bytes)));
    ASSERT_TRUE(PollUntil([&] { return to->Count(CompletionKind::kReceived) > before; }))
        << from->queue_pair->reason() << " / " << to->queue_pair->reason();
    EXPECT_EQ(to->Of(CompletionKind::kReceived).back()->data, bytes);
  }
}

void Conformance::LetFindOut(End& end) {
  if (!GetParam().tells_the_peer) end.Post(MakeSend(6'000'000, {}));
}

void Conformance::ExpectDead(End& a, End& b) {
  PollUntil([&] { return GetParam().tells_the_peer || a.disconnected() || b.disconnected(); });
  for (End* end : {&a, &b}) {
    if (!end->disconnected()) LetFindOut(*end);
  }
  ASSERT_TRUE(PollUntil([&] { return a.disconnected() && b.disconnected(); }));
  PollUntilQuiet();
  for (End* end : {&a, &b}) {
    EXPECT_EQ(end->Count(CompletionKind::kDisconnected, Status::kFlushed), 1u);
    EXPECT_EQ(end->events.back().completion.kind, CompletionKind::kDisconnected);
    EXPECT_FALSE(end->queue_pair->reason().empty());
    EXPECT_FALSE(end->Post(MakeSend(1, {})));
  }
}

}  // namespace sluice::transport
