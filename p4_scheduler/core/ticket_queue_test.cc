// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/core/ticket_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace sluice::rain {
namespace {

WaitingTask Numbered(uint32_t number) {
  return {.request = number,
          .client = static_cast<uint16_t>(number % 7),
          .size = static_cast<uint16_t>(number % 100),
          .data = {static_cast<std::byte>(number)},
          .enqueued_ns = number * 3,
          .type = static_cast<uint8_t>(number % 5)};
}

Token TokenNumbered(uint32_t number) {
  return {.epoch = static_cast<uint16_t>(number >> 16), .member = static_cast<uint16_t>(number)};
}

void ExpectInvariant(const TicketQueue& queue) {
  ASSERT_EQ(static_cast<uint32_t>(queue.balance()), queue.tokens_seen() - queue.tasks_seen());
  ASSERT_LE(queue.waiting_tasks(), queue.task_capacity());
  ASSERT_LE(queue.waiting_tokens(), queue.token_capacity());
  ASSERT_TRUE(queue.waiting_tasks() == 0 || queue.waiting_tokens() == 0);
}

TEST(TicketQueue, ATaskMeetsTheTokenThatWaitsLongest) {
  TicketQueue queue(4, 4);
  EXPECT_EQ(queue.OnToken({.epoch = 1, .member = 10}, 4).verdict, Verdict::kEnqueue);
  EXPECT_EQ(queue.OnToken({.epoch = 1, .member = 11}, 4).verdict, Verdict::kEnqueue);
  const auto step = queue.OnTask(Numbered(1), 4);
  EXPECT_EQ(step.verdict, Verdict::kDispatch);
  EXPECT_EQ(step.token.member, 10);
  EXPECT_EQ(step.old_balance, 2);
  EXPECT_EQ(step.ticket, 0u);
}

TEST(TicketQueue, ATokenMeetsTheTaskThatWaitsLongest) {
  TicketQueue queue(4, 4);
  EXPECT_EQ(queue.OnTask(Numbered(1), 4).verdict, Verdict::kEnqueue);
  EXPECT_EQ(queue.OnTask(Numbered(2), 4).verdict, Verdict::kEnqueue);
  const auto step = queue.OnToken({.epoch = 1, .member = 10}, 4);
  EXPECT_EQ(step.verdict, Verdict::kDispatch);
  EXPECT_EQ(step.task, Numbered(1));
  EXPECT_EQ(step.old_balance, -2);
}

// The case that a verdict on the new balance gets wrong (figure 4 of the paper).
TEST(TicketQueue, TheLastWaitingTaskIsNotStranded) {
  TicketQueue queue(4, 4);
  queue.OnTask(Numbered(1), 4);
  ASSERT_EQ(queue.balance(), -1);
  EXPECT_EQ(queue.OnToken({.epoch = 1, .member = 10}, 4).verdict, Verdict::kDispatch);
  EXPECT_EQ(queue.balance(), 0);
}

TEST(TicketQueue, WhatIsRefusedDrawsNoTicket) {
  TicketQueue queue(2, 2);
  queue.OnTask(Numbered(1), 2);
  queue.OnTask(Numbered(2), 2);
  EXPECT_EQ(queue.OnTask(Numbered(3), 2).verdict, Verdict::kReject);
  EXPECT_EQ(queue.tasks_seen(), 2u);
  EXPECT_EQ(queue.OnToken({}, 2).task, Numbered(1));
  EXPECT_EQ(queue.OnToken({}, 2).task, Numbered(2));
  queue.OnToken({}, 2);
  queue.OnToken({}, 2);
  EXPECT_EQ(queue.OnToken({}, 2).verdict, Verdict::kReject);
  EXPECT_EQ(queue.tokens_seen(), 4u);
}

TEST(TicketQueue, ALimitBelowTheCapacityCounts) {
  TicketQueue queue(8, 8);
  EXPECT_EQ(queue.OnTask(Numbered(1), 0).verdict, Verdict::kReject) << "none may wait";
  EXPECT_EQ(queue.OnTask(Numbered(1), 1).verdict, Verdict::kEnqueue);
  EXPECT_EQ(queue.OnTask(Numbered(2), 1).verdict, Verdict::kReject);
  EXPECT_EQ(queue.OnTask(Numbered(2), 2).verdict, Verdict::kEnqueue);
  EXPECT_EQ(queue.OnToken({}, 0).verdict, Verdict::kDispatch) << "a task waits for it";
  EXPECT_EQ(queue.OnToken({}, 0).verdict, Verdict::kDispatch);
  EXPECT_EQ(queue.OnToken({}, 0).verdict, Verdict::kReject);
  queue.OnToken({.epoch = 0, .member = 5}, 1);
  EXPECT_EQ(queue.OnTask(Numbered(3), 0).token.member, 5) << "it need not wait";
}

TEST(TicketQueue, AResetForgetsWhatWaitsAndGoesOnAtItsTicket) {
  TicketQueue queue(4, 4);
  queue.OnTask(Numbered(1), 4);
  queue.Reset(0xfffffffe);
  EXPECT_EQ(queue.balance(), 0);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(queue.OnTask(Numbered(i + 10), 4).ticket, 0xfffffffe + i);
  }
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(queue.OnToken({}, 4).task, Numbered(i + 10));
}

