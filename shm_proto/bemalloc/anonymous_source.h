// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "shm_proto/bemalloc/block_source.h"

namespace sluice {

// Blocks of private memory of this process, for programs without a daemon, tests and measurements:
// committed and touched when acquired, as registration would, and returned to the system when
// released. Gives more than is asked for where it has given much: a large load fluctuates by more
// than a block, and a pool that grows by so little never settles. Thread: any. Owns the range of
// addresses.
class AnonymousBlockSource final : public BlockSource {
 public:
  struct Options {
    bool huge_pages = false;  // Ask for transparent huge pages.
    int numa_node = -1;       // Bind to this node; -1: wherever the system likes.
    uint64_t quota_bytes = ~uint64_t{0};
  };

  AnonymousBlockSource(uint64_t reserve_bytes, const Options& options);
  explicit AnonymousBlockSource(uint64_t reserve_bytes)
      : AnonymousBlockSource(reserve_bytes, Options()) {}
  ~AnonymousBlockSource() override;
  AnonymousBlockSource(const AnonymousBlockSource&) = delete;
  AnonymousBlockSource& operator=(const AnonymousBlockSource&) = delete;

  std::byte* base() const { return base_; }
  uint64_t reserve_bytes() const { return reserve_bytes_; }
  Result<Blocks> Acquire(uint64_t bytes) override;
  void Release(uint64_t offset, uint64_t bytes) override;

 private:
  static constexpr uint64_t kGrowthShare = 24;  // Of what it gave, what it gives at least.

  Result<Blocks> Take(uint64_t bytes);
  Result<> Commit(std::byte* address, uint64_t bytes) const;

  const uint64_t reserve_bytes_;
  const Options options_;
  std::byte* mapping_ = nullptr;
  std::byte* base_ = nullptr;  // Aligned to a block.
  std::mutex mutex_;
  std::vector<bool> used_;  // By block.
  uint64_t used_bytes_ = 0;
};

}  // namespace sluice
