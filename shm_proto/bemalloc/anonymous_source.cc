// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/bemalloc/anonymous_source.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "shm_proto/base/check.h"
#include "shm_proto/base/units.h"
#include "shm_proto/bemalloc/size_class.h"

namespace sluice {

using bemalloc::kBlockBytes;

AnonymousBlockSource::AnonymousBlockSource(uint64_t reserve_bytes, const Options& options)
    : reserve_bytes_(RoundUp(reserve_bytes, kBlockBytes)),
      options_(options),
      used_(reserve_bytes_ / kBlockBytes) {
  void* memory = mmap(nullptr, reserve_bytes_ + kBlockBytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  SLUICE_CHECK(memory != MAP_FAILED, "no address space for a pool of this size");
  mapping_ = static_cast<std::byte*>(memory);
  base_ = reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<uintptr_t>(memory), kBlockBytes));
}

AnonymousBlockSource::~AnonymousBlockSource() { munmap(mapping_, reserve_bytes_ + kBlockBytes); }

Result<BlockSource::Blocks> AnonymousBlockSource::Acquire(uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  const uint64_t more = used_bytes_ / kGrowthShare / kBlockBytes * kBlockBytes;
  auto blocks = more > bytes ? Take(more) : Take(bytes);
  return blocks || more <= bytes ? blocks : Take(bytes);
}

Result<BlockSource::Blocks> AnonymousBlockSource::Take(uint64_t bytes) {
  if (!InRange(used_bytes_, bytes, options_.quota_bytes)) {
    return Fail(ErrorCode::kNoMemory, "the pool has reached its quota of " +
                                          std::to_string(options_.quota_bytes) +
                                          " bytes; free buffers or raise it");
  }
  const uint64_t wanted = bytes / kBlockBytes;
  uint64_t found = 0, end = 0;
  while (end < used_.size() && found < wanted) found = used_[end++] ? 0 : found + 1;
  if (found < wanted) {
    return Fail(ErrorCode::kNoMemory, "no " + std::to_string(bytes) +
                                          " adjoining bytes are left in the pool of " +
                                          std::to_string(reserve_bytes_));
  }
  const uint64_t offset = (end - wanted) * kBlockBytes;
  if (Result<> committed = Commit(base_ + offset, bytes); !committed)
    return std::unexpected(std::move(committed.error()));
  for (uint64_t block = end - wanted; block < end; ++block) used_[block] = true;
  used_bytes_ += bytes;
  return Blocks{offset, bytes, 0};
}

Result<> AnonymousBlockSource::Commit(std::byte* address, uint64_t bytes) const {
  if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0)
    return FailErrno("mprotect of new blocks");
  if (options_.huge_pages && madvise(address, bytes, MADV_HUGEPAGE) != 0)
    return FailErrno("madvise(MADV_HUGEPAGE)");
  if (options_.numa_node >= 0) {
    constexpr int kBind = 2;  // MPOL_BIND; its header belongs to a library we do not need.
    constexpr unsigned kMaxNodes = 1024, kBits = 8 * sizeof(unsigned long);
    unsigned long nodes[kMaxNodes / kBits] = {};
    const auto node = static_cast<unsigned>(options_.numa_node);
    if (node >= kMaxNodes)
      return Fail(ErrorCode::kInvalid, "NUMA node " + std::to_string(node) + " does not exist");
    nodes[node / kBits] = 1ul << (node % kBits);
    if (syscall(SYS_mbind, address, bytes, kBind, nodes, kMaxNodes, 0) != 0) {
      return FailErrno("mbind to NUMA node " + std::to_string(node));
    }
  }
  if (madvise(address, bytes, MADV_POPULATE_WRITE) != 0) return FailErrno("populating new blocks");
  return {};
}

void AnonymousBlockSource::Release(uint64_t offset, uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  for (uint64_t block = offset / kBlockBytes; block < (offset + bytes) / kBlockBytes; ++block)
    used_[block] = false;
  used_bytes_ -= bytes;
  // A fresh mapping over the old one gives the memory back and forgets huge pages and node.
  void* memory = mmap(base_ + offset, bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  SLUICE_CHECK(memory != MAP_FAILED, "giving blocks back to the system needs no new memory");
}

}  // namespace sluice
