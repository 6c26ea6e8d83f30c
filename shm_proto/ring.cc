// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/ring.h"

#include <array>
#include <bit>
#include <cstring>
#include <new>

#include "shm_proto/base/check.h"

namespace sluice {
namespace {

using Words = std::array<uint64_t, sizeof(Descriptor) / sizeof(uint64_t)>;

// Entries are copied word by word with relaxed atomics: the other side may be hostile and write at
// any moment, so a plain copy would be a data race that the compiler may read twice. Order comes
// from the indices alone.
void CopyOut(const std::byte* shared, Descriptor& item) {
  Words words;
  auto* source = reinterpret_cast<uint64_t*>(const_cast<std::byte*>(shared));
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = std::atomic_ref<uint64_t>(source[i]).load(std::memory_order_relaxed);
  }
  std::memcpy(&item, words.data(), sizeof(item));
}

void CopyIn(const Descriptor& item, std::byte* shared) {
  Words words;
  std::memcpy(words.data(), &item, sizeof(item));
  auto* target = reinterpret_cast<uint64_t*>(shared);
  for (size_t i = 0; i < words.size(); ++i) {
    std::atomic_ref<uint64_t>(target[i]).store(words[i], std::memory_order_relaxed);
  }
}

}  // namespace

void InitializeRing(RingMemory ring, uint32_t start) {
  SLUICE_CHECK(std::has_single_bit(ring.capacity), "a ring's capacity is a power of two");
  auto* header = new (ring.base) RingHeader;
  header->tail.store(start, std::memory_order_relaxed);
  header->head.store(start, std::memory_order_relaxed);
  header->consumer_sleeping.store(0, std::memory_order_relaxed);
  header->producer_waiting.store(0, std::memory_order_relaxed);
}

RingProducer::RingProducer(RingMemory ring)
    : ring_(ring),
      // Relaxed: nobody else has written yet, the mapping was handed over by a system call.
      tail_(ring.header()->tail.load(std::memory_order_relaxed)),
      published_(tail_),
      cached_head_(tail_) {
  SLUICE_CHECK(std::has_single_bit(ring.capacity), "a ring's capacity is a power of two");
}

void RingProducer::Inspect() {
  // Acquire pairs with the release in RingConsumer::Release(): its reads of the entry are over
  // before we overwrite it.
  const uint32_t head = ring_.header()->head.load(std::memory_order_acquire);
  // A head that goes back, or beyond what was written, is the other side's mischief: keep the last
  // good one. Room once seen never vanishes, so whoever reserved an entry can still write it.
  if (head - cached_head_ <= tail_ - cached_head_) {
    cached_head_ = head;
  } else {
    broken_ = true;
  }
}

bool RingProducer::HasRoom(uint32_t count) {
  if (ring_.capacity - (tail_ - cached_head_) >= count) return true;
  Inspect();
  return ring_.capacity - (tail_ - cached_head_) >= count;
}

uint32_t RingProducer::Free() {
  HasRoom(ring_.capacity);
  return ring_.capacity - (tail_ - cached_head_);
}

bool RingProducer::Stage(const Descriptor& item) {
  if (!HasRoom(1)) return false;
  CopyIn(item, ring_.entry(tail_));
  ++tail_;
  return true;
}

bool RingProducer::Publish() {
  if (published_ == tail_) return false;
  published_ = tail_;
  // Release pairs with the acquire in RingConsumer::Available(): whoever sees the index sees the
  // entries.
  ring_.header()->tail.store(tail_, std::memory_order_release);
  // Store-load fence; pairs with the fence in RingConsumer::Arm(). Either the consumer sees our new
  // index in its last look before it sleeps, or we see its flag. Without both fences each could
  // miss the other and the message would wait.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (ring_.header()->consumer_sleeping.load(std::memory_order_relaxed) == 0) return false;
  // Relaxed: only an optimisation, so that one sleep gets one doorbell; a lost race rings twice,
  // which does no harm.
  ring_.header()->consumer_sleeping.store(0, std::memory_order_relaxed);
  return true;
}

bool RingProducer::WaitForRoom(uint32_t count) {
  ring_.header()->producer_waiting.store(1, std::memory_order_relaxed);
  // Pairs with the fence in RingConsumer::Release().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return !HasRoom(count);
}

RingConsumer::RingConsumer(RingMemory ring)
    : ring_(ring),
      head_(ring.header()->head.load(std::memory_order_relaxed)),  // As in RingProducer.
      released_(head_),
      cached_tail_(head_) {
  SLUICE_CHECK(std::has_single_bit(ring.capacity), "a ring's capacity is a power of two");
}

uint32_t RingConsumer::Available() {
  if (cached_tail_ == head_ && !broken_) {
    // Acquire pairs with the release in RingProducer::Publish().
    const uint32_t tail = ring_.header()->tail.load(std::memory_order_acquire);
    if (tail - released_ > ring_.capacity || tail - head_ > ring_.capacity) {
      broken_ = true;
    } else {
      cached_tail_ = tail;
    }
  }
  return broken_ ? 0 : cached_tail_ - head_;
}

bool RingConsumer::Pop(Descriptor& item) {
  if (Available() == 0) return false;
  CopyOut(ring_.entry(head_), item);
  ++head_;
  return true;
}

bool RingConsumer::Release() {
  if (released_ == head_) return false;
  released_ = head_;
  // Release pairs with the acquire in RingProducer::HasRoom().
  ring_.header()->head.store(head_, std::memory_order_release);
  // Pairs with the fence in RingProducer::WaitForRoom(): either it sees the room, or we see that it
  // waits.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (ring_.header()->producer_waiting.load(std::memory_order_relaxed) == 0) return false;
  ring_.header()->producer_waiting.store(0, std::memory_order_relaxed);
  return true;
}

void RingConsumer::Arm() {
  ring_.header()->consumer_sleeping.store(1, std::memory_order_relaxed);
  // Pairs with the fence in RingProducer::Publish().
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void RingConsumer::Disarm() {
  ring_.header()->consumer_sleeping.store(0, std::memory_order_relaxed);
}

}  // namespace sluice
