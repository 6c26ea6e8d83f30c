// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm_proto/base/units.h"
#include "shm_proto/descriptor.h"

namespace sluice {

// The shared part of one single-producer single-consumer ring: two indices and a flag, each on its
// own cache line, then the entries. The indices count for ever and wrap at 2^32; only differences
// of them mean anything.
struct RingHeader {
  alignas(64) std::atomic<uint32_t> tail;  // Written by the producer: entries published so far.
  alignas(64) std::atomic<uint32_t> head;  // Written by the consumer: entries consumed so far.
  std::atomic<uint32_t> producer_waiting;  // 1: the producer wants a doorbell after a Release().
  alignas(64) std::atomic<uint32_t> consumer_sleeping;  // 1: the consumer wants a doorbell after
                                                        // the next publication.
};
static_assert(sizeof(RingHeader) == 192);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Bytes of shared memory that a ring of `capacity` entries (a power of two) takes.
constexpr size_t RingBytes(uint32_t capacity) {
  return RoundUp(sizeof(RingHeader), 256) + size_t{capacity} * sizeof(Descriptor);
}

// Where a ring lies in this process. Base and capacity are private to each side: nothing in shared
// memory can move them.
struct RingMemory {
  std::byte* base;
  uint32_t capacity;

  RingHeader* header() const { return reinterpret_cast<RingHeader*>(base); }
  std::byte* entry(uint32_t index) const {
    return base + RoundUp(sizeof(RingHeader), 256) +
           size_t{index & (capacity - 1)} * sizeof(Descriptor);
  }
};

// Done once by the creator, before the other side sees the memory. `start` is where both indices
// begin: anything works, tests begin just below 2^32.
void InitializeRing(RingMemory ring, uint32_t start);

// The writing side.
// Invariant: published <= staged <= published + capacity - (entries not yet consumed).
// Thread: one. Allocates: never. System calls: never.
class RingProducer {
 public:
  explicit RingProducer(RingMemory ring);

  // Whether `count` more entries fit. Looks at the consumer's index only when it has to.
  bool HasRoom(uint32_t count);
  // Entries that Stage() takes now. 0 too when the consumer's index makes no sense.
  uint32_t Free();
  bool Stage(const Descriptor& item);  // Writes one entry without showing it; false: full.
  uint32_t staged() const { return tail_ - published_; }

  // Shows everything staged. True: the consumer sleeps and must be woken by a doorbell; the flag is
  // taken, so that one sleep gets one doorbell.
  bool Publish();

  // Looks at the consumer's index even where there seems to be room.
  void Inspect();
  // The consumer's index went back, or beyond what was written: the other side is broken or
  // hostile. The last good one stays in force, so that what was reserved can still be written.
  bool broken() const { return broken_; }

  // Before sleeping with something that finds no room: asks for a doorbell when the consumer makes
  // some. False: there is room for `count` already.
  bool WaitForRoom(uint32_t count);

 private:
  RingMemory ring_;
  uint32_t tail_;         // Next entry to write.
  uint32_t published_;    // What the consumer may see.
  uint32_t cached_head_;  // The consumer's index as last read.
  bool broken_ = false;
};

// The reading side. Trusts nothing it reads: an entry is copied once and only the copy is used.
// Invariant: head <= tail <= head + capacity, or the ring is broken and stays so.
// Thread: one. Allocates: never. System calls: never.
class RingConsumer {
 public:
  explicit RingConsumer(RingMemory ring);

  uint32_t Available();        // Entries that Pop() gives now; 0 when broken().
  bool Pop(Descriptor& item);  // Copies the next entry; false: empty or broken.
  // Lets the producer reuse everything popped so far. True: it sleeps for want of room and must be
  // woken by a doorbell.
  bool Release();
  // tail - head > capacity was seen: the other side is broken or hostile.
  bool broken() const { return broken_; }

  // Before sleeping: Arm(), then Available() once more, then sleep only if that is 0. Disarm()
  // after waking.
  void Arm();
  void Disarm();

 private:
  RingMemory ring_;
  uint32_t head_;         // Next entry to read.
  uint32_t released_;     // What the producer may overwrite.
  uint32_t cached_tail_;  // The producer's index as last read.
  bool broken_ = false;
};

}  // namespace sluice
