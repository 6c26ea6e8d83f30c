// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::client {

// From the daemon's 32-bit names of sockets on one I/O thread to the channel's own. Linear probing,
// at most half full. Invariant: a name is reachable from its home slot without crossing an empty
// one. Thread: its channel's. Allocates: only when it must grow.
class NameMap {
 public:
  NameMap() : entries_(16) {}

  // 0: unknown.
  uint64_t Find(uint32_t name) const {
    for (size_t i = Home(name);; i = Next(i)) {
      if (entries_[i].socket == 0) return 0;
      if (entries_[i].name == name) return entries_[i].socket;
    }
  }

  // Requires Find(name) == 0 and socket != 0.
  void Insert(uint32_t name, uint64_t socket) {
    if ((count_ + 1) * 2 > entries_.size()) Grow();
    Put(name, socket);
    ++count_;
  }

  void Remove(uint32_t name) {
    size_t hole = Home(name);
    while (entries_[hole].name != name || entries_[hole].socket == 0) {
      if (entries_[hole].socket == 0) return;
      hole = Next(hole);
    }
    --count_;
    // Pull later entries of the run forward, unless that would put them before their home.
    for (size_t i = Next(hole); entries_[i].socket != 0; i = Next(i)) {
      if (((i - Home(entries_[i].name)) & Mask()) >= ((i - hole) & Mask())) {
        entries_[hole] = entries_[i];
        hole = i;
      }
    }
    entries_[hole].socket = 0;
  }

  size_t size() const { return count_; }

 private:
  struct Entry {
    uint32_t name = 0;
    uint64_t socket = 0;  // 0: empty.
  };

  size_t Mask() const { return entries_.size() - 1; }
  size_t Home(uint32_t name) const { return (uint64_t{name} * 0x9E3779B97F4A7C15u >> 32) & Mask(); }
  size_t Next(size_t i) const { return (i + 1) & Mask(); }
  void Put(uint32_t name, uint64_t socket) {
    size_t i = Home(name);
    while (entries_[i].socket != 0) i = Next(i);
    entries_[i] = {name, socket};
  }
  void Grow() {
    std::vector<Entry> old(entries_.size() * 2);
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (entry.socket != 0) Put(entry.name, entry.socket);
    }
  }

  std::vector<Entry> entries_;
  size_t count_ = 0;
};

}  // namespace sluice::client
