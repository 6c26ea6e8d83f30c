// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace sluice {

// The link an item carries to stand in one RoundRobin.
template <typename T>
struct RoundRobinLink {
  T* next = nullptr;
  T* previous = nullptr;
  bool queued = false;
};

// Items that want a turn, in the order of their turns. With n items and at most S bytes a turn, (n
// - 1) S bytes pass between two turns of one item (ByteExpress 6.1). Intrusive: an item stands in
// at most one place. Thread: its engine's. Allocates: never.
template <typename T, RoundRobinLink<T> T::*kLink>
class RoundRobin {
 public:
  bool empty() const { return head_ == nullptr; }
  size_t size() const { return size_; }
  T* Front() const { return head_; }
  static T* Next(const T& item) { return (item.*kLink).next; }

  // At the end; once only.
  void Push(T& item) {
    RoundRobinLink<T>& link = item.*kLink;
    if (link.queued) return;
    link = {nullptr, tail_, true};
    (tail_ != nullptr ? (tail_->*kLink).next : head_) = &item;
    tail_ = &item;
    ++size_;
  }

  void Remove(T& item) {
    RoundRobinLink<T>& link = item.*kLink;
    if (!link.queued) return;
    (link.previous != nullptr ? (link.previous->*kLink).next : head_) = link.next;
    (link.next != nullptr ? (link.next->*kLink).previous : tail_) = link.previous;
    link = {};
    --size_;
  }

  // The front item had its turn and wants another.
  void Rotate() {
    T& item = *head_;
    Remove(item);
    Push(item);
  }

 private:
  T* head_ = nullptr;
  T* tail_ = nullptr;
  size_t size_ = 0;
};

}  // namespace sluice
