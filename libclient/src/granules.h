// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "shm_proto/base/result.h"

namespace sluice::client {

// What a client knows about the buffers of one pool: one private word per 64 bytes of the pool, of
// which the word of a buffer's first 64 bytes says how large it is and whose it is now. So a
// pointer's buffer is found, and a buffer freed twice or freed under way is noticed, without a lock
// and whoever allocated it. Invariant: a word is non-zero only where a buffer of the application or
// of an operation under way starts. Thread: any. Owns the words: address space for the whole pool,
// memory only where buffers have started.
class Granules {
 public:
  static constexpr uint64_t kBytes = 64;
  static constexpr uint64_t kMaxBufferBytes = kBytes * ((uint64_t{1} << 30) - 1);
  static constexpr uint64_t kNone = ~uint64_t{0};

  Granules() = default;
  Granules(const Granules&) = delete;
  Granules& operator=(const Granules&) = delete;
  ~Granules();

  Result<> Reserve(uint64_t pool_bytes);

  // All offsets below are the starts of buffers, multiples of kBytes inside the pool. Each change
  // of state is one compare-and-swap and returns false, changing nothing, when the buffer was not
  // in the state it must be in.
  bool Born(uint64_t offset, uint64_t bytes);  // nothing -> held by the application
  bool Send(uint64_t offset);                  // held by the application -> under way
  bool Return(uint64_t offset);                // under way -> held by the application
  bool Die(uint64_t offset);                   // held by the application -> nothing
  bool DieUnderWay(uint64_t offset);           // under way -> nothing

  bool UnderWay(uint64_t offset) const;

  // The start of the buffer that contains [offset, offset + length), or kNone. Constant time for a
  // buffer's start, else one step per 64 bytes before `offset`, at most `max_buffer_bytes` of them.
  uint64_t Find(uint64_t offset, uint64_t length, uint64_t max_buffer_bytes) const;

  // Whether no buffer starts in [offset, offset + bytes).
  bool Empty(uint64_t offset, uint64_t bytes) const;

 private:
  static constexpr uint32_t kHeld = 1u << 30;
  static constexpr uint32_t kUnderWay = 2u << 30;
  static constexpr uint32_t kStateMask = 3u << 30;

  std::atomic<uint32_t>& word(uint64_t offset) const { return words_[offset / kBytes]; }
  bool Change(uint64_t offset, uint32_t from, uint32_t to);

  std::atomic<uint32_t>* words_ = nullptr;
  uint64_t pool_bytes_ = 0;
};

}  // namespace sluice::client
