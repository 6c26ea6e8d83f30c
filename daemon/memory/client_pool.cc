// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/client_pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "shm_proto/base/check.h"

namespace sluice::memory {

Result<std::unique_ptr<ClientPool>> ClientPool::Create(uint64_t quota_bytes,
                                                       uint64_t extent_bytes) {
  const uint64_t bytes = std::max(quota_bytes / kBlockBytes * kBlockBytes, kBlockBytes);
  std::byte* base = ReserveAddresses(bytes);
  if (base == nullptr) {
    return Fail(ErrorCode::kNoMemory, "no address space for a pool of " + std::to_string(bytes) +
                                          " bytes; lower the tenant's pool quota");
  }
  return std::unique_ptr<ClientPool>(
      new ClientPool(base, bytes, RoundUp(extent_bytes, kBlockBytes)));
}

ClientPool::ClientPool(std::byte* base, uint64_t bytes, uint64_t extent_bytes)
    : base_(base),
      reserve_bytes_(bytes),
      extent_bytes_(extent_bytes),
      quota_bytes_(bytes),
      blocks_(bytes / kBlockBytes, kNobody) {}

ClientPool::~ClientPool() {
  extents_.clear();  // Unmaps into the reservation, so before it goes.
  ReleaseAddresses(base_, reserve_bytes_);
}

std::vector<SharedMemory> ClientPool::Dismantle() {
  std::vector<SharedMemory> memories;
  for (auto& [offset, extent] : extents_) {
    extent.memory.Unmap();
    if (extent.memory.valid()) memories.push_back(std::move(extent.memory));
  }
  extents_.clear();
  std::fill(blocks_.begin(), blocks_.end(), kNobody);
  used_bytes_ = 0;
  return memories;
}

void ClientPool::SetQuota(uint64_t quota_bytes) {
  quota_bytes_ = std::min(std::max(quota_bytes / kBlockBytes * kBlockBytes, kBlockBytes),
                          reserve_bytes_);
}

std::optional<uint64_t> ClientPool::FindGap(uint64_t bytes) const {
  uint64_t start = 0;
  for (const auto& [offset, extent] : extents_) {
    if (offset - start >= bytes) return start;
    start = offset + extent.bytes;
  }
  if (reserve_bytes_ - start >= bytes) return start;
  return std::nullopt;
}

Result<BlockRun> ClientPool::Plan(uint64_t bytes) {
  const uint64_t left = quota_bytes_ - std::min(quota_bytes_, used_bytes_);
  if (bytes > left) {
    return Fail(ErrorCode::kNoMemory, "pool quota of " + std::to_string(quota_bytes_) +
                                          " bytes used up: " + std::to_string(used_bytes_) +
                                          " in use, " + std::to_string(bytes) + " more wanted");
  }
  const uint64_t needed = RoundUp(std::max<uint64_t>(bytes, 1), kBlockBytes);
  // A smaller extent than usual where the quota's rest or the gaps allow no other.
  for (const uint64_t size : {std::min(std::max(needed, extent_bytes_), left), needed}) {
    if (const auto gap = FindGap(size)) {
      extents_[*gap] = Extent{size, ExtentState::kBuilding, {}, 0, 0};
      used_bytes_ += size;
      return BlockRun{*gap, size};
    }
  }
  return Fail(ErrorCode::kNoMemory, "no contiguous " + std::to_string(needed) +
                                        " bytes left in a pool of " +
                                        std::to_string(reserve_bytes_) + " bytes");
}

ClientPool::Extent& ClientPool::At(uint64_t extent_offset, ExtentState expected) {
  const auto found = extents_.find(extent_offset);
  SLUICE_CHECK(found != extents_.end() && found->second.state == expected,
               "an extent goes through its states in order");
  return found->second;
}

void ClientPool::Offer(uint64_t extent_offset, SharedMemory memory) {
  Extent& extent = At(extent_offset, ExtentState::kBuilding);
  SLUICE_CHECK(memory.base() == base_ + extent_offset && memory.bytes() == extent.bytes,
               "memory is made as planned");
  extent.memory = std::move(memory);
  extent.state = ExtentState::kOffered;
}

void ClientPool::Activate(uint64_t extent_offset, uint64_t now_ns) {
  Extent& extent = At(extent_offset, ExtentState::kOffered);
  extent.state = ExtentState::kActive;
  extent.unused_since_ns = now_ns;
}

void ClientPool::Leave(uint64_t extent_offset) {
  Extent& extent = At(extent_offset, ExtentState::kActive);
  SLUICE_CHECK(extent.leased_blocks == 0, "an extent leaves when nothing in it is leased");
  extent.state = ExtentState::kLeaving;
}

SharedMemory ClientPool::TakeMemory(uint64_t extent_offset) {
  return std::move(extents_.at(extent_offset).memory);
}

void ClientPool::Forget(uint64_t extent_offset) {
  const auto found = extents_.find(extent_offset);
  SLUICE_CHECK(
      found != extents_.end() && found->second.leased_blocks == 0 && !found->second.memory.valid(),
      "an extent is forgotten after its memory was taken");
  used_bytes_ -= found->second.bytes;
  extents_.erase(found);
}

std::optional<BlockRun> ClientPool::Lease(uint64_t bytes, Lessee lessee) {
  if (bytes == 0 || bytes > reserve_bytes_) return std::nullopt;
  const uint64_t wanted = RoundUp(bytes, kBlockBytes) / kBlockBytes;
  for (auto& [offset, extent] : extents_) {
    if (extent.state != ExtentState::kActive) continue;
    const uint64_t first = offset / kBlockBytes;
    const uint64_t count = extent.bytes / kBlockBytes;
    uint64_t run = 0;
    for (uint64_t i = 0; i < count; ++i) {
      run = blocks_[first + i] == kNobody ? run + 1 : 0;
      if (run < wanted) continue;
      const uint64_t begin = first + i + 1 - wanted;
      std::fill_n(blocks_.begin() + static_cast<ptrdiff_t>(begin), wanted, lessee.number());
      extent.leased_blocks += wanted;
      return BlockRun{begin * kBlockBytes, wanted * kBlockBytes};
    }
  }
  return std::nullopt;
}

Result<> ClientPool::GiveBack(BlockRun run, Lessee lessee, uint64_t now_ns) {
  const bool shaped = run.bytes > 0 && run.bytes % kBlockBytes == 0 &&
                      run.pool_offset % kBlockBytes == 0 &&
                      InRange(run.pool_offset, run.bytes, reserve_bytes_);
  if (!shaped) return Fail(ErrorCode::kInvalid, "not whole blocks of the pool");
  const auto begin = blocks_.begin() + static_cast<ptrdiff_t>(run.pool_offset / kBlockBytes);
  const auto end = begin + static_cast<ptrdiff_t>(run.bytes / kBlockBytes);
  if (!std::all_of(begin, end, [&](uint32_t owner) { return owner == lessee.number(); })) {
    return Fail(ErrorCode::kInvalid, "these blocks are not leased to whom gives them back");
  }
  std::fill(begin, end, kNobody);
  // A run given back may span extents that were leased one by one.
  for (uint64_t at = run.pool_offset; at < run.pool_offset + run.bytes; at += kBlockBytes) {
    auto extent = std::prev(extents_.upper_bound(at));
    if (--extent->second.leased_blocks == 0) extent->second.unused_since_ns = now_ns;
  }
  return {};
}

std::optional<uint64_t> ClientPool::FindUnused(uint64_t unused_since_ns) const {
  for (auto it = extents_.rbegin(); it != extents_.rend(); ++it) {
    const Extent& extent = it->second;
    if (extent.state == ExtentState::kActive && extent.leased_blocks == 0 &&
        extent.unused_since_ns <= unused_since_ns) {
      return it->first;
    }
  }
  return std::nullopt;
}

size_t ClientPool::CountUnused() const {
  return static_cast<size_t>(std::ranges::count_if(extents_, [](const auto& entry) {
    return entry.second.state == ExtentState::kActive && entry.second.leased_blocks == 0;
  }));
}

uint64_t ClientPool::leased_bytes(Lessee lessee) const {
  return static_cast<uint64_t>(std::ranges::count(blocks_, lessee.number())) * kBlockBytes;
}

}  // namespace sluice::memory
