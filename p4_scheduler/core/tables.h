// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "p4_scheduler/packet/roce.h"
#include "shm_proto/base/result.h"

// What the controller programs: match-action tables with exact keys, as P4Runtime has them (insert,
// modify, delete, read). Packets only read them.
namespace sluice::rain {

// One table whose keys are small numbers.
// Invariant: every entry that is there has been accepted by the table's check.
// Thread: its switch's. Allocates: in its constructor only, except for refusals' texts.
template <typename Entry>
class Table {
 public:
  // Says what is wrong with an entry, or nothing.
  using Check = std::function<std::string(uint16_t key, const Entry&)>;

  Table(const char* name, uint16_t first_key, uint32_t keys, Check check)
      : name_(name), first_key_(first_key), check_(std::move(check)), entries_(keys) {}

  const Entry* Find(uint32_t key) const {
    const uint32_t index = key - first_key_;  // Wraps to something large below the first.
    return index < entries_.size() && entries_[index] ? &*entries_[index] : nullptr;
  }

  Result<> Insert(uint32_t key, const Entry& entry) { return Write(key, entry, false); }
  Result<> Modify(uint32_t key, const Entry& entry) { return Write(key, entry, true); }
  Result<> Delete(uint32_t key) {
    if (Find(key) == nullptr) return Fail(ErrorCode::kNotFound, Text(key, "is not there"));
    entries_[key - first_key_].reset();
    return {};
  }

  uint32_t first_key() const { return first_key_; }
  uint32_t keys() const { return static_cast<uint32_t>(entries_.size()); }

 private:
  Result<> Write(uint32_t key, const Entry& entry, bool there) {
    if (key - first_key_ >= entries_.size()) {
      return Fail(ErrorCode::kInvalid,
                  Text(key, "is out of range; keys are " + std::to_string(first_key_) + " to " +
                                std::to_string(first_key_ + entries_.size() - 1)));
    }
    std::optional<Entry>& place = entries_[key - first_key_];
    if (place.has_value() != there) {
      return there ? Fail(ErrorCode::kNotFound, Text(key, "is not there; insert it"))
                   : Fail(ErrorCode::kExists, Text(key, "is there already; modify it"));
    }
    if (const std::string wrong = check_(static_cast<uint16_t>(key), entry); !wrong.empty()) {
      return Fail(ErrorCode::kInvalid, Text(key, wrong));
    }
    place = entry;
    return {};
  }

  std::string Text(uint32_t key, const std::string& what) const {
    return std::string(name_) + " " + std::to_string(key) + ": " + what;
  }

  const char* name_;
  uint32_t first_key_;
  Check check_;
  std::vector<std::optional<Entry>> entries_;
};

// Where a packet leaves the switch, and to whom.
struct Destination {
  uint16_t port = 0;
  Endpoint endpoint = {};
  bool operator==(const Destination&) const = default;
};

// By type. Which slice takes tasks of that type.
struct TypeEntry {
  uint8_t slice = 0;
};

// By slice.
struct SliceEntry {
  uint32_t task_limit = 0;   // At most the queue's capacity.
  uint32_t large_limit = 0;  // At most half of the slots: see docs/rain-protocol.md.
  uint32_t token_limit = 0;
  std::vector<uint16_t> replicas = {};  // Who gets large tasks that wait: the multicast group.
};

// By client.
struct ClientEntry {
  Destination destination = {};  // Also where its tasks have to come from.
};

// By member. A worker's membership in a slice; tokens wait under its number and epoch.
struct MemberEntry {
  uint8_t slice = 0;
  uint16_t epoch = 0;
  Destination owner = {};   // Whose tokens, probes and replies count: the agent that registered it.
  Destination target = {};  // Who gets the tasks: the owner, or another once the worker has moved.
  bool takes_tokens = true;  // False once the worker has moved: what waits is used up.
};

// By replica number. How one agent is written to for one slice.
struct ReplicaEntry {
  Destination destination = {};  // The endpoint's UDP port is not used.
  WriteOpcode opcode = WriteOpcode::kUcWriteOnly;
  uint32_t queue_pair = 0;
  uint16_t psn_register = 0;  // One for each queue pair, whatever the number of slices it serves.
  uint32_t rkey = 0;
  uint64_t base = 0;  // Of the slice's ring; a multiple of its size.
};

}  // namespace sluice::rain
