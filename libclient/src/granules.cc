// SPDX-License-Identifier: Apache-2.0
#include "libclient/src/granules.h"

#include <sys/mman.h>

#include "shm_proto/base/units.h"

namespace sluice::client {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

Result<> Granules::Reserve(uint64_t pool_bytes) {
  const uint64_t bytes = pool_bytes / kBytes * sizeof(uint32_t);
  void* words = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (words == MAP_FAILED) {
    return FailErrno("cannot reserve " + std::to_string(bytes) + " bytes to keep track of buffers");
  }
  words_ = static_cast<std::atomic<uint32_t>*>(words);  // Zero pages are valid atomics.
  pool_bytes_ = pool_bytes;
  return {};
}

Granules::~Granules() {
  if (words_ != nullptr) munmap(words_, pool_bytes_ / kBytes * sizeof(uint32_t));
}

// Relaxed throughout: a word guards no other memory. Whoever hands a buffer to another thread
// orders that himself, and two threads that free one buffer at once are told apart by the
// compare-and-swap alone.
bool Granules::Change(uint64_t offset, uint32_t from, uint32_t to) {
  std::atomic<uint32_t>& state = word(offset);
  uint32_t seen = state.load(std::memory_order_relaxed);
  do {
    if ((seen & kStateMask) != from) return false;
  } while (!state.compare_exchange_weak(seen, to == 0 ? 0 : (seen & ~kStateMask) | to,
                                        std::memory_order_relaxed));
  return true;
}

bool Granules::Born(uint64_t offset, uint64_t bytes) {
  uint32_t nothing = 0;
  const auto granules = static_cast<uint32_t>((bytes + kBytes - 1) / kBytes);
  return word(offset).compare_exchange_strong(nothing, kHeld | granules, std::memory_order_relaxed);
}

bool Granules::Send(uint64_t offset) { return Change(offset, kHeld, kUnderWay); }
bool Granules::Return(uint64_t offset) { return Change(offset, kUnderWay, kHeld); }
bool Granules::Die(uint64_t offset) { return Change(offset, kHeld, 0); }
bool Granules::DieUnderWay(uint64_t offset) { return Change(offset, kUnderWay, 0); }

bool Granules::UnderWay(uint64_t offset) const {
  return (word(offset).load(std::memory_order_relaxed) & kStateMask) == kUnderWay;
}

uint64_t Granules::Find(uint64_t offset, uint64_t length, uint64_t max_buffer_bytes) const {
  if (!InRange(offset, length, pool_bytes_) || offset == pool_bytes_) return kNone;
  const uint64_t lowest = offset > max_buffer_bytes ? offset - max_buffer_bytes : 0;
  for (uint64_t start = offset / kBytes * kBytes;; start -= kBytes) {
    const uint32_t seen = word(start).load(std::memory_order_relaxed);
    if (seen != 0) {
      const uint64_t bytes = (seen & ~kStateMask) * kBytes;
      return InRange(offset - start, length, bytes) && offset - start < bytes ? start : kNone;
    }
    if (start <= lowest) return kNone;
  }
}

bool Granules::Empty(uint64_t offset, uint64_t bytes) const {
  for (uint64_t at = offset; at < offset + bytes; at += kBytes) {
    if (word(at).load(std::memory_order_relaxed) != 0) return false;
  }
  return true;
}

}  // namespace sluice::client
