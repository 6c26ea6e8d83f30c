// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <sluice/rpc.hpp>
#include <string>
#include <vector>

#include "libclient/rpc/quarantine.h"

// What a channel knows of a call and of a destination.
namespace sluice::rpc {

constexpr uint32_t kMaxReplicas = 64;  // Of a shard.
constexpr uint32_t kMaxShards = 65'536;
constexpr size_t kLiveAttempts = 4;  // That a call listens to at a time.

// A call's name: slot and generation, with room for an attempt's number in the lowest byte.
struct CallName {
  uint32_t generation = 0;
  uint32_t slot = 0;  // 24 bits.

  static CallName Of(uint64_t id) {
    return {static_cast<uint32_t>(id >> 32), static_cast<uint32_t>(id) >> 8};
  }
  uint64_t id() const { return uint64_t{generation} << 32 | uint64_t{slot} << 8; }
};

// A replica of the map that is in force, or of a former one that still has calls under way.
struct Destination {
  enum class State { kDown, kConnecting, kUp };

  std::string address;
  std::string domain;
  uint32_t shard = 0;
  uint32_t index = 0;  // Among the shard's replicas.
  uint32_t distance = 0;
  bool listed = true;  // In the map in force.
  State state = State::kDown;
  bool degraded = false;     // As the last event of its socket said.
  uint64_t ask_path_ns = 0;  // While degraded: when to look whether it still is.
  sluice_socket socket = 0;
  uint32_t instance = 0;  // Of the server, as its hello said.
  uint64_t connect_by_ns = 0;
  uint64_t connect_again_ns = 0;  // Not before.
  uint64_t backoff_ns = 0;
  uint32_t outstanding = 0;     // Attempts that were given to it and are not over.
  std::deque<uint64_t> unsent;  // Attempts that wait for a connection or for room.
  Quarantine health;
  uint64_t chosen = 0;
  uint64_t failures = 0;
};

struct Attempt {
  enum class Stage { kNone, kUnsent, kSent };

  Stage stage = Stage::kNone;
  uint8_t number = 0;
  bool timed_out = false;  // Counted as failed; a reply is still welcome.
  bool hedge = false;
  bool budgeted = false;  // It took a token of the retry budget.
  Destination* destination = nullptr;
  uint64_t timeout_ns = 0;
};

// A call from Call() to its end.
struct CallState {
  bool active = false;
  uint32_t slot = 0;
  uint32_t generation = 0;
  Method method;
  uint32_t shard = 0;
  Destination* only = nullptr;  // The one that may get it; nullptr: any.
  bool probe = false;
  Payload request;
  bool request_out = false;  // The library has the buffer, and gives it back with its SENT.
  Done done;
  std::function<void(Payload)> on_part;
  uint32_t parts = 0;          // Of a streamed reply, delivered.
  uint8_t stream_attempt = 0;  // Whose they are.
  uint64_t begun_ns = 0;
  uint64_t deadline_ns = 0;
  uint64_t hedge_ns = 0;  // 0: no hedge.
  uint64_t retry_ns = 0;  // 0: no retry waits.
  uint64_t trace_id = 0;
  uint64_t sequence = 0;  // Of its token; 0: none.
  uint32_t first_instance = 0;
  uint8_t attempts_made = 0;
  uint32_t attempts_sent = 0;
  bool may_have_run = false;
  Code last_code = Code::kFailed;  // Of the attempts that are over, the one to report.
  Code end_code = Code::kOk;       // Not kOk: to be ended so with the next turn.
  uint64_t tried_replicas = 0;     // Bits.
  std::array<Attempt, kLiveAttempts> attempts;

  Attempt* Find(uint8_t number) {
    for (Attempt& attempt : attempts) {
      if (attempt.stage != Attempt::Stage::kNone && attempt.number == number) return &attempt;
    }
    return nullptr;
  }
  bool AnyLive() const {
    for (const Attempt& attempt : attempts) {
      if (attempt.stage != Attempt::Stage::kNone) return true;
    }
    return false;
  }
  bool AnySent() const {
    for (const Attempt& attempt : attempts) {
      if (attempt.stage == Attempt::Stage::kSent) return true;
    }
    return false;
  }
};

}  // namespace sluice::rpc
