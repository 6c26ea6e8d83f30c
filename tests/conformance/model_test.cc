// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "tests/conformance/conformance.h"

// Random requests against a model that knows what has to come out.
namespace sluice::transport {
namespace {

constexpr size_t kLandingBytes = 400'000;

// One direction: what was posted at one end and must show at the other.
class Direction {
 public:
  Direction(End& from, End& to, uint32_t seed)
      : from_(from), to_(to), random_(seed), source_(Pattern(kLandingBytes, seed)) {}

  void Expose(const RemoteSlice& slice) { slice_ = slice; }
  std::vector<std::byte>& landing() { return landing_; }

  // Posts a random batch that queue depth, credits and landing allow.
  void Step() {
    while (receives_posted_ - Arrived() < kDepth && Chance(2)) {
      to_.PostReceives(1, next_receive_id_++);
      ++receives_posted_;
    }
    std::vector<SendRequest> batch;
    while (posted_ < kRequests && Chance(4)) {
      const size_t outstanding = posted_ - Completed();
      if (outstanding == kDepth || !Append(batch, outstanding + 1 == kDepth)) break;
      ++posted_;
    }
    ASSERT_EQ(from_.queue_pair->PostSend(batch), batch.size());
  }

  // Holds what has come out against what must.
  void Check() {
    for (; events_seen_ < to_.events.size(); ++events_seen_) {
      const End::Event& event = to_.events[events_seen_];
      if (event.completion.kind == CompletionKind::kSent) continue;
      ASSERT_EQ(event.completion.status, Status::kOk) << to_.queue_pair->reason();
      ASSERT_FALSE(expected_.empty());
      const Expected& expected = expected_.front();
      ASSERT_EQ(event.completion.kind, expected.kind);
      ASSERT_EQ(event.completion.id, next_arrival_++);
      ASSERT_EQ(event.completion.bytes, expected.bytes);
      if (expected.kind == CompletionKind::kReceived) {
        ASSERT_TRUE(std::equal(event.data.begin(), event.data.end(), source_.begin()));
      } else {
        ASSERT_EQ(event.completion.immediate, expected.immediate);
        ASSERT_TRUE(std::equal(source_.begin(),
                               source_.begin() + static_cast<ptrdiff_t>(expected.landed_bytes),
                               landing_.begin()));
      }
      expected_.pop_front();
    }
  }

  bool done() const {
    return posted_ == kRequests && expected_.empty() && Completed() == kRequests;
  }

 private:
  static constexpr size_t kDepth = 16;
  static constexpr size_t kRequests = 150;

  struct Expected {
    CompletionKind kind;
    uint32_t bytes;
    uint32_t immediate;
    size_t landed_bytes;  // This much of the landing is filled by then.
  };

  bool Chance(uint32_t one_in) { return random_() % one_in != 0; }
  size_t Arrived() const { return static_cast<size_t>(next_arrival_); }

  // Requests that are done: those up to the last signalled completion.
  size_t Completed() const {
    const auto sent = from_.Of(CompletionKind::kSent);
    return sent.empty() ? 0 : static_cast<size_t>(sent.back()->completion.id) + 1;
  }

  size_t RandomBytes(size_t most) {
    const size_t kind = random_() % 4;
    if (kind == 0) return std::min<size_t>(random_() % 4, most);
    if (kind == 1) return most;
    return random_() % (most + 1);
  }

  bool Append(std::vector<SendRequest>& batch, bool must_signal) {
    const bool last = posted_ + 1 == kRequests;
    const bool signalled = must_signal || last || Chance(3);
    const uint64_t id = posted_;
    const auto kind = static_cast<Opcode>(random_() % 3);
    const bool has_credit = receives_posted_ > credits_used_;
    if (kind != Opcode::kWrite && !has_credit) return false;
    if (kind == Opcode::kSend) {
      const size_t bytes = RandomBytes(4096);
      SendRequest request = MakeSend(id, {}, signalled);
      Cut(request, {source_.data(), bytes});
      batch.push_back(request);
      expected_.push_back({CompletionKind::kReceived, static_cast<uint32_t>(bytes), 0, 0});
      ++credits_used_;
      return true;
    }
    const size_t bytes = std::min(RandomBytes(9'000), kLandingBytes - landed_);
    SendRequest request = MakeWrite(id, {}, slice_, landed_, signalled);
    Cut(request, {source_.data() + landed_, bytes});
    landed_ += bytes;
    if (kind == Opcode::kWriteImmediate) {
      request.opcode = kind;
      request.immediate = static_cast<uint32_t>(random_());
      expected_.push_back(
          {CompletionKind::kWritten, static_cast<uint32_t>(bytes), request.immediate, landed_});
      ++credits_used_;
    }
    batch.push_back(request);
    return true;
  }

  // Cuts the bytes into random pieces, empty ones too.
  void Cut(SendRequest& request, std::span<const std::byte> bytes) {
    const size_t pieces = 1 + random_() % kMaxSegments;
    for (size_t i = 0; i < pieces; ++i) {
      const size_t here = i + 1 == pieces ? bytes.size() : random_() % (bytes.size() + 1);
      request.segments[request.segment_count++] = {bytes.data(), static_cast<uint32_t>(here), 0};
      bytes = bytes.subspan(here);
    }
  }

  End& from_;
  End& to_;
  std::mt19937 random_;
  const std::vector<std::byte> source_;
  std::vector<std::byte> landing_ = std::vector<std::byte>(kLandingBytes);
  RemoteSlice slice_{};
  std::deque<Expected> expected_;
  size_t posted_ = 0;
  size_t receives_posted_ = 0;
  size_t credits_used_ = 0;
  size_t landed_ = 0;
  uint64_t next_receive_id_ = 0;
  uint64_t next_arrival_ = 0;
  size_t events_seen_ = 0;
};

TEST_P(Conformance, RandomRequestsDoWhatTheModelSays) {
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    End a, b;
    Connect(a, b);
    completions_per_poll_ = 1 + seed * 5 % 17;
    Direction there(a, b, seed);
    Direction back(b, a, seed + 1000);
    there.Expose(Expose(b, seed, there.landing(), 1 + seed % kMaxSlices));
    back.Expose(Expose(a, ~seed, back.landing(), 1 + seed * 3 % kMaxSlices));
    ASSERT_TRUE(PollUntil([&] {
      there.Check();
      back.Check();
      if (testing::Test::HasFatalFailure()) return true;
      there.Step();
      back.Step();
      return testing::Test::HasFatalFailure() || (there.done() && back.done());
    }));
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace sluice::transport
