// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/transport/completion_queue.h"
#include "daemon/transport/transport.h"
#include "daemon/transport/verbs/device.h"
#include "daemon/transport/verbs/regions.h"
#include "daemon/transport/verbs/shared_queue.h"
#include "shm_proto/base/random.h"

namespace sluice::transport {

class VerbsQueuePair;

// RC queue pairs of one I/O thread over one completion queue and, where the provider has them, a
// thread domain, which spares the provider its locks (ByteExpress 5.1).
// Invariant: the completion queue has room for all that its queue pairs can have outstanding, so it
// never overruns. Thread: its owner's; made on any. Owns: completion queue, channel, thread domain.
// Allocates: when queue pairs are made.
class VerbsFabric final : public Fabric {
 public:
  // The device must outlive the fabric; `random` too.
  static Result<std::unique_ptr<VerbsFabric>> Create(const VerbsDevice& device, Random& random);
  ~VerbsFabric() override;

  Result<std::unique_ptr<FabricQueuePair>> Create(const QueuePairLimits& limits,
                                                  std::span<std::byte> own_memory,
                                                  void* context) override;
  void SetRegions(std::shared_ptr<const Regions> regions) override {
    regions_.Set(std::move(regions));
  }
  size_t Poll(std::span<Completion> completions, uint64_t now_ns) override;
  int fd() const override { return channel_->fd; }
  bool Arm() override;
  uint64_t NextPollNs(uint64_t now_ns) const override;
  SharedReceives* shared_receives() override { return shared_ ? &shared_->lender() : nullptr; }
  FabricUse use() const override;

  bool has_thread_domain() const { return thread_domain_ != nullptr; }

 private:
  friend class VerbsQueuePair;
  static constexpr int kBatch = 64;                // Completions taken at once.
  static constexpr unsigned kEventsPerAck = 128;   // Acknowledging takes a lock.
  static constexpr int kFirstCompletions = 4'096;  // Capacity; grows with the queue pairs.

  VerbsFabric(const VerbsDevice& device, Random& random) : device_(device), random_(random) {}
  Result<> Open();
  Result<> Reserve(size_t completions);
  void TakeChannelEvents();
  bool Collect();
  void Handle(const ibv_wc& completion, uint64_t now_ns);
  void TakeAll();
  // Whether all completions there were have been handed on.
  bool Emptied() const { return emptied_ && batch_next_ == batch_count_; }
  void DropCompletions(uint32_t number, SharedQueue* shared);
  void Forget(VerbsQueuePair* queue_pair);
  Result<> MakeShared();
  // A queue pair that took from it is destroyed.
  void ReleaseShared(std::shared_ptr<SharedQueue> shared, bool told_its_last);

  const VerbsDevice& device_;
  Random& random_;
  ibv_td* thread_domain_ = nullptr;
  ibv_pd* parent_domain_ = nullptr;  // Of the thread domain; queue pairs are made in it.
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  bool armed_ = false;
  unsigned events_unacknowledged_ = 0;
  RegionLookup regions_;
  CompletionQueue completions_;
  std::vector<ibv_wc> batch_;  // Taken from the queue, not yet handed on: from next to count.
  size_t batch_next_ = 0;
  size_t batch_count_ = 0;
  bool emptied_ = false;  // The queue was, when last looked at.
  size_t reserved_ = 0;   // Completions that can be in the queue.
  size_t released_ = 0;   // Of these, of destroyed queue pairs: until the queue was seen empty.
  std::unordered_map<uint32_t, VerbsQueuePair*> queue_pairs_;  // By number.
  std::vector<VerbsQueuePair*> dying_;
  // For new queue pairs; null: they have receives of their own. Each keeps the one it was made
  // with.
  std::shared_ptr<SharedQueue> shared_;
};

}  // namespace sluice::transport
