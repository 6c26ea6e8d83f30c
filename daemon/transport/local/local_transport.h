// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "daemon/transport/completion_queue.h"
#include "daemon/transport/transport.h"
#include "shm_proto/base/fd.h"

namespace sluice::transport {

class LocalQueuePair;

// What becomes of a request that is about to be carried out, for tests that need a slow or a broken
// network.
enum class LocalVerdict : uint8_t {
  kDeliver,
  kHold,              // Not now: asked again at the next Poll().
  kBreak,             // The pair dies first; the peer never sees the request.
  kDeliverThenBreak,  // The peer has it, but the sender will not know: its request is flushed.
};
using LocalPolicy = std::function<LocalVerdict(void* sender_context, const SendRequest& request)>;

// A network of one thread: pairs of queue pairs whose ends sit on this same transport. It carries
// messages between two applications of one host, and lets tests run two engines in one thread, step
// by step and always in the same order. A request is carried out in Poll() with one copy, from the
// sender's memory into the peer's posted receive or landing. A SEND that finds no posted receive
// waits for one. Invariant: both ends of a pair are alive or both are dead. Thread: its owner's.
// Owns: nothing of the requests' memory. Allocates: in CreatePair() and Expose() only.
class LocalTransport final : public Transport {
 public:
  static Result<std::unique_ptr<LocalTransport>> Create();
  ~LocalTransport() override;

  // Queue pairs must be destroyed before their transport.
  using Pair = std::pair<std::unique_ptr<QueuePair>, std::unique_ptr<QueuePair>>;
  Pair CreatePair(QueuePairLimits limits_a, void* context_a, QueuePairLimits limits_b,
                  void* context_b);

  // From now on every request is put to `policy` before it is carried out. Empty: everything is
  // delivered.
  void SetPolicy(LocalPolicy policy) { policy_ = std::move(policy); }

  size_t Poll(std::span<Completion> completions, uint64_t now_ns) override;
  int fd() const override { return never_readable_.get(); }
  bool Arm() override;

  uint64_t discarded_writes() const { return discarded_writes_; }  // WRITEs to withdrawn grants.

 private:
  friend class LocalQueuePair;
  explicit LocalTransport(Fd never_readable) : never_readable_(std::move(never_readable)) {}
  void Reserve();

  // Everything that happens here is done by the thread that would sleep, so nothing ever has to
  // wake it.
  Fd never_readable_;
  LocalPolicy policy_;
  CompletionQueue completions_;
  std::vector<LocalQueuePair*> queue_pairs_;
  size_t turn_ = 0;  // Whose queue is looked at first.
  uint64_t discarded_writes_ = 0;
};

}  // namespace sluice::transport
