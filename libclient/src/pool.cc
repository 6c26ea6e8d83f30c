// SPDX-License-Identifier: Apache-2.0
#include "libclient/src/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

#include "shm_proto/base/check.h"
#include "shm_proto/base/units.h"

namespace sluice::client {
namespace {

using control::kBlockBytes;

// Larger than any quota, small enough that no sum of offsets overflows.
constexpr uint64_t kMaxReserveBytes = uint64_t{1} << 44;
constexpr uint64_t kMaxGrowStepBytes = 32 * kMiB;
constexpr uint64_t kDrainStepBytes = 64 * kMiB;

std::unexpected<Error> Nonsense(const std::string& what, uint64_t offset, uint64_t bytes) {
  return Fail(ErrorCode::kProtocol, "the daemon named " + what + " of " + std::to_string(bytes) +
                                        " bytes at pool offset " + std::to_string(offset) +
                                        ", which cannot be");
}

}  // namespace

Result<std::shared_ptr<Pool>> Pool::Reserve(Daemon& daemon, uint64_t reserve_bytes,
                                            uint32_t io_threads, uint64_t max_message_bytes) {
  const uint64_t bytes = RoundUp(std::min(reserve_bytes, kMaxReserveBytes), kBlockBytes);
  if (reserve_bytes == 0 || reserve_bytes > kMaxReserveBytes) {
    return Fail(
        ErrorCode::kProtocol,
        "the daemon offers a pool of " + std::to_string(reserve_bytes) + " bytes, which cannot be");
  }
  void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return FailErrno("cannot reserve " + std::to_string(bytes) + " bytes of address space");
  }
  std::shared_ptr<Pool> pool(new Pool(daemon, static_cast<std::byte*>(base), bytes, io_threads,
                                      std::min(max_message_bytes, Granules::kMaxBufferBytes)));
  if (Result<> reserved = pool->granules_.Reserve(bytes); !reserved) {
    return std::unexpected(reserved.error());
  }
  return pool;
}

Pool::Pool(Daemon& daemon, std::byte* base, uint64_t reserve_bytes, uint32_t io_threads,
           uint64_t max_message_bytes)
    : daemon_(daemon),
      base_(base),
      reserve_bytes_(reserve_bytes),
      io_threads_(io_threads),
      max_message_bytes_(max_message_bytes),
      uses_(new std::atomic<uint8_t>[reserve_bytes / kBlockBytes]()),
      returns_(new ReturnList[io_threads]),
      allocator_(base, reserve_bytes, *this) {}

Pool::~Pool() { munmap(base_, reserve_bytes_); }

Result<> Pool::MapExtent(uint32_t region, int memfd, uint64_t pool_offset, uint64_t bytes) {
  if (bytes == 0 || pool_offset % kBlockBytes != 0 || bytes % kBlockBytes != 0 ||
      !InRange(pool_offset, bytes, reserve_bytes_) || extents_.contains(region)) {
    return Nonsense("an extent", pool_offset, bytes);
  }
  for (uint64_t at = pool_offset; at < pool_offset + bytes; at += kBlockBytes) {
    if (use(at).load(std::memory_order_relaxed) != kUnmapped) {
      return Nonsense("an extent over another", pool_offset, bytes);
    }
  }
  void* mapped = mmap(base_ + pool_offset, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      memfd, 0);
  if (mapped == MAP_FAILED) return FailErrno("cannot map an extent of the pool");
  extents_[region] = {pool_offset, bytes};
  for (uint64_t at = pool_offset; at < pool_offset + bytes; at += kBlockBytes) {
    // Release pairs with the acquire in AcceptReceived(): who sees the block mapped can read it.
    use(at).store(kIdle, std::memory_order_release);
  }
  return {};
}

