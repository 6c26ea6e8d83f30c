// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/local/local_transport.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "daemon/transport/grant_table.h"
#include "daemon/transport/work_queue.h"
#include "shm_proto/base/check.h"
#include "shm_proto/base/units.h"

namespace sluice::transport {
namespace {

// Copies all of a request's pieces, one after the other, into the pieces of a landing that is large
// enough.
void CopySegments(const SendRequest& request, std::span<const iovec> landing) {
  size_t piece = 0;
  size_t filled = 0;
  for (uint32_t i = 0; i < request.segment_count; ++i) {
    const std::byte* from = request.segments[i].address;
    size_t left = request.segments[i].length;
    while (left > 0) {
      if (filled == landing[piece].iov_len) {
        ++piece;
        filled = 0;
        continue;
      }
      const size_t here = std::min(left, landing[piece].iov_len - filled);
      std::memcpy(static_cast<std::byte*>(landing[piece].iov_base) + filled, from, here);
      from += here;
      left -= here;
      filled += here;
    }
  }
}

}  // namespace

// One end of a local pair.
// Invariant: sends_.first() <= carried_out_ <= sends_.end().
class LocalQueuePair final : public QueuePair {
 public:
  LocalQueuePair(LocalTransport& transport, const QueuePairLimits& limits, void* context)
      : transport_(transport),
        limits_(limits),
        context_(context),
        sends_(limits.send_queue_depth),
        receives_(limits) {}

  ~LocalQueuePair() override {
    Break("the other end was closed");
    if (peer_ != nullptr) peer_->peer_ = nullptr;
    transport_.completions_.Drop(this);
    std::erase(transport_.queue_pairs_, this);
  }

  void Connect(LocalQueuePair* peer) { peer_ = peer; }
  const QueuePairLimits& limits() const { return limits_; }

  size_t PostSend(std::span<const SendRequest> requests) override {
    return dead() ? 0 : sends_.Post(requests);
  }

  Result<> PostReceive(std::span<const ReceiveRequest> requests) override {
    if (dead()) return Fail(ErrorCode::kUnavailable, "the queue pair is dead: " + reason_);
    if (peer_ != nullptr) peer_->stalled_ = false;
    return receives_.Post(requests);
  }

  Result<size_t> Expose(uint32_t grant, std::span<const LandingSegment> segments,
                        std::span<RemoteSlice, kMaxSlices> slices) override {
    if (dead()) return Fail(ErrorCode::kUnavailable, "the queue pair is dead: " + reason_);
    return grants_.Expose(grant, segments, slices);
  }

  void Withdraw(uint32_t grant) override { grants_.Withdraw(grant); }
  void Shutdown() override { Break("shut down by the other end", "shut down on this side"); }
  const char* kind() const override { return "local"; }
  std::string reason() const override { return reason_; }
  uint64_t last_heard_ns() const override { return last_heard_ns_; }

  // Carries out one request of this end, or its end. False when there is nothing to do now.
  bool Step(uint64_t now_ns) {
    if (dead()) {
      if (flushed_) return false;
      flushed_ = true;
      FlushQueues(this, context_, sends_, receives_, transport_.completions_);
      return false;
    }
    if (carried_out_ == sends_.end()) return false;
    const SendRequest& request = sends_.at(carried_out_);
    if (request.opcode != Opcode::kWrite && peer_->receives_.empty()) {
      stalled_ = true;  // Receiver not ready.
      return false;
    }
    const LocalVerdict verdict = transport_.policy_ ? transport_.policy_(context_, request)
                                                    : LocalVerdict::kDeliver;
    stalled_ = verdict == LocalVerdict::kHold;
    if (stalled_) return false;
    if (verdict == LocalVerdict::kBreak) {
      Break("the link broke", "the link broke");
      return true;
    }
    if (!CarryOut(request, now_ns)) return true;
    if (verdict == LocalVerdict::kDeliverThenBreak) {
      Break("the link broke", "the link broke");
      return true;
    }
    if (request.signalled) Complete(request);
    ++carried_out_;
    return true;
  }

  bool has_work() const { return dead() ? !flushed_ : carried_out_ != sends_.end() && !stalled_; }

 private:
  bool dead() const { return !reason_.empty(); }

  void Break(const std::string& why_there, const std::string& why_here = "closed") {
    if (dead()) return;
    reason_ = why_here;
    if (peer_ != nullptr && !peer_->dead()) peer_->reason_ = why_there;
  }

  bool CarryOut(const SendRequest& request, uint64_t now_ns) {
    const uint64_t bytes = TotalBytes(request);
    SLUICE_CHECK(bytes <= UINT32_MAX, "a request is shorter than 4 GiB");
    peer_->last_heard_ns_ = now_ns;
    return request.opcode == Opcode::kSend ? Send(request, static_cast<uint32_t>(bytes))
                                           : Write(request, static_cast<uint32_t>(bytes));
  }

