// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/grant_table.h"

#include <algorithm>
#include <new>
#include <string>

namespace sluice::transport {

size_t Grant::Pieces(uint64_t offset, uint64_t length, std::span<iovec, kMaxSlices> pieces) const {
  size_t count = 0;
  for (uint32_t i = 0; i < segment_count && length > 0; ++i) {
    const LandingSegment& segment = segments[i];
    if (offset >= segment.length) {
      offset -= segment.length;
      continue;
    }
    const uint64_t here = std::min(segment.length - offset, length);
    pieces[count++] = {segment.address + offset, here};
    length -= here;
    offset = 0;
  }
  return count;
}

Result<size_t> GrantTable::Expose(uint32_t id, std::span<const LandingSegment> segments,
                                  std::span<RemoteSlice, kMaxSlices> slices) {
  if (segments.empty() || segments.size() > kMaxSlices) {
    return Fail(ErrorCode::kInvalid, "grant " + std::to_string(id) + " has " +
                                         std::to_string(segments.size()) + " pieces; 1 to " +
                                         std::to_string(kMaxSlices) + " are possible");
  }
  Grant grant{};
  grant.segment_count = static_cast<uint32_t>(segments.size());
  std::copy(segments.begin(), segments.end(), grant.segments);
  for (const LandingSegment& segment : segments) grant.bytes += segment.length;
  try {
    if (!grants_.try_emplace(id, grant).second) {
      return Fail(ErrorCode::kExists, "grant " + std::to_string(id) + " is out already");
    }
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kNoMemory, "no memory to note grant " + std::to_string(id));
  }
  slices[0] = {.address = 0, .length = grant.bytes, .key = id};
  return size_t{1};
}

void GrantTable::Withdraw(uint32_t id) { grants_.erase(id); }

const Grant* GrantTable::Find(uint32_t id) const {
  const auto found = grants_.find(id);
  return found == grants_.end() ? nullptr : &found->second;
}

}  // namespace sluice::transport