Result<> Pool::UnmapExtent(uint32_t region) {
  const auto found = extents_.find(region);
  if (found == extents_.end()) {
    return Fail(ErrorCode::kProtocol,
                "the daemon unmaps region " + std::to_string(region) + ", which is not mapped");
  }
  const Extent extent = found->second;
  for (uint64_t at = extent.offset; at < extent.offset + extent.bytes; at += kBlockBytes) {
    if (use(at).load(std::memory_order_relaxed) == kSend || !granules_.Empty(at, kBlockBytes)) {
      return Nonsense("for unmapping an extent in use", extent.offset, extent.bytes);
    }
  }
  for (uint64_t at = extent.offset; at < extent.offset + extent.bytes; at += kBlockBytes) {
    use(at).store(kUnmapped,
                  std::memory_order_relaxed);  // Nothing of it is read: it has no buffers.
  }
  // Zeros rather than no access: should a daemon that breaks the rules deliver into the extent this
  // very moment, the application reads zeros and does not crash.
  void* hole = mmap(base_ + extent.offset, extent.bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (hole == MAP_FAILED) return FailErrno("cannot unmap an extent of the pool");
  extents_.erase(found);
  return {};
}

Result<> Pool::AddSendBlocks(uint64_t pool_offset, uint64_t bytes) {
  if (bytes == 0 || pool_offset % kBlockBytes != 0 || bytes % kBlockBytes != 0 ||
      !InRange(pool_offset, bytes, reserve_bytes_)) {
    return Nonsense("blocks", pool_offset, bytes);
  }
  for (uint64_t at = pool_offset; at < pool_offset + bytes; at += kBlockBytes) {
    const uint8_t now = use(at).load(std::memory_order_relaxed);
    if (now == kUnmapped || now == kSend || !granules_.Empty(at, kBlockBytes)) {
      return Nonsense("blocks in use", pool_offset, bytes);
    }
  }
  for (uint64_t at = pool_offset; at < pool_offset + bytes; at += kBlockBytes) {
    use(at).store(kSend,
                  std::memory_order_relaxed);  // Ordered by arrived_mutex_ for who allocates.
  }
  std::lock_guard lock(arrived_mutex_);
  arrived_.push_back({pool_offset, bytes, 0});
  return {};
}

bool Pool::TakeArrived(uint64_t bytes, Blocks& blocks) {
  std::lock_guard lock(arrived_mutex_);
  const auto fits = std::find_if(arrived_.begin(), arrived_.end(),
                                 [bytes](const Blocks& run) { return run.bytes >= bytes; });
  if (fits == arrived_.end()) return false;
  blocks = *fits;
  arrived_.erase(fits);
  return true;
}

Result<BlockSource::Blocks> Pool::Acquire(uint64_t bytes) {
  Blocks blocks;
  // What an earlier request brought after its asker had given up.
  if (!TakeArrived(bytes, blocks)) {
    const uint64_t wished_bytes = std::max(bytes, std::min(acquired_bytes_, kMaxGrowStepBytes));
    if (Result<> grown = daemon_.Grow(*this, bytes, wished_bytes); !grown) {
      return std::unexpected(grown.error());
    }
    if (!TakeArrived(bytes, blocks)) {
      return Fail(ErrorCode::kProtocol, "the daemon granted less memory than was asked for");
    }
  }
  acquired_bytes_ += blocks.bytes;
  return blocks;
}

void Pool::Release(uint64_t offset, uint64_t bytes) {
  for (uint64_t at = offset; at < offset + bytes; at += kBlockBytes) {
    use(at).store(kIdle, std::memory_order_relaxed);
  }
  daemon_.Shrink(*this, offset, bytes);
}

void Pool::Retire() { retired_.store(true, std::memory_order_relaxed); }

bool Pool::Drained() {
  uint64_t step = 0;
  for (; drained_to_ < reserve_bytes_; drained_to_ += kBlockBytes) {
    if (use(drained_to_).load(std::memory_order_relaxed) == kUnmapped) continue;
    if (step >= kDrainStepBytes || !granules_.Empty(drained_to_, kBlockBytes)) return false;
    step += kBlockBytes;
  }
  return true;
}

Result<uint64_t> Pool::Allocate(uint64_t bytes) {
  const uint64_t rounded = RoundUp(std::max<uint64_t>(bytes, 1), Granules::kBytes);
  Result<void*> buffer = allocator_.AllocateAligned(rounded, Granules::kBytes);
  if (!buffer) return std::unexpected(std::move(buffer.error()));
  const uint64_t offset = OffsetOf(*buffer);
  // A word that is taken is a daemon's that delivered into a send block; that piece is left alone.
  if (!granules_.Born(offset, rounded)) {
    return Fail(ErrorCode::kProtocol, "the daemon delivered a message into a block to send from");
  }
  return offset;
}

bool Pool::AcceptReceived(uint64_t offset, uint64_t length, uint32_t io_thread) {
  if (offset % Granules::kBytes != 0 || !InRange(offset, length, reserve_bytes_) ||
      offset == reserve_bytes_ || length > max_message_bytes_) {
    return false;
  }
  const auto receive = static_cast<uint8_t>(kReceive + io_thread);
  const uint64_t last = offset + std::max<uint64_t>(length, 1) - 1;
  for (uint64_t at = offset / kBlockBytes * kBlockBytes; at <= last; at += kBlockBytes) {
    // Acquire pairs with the release in MapExtent().
    const uint8_t now = use(at).load(std::memory_order_acquire);
    if (now == receive) continue;
    if (now == kUnmapped || now == kSend) return false;
    use(at).store(receive, std::memory_order_relaxed);  // Whoever frees the buffer got it from us.
  }
  return granules_.Born(offset, std::max<uint64_t>(length, 1));
}

Pool::Freed Pool::Free(uint64_t offset, uint32_t* io_thread) {
  if (offset % Granules::kBytes != 0 || offset >= reserve_bytes_) return Freed::kNotABuffer;
  if (!granules_.Die(offset)) {
    return granules_.UnderWay(offset) ? Freed::kUnderWay : Freed::kNotABuffer;
  }
  return GiveUp(offset, io_thread);
}

Pool::Freed Pool::EndSendFreeing(uint64_t start, uint32_t* io_thread) {
  SLUICE_CHECK(granules_.DieUnderWay(start), "an operation under way holds its buffer");
  return GiveUp(start, io_thread);
}

// The buffer's word is clear already: it is nobody's until the allocator or the daemon has it back.
Pool::Freed Pool::GiveUp(uint64_t offset, uint32_t* io_thread) {
  const uint8_t now = use(offset).load(std::memory_order_relaxed);
  if (now >= kReceive) {
    if (retired()) return Freed::kDone;  // The daemon that lent it is gone.
    *io_thread = static_cast<uint32_t>(now - kReceive);
    return Freed::kToDaemon;
  }
  return allocator_.Deallocate(At(offset)) ? Freed::kDone : Freed::kNotABuffer;
}

uint64_t Pool::BeginSend(uint64_t offset, uint64_t length) {
  const uint64_t start = granules_.Find(offset, length, Granules::kMaxBufferBytes);
  if (start == Granules::kNone || !granules_.Send(start)) return kNone;
  return start;
}

bool Pool::LeaveReturn(uint32_t io_thread, uint64_t offset) {
  ReturnList& list = returns_[io_thread];
  std::lock_guard lock(list.mutex);
  list.offsets.push_back(offset);
  list.count.store(static_cast<uint32_t>(list.offsets.size()), std::memory_order_relaxed);
  return list.offsets.size() == 1;
}

void Pool::TakeReturns(uint32_t io_thread, std::vector<uint64_t>& offsets) {
  ReturnList& list = returns_[io_thread];
  std::lock_guard lock(list.mutex);
  offsets.insert(offsets.end(), list.offsets.begin(), list.offsets.end());
  list.offsets.clear();
  list.count.store(0, std::memory_order_relaxed);
}

}  // namespace sluice::client
