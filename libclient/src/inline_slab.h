// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "shm_proto/base/result.h"

namespace sluice::client {

// Private memory for the payloads that arrive inside descriptors: cells of one cache line. Every
// channel keeps a short list of free cells of its own; the rest, and the balance between channels,
// goes over one locked list. Invariant: a cell is free and on exactly one list or never used yet,
// or held, or under way. Thread: any, but a Cache belongs to one channel. Owns the cells.
class InlineSlab {
 public:
  static constexpr uint64_t kCellBytes = 64;
  static constexpr uint32_t kMaxCells = 1u << 20;
  static constexpr size_t kBatch = 128;

  // Free cells of one channel. Thread: the channel's.
  struct Cache {
    std::vector<uint32_t> cells;
  };

  InlineSlab() = default;
  InlineSlab(const InlineSlab&) = delete;
  InlineSlab& operator=(const InlineSlab&) = delete;
  ~InlineSlab();

  Result<> Reserve();

  bool Contains(const void* pointer) const { return OffsetOf(pointer) < kCellBytes * kMaxCells; }

  // Whether Take() may follow; false: kMaxCells are held.
  bool Ready(Cache& cache) { return !cache.cells.empty() || Refill(cache); }
  std::byte* Take(Cache& cache);  // Requires Ready().
  void ReturnAll(Cache& cache);   // When the channel closes.

  // `cell` must lie in the slab. False, changing nothing: not a cell's start, or not in the state
  // it must be in.
  bool Free(void* cell, Cache* cache);  // held -> free. A null cache: a thread without a channel.
  bool Send(void* cell);                // held -> under way
  bool Return(void* cell);              // under way -> held
  bool UnderWay(const void* cell) const;

  // The start of the cell around `pointer`.
  void* Start(const void* pointer) const {
    return base_ + OffsetOf(pointer) / kCellBytes * kCellBytes;
  }

 private:
  enum State : uint8_t { kFree = 0, kHeld = 1, kUnderWay = 2 };

  uint64_t OffsetOf(const void* pointer) const {
    return static_cast<uint64_t>(static_cast<const std::byte*>(pointer) - base_);
  }
  bool Change(const void* cell, State from, State to);
  bool Refill(Cache& cache);

  std::byte* base_ = nullptr;
  std::atomic<uint8_t>* states_ = nullptr;
  std::mutex mutex_;
  std::vector<uint32_t> shared_;  // Guarded by mutex_.
  uint32_t used_ = 0;             // Guarded by mutex_: cells from here on were never handed out.
};

}  // namespace sluice::client
