// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/core/ticket_queue.h"

#include <bit>

#include "shm_proto/base/check.h"

namespace sluice::rain {
namespace {

// So that a balance plus one, and an index made of slice and ticket bits, never come near a limit.
constexpr uint32_t kMaxCapacity = 1u << 30;

uint32_t MaskOf(uint32_t capacity) {
  SLUICE_CHECK(std::has_single_bit(capacity) && capacity <= kMaxCapacity,
               "a ring's capacity is a power of two");
  return capacity - 1;
}

}  // namespace

TicketQueue::TicketQueue(uint32_t task_capacity, uint32_t token_capacity, uint32_t first_ticket)
    : tasks_seen_(first_ticket),
      tokens_seen_(first_ticket),
      task_mask_(MaskOf(task_capacity)),
      token_mask_(MaskOf(token_capacity)),
      tasks_(task_capacity),
      tokens_(token_capacity) {}

TicketQueue::TaskStep TicketQueue::OnTask(const WaitingTask& task, uint32_t limit) {
  SLUICE_CHECK(limit <= task_capacity(), "no more tasks wait than the ring holds");
  TaskStep step{.old_balance = balance_};
  if (step.old_balance <= -static_cast<int32_t>(limit)) return step;
  --balance_;
  step.ticket = tasks_seen_++;
  if (step.old_balance > 0) {
    step.verdict = Verdict::kDispatch;
    step.token = tokens_[step.ticket & token_mask_];
  } else {
    step.verdict = Verdict::kEnqueue;
    tasks_[step.ticket & task_mask_] = task;
  }
  return step;
}

TicketQueue::TokenStep TicketQueue::OnToken(Token token, uint32_t limit) {
  SLUICE_CHECK(limit <= token_capacity(), "no more tokens wait than the ring holds");
  TokenStep step{.old_balance = balance_};
  if (step.old_balance >= static_cast<int32_t>(limit)) return step;
  ++balance_;
  step.ticket = tokens_seen_++;
  if (step.old_balance < 0) {
    step.verdict = Verdict::kDispatch;
    step.task = tasks_[step.ticket & task_mask_];
  } else {
    step.verdict = Verdict::kEnqueue;
    tokens_[step.ticket & token_mask_] = token;
  }
  return step;
}

void TicketQueue::Reset(uint32_t ticket) {
  balance_ = 0;
  tasks_seen_ = ticket;
  tokens_seen_ = ticket;
}

size_t TicketQueue::MemoryBytes() const {
  return tasks_.size() * sizeof(WaitingTask) + tokens_.size() * sizeof(Token);
}

}  // namespace sluice::rain
