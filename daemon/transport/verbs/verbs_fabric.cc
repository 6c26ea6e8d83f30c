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
  return {};
}

VerbsFabric::~VerbsFabric() {
  SLUICE_CHECK(queue_pairs_.empty(), "queue pairs are destroyed before their fabric");
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
  return {};
}

void VerbsFabric::Forget(VerbsQueuePair* queue_pair) {
  completions_.Drop(queue_pair);
  std::erase(dying_, queue_pair);
  released_ += queue_pair->reserved_completions();
}

// Of a queue pair that was destroyed. Its number may be another's next.
void VerbsFabric::DropCompletions(uint32_t number) {
  queue_pairs_.erase(number);
  const auto rest = batch_.begin() + batch_next_;
  batch_count_ = static_cast<int>(
      std::remove_if(rest, batch_.begin() + batch_count_,
                     [number](const ibv_wc& each) { return each.qp_num == number; }) -
      batch_.begin());
}

size_t VerbsFabric::Poll(std::span<Completion> completions, uint64_t now_ns) {
  completions_.Begin(completions);
  if (armed_) TakeChannelEvents();
  while (!completions_.full() && Collect()) {
    while (!completions_.full() && batch_next_ < batch_count_)
      Handle(batch_[static_cast<size_t>(batch_next_++)], now_ns);
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
  batch_count_ = std::max(0, ibv_poll_cq(queue_, kBatch, batch_.data()));
  if (batch_count_ < kBatch) reserved_ -= std::exchange(released_, 0);
  return batch_count_ > 0;
}

// Of a failed completion only its id, status and queue pair mean anything.
void VerbsFabric::Handle(const ibv_wc& completion, uint64_t now_ns) {
  auto queue_pair = queue_pairs_.find(completion.qp_num);
  // Of one that was destroyed meanwhile.
  if (queue_pair != queue_pairs_.end()) queue_pair->second->OnCompletion(completion, now_ns);
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
