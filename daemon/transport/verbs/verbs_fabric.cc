// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/verbs/verbs_fabric.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "daemon/transport/verbs/call.h"
#include "daemon/transport/verbs/queue_pair.h"
#include "shm_proto/base/check.h"
#include "shm_proto/base/clock.h"

namespace sluice::transport {

Result<std::unique_ptr<VerbsFabric>> VerbsFabric::Create(const VerbsDevice& device,
                                                         Random& random) {
  std::unique_ptr<VerbsFabric> fabric(new VerbsFabric(device, random));
  if (auto opened = fabric->Open(); !opened) return std::unexpected(opened.error());
  return fabric;
}

Result<> VerbsFabric::Open() {
  ibv_td_init_attr domain{};
  thread_domain_ = ibv_alloc_td(device_.context(), &domain);
  if (thread_domain_ != nullptr) {
    ibv_parent_domain_init_attr parent{};
    parent.pd = device_.pd();
    parent.td = thread_domain_;
    parent_domain_ = ibv_alloc_parent_domain(device_.context(), &parent);
    if (parent_domain_ == nullptr) return FailErrno("ibv_alloc_parent_domain");
  }
  channel_ = ibv_create_comp_channel(device_.context());
  if (channel_ == nullptr) return FailErrno("ibv_create_comp_channel");
  if (fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK) != 0)
    return FailErrno("making the completion channel non-blocking");
  const int capacity = std::min(kFirstCompletions, device_.attributes().max_cqe);
  queue_ = ibv_create_cq(device_.context(), capacity, nullptr, channel_, 0);
  if (queue_ == nullptr) return FailErrno("ibv_create_cq");
  return device_.settings().shared_receives != 0 ? MakeShared() : Result<>{};
}

VerbsFabric::~VerbsFabric() {
  SLUICE_CHECK(queue_pairs_.empty(), "queue pairs are destroyed before their fabric");
  shared_.reset();
  if (queue_ != nullptr) {
    ibv_ack_cq_events(queue_, events_unacknowledged_);  // Destroying waits for it.
    ibv_destroy_cq(queue_);
  }
  if (channel_ != nullptr) ibv_destroy_comp_channel(channel_);
  if (parent_domain_ != nullptr) ibv_dealloc_pd(parent_domain_);
  if (thread_domain_ != nullptr) ibv_dealloc_td(thread_domain_);
}

Result<std::unique_ptr<FabricQueuePair>> VerbsFabric::Create(const QueuePairLimits& limits,
                                                             std::span<std::byte> own_memory,
                                                             void* context) {
  return VerbsQueuePair::Create(*this, limits, own_memory, context);
}

// An overrun completion queue takes every queue pair of this thread with it.
Result<> VerbsFabric::Reserve(size_t completions) {
  const size_t wanted = reserved_ + completions;
  const auto most = static_cast<size_t>(device_.attributes().max_cqe);
  if (wanted > most) {
    return Fail(ErrorCode::kUnavailable,
                "the completion queue of this thread is full: " + device_.name() + " allows " +
                    std::to_string(most) +
                    " completions; lower engine.send_queue_depth or engine.receive_depth, or raise "
                    "daemon.io_threads");
  }
  if (wanted > static_cast<size_t>(queue_->cqe)) {
    const auto larger = static_cast<int>(std::min(most, 2 * wanted));
    if (auto resized = Verbs(ibv_resize_cq(queue_, larger), "ibv_resize_cq"); !resized)
      return resized;
  }
  SLUICE_CHECK(wanted <= static_cast<size_t>(queue_->cqe), "a completion queue never overruns");
  reserved_ = wanted;
  completions_.Reserve(reserved_);
  batch_.resize(std::max(batch_.size(), reserved_ + kBatch));
  return {};
}

void VerbsFabric::Forget(VerbsQueuePair* queue_pair) {
  completions_.Drop(queue_pair);
  std::erase(dying_, queue_pair);
  released_ += queue_pair->reserved_completions();
}

// Of a queue pair that was destroyed. Its number may be another's next.
void VerbsFabric::DropCompletions(uint32_t number, SharedQueue* shared) {
  queue_pairs_.erase(number);
  size_t kept = batch_next_;
  for (size_t i = batch_next_; i < batch_count_; ++i) {
    if (batch_[i].qp_num != number) {
      batch_[kept++] = batch_[i];
    } else if (shared != nullptr && (batch_[i].wr_id & SharedQueue::kReceiveBit) != 0) {
      const uint32_t slot = SharedQueue::SlotOf(batch_[i].wr_id);
      shared->Post({&slot, 1});
    }
  }
  batch_count_ = kept;
}

