// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "p4_scheduler/packet/header.h"

namespace sluice::rain {

// What the switch keeps of a waiting task; a P4 program has a register for each.
struct WaitingTask {
  uint32_t request = 0;
  uint16_t client = 0;
  uint16_t size = 0;
  std::array<std::byte, kDataBytes> data = {};
  uint32_t enqueued_ns = 0;
  uint8_t type = 0;
  bool operator==(const WaitingTask&) const = default;
};

// What it keeps of a waiting token.
struct Token {
  uint16_t epoch = 0;
  uint16_t member = kNobody;
  bool operator==(const Token&) const = default;
};

enum class Verdict : uint8_t { kDispatch, kEnqueue, kReject };

// The bidirectional queue of one slice (paper 3.2.1): tasks wait for tokens or tokens for tasks,
// first come first served on both sides. Task number i meets token number i, so a packet draws one
// ticket from its own side's counter, and that ticket indexes both rings: the other's to read on a
// match, its own to write otherwise. Each step reads and writes every variable at most once and in
// the same order (balance, ticket, rings), as one pass through a switch pipeline does.
//
// Invariant: balance() == tokens_seen() - tasks_seen(), as 32-bit numbers that wrap;
// -task_capacity <= balance <= token_capacity. Thread: one. Allocates: in its constructor only.
class TicketQueue {
 public:
  // Capacities are powers of two. Counters begin at `first_ticket`.
  TicketQueue(uint32_t task_capacity, uint32_t token_capacity, uint32_t first_ticket = 0);

  struct TaskStep {
    Verdict verdict = Verdict::kReject;
    int32_t old_balance = 0;
    uint32_t ticket = 0;  // Not for kReject.
    Token token = {};     // For kDispatch.
  };
  // A task arrives. It may wait while fewer than `limit` do; limit <= task_capacity.
  TaskStep OnTask(const WaitingTask& task, uint32_t limit);

  struct TokenStep {
    Verdict verdict = Verdict::kReject;
    int32_t old_balance = 0;
    uint32_t ticket = 0;    // Not for kReject.
    WaitingTask task = {};  // For kDispatch.
  };
  // A token arrives. It may wait while fewer than `limit` do; limit <= token_capacity.
  TokenStep OnToken(Token token, uint32_t limit);

  // Forgets whatever waits; both counters go on at `ticket`.
  void Reset(uint32_t ticket);

  int32_t balance() const { return balance_; }
  uint32_t tasks_seen() const { return tasks_seen_; }
  uint32_t tokens_seen() const { return tokens_seen_; }
  uint32_t waiting_tasks() const { return balance_ < 0 ? static_cast<uint32_t>(-balance_) : 0; }
  uint32_t waiting_tokens() const { return balance_ > 0 ? static_cast<uint32_t>(balance_) : 0; }
  uint32_t task_capacity() const { return static_cast<uint32_t>(tasks_.size()); }
  uint32_t token_capacity() const { return static_cast<uint32_t>(tokens_.size()); }
  size_t MemoryBytes() const;

 private:
  int32_t balance_ = 0;
  uint32_t tasks_seen_;
  uint32_t tokens_seen_;
  const uint32_t task_mask_;
  const uint32_t token_mask_;
  std::vector<WaitingTask> tasks_;
  std::vector<Token> tokens_;
};

}  // namespace sluice::rain
