// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/request_chain.h"

#include <bit>
#include <cstring>

#include "shm_proto/base/check.h"

namespace sluice {

RequestChain::RequestChain(uint32_t depth)
    : depth_(depth), mask_(std::bit_ceil(depth) - 1), requests_(mask_ + 1), slots_(mask_ + 1) {}

transport::SendRequest& RequestChain::Append(transport::Opcode opcode, ChainSlot*& slot) {
  SLUICE_CHECK(Free() > 0, "a request is appended only when one is free");
  transport::SendRequest& request = requests_[free_ & mask_];
  slot = &slots_[free_ & mask_];
  *slot = {};
  request.id = free_++;
  request.opcode = opcode;
  request.signalled = false;
  request.segment_count = 0;
  return request;
}

bool RequestChain::Fits(const ChainSlot& slot, const transport::SendRequest& request,
                        uint32_t header_bytes, uint64_t payload_bytes, uint32_t send_bytes) {
  return slot.total_bytes + header_bytes + payload_bytes <= send_bytes &&
         slot.header_used + header_bytes <= kHeaderBytes &&
         request.segment_count + 2 <= transport::kMaxSegments &&
         slot.operation_count < ChainSlot::kMaxOperations;
}

void RequestChain::AppendCopy(transport::SendRequest& request, ChainSlot& slot,
                              std::span<const std::byte> bytes) {
  std::byte* target = headers_ + (request.id & mask_) * kHeaderBytes + slot.header_used;
  std::memcpy(target, bytes.data(), bytes.size());
  const auto length = static_cast<uint32_t>(bytes.size());
  slot.header_used += length;
  slot.total_bytes += length;
  if (request.segment_count > 0) {
    transport::Segment& last = request.segments[request.segment_count - 1];
    if (last.address + last.length == target) {
      last.length += length;
      return;
    }
  }
  request.segments[request.segment_count++] = {target, length, 0};
}

void RequestChain::AppendReference(transport::SendRequest& request, ChainSlot& slot,
                                   const std::byte* data, uint32_t length) {
  request.segments[request.segment_count++] = {data, length, 0};
  slot.total_bytes += length;
}

bool RequestChain::Post(transport::QueuePair& queue_pair) {
  while (pending_ != free_) {
    // Contiguous in memory up to the ring's end: at most two posts.
    const uint64_t first = pending_ & mask_;
    const uint64_t count = std::min(free_ - pending_, mask_ + 1 - first);
    requests_[first + count - 1].signalled = true;
    const size_t taken = queue_pair.PostSend({&requests_[first], count});
    pending_ += taken;
    if (taken < count) return false;
  }
  return true;
}

}  // namespace sluice