  bool Send(const SendRequest& request, uint32_t bytes) {
    if (bytes > peer_->limits_.receive_bytes) {
      const std::string sizes = "a SEND of " + std::to_string(bytes) + " bytes met receives of " +
                                std::to_string(peer_->limits_.receive_bytes);
      Break(sizes, sizes);
      return false;
    }
    const ReceiveRequest receive = peer_->receives_.front();
    const iovec landing{receive.address, receive.length};
    CopySegments(request, {&landing, 1});
    peer_->Arrive(CompletionKind::kReceived, bytes, 0, receive.address);
    return true;
  }

  bool Write(const SendRequest& request, uint32_t bytes) {
    const Grant* grant = peer_->grants_.Find(request.remote_key);
    if (grant == nullptr) {
      if (bytes > 0) ++transport_.discarded_writes_;
    } else if (bytes > 0 && !InRange(request.remote_address, bytes, grant->bytes)) {
      const std::string range = "a WRITE of " + std::to_string(bytes) + " bytes at " +
                                std::to_string(request.remote_address) + " leaves grant " +
                                std::to_string(request.remote_key) + " of " +
                                std::to_string(grant->bytes) + " bytes";
      Break(range, range);
      return false;
    } else if (bytes > 0) {
      std::array<iovec, kMaxSlices> landing;
      const size_t pieces = grant->Pieces(request.remote_address, bytes, landing);
      CopySegments(request, {landing.data(), pieces});
    }
    if (request.opcode == Opcode::kWriteImmediate) {
      peer_->Arrive(CompletionKind::kWritten, bytes, request.immediate, nullptr);
    }
    return true;
  }

  // The peer's request uses up a posted receive of this end.
  void Arrive(CompletionKind kind, uint32_t bytes, uint32_t immediate, const std::byte* data) {
    const uint64_t id = receives_.front().id;
    receives_.Pop();
    transport_.completions_.Push(this, {.id = id,
                                        .context = context_,
                                        .kind = kind,
                                        .status = Status::kOk,
                                        .immediate = immediate,
                                        .bytes = bytes,
                                        .data = data});
  }

  void Complete(const SendRequest& request) {
    transport_.completions_.Push(this, {.id = request.id,
                                        .context = context_,
                                        .kind = CompletionKind::kSent,
                                        .status = Status::kOk,
                                        .immediate = 0,
                                        .bytes = 0,
                                        .data = nullptr});
    sends_.Release(carried_out_);
  }

  LocalTransport& transport_;
  const QueuePairLimits limits_;
  void* const context_;
  LocalQueuePair* peer_ = nullptr;  // nullptr once destroyed; this end is dead by then.
  SendQueue sends_;
  uint64_t carried_out_ = 0;  // Position of the next request to carry out.
  ReceiveQueue receives_;
  GrantTable grants_;
  bool stalled_ = false;  // The next request waits for a receive, or is held.
  bool flushed_ = false;
  std::string reason_;
  uint64_t last_heard_ns_ = 0;
};

Result<std::unique_ptr<LocalTransport>> LocalTransport::Create() {
  Fd never_readable(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!never_readable.valid()) return FailErrno("cannot create the local transport: eventfd");
  return std::unique_ptr<LocalTransport>(new LocalTransport(std::move(never_readable)));
}

LocalTransport::~LocalTransport() {
  SLUICE_CHECK(queue_pairs_.empty(), "queue pairs are destroyed before their transport");
}

LocalTransport::Pair LocalTransport::CreatePair(QueuePairLimits limits_a, void* context_a,
                                                QueuePairLimits limits_b, void* context_b) {
  auto a = std::make_unique<LocalQueuePair>(*this, limits_a, context_a);
  auto b = std::make_unique<LocalQueuePair>(*this, limits_b, context_b);
  a->Connect(b.get());
  b->Connect(a.get());
  queue_pairs_.push_back(a.get());
  queue_pairs_.push_back(b.get());
  Reserve();
  return {std::move(a), std::move(b)};
}

void LocalTransport::Reserve() {
  size_t most = 0;
  for (const LocalQueuePair* queue_pair : queue_pairs_)
    most += MostCompletions(queue_pair->limits());
  completions_.Reserve(most);
}

size_t LocalTransport::Poll(std::span<Completion> completions, uint64_t now_ns) {
  completions_.Begin(completions);
  bool progress = true;
  while (progress && !completions_.full()) {
    progress = false;
    for (size_t i = 0; i < queue_pairs_.size() && !completions_.full(); ++i) {
      turn_ = (turn_ + 1) % queue_pairs_.size();
      progress |= queue_pairs_[turn_]->Step(now_ns);
    }
  }
  return completions_.End();
}

bool LocalTransport::Arm() {
  return !completions_.backlogged() &&
         std::none_of(queue_pairs_.begin(), queue_pairs_.end(),
                      [](const LocalQueuePair* queue_pair) { return queue_pair->has_work(); });
}

}  // namespace sluice::transport
