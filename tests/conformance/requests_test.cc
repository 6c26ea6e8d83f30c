// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "shm_proto/base/clock.h"
#include "tests/conformance/conformance.h"

// What requests do while the connection lives.
namespace sluice::transport {
namespace {

TEST_P(Conformance, SendsArriveWholeAndInOrder) {
  Connect(a_, b_);
  const std::array<size_t, 8> sizes{0, 1, 23, 24, 25, 1000, 4095, 4096};
  std::vector<std::vector<std::byte>> sent;
  for (uint32_t i = 0; i < 64; ++i) sent.push_back(Pattern(sizes[i % sizes.size()], i));

  size_t posted = 0;
  size_t receives = 0;
  ASSERT_TRUE(PollUntil([&] {
    const size_t received = b_.Count(CompletionKind::kReceived);
    while (receives < received + 16 && receives < 64) b_.PostReceives(1, receives++);
    while (posted < receives && a_.Post(MakeSend(posted, sent[posted]))) ++posted;
    return received == 64 && a_.Count(CompletionKind::kSent) == 64;
  }));

  for (uint64_t i = 0; i < 64; ++i) {
    const End::Event& received = *b_.Of(CompletionKind::kReceived)[i];
    EXPECT_EQ(received.completion.id, i);
    EXPECT_EQ(received.completion.bytes, sent[i].size());
    EXPECT_EQ(received.data, sent[i]);
    EXPECT_EQ(a_.Of(CompletionKind::kSent)[i]->completion.id, i);
  }
}

TEST_P(Conformance, ThePiecesOfASendAreJoined) {
  Connect(a_, b_);
  b_.PostReceives(1);
  const auto bytes = Pattern(16 * 17, 3);
  SendRequest request = MakeSend(1, {});
  request.segment_count = kMaxSegments;
  for (size_t i = 0; i < kMaxSegments; ++i) request.segments[i] = {&bytes[17 * i], 17, 0};
  ASSERT_TRUE(a_.Post(request));
  ASSERT_TRUE(PollUntil([&] { return b_.Count(CompletionKind::kReceived) == 1; }));
  EXPECT_EQ(b_.events[0].data, bytes);
}

TEST_P(Conformance, IdsAndImmediatesComeBackAsTheyAre) {
  Connect(a_, b_);
  const std::array<uint64_t, 4> ids{0, 0xffff'ffff, 0x1'0000'0000, ~uint64_t{0}};
  const std::array<uint32_t, 4> immediates{0, 1, 0x8000'0000, 0xffff'ffff};
  for (size_t i = 0; i < ids.size(); ++i) {
    b_.PostReceives(1, ids[i]);
    ASSERT_TRUE(a_.Post(MakeWriteImmediate(ids[i], {}, RemoteSlice{}, immediates[i])));
  }
  ASSERT_TRUE(PollUntil([&] {
    return b_.Count(CompletionKind::kWritten) == 4 && a_.Count(CompletionKind::kSent) == 4;
  }));
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(b_.events[i].completion.id, ids[i]);
    EXPECT_EQ(b_.events[i].completion.immediate, immediates[i]);
    EXPECT_EQ(a_.events[i].completion.id, ids[i]);
  }
}

TEST_P(Conformance, EveryWriteBeforeAnImmediateIsVisibleWithIt) {
  Connect(a_, b_);
  const auto bytes = Pattern(1'000'003, 9);
  std::vector<std::byte> landing(bytes.size());
  const RemoteSlice slice = Expose(b_, 5, landing, 1);
  b_.PostReceives(1, 42);
  constexpr size_t kFragment = 100'000;
  uint64_t id = 0;
  for (size_t at = 0; at < bytes.size(); at += kFragment) {
    const auto fragment = std::span(bytes).subspan(at, std::min(kFragment, bytes.size() - at));
    const bool last = at + fragment.size() == bytes.size();
    ASSERT_TRUE(a_.Post(last ? MakeWriteImmediate(id++, fragment, slice, 7, at)
                             : MakeWrite(id++, fragment, slice, at, false)));
  }
  ASSERT_TRUE(PollUntil([&] { return b_.Count(CompletionKind::kWritten) == 1; }));
  EXPECT_EQ(landing, bytes);
  EXPECT_EQ(b_.events[0].completion.id, 42u);
  EXPECT_EQ(b_.events[0].completion.immediate, 7u);
  ASSERT_TRUE(PollUntil([&] { return a_.Count(CompletionKind::kSent) == 1; }));
  EXPECT_EQ(a_.events[0].completion.id, id - 1);
}

TEST_P(Conformance, ALandingInPiecesIsFilledInTheirOrder) {
  Connect(a_, b_);
  const auto bytes = Pattern(10'000, 4);
  std::vector<std::byte> landing(bytes.size() + 100);
  const RemoteSlice slice = Expose(b_, 1, landing, kMaxSlices);
  b_.PostReceives(1);
  ASSERT_TRUE(a_.Post(MakeWriteImmediate(1, bytes, slice, 0, 100)));
  ASSERT_TRUE(PollUntil([&] { return b_.Count(CompletionKind::kWritten) == 1; }));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), landing.begin() + 100));
  EXPECT_TRUE(std::all_of(landing.begin(), landing.begin() + 100,
                          [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_P(Conformance, WritesOfNothingAreFine) {
  Connect(a_, b_);
  std::vector<std::byte> landing(10);
  const RemoteSlice slice = Expose(b_, 1, landing);
  b_.PostReceives(1);
  ASSERT_TRUE(a_.Post(MakeWrite(1, {}, slice, 10)));
  ASSERT_TRUE(a_.Post(MakeWriteImmediate(2, {}, slice, 3, 10)));
  ASSERT_TRUE(PollUntil([&] {
    return b_.Count(CompletionKind::kWritten) == 1 && a_.Count(CompletionKind::kSent) == 2;
  }));
  EXPECT_EQ(b_.events[0].completion.bytes, 0u);
  ExpectAlive(a_, b_);
}

TEST_P(Conformance, UnsignalledRequestsCompleteWithALaterSignalledOne) {
  Connect(a_, b_);
  std::vector<std::byte> landing(64);
  const auto bytes = Pattern(64, 1);
  const RemoteSlice slice = Expose(b_, 1, landing);
  for (int round = 0; round < 8; ++round) {
    for (uint64_t i = 0; i < kLimits.send_queue_depth; ++i) {
      const bool last = i + 1 == kLimits.send_queue_depth;
      ASSERT_TRUE(a_.Post(MakeWrite(i, bytes, slice, 0, last))) << round << ": " << i;
    }
    a_.events.clear();
    ASSERT_TRUE(PollUntil([&] { return a_.Count(CompletionKind::kSent) == 1; }));
    EXPECT_EQ(a_.events[0].completion.id, kLimits.send_queue_depth - 1);
  }
  EXPECT_EQ(landing, bytes);
}

TEST_P(Conformance, AFullSendQueueTakesNoMore) {
  Connect(a_, b_);
  std::vector<std::byte> landing(64);
  const auto bytes = Pattern(64, 1);
  const RemoteSlice slice = Expose(b_, 1, landing);
  std::vector<SendRequest> requests;
  for (uint64_t i = 0; i < kLimits.send_queue_depth + 3; ++i) {
    requests.push_back(MakeWrite(i, bytes, slice, 0, i == kLimits.send_queue_depth - 1));
  }
  EXPECT_EQ(a_.queue_pair->PostSend(requests), kLimits.send_queue_depth);
  EXPECT_EQ(a_.queue_pair->PostSend(requests), 0u);
  ASSERT_TRUE(PollUntil([&] { return a_.Count(CompletionKind::kSent) == 1; }));
  EXPECT_EQ(a_.queue_pair->PostSend(requests), kLimits.send_queue_depth);
}

TEST_P(Conformance, MoreReceivesThanTheQueueIsDeepAreRefused) {
  Connect(a_, b_);
  b_.PostReceives(kLimits.receive_queue_depth);
  std::vector<std::byte> memory(kLimits.receive_bytes);
  const ReceiveRequest one_more{
      .id = 99, .address = memory.data(), .length = kLimits.receive_bytes, .local_key = 0};
  EXPECT_FALSE(b_.queue_pair->PostReceive({&one_more, 1}).has_value());
  ExpectDead(a_, (b_.queue_pair->Shutdown(), b_));
  EXPECT_EQ(b_.Count(CompletionKind::kReceived, Status::kFlushed), kLimits.receive_queue_depth);
}

TEST_P(Conformance, AGrantInUseIsNotGivenTwice) {
  if (!GetParam().knows_grants) GTEST_SKIP() << "this transport knows regions, not grants";
  Connect(a_, b_);
  std::vector<std::byte> landing(64);
  Expose(b_, 0xffff'ffff, landing);
  const LandingSegment segment{landing.data(), landing.size(), 0};
  std::array<RemoteSlice, kMaxSlices> slices;
  const auto again = b_.queue_pair->Expose(0xffff'ffff, {&segment, 1}, slices);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, ErrorCode::kExists);
  b_.queue_pair->Withdraw(0xffff'ffff);
  EXPECT_TRUE(b_.queue_pair->Expose(0xffff'ffff, {&segment, 1}, slices).has_value());
}

TEST_P(Conformance, ASendWithoutAReceiveWaitsOrEndsTheConnection) {
  Connect(a_, b_);
  const auto bytes = Pattern(10, 1);
  ASSERT_TRUE(a_.Post(MakeSend(1, bytes)));
  if (!GetParam().waits_for_receives) {
    ExpectDead(a_, b_);
    EXPECT_EQ(b_.Count(CompletionKind::kReceived), 0u);
    return;
  }
  PollUntilQuiet();
  EXPECT_TRUE(a_.events.empty() && b_.events.empty());
  b_.PostReceives(1);
  ASSERT_TRUE(PollUntil([&] { return b_.Count(CompletionKind::kReceived) == 1; }));
  EXPECT_EQ(b_.events[0].data, bytes);
}

TEST_P(Conformance, CompletionsThatDoNotFitWaitWithTheirData) {
  completions_per_poll_ = 3;
  Connect(a_, b_);
  std::vector<std::vector<std::byte>> sent;
  b_.PostReceives(16);
  for (uint32_t i = 0; i < 16; ++i) sent.push_back(Pattern(200 + i, i));
  for (uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(a_.Post(MakeSend(i, sent[i])));
  ASSERT_TRUE(PollUntil([&] { return b_.Count(CompletionKind::kReceived) > 0; }));
  // More comes in while some of the first still wait to be handed out.
  for (uint32_t i = 8; i < 16; ++i) ASSERT_TRUE(a_.Post(MakeSend(i, sent[i])));
  ASSERT_TRUE(PollUntil([&] {
    return b_.Count(CompletionKind::kReceived) == 16 && a_.Count(CompletionKind::kSent) == 16;
  }));
  for (uint32_t i = 0; i < 16; ++i) EXPECT_EQ(b_.events[i].data, sent[i]);
  b_.PostReceives(16);
  a_.queue_pair->Shutdown();
  ExpectDead(a_, b_);
  EXPECT_EQ(b_.Count(CompletionKind::kReceived, Status::kFlushed), 16u);
}

TEST_P(Conformance, ManyQueuePairsShareATransport) {
  constexpr size_t kPairs = 50;
  const QueuePairLimits limits{
      .send_queue_depth = 4, .receive_queue_depth = 4, .receive_bytes = 2048};
  std::vector<End> as(kPairs), bs(kPairs);
  for (size_t i = 0; i < kPairs; ++i) {
    Connect(as[i], bs[i], limits, limits);
    bs[i].PostReceives(4, 10 * i);
  }
  std::vector<std::vector<std::byte>> sent;
  for (uint32_t i = 0; i < kPairs; ++i) sent.push_back(Pattern(2048, i));
  for (uint64_t message = 0; message < 4; ++message) {
    for (size_t i = 0; i < kPairs; ++i) ASSERT_TRUE(as[i].Post(MakeSend(message, sent[i])));
  }
  ASSERT_TRUE(PollUntil([&] {
    return std::all_of(bs.begin(), bs.end(), [](const End& end) { return end.events.size() == 4; });
  }));
  for (size_t i = 0; i < kPairs; ++i) {
    for (size_t message = 0; message < 4; ++message) {
      EXPECT_EQ(bs[i].events[message].data, sent[i]);
      EXPECT_EQ(bs[i].events[message].completion.id, 10 * i + message);
    }
  }
}

TEST_P(Conformance, BothDirectionsAtOnceMakeProgress) {
  Connect(a_, b_);
  const auto bytes = Pattern(2'000'000, 5);
  std::vector<std::byte> landing_a(bytes.size()), landing_b(bytes.size());
  const RemoteSlice at_a = Expose(a_, 1, landing_a);
  const RemoteSlice at_b = Expose(b_, 1, landing_b);
  a_.PostReceives(4);
  b_.PostReceives(4);
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(a_.Post(MakeWriteImmediate(i, bytes, at_b, i)));
    ASSERT_TRUE(b_.Post(MakeWriteImmediate(i, bytes, at_a, i)));
  }
  ASSERT_TRUE(PollUntil([&] {
    return a_.Count(CompletionKind::kWritten) == 4 && b_.Count(CompletionKind::kWritten) == 4 &&
           a_.Count(CompletionKind::kSent) == 4 && b_.Count(CompletionKind::kSent) == 4;
  }));
  EXPECT_EQ(landing_a, bytes);
  EXPECT_EQ(landing_b, bytes);
}

// A loop that sleeps whenever it may must get everything done, kSent included.
TEST_P(Conformance, ALoopThatSleepsWhenItMayIsWokenForEverything) {
  Connect(a_, b_);
  const auto bytes = Pattern(3000, 2);
  const auto sleep = [&] {
    std::vector<pollfd> sleepers;
    uint64_t next_ns = ~uint64_t{0};
    const uint64_t now_ns = MonotonicClock().NowNs();
    for (Transport* transport : network_->transports()) {
      if (!transport->Arm()) return true;
      sleepers.push_back({transport->fd(), POLLIN, 0});
      next_ns = std::min(next_ns, transport->NextPollNs(now_ns));
    }
    const uint64_t wait_ns = next_ns > now_ns ? std::min(next_ns - now_ns, 5 * kNsPerSecond) : 0;
    const timespec timeout{static_cast<time_t>(wait_ns / kNsPerSecond),
                           static_cast<long>(wait_ns % kNsPerSecond)};
    return ppoll(sleepers.data(), sleepers.size(), &timeout, nullptr) > 0 ||
           next_ns != ~uint64_t{0};
  };
  for (uint64_t round = 0; round < 100; ++round) {
    a_.events.clear();
    b_.events.clear();
    b_.PostReceives(1, round);
    ASSERT_TRUE(a_.Post(MakeSend(round, bytes)));
    const uint64_t deadline_ns = MonotonicClock().NowNs() + 20 * kNsPerSecond;
    while (a_.events.empty() || b_.events.empty()) {
      ASSERT_TRUE(sleep()) << "slept for seconds with work to do";
      ASSERT_LT(MonotonicClock().NowNs(), deadline_ns);
      Poll();
    }
  }
}

TEST_P(Conformance, TheTransportKnowsWhenItLastHeardThePeer) {
  Connect(a_, b_);
  const uint64_t before_ns = MonotonicClock().NowNs();
  std::vector<std::byte> landing(64);
  const auto bytes = Pattern(64, 8);
  const RemoteSlice slice = Expose(b_, 1, landing);
  ASSERT_TRUE(a_.Post(MakeWrite(1, bytes, slice)));
  ASSERT_TRUE(PollUntil([&] { return landing == bytes; }));
  const uint64_t heard_ns = b_.queue_pair->last_heard_ns();
  EXPECT_TRUE(heard_ns == 0 || heard_ns >= before_ns) << "0 means: cannot know";
}

}  // namespace
}  // namespace sluice::transport
