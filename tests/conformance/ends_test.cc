// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/conformance/conformance.h"

// How connections end, and what must not be touched then.
namespace sluice::transport {
namespace {

// Each outstanding request flushed exactly once.
void ExpectFlushedOnce(const End& end, CompletionKind kind, uint64_t first_id, size_t count) {
  std::map<uint64_t, int> seen;
  for (const End::Event* event : end.Of(kind, Status::kFlushed)) ++seen[event->completion.id];
  EXPECT_EQ(seen.size(), count);
  for (uint64_t id = first_id; id < first_id + count; ++id) EXPECT_EQ(seen[id], 1) << id;
}

TEST_P(Conformance, ShutdownFlushesEverythingOnceAndDisconnectsLast) {
  Connect(a_, b_);
  std::vector<std::byte> landing(64);
  const auto bytes = Pattern(64, 1);
  const RemoteSlice slice = Expose(b_, 1, landing);
  a_.PostReceives(7, 100);
  b_.PostReceives(9, 200);
  for (uint64_t id = 0; id < 5; ++id) ASSERT_TRUE(a_.Post(MakeWrite(id, bytes, slice, 0, false)));
  a_.queue_pair->Shutdown();
  a_.queue_pair->Shutdown();
  ExpectDead(a_, b_);
  ExpectFlushedOnce(a_, CompletionKind::kSent, 0, 5);
  ExpectFlushedOnce(a_, CompletionKind::kReceived, 100, 7);
  ExpectFlushedOnce(b_, CompletionKind::kReceived, 200, 9);
}

TEST_P(Conformance, ADeadQueuePairRefusesNewWork) {
  Connect(a_, b_);
  a_.queue_pair->Shutdown();
  ExpectDead(a_, b_);
  std::vector<std::byte> memory(kLimits.receive_bytes);
  const ReceiveRequest receive{
      .id = 1, .address = memory.data(), .length = kLimits.receive_bytes, .local_key = 0};
  const LandingSegment segment{memory.data(), memory.size(), 0};
  std::array<RemoteSlice, kMaxSlices> slices;
  for (End* end : {&a_, &b_}) {
    const auto posted = end->queue_pair->PostReceive({&receive, 1});
    ASSERT_FALSE(posted.has_value());
    EXPECT_EQ(posted.error().code, ErrorCode::kUnavailable);
    EXPECT_FALSE(end->queue_pair->Expose(1, {&segment, 1}, slices).has_value());
    end->queue_pair->Withdraw(1);
  }
}

TEST_P(Conformance, MessagesThatCompletedAreNotLostByAShutdown) {
  Connect(a_, b_);
  const auto bytes = Pattern(500, 6);
  b_.PostReceives(1);
  ASSERT_TRUE(a_.Post(MakeSend(1, bytes)));
  ASSERT_TRUE(PollUntil([&] { return a_.Count(CompletionKind::kSent) == 1; }));
  a_.queue_pair->Shutdown();
  ExpectDead(a_, b_);
  ASSERT_EQ(b_.Count(CompletionKind::kReceived), 1u);
  EXPECT_EQ(b_.Of(CompletionKind::kReceived)[0]->data, bytes);
}

TEST_P(Conformance, DestroyingOneEndDisconnectsTheOther) {
  Connect(a_, b_);
  b_.PostReceives(3, 50);
  a_.queue_pair.reset();
  LetFindOut(b_);
  ASSERT_TRUE(PollUntil([&] { return b_.disconnected(); }));
  PollUntilQuiet();
  ExpectFlushedOnce(b_, CompletionKind::kReceived, 50, 3);
  EXPECT_EQ(b_.events.size(), GetParam().tells_the_peer ? 4u : 5u);
  EXPECT_TRUE(a_.events.empty());
}

TEST_P(Conformance, ADestroyedQueuePairCompletesNothingMore) {
  completions_per_poll_ = 1;
  Connect(a_, b_);
  b_.PostReceives(8);
  a_.queue_pair->Shutdown();
  LetFindOut(b_);
  ASSERT_TRUE(PollUntil([&] { return b_.events.size() == 2; }));
  b_.queue_pair.reset();
  PollUntilQuiet();
  EXPECT_EQ(b_.events.size(), 2u);
}

// For a sanitizer's eyes: the memory is gone while the requests that name it were under way.
TEST_P(Conformance, NothingTouchesMemoryOfADestroyedQueuePair) {
  Connect(a_, b_);
  auto source = std::make_unique<std::vector<std::byte>>(Pattern(300'000, 1));
  auto landing = std::make_unique<std::vector<std::byte>>(300'000);
  const RemoteSlice slice = Expose(b_, 1, *landing);
  b_.PostReceives(4);
  for (uint64_t id = 0; id < 4; ++id) {
    ASSERT_TRUE(a_.Post(MakeWriteImmediate(id, *source, slice, 0)));
    ASSERT_TRUE(a_.Post(MakeWrite(id, *source, slice)));
  }
  Poll();
  b_.queue_pair.reset();
  landing.reset();
  b_.receive_memory.clear();
  Poll();
  a_.queue_pair.reset();
  source.reset();
  PollUntilQuiet();
}

TEST_P(Conformance, AWriteToAWithdrawnGrantTouchesNothing) {
  if (!GetParam().knows_grants) GTEST_SKIP() << "this transport knows regions, not grants";
  Connect(a_, b_);
  std::vector<std::byte> landing(100'000);
  const auto bytes = Pattern(landing.size(), 1);
  const RemoteSlice slice = Expose(b_, 1, landing);
  b_.queue_pair->Withdraw(1);
  b_.PostReceives(1, 5);
  ASSERT_TRUE(a_.Post(MakeWrite(1, bytes, slice)));
  ASSERT_TRUE(a_.Post(MakeWriteImmediate(2, bytes, slice, 9)));
  if (GetParam().discards_stale_writes) {
    ASSERT_TRUE(PollUntil([&] { return b_.Count(CompletionKind::kWritten) == 1; }));
    EXPECT_EQ(b_.events[0].completion.id, 5u);
    ExpectAlive(a_, b_);
  } else {
    ExpectDead(a_, b_);
  }
  EXPECT_EQ(landing, std::vector<std::byte>(landing.size()));
}

TEST_P(Conformance, WithdrawingInTheMiddleOfAWriteStopsIt) {
  if (!GetParam().discards_stale_writes) GTEST_SKIP() << "this transport cannot take a grant back";
  Connect(a_, b_);
  auto landing = std::make_unique<std::vector<std::byte>>(8'000'000);
  const auto bytes = Pattern(landing->size(), 1);
  const RemoteSlice slice = Expose(b_, 1, *landing, 7);
  b_.PostReceives(1);
  ASSERT_TRUE(a_.Post(MakeWriteImmediate(1, bytes, slice, 0)));
  for (int i = 0; i < 3; ++i) Poll();
  b_.queue_pair->Withdraw(1);
  landing.reset();
  std::vector<std::byte> fresh(bytes.size());
  Expose(b_, 1, fresh);
  ASSERT_TRUE(PollUntil([&] { return b_.Count(CompletionKind::kWritten) == 1; }));
  EXPECT_EQ(fresh, std::vector<std::byte>(fresh.size())) << "the stale WRITE reached the new grant";
  ExpectAlive(a_, b_);
}

TEST_P(Conformance, AWriteBeyondItsGrantEndsTheConnectionAndTouchesNothing) {
  constexpr size_t kBytes = 1000;
  const std::vector<std::pair<uint64_t, size_t>> outside{
      {0, kBytes + 1},   {1, kBytes},       {kBytes, 1},
      {kBytes + 1, 1},   {~uint64_t{0}, 1}, {~uint64_t{0} - 499, 1000},
      {0x1'0000'0000, 1}};
  for (const auto& [offset, length] : outside) {
    SCOPED_TRACE(testing::Message() << length << " bytes at " << offset);
    End a, b;
    Connect(a, b);
    std::vector<std::byte> landing(kBytes);
    const auto bytes = Pattern(length, 1);
    const RemoteSlice slice = Expose(b, 1, landing, 3);
    ASSERT_TRUE(a.Post(MakeWrite(1, bytes, slice, offset)));
    ExpectDead(a, b);
    EXPECT_EQ(landing, std::vector<std::byte>(kBytes));
  }
}

TEST_P(Conformance, ASendLongerThanAReceiveEndsTheConnectionAndIsNotSeen) {
  QueuePairLimits small = kLimits;
  small.receive_bytes = 100;
  Connect(a_, b_, kLimits, small);
  b_.PostReceives(1);
  const auto bytes = Pattern(101, 1);
  ASSERT_TRUE(a_.Post(MakeSend(1, bytes)));
  ExpectDead(a_, b_);
  EXPECT_EQ(b_.Count(CompletionKind::kReceived), 0u);
  EXPECT_EQ(b_.receive_memory[0], std::vector<std::byte>(100));
}

TEST_P(Conformance, OneDeadConnectionLeavesTheOthersAlone) {
  Connect(a_, b_);
  End c, d;
  Connect(c, d);
  c.queue_pair->Shutdown();
  ExpectDead(c, d);
  ExpectAlive(a_, b_);
  c.queue_pair.reset();
  d.queue_pair.reset();
  ExpectAlive(a_, b_);
}

}  // namespace
}  // namespace sluice::transport
