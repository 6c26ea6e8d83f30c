// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::client {

constexpr uint32_t kNoThread = UINT32_MAX;

// One logical connection as its channel sees it.
struct SocketRecord {
  enum class State : uint8_t {
    kFree,
    kConnecting,
    kOpen,
    kClosing,  // The daemon was asked to close it.
  };
  State state = State::kFree;
  bool hidden = false;           // The application never learns of it: its listener was gone.
  bool close_requested = false;  // Closed by the application before it was connected.
  uint32_t generation = 1;
  uint32_t io_thread = kNoThread;
  uint32_t daemon_name = 0;
  uint32_t request = 0;  // kConnecting: the number of its kConnect.
  uint32_t next_free = 0;
  uint32_t sends_under_way = 0;
  uint64_t user_data = 0;
};

// The sockets of one channel. A socket's public name is its slot, its channel (so that a socket
// used on the wrong channel is noticed) and its slot's generation (so that an old name finds
// nothing). Invariant: every slot is in use or on the free list. Thread: its channel's. Allocates:
// when there are more sockets than ever before.
class SocketTable {
 public:
  static constexpr uint32_t kMaxSlots = 1u << 24;

  explicit SocketTable(uint32_t channel) : channel_(channel) {}

  uint32_t count() const { return count_; }

  // 0: there are as many as there are names. How many there may be is the daemon's to say: it
  // counts them otherwise, and for the whole client.
  uint64_t Add(SocketRecord::State state, uint64_t user_data) {
    if (first_free_ == kNone) {
      if (records_.size() >= kMaxSlots) return 0;
      records_.emplace_back();
      records_.back().next_free = kNone;
      first_free_ = static_cast<uint32_t>(records_.size() - 1);
    }
    const uint32_t index = first_free_;
    SocketRecord& record = records_[index];
    first_free_ = record.next_free;
    const uint32_t generation = record.generation;
    record = SocketRecord{};
    record.generation = generation;
    record.state = state;
    record.user_data = user_data;
    ++count_;
    return Name(index);
  }

  SocketRecord* Find(uint64_t name) {
    const uint32_t index = static_cast<uint32_t>(name) & (kMaxSlots - 1);
    if (index >= records_.size()) return nullptr;
    SocketRecord& record = records_[index];
    if (record.state == SocketRecord::State::kFree || Name(index) != name) return nullptr;
    return &record;
  }

  void Remove(uint64_t name) {
    const uint32_t index = static_cast<uint32_t>(name) & (kMaxSlots - 1);
    SocketRecord& record = records_[index];
    record.state = SocketRecord::State::kFree;
    if (++record.generation == 0) record.generation = 1;
    record.next_free = first_free_;
    first_free_ = index;
    --count_;
  }

  // Slots by number, for the rare walks over all of them.
  uint32_t slots() const { return static_cast<uint32_t>(records_.size()); }
  SocketRecord& at(uint32_t slot) { return records_[slot]; }
  uint64_t Name(uint32_t slot) const {
    return (uint64_t{records_[slot].generation} << 32) | (uint64_t{channel_ & 0xff} << 24) | slot;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t channel_;
  std::vector<SocketRecord> records_;
  uint32_t first_free_ = kNone;
  uint32_t count_ = 0;
};

}  // namespace sluice::client