// The queue against what it stands for: two first-in-first-out queues of which one is empty.
struct Shape {
  uint32_t task_capacity, token_capacity, first_ticket;
};
class TicketQueueModel : public testing::TestWithParam<Shape> {};

TEST_P(TicketQueueModel, IsTwoFifosOfWhichOneIsEmpty) {
  const Shape shape = GetParam();
  std::mt19937 engine(shape.first_ticket + shape.task_capacity);
  const auto random = [&] { return static_cast<uint32_t>(engine()); };
  TicketQueue queue(shape.task_capacity, shape.token_capacity, shape.first_ticket);
  std::deque<WaitingTask> tasks;
  std::deque<Token> tokens;
  uint64_t rejected = 0, matched = 0;
  for (uint32_t i = 0; i < 60'000; ++i) {
    // Long phases that favour one side, so that both ends of the balance are reached.
    const bool task_arrives = random() % 8 < ((i / 500) % 2 == 0 ? 6 : 2);
    if (task_arrives) {
      const uint32_t limit = random() % 4 == 0 ? random() % (shape.task_capacity + 1)
                                               : shape.task_capacity;
      const auto step = queue.OnTask(Numbered(i), limit);
      if (!tokens.empty()) {
        ASSERT_EQ(step.verdict, Verdict::kDispatch);
        ASSERT_EQ(step.token, tokens.front());
        tokens.pop_front();
        ++matched;
      } else if (tasks.size() < limit) {
        ASSERT_EQ(step.verdict, Verdict::kEnqueue);
        tasks.push_back(Numbered(i));
      } else {
        ASSERT_EQ(step.verdict, Verdict::kReject);
        ++rejected;
      }
    } else {
      const uint32_t limit = random() % 4 == 0 ? random() % (shape.token_capacity + 1)
                                               : shape.token_capacity;
      const auto step = queue.OnToken(TokenNumbered(i), limit);
      if (!tasks.empty()) {
        ASSERT_EQ(step.verdict, Verdict::kDispatch);
        ASSERT_EQ(step.task, tasks.front());
        tasks.pop_front();
        ++matched;
      } else if (tokens.size() < limit) {
        ASSERT_EQ(step.verdict, Verdict::kEnqueue);
        tokens.push_back(TokenNumbered(i));
      } else {
        ASSERT_EQ(step.verdict, Verdict::kReject);
        ++rejected;
      }
    }
    ASSERT_EQ(queue.waiting_tasks(), tasks.size());
    ASSERT_EQ(queue.waiting_tokens(), tokens.size());
    ExpectInvariant(queue);
  }
  EXPECT_GT(matched, 1'000u);
  EXPECT_GT(rejected, 100u);
}

INSTANTIATE_TEST_SUITE_P(AroundWrap, TicketQueueModel,
                         testing::Values(Shape{1, 1, 0}, Shape{8, 4, 0}, Shape{4, 16, 0xfffffff0},
                                         Shape{64, 64, 0x7fffff00}, Shape{128, 32, 0xffffffff},
                                         Shape{16, 128, 0xffffff80}));

}  // namespace
}  // namespace sluice::rain
