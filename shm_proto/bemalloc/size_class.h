// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "shm_proto/base/units.h"

// How sizes become slots. Up to 128 bytes in steps of 16; from there eight classes to each doubling, so that a slot is
// less than 1/8 larger than what was asked for. Larger buffers are runs of whole pages.
namespace sluice::bemalloc {

constexpr uint32_t kPageShift = 12;
constexpr uint64_t kPageBytes = uint64_t{1} << kPageShift;
constexpr uint64_t kBlockBytes = 4 * kMiB;  // What a pool is cut into and what is registered with a NIC.
constexpr uint32_t kBlockPages = static_cast<uint32_t>(kBlockBytes / kPageBytes);
constexpr uint64_t kGranuleBytes = 16;
constexpr uint64_t kMaxAlignment = 2 * kMiB;

constexpr uint32_t kSmallClasses = 72;
constexpr uint64_t kMaxSmallBytes = 32 * kKiB;
constexpr uint32_t kMaxObjects = 1024;  // In one span.
constexpr uint32_t kMaxSpanPages = 64;  // Of a span of small slots.

// The smallest class whose slots hold `bytes`. Requires 1 <= bytes <= kMaxSmallBytes.
constexpr uint32_t SmallClass(uint64_t bytes) {
  if (bytes <= 128) return static_cast<uint32_t>((bytes + 15) / 16) - 1;
  const uint64_t last = bytes - 1;
  const auto top = static_cast<uint32_t>(std::bit_width(last)) - 1;  // 7 .. 14
  return 8 + (top - 7) * 8 + static_cast<uint32_t>((last >> (top - 3)) & 7);
}

constexpr uint32_t SmallClassBytes(uint32_t size_class) {
  if (size_class < 8) return (size_class + 1) * 16;
  const uint32_t step = (size_class - 8) % 8, doubling = (size_class - 8) / 8;
  return (9 + step) << (doubling + 4);
}

// Pages of one span of a class: the fewest with at least eight slots (or 16 KiB), at most 1/64 of it unused.
constexpr uint32_t SmallClassPages(uint32_t size_class) {
  const uint64_t slot = SmallClassBytes(size_class);
  for (uint32_t pages = 4; pages <= kMaxSpanPages; ++pages) {
    const uint64_t bytes = pages * kPageBytes;
    if (bytes / slot >= 8 && bytes % slot <= bytes / 64) return pages;
  }
  return kMaxSpanPages;
}

struct SmallClassInfo {
  uint32_t slot_bytes;
  uint16_t pages;
  uint16_t objects;
  uint64_t magic;  // ceil(2^64 / slot_bytes): offset * magic tells slot number and whether the offset is a slot's start.
};

constexpr std::array<SmallClassInfo, kSmallClasses> MakeSmallClasses() {
  std::array<SmallClassInfo, kSmallClasses> classes{};
  for (uint32_t i = 0; i < kSmallClasses; ++i) {
    const uint32_t slot = SmallClassBytes(i), pages = SmallClassPages(i);
    const uint64_t objects = pages * kPageBytes / slot;
    classes[i] = {slot, static_cast<uint16_t>(pages), static_cast<uint16_t>(objects), ~uint64_t{0} / slot + 1};
  }
  return classes;
}

inline constexpr std::array<SmallClassInfo, kSmallClasses> kSmallClassTable = MakeSmallClasses();

static_assert(SmallClass(kMaxSmallBytes) == kSmallClasses - 1);
static_assert(SmallClassBytes(kSmallClasses - 1) == kMaxSmallBytes);

}  // namespace sluice::bemalloc