size_t VerbsFabric::Poll(std::span<Completion> completions, uint64_t now_ns) {
  completions_.Begin(completions);
  if (armed_) TakeChannelEvents();
  while (!completions_.full() && Collect()) {
    while (!completions_.full() && batch_next_ < batch_count_)
      Handle(batch_[batch_next_++], now_ns);
  }
  if (!dying_.empty()) {
    std::erase_if(dying_,
                  [now_ns](VerbsQueuePair* queue_pair) { return queue_pair->FinishDying(now_ns); });
  }
  return completions_.End();
}

// Whether there are completions in the batch, now at least.
bool VerbsFabric::Collect() {
  if (batch_next_ < batch_count_) return true;
  batch_next_ = 0;
  const int count = ibv_poll_cq(queue_, kBatch, batch_.data());
  batch_count_ = static_cast<size_t>(std::max(0, count));
  emptied_ = batch_count_ < kBatch;
  if (emptied_) reserved_ -= std::exchange(released_, 0);
  return batch_count_ > 0;
}

// Everything out of the queue, before the provider takes a queue pair's completions from it unseen.
void VerbsFabric::TakeAll() {
  std::move(batch_.begin() + static_cast<ptrdiff_t>(batch_next_),
            batch_.begin() + static_cast<ptrdiff_t>(batch_count_), batch_.begin());
  batch_count_ -= std::exchange(batch_next_, 0);
  while (batch_count_ + kBatch <= batch_.size()) {
    const int count = ibv_poll_cq(queue_, kBatch, &batch_[batch_count_]);
    batch_count_ += static_cast<size_t>(std::max(0, count));
    if (count < kBatch) return;
  }
}

// Of a failed completion only its id, status and queue pair mean anything.
void VerbsFabric::Handle(const ibv_wc& completion, uint64_t now_ns) {
  auto queue_pair = queue_pairs_.find(completion.qp_num);
  // Of one that was destroyed meanwhile.
  if (queue_pair != queue_pairs_.end()) queue_pair->second->OnCompletion(completion, now_ns);
}

// --- receives that all queue pairs share ---

Result<> VerbsFabric::MakeShared() {
  const VerbsSettings& settings = device_.settings();
  if (auto reserved = Reserve(settings.shared_receives); !reserved) return reserved;
  auto made = SharedQueue::Create(
      device_, parent_domain_ != nullptr ? parent_domain_ : device_.pd(), settings.shared_receives,
      settings.shared_bytes, settings.shared_reserve);
  if (!made) {
    released_ += settings.shared_receives;
    return std::unexpected(made.error());
  }
  shared_ = std::move(*made);
  return {};
}

// A queue pair that went without telling its last receive may have been filling one. Since nobody
// can say which, a queue that lost many is left to the queue pairs that have it.
void VerbsFabric::ReleaseShared(std::shared_ptr<SharedQueue> shared, bool told_its_last) {
  if (!told_its_last) shared->lender().Lose();
  if (shared == shared_ && (shared->worn() || !shared->failure().empty())) {
    if (auto made = MakeShared(); !made) return;  // Tried again after the next one.
  }
  if (shared.use_count() == 1) released_ += shared->slots();
}

FabricUse VerbsFabric::use() const {
  FabricUse use;
  use.queue_pairs = static_cast<uint32_t>(queue_pairs_.size());
  use.completions = static_cast<uint64_t>(queue_->cqe);
  use.completions_reserved = reserved_;
  if (shared_) {
    use.shared_receives = shared_->lender().count();
    use.shared_lent = shared_->lender().promised();
    use.shared_low = shared_->low();
  }
  return use;
}

void VerbsFabric::TakeChannelEvents() {
  armed_ = false;
  ibv_cq* queue;
  void* context;
  while (ibv_get_cq_event(channel_, &queue, &context) == 0) ++events_unacknowledged_;
  if (events_unacknowledged_ < kEventsPerAck) return;
  ibv_ack_cq_events(queue_, std::exchange(events_unacknowledged_, 0));
}

// What came before the arming rings nothing: looked for once more.
bool VerbsFabric::Arm() {
  if (completions_.backlogged() || batch_next_ < batch_count_) return false;
  armed_ = true;
  if (ibv_req_notify_cq(queue_, 0) != 0) return false;  // Stays awake.
  return !Collect();
}

uint64_t VerbsFabric::NextPollNs(uint64_t now_ns) const {
  return dying_.empty() ? ~uint64_t{0} : now_ns + kNsPerMs;
}

}  // namespace sluice::transport
