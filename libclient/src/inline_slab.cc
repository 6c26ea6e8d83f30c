// SPDX-License-Identifier: Apache-2.0
#include "libclient/src/inline_slab.h"

#include <sys/mman.h>

#include <algorithm>

namespace sluice::client {
namespace {

void* ReserveBytes(size_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
              -1, 0);
}

// Moves the last `count` entries of one list to another.
void Move(std::vector<uint32_t>& from, std::vector<uint32_t>& to, size_t count) {
  to.insert(to.end(), from.end() - static_cast<ptrdiff_t>(count), from.end());
  from.resize(from.size() - count);
}

}  // namespace

Result<> InlineSlab::Reserve() {
  void* cells = ReserveBytes(kCellBytes * kMaxCells);
  if (cells == MAP_FAILED) return FailErrno("cannot reserve memory for small messages");
  base_ = static_cast<std::byte*>(cells);
  void* states = ReserveBytes(kMaxCells);
  if (states == MAP_FAILED) return FailErrno("cannot reserve memory for small messages");
  states_ = static_cast<std::atomic<uint8_t>*>(states);  // Zero pages are valid atomics.
  return {};
}

InlineSlab::~InlineSlab() {
  if (base_ != nullptr) munmap(base_, kCellBytes * kMaxCells);
  if (states_ != nullptr) munmap(states_, kMaxCells);
}

std::byte* InlineSlab::Take(Cache& cache) {
  const uint32_t index = cache.cells.back();
  cache.cells.pop_back();
  states_[index].store(kHeld, std::memory_order_relaxed);  // As in Granules: it guards no memory.
  return base_ + index * kCellBytes;
}

bool InlineSlab::Refill(Cache& cache) {
  std::lock_guard lock(mutex_);
  Move(shared_, cache.cells, std::min(kBatch, shared_.size()));
  for (; cache.cells.size() < kBatch / 4 && used_ < kMaxCells; ++used_) {
    cache.cells.push_back(used_);
  }
  return !cache.cells.empty();
}

void InlineSlab::ReturnAll(Cache& cache) {
  std::lock_guard lock(mutex_);
  Move(cache.cells, shared_, cache.cells.size());
}

bool InlineSlab::Change(const void* cell, State from, State to) {
  const uint64_t offset = OffsetOf(cell);
  if (offset % kCellBytes != 0) return false;
  uint8_t expected = from;
  return states_[offset / kCellBytes].compare_exchange_strong(expected, to,
                                                              std::memory_order_relaxed);
}

bool InlineSlab::Free(void* cell, Cache* cache) {
  if (!Change(cell, kHeld, kFree)) return false;
  const auto index = static_cast<uint32_t>(OffsetOf(cell) / kCellBytes);
  if (cache == nullptr) {
    std::lock_guard lock(mutex_);
    shared_.push_back(index);
    return true;
  }
  cache->cells.push_back(index);
  if (cache->cells.size() >= 2 * kBatch) {  // It frees what others receive: pass the surplus on.
    std::lock_guard lock(mutex_);
    Move(cache->cells, shared_, kBatch);
  }
  return true;
}

bool InlineSlab::Send(void* cell) { return Change(cell, kHeld, kUnderWay); }
bool InlineSlab::Return(void* cell) { return Change(cell, kUnderWay, kHeld); }

bool InlineSlab::UnderWay(const void* cell) const {
  return states_[OffsetOf(cell) / kCellBytes].load(std::memory_order_relaxed) == kUnderWay;
}

}  // namespace sluice::client
