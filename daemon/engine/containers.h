// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace sluice {

// Nodes of one type, handed out and taken back without a system call once warmed up.
// Invariant: a node is either the caller's or on the free list. Thread: one. Allocates: a chunk
// when all are out.
template <typename T>
class NodePool {
 public:
  T* Take() {
    if (free_.empty()) Grow();
    T* node = free_.back();
    free_.pop_back();
    *node = T{};
    ++live_;
    return node;
  }

  void Give(T* node) {
    free_.push_back(node);
    --live_;
  }

  size_t live() const { return live_; }

 private:
  static constexpr size_t kChunk = 64;

  void Grow() {
    chunks_.push_back(std::make_unique<T[]>(kChunk));
    free_.reserve(chunks_.size() * kChunk);
    for (size_t i = kChunk; i > 0; --i) free_.push_back(&chunks_.back()[i - 1]);
  }

  std::vector<std::unique_ptr<T[]>> chunks_;
  std::vector<T*> free_;
  size_t live_ = 0;
};

// Things named by 32-bit ids that are not used again soon: 20 bits of place, 12 of generation. 0 is
// never an id. Thread: one. Allocates: when more are out than ever before.
template <typename T>
class IdTable {
 public:
  static constexpr uint32_t kMaxItems = 1u << 20;

  // Null: kMaxItems are out.
  T* Add(uint32_t& id) {
    uint32_t place;
    if (!free_.empty()) {
      place = free_.back();
      free_.pop_back();
    } else {
      if (slots_.size() == kMaxItems) return nullptr;
      place = static_cast<uint32_t>(slots_.size());
      slots_.push_back({});
    }
    Slot& slot = slots_[place];
    slot.generation = slot.generation % 0xfff + 1;  // 1 to 4095: an id is never 0.
    slot.item = pool_.Take();
    id = slot.generation << 20 | place;
    ++size_;
    return slot.item;
  }

  T* Find(uint32_t id) const {
    const uint32_t place = id & 0xfffff;
    if (place >= slots_.size()) return nullptr;
    const Slot& slot = slots_[place];
    return slot.generation == id >> 20 ? slot.item : nullptr;
  }

  void Remove(uint32_t id) {
    Slot& slot = slots_[id & 0xfffff];
    pool_.Give(slot.item);
    slot.item = nullptr;
    free_.push_back(id & 0xfffff);
    --size_;
  }

  size_t size() const { return size_; }

  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const Slot& slot : slots_) {
      if (slot.item != nullptr) visit(*slot.item);
    }
  }

 private:
  struct Slot {
    uint32_t generation = 0;
    T* item = nullptr;
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  NodePool<T> pool_;
  size_t size_ = 0;
};

// A first-in first-out queue that keeps its memory. Thread: one. Allocates: when longer than ever
// before.
template <typename T>
class Fifo {
 public:
  bool empty() const { return head_ == tail_; }
  size_t size() const { return tail_ - head_; }
  T& front() { return items_[head_ & (items_.size() - 1)]; }

  void push(T item) {
    if (size() == items_.size()) Grow();
    items_[tail_++ & (items_.size() - 1)] = std::move(item);
  }

  void pop() { ++head_; }
  void clear() { head_ = tail_ = 0; }

 private:
  void Grow() {
    std::vector<T> larger(items_.empty() ? 16 : items_.size() * 2);
    const size_t count = size();
    for (size_t i = 0; i < count; ++i)
      larger[i] = std::move(items_[(head_ + i) & (items_.size() - 1)]);
    items_ = std::move(larger);
    head_ = 0;
    tail_ = count;
  }

  std::vector<T> items_;
  size_t head_ = 0;
  size_t tail_ = 0;
};

}  // namespace sluice
