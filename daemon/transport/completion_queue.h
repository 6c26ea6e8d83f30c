// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "daemon/transport/transport.h"

namespace sluice::transport {

// The completions of all queue pairs of one software transport, on their way into the span of the
// Poll() under way. What does not fit waits here, in order, for the next Poll(). Invariant: nothing
// of a queue pair is in here once Drop() was called for it. Thread: its transport's. Allocates: in
// Reserve() only, as long as engines keep to their queue depths.
class CompletionQueue {
 public:
  // Makes room for the completions that all queue pairs together can have outstanding.
  void Reserve(size_t completions) { waiting_.reserve(completions); }

  // Starts a Poll(): what waited goes out first.
  void Begin(std::span<Completion> out) {
    out_ = out;
    count_ = 0;
    while (count_ < out_.size() && count_ < waiting_.size()) {
      out_[count_] = waiting_[count_].completion;
      ++count_;
    }
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(count_));
  }

  void Push(const QueuePair* owner, const Completion& completion) {
    if (waiting_.empty() && count_ < out_.size()) {
      out_[count_++] = completion;
    } else {
      waiting_.push_back({owner, completion});
    }
  }

  // Ends a Poll(): how many completions the caller has got.
  size_t End() {
    out_ = {};
    return count_;
  }

  bool backlogged() const { return !waiting_.empty(); }
  bool full() const { return count_ >= out_.size(); }

  // The queue pair is being destroyed: it completes nothing any more.
  void Drop(const QueuePair* owner) {
    std::erase_if(waiting_, [owner](const Entry& entry) { return entry.owner == owner; });
  }

 private:
  struct Entry {
    const QueuePair* owner;
    Completion completion;
  };

  std::span<Completion> out_;
  size_t count_ = 0;
  std::vector<Entry> waiting_;
};

}  // namespace sluice::transport
