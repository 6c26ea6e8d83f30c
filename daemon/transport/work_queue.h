// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "daemon/transport/completion_queue.h"
#include "daemon/transport/transport.h"
#include "shm_proto/base/check.h"

// The two queues of a queue pair that is made of software. A NIC keeps these itself.
namespace sluice::transport {

inline uint64_t TotalBytes(const SendRequest& request) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < request.segment_count; ++i) bytes += request.segments[i].length;
  return bytes;
}

// Send requests in posting order, from posting until a signalled completion releases them. Its
// owner keeps its own cursors (written, acknowledged, ...) as positions: ever rising numbers of
// requests. Invariant: first() <= end() <= first() + depth. Thread: its transport's. Allocates: at
// creation.
class SendQueue {
 public:
  explicit SendQueue(uint32_t depth) : requests_(std::max(depth, 1u)) {}

  // Takes requests in order while there is room; returns how many.
  size_t Post(std::span<const SendRequest> requests) {
    const size_t room = requests_.size() - static_cast<size_t>(end_ - first_);
    const size_t taken = std::min(room, requests.size());
    for (size_t i = 0; i < taken; ++i) Store(requests[i]);
    return taken;
  }

  uint64_t first() const { return first_; }  // The oldest that is not done.
  uint64_t end() const { return end_; }      // One past the newest.
  size_t depth() const { return requests_.size(); }
  size_t SlotOf(uint64_t position) const { return position % requests_.size(); }
  const SendRequest& at(uint64_t position) const { return requests_[SlotOf(position)]; }

  // A signalled completion: this request and all before it are done.
  void Release(uint64_t position) { first_ = position + 1; }

 private:
  void Store(const SendRequest& request) {
    SLUICE_CHECK(request.segment_count <= kMaxSegments,
                 "a send request has at most kMaxSegments pieces");
    // Most requests have one or two pieces of the sixteen: copy only those.
    std::memcpy(&requests_[SlotOf(end_)], &request,
                offsetof(SendRequest, segments) + request.segment_count * sizeof(Segment));
    ++end_;
  }

  std::vector<SendRequest> requests_;
  uint64_t first_ = 0;
  uint64_t end_ = 0;
};

// Posted receives in order.
// Invariant: size() <= depth. Thread: its transport's. Allocates: at creation.
class ReceiveQueue {
 public:
  explicit ReceiveQueue(const QueuePairLimits& limits)
      : receive_bytes_(limits.receive_bytes), requests_(std::max(limits.receive_queue_depth, 1u)) {}

  Result<> Post(std::span<const ReceiveRequest> requests) {
    if (requests.size() > requests_.size() - size()) {
      return Fail(ErrorCode::kInvalid, "more receives posted than the receive queue is deep (" +
                                           std::to_string(requests_.size()) + ")");
    }
    for (const ReceiveRequest& request : requests) {
      if (request.length < receive_bytes_) {
        return Fail(ErrorCode::kInvalid, "a posted receive is smaller than receive_bytes (" +
                                             std::to_string(receive_bytes_) + ")");
      }
    }
    for (const ReceiveRequest& request : requests) requests_[end_++ % requests_.size()] = request;
    return {};
  }

  size_t size() const { return static_cast<size_t>(end_ - first_); }
  bool empty() const { return first_ == end_; }
  const ReceiveRequest& front() const { return at(0); }
  const ReceiveRequest& at(size_t behind_front) const {
    return requests_[(first_ + behind_front) % requests_.size()];
  }
  void Pop() { ++first_; }

 private:
  uint32_t receive_bytes_;
  std::vector<ReceiveRequest> requests_;
  uint64_t first_ = 0;
  uint64_t end_ = 0;
};

// How many completions one queue pair may have on their way at a time.
inline size_t MostCompletions(const QueuePairLimits& limits) {
  return size_t{limits.send_queue_depth} + limits.receive_queue_depth + 1;
}

// The end of a queue pair, as the contract wants it: everything outstanding, then kDisconnected.
inline void FlushQueues(const QueuePair* owner, void* context, SendQueue& sends,
                        ReceiveQueue& receives, CompletionQueue& completions) {
  Completion completion{};
  completion.context = context;
  completion.status = Status::kFlushed;
  completion.kind = CompletionKind::kSent;
  for (; sends.first() != sends.end(); sends.Release(sends.first())) {
    completion.id = sends.at(sends.first()).id;
    completions.Push(owner, completion);
  }
  completion.kind = CompletionKind::kReceived;
  for (; !receives.empty(); receives.Pop()) {
    completion.id = receives.front().id;
    completions.Push(owner, completion);
  }
  completion.id = 0;
  completion.kind = CompletionKind::kDisconnected;
  completions.Push(owner, completion);
}

}  // namespace sluice::transport
