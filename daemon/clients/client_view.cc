// SPDX-License-Identifier: Apache-2.0
#include "daemon/clients/client_view.h"

#include <utility>

#include "shm_proto/base/check.h"
#include "shm_proto/base/units.h"

namespace sluice {

ClientView::ClientView(uint32_t client_id, std::string client_name, std::byte* base,
                       uint64_t reserve, uint64_t max_message)
    : id(client_id),
      name(std::move(client_name)),
      pool_base(base),
      reserve_bytes(reserve),
      max_message_bytes(max_message),
      heap(reserve) {}

void ClientView::AddExtent(uint64_t offset, uint64_t bytes) { extents_[offset] = {bytes}; }

bool ClientView::RemoveExtent(uint64_t offset) {
  auto extent = extents_.find(offset);
  if (extent == extents_.end()) return true;
  extent->second.removing = true;
  if (extent->second.users > 0) return false;
  extents_.erase(extent);
  return true;
}

std::map<uint64_t, ClientView::Extent>::iterator ClientView::ExtentOf(uint64_t offset) {
  auto extent = extents_.upper_bound(offset);
  if (extent == extents_.begin()) return extents_.end();
  --extent;
  return offset - extent->first < extent->second.bytes ? extent : extents_.end();
}

Result<const std::byte*> ClientView::AcquireSend(uint64_t offset, uint64_t length) {
  const auto extent = ExtentOf(offset);
  // Extents are allocated whole, so a buffer never spans two.
  if (extent == extents_.end() || extent->second.removing ||
      !InRange(offset - extent->first, length, extent->second.bytes)) {
    return Fail(ErrorCode::kInvalid, "the range does not lie in the pool");
  }
  if (heap.Owns(offset)) {
    const auto buffer = heap.Find(offset);
    if (!buffer || !InRange(offset - buffer->offset, length, buffer->bytes) ||
        heap.state(buffer->offset) != static_cast<uint8_t>(BufferState::kHeld)) {
      return Fail(ErrorCode::kInvalid, "the range is no received buffer of this client's");
    }
    heap.set_state(buffer->offset, static_cast<uint8_t>(BufferState::kInFlight));
  }
  ++extent->second.users;
  return pool_base + offset;
}

std::optional<uint64_t> ClientView::ReleaseSend(const std::byte* data) {
  const auto offset = static_cast<uint64_t>(data - pool_base);
  // The range may have been the client's own when the send began and lie in a block of ours by now
  // (the client gave the block back too early): then there is no buffer in flight here.
  if (const auto buffer = heap.Find(offset)) {
    const auto state = static_cast<BufferState>(heap.state(buffer->offset));
    if (state == BufferState::kInFlight) {
      heap.set_state(buffer->offset, static_cast<uint8_t>(BufferState::kHeld));
    } else if (state == BufferState::kFreeAfterSend) {
      SLUICE_CHECK(heap.Free(buffer->offset).has_value(), "a live buffer can be freed");
      memory_freed = true;
    }
  }
  const auto extent = ExtentOf(offset);
  SLUICE_CHECK(extent != extents_.end() && extent->second.users > 0, "an extent in use stays");
  if (--extent->second.users > 0 || !extent->second.removing) return std::nullopt;
  const uint64_t removed = extent->first;
  extents_.erase(extent);
  return removed;
}

Result<> ClientView::FreeReceived(uint64_t offset) {
  const auto buffer = heap.Find(offset);
  if (!buffer || buffer->offset != offset)
    return Fail(ErrorCode::kInvalid, "not the start of a received buffer");
  switch (static_cast<BufferState>(heap.state(offset))) {
    case BufferState::kHeld: break;
    case BufferState::kInFlight:
      heap.set_state(offset, static_cast<uint8_t>(BufferState::kFreeAfterSend));
      return {};
    case BufferState::kDaemon:
    case BufferState::kFreeAfterSend:
      return Fail(ErrorCode::kInvalid, "not a buffer that the client holds");
  }
  memory_freed = true;
  return heap.Free(offset);
}

}  // namespace sluice
