// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "shm_proto/base/units.h"

// How sizes become slots. Up to 128 bytes in steps of 16; from there eight classes to each
// doubling, so that a slot is less than 1/8 larger than what was asked for. Larger buffers are runs
// of whole pages.
namespace sluice::bemalloc {

constexpr uint32_t kPageShift = 12;
constexpr uint64_t kPageBytes = uint64_t{1} << kPageShift;
constexpr uint64_t
    kBlockBytes = 4 * kMiB;  // What a pool is cut into and what is registered with a NIC.
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

// Slots of one span of a class, at least: the fewer, the sooner an emptied span serves another
// class; the more, the rarer a new one is made.
constexpr uint32_t LeastObjects(uint64_t slot_bytes) {
  return slot_bytes >= 8192 ? 2 : slot_bytes >= 2048 ? 4 : 8;
}

// Pages of one span of a class: the fewest with enough slots (or 16 KiB), at most 1/64 of it
// unused.
constexpr uint32_t SmallClassPages(uint32_t size_class) {
  const uint64_t slot = SmallClassBytes(size_class);
  for (uint32_t pages = 4; pages <= kMaxSpanPages; ++pages) {
    const uint64_t bytes = pages * kPageBytes;
    if (bytes / slot >= LeastObjects(slot) && bytes % slot <= bytes / 64) return pages;
  }
  return kMaxSpanPages;
}

struct SmallClassInfo {
  uint32_t slot_bytes;
  uint16_t pages;
  uint16_t objects;
  uint16_t bit_words;  // Of 64 bits, one bit an object.
  uint64_t magic;      // ceil(2^64 / slot_bytes): offset * magic tells slot number and whether the
                       // offset is a slot's start.
};

constexpr std::array<SmallClassInfo, kSmallClasses> MakeSmallClasses() {
  std::array<SmallClassInfo, kSmallClasses> classes{};
  for (uint32_t i = 0; i < kSmallClasses; ++i) {
    const uint32_t slot = SmallClassBytes(i), pages = SmallClassPages(i);
    const uint64_t objects = pages * kPageBytes / slot;
    classes[i] = {slot, static_cast<uint16_t>(pages), static_cast<uint16_t>(objects),
                  static_cast<uint16_t>((objects + 63) / 64), ~uint64_t{0} / slot + 1};
  }
  return classes;
}

inline constexpr std::array<SmallClassInfo, kSmallClasses> kSmallClassTable = MakeSmallClasses();

// Runs of up to 1 MiB have classes too, so that a thread can keep some: every page count up to 32,
// from there sixteen to each doubling. What is larger, or lies between two classes, is not kept.
constexpr uint32_t kMinRunPages = kMaxSmallBytes / kPageBytes + 1;
constexpr uint32_t kExactRunPages = 32;
constexpr uint32_t kMaxCachedRunPages = 256;
constexpr uint64_t kMaxCachedBytes = kMaxCachedRunPages * kPageBytes;
constexpr uint32_t kExactRunClasses = kExactRunPages - kMinRunPages + 1;
constexpr uint32_t kClasses = kSmallClasses + kExactRunClasses + 3 * 16;
constexpr uint32_t kUncached = kClasses;  // The class of everything else.

// The smallest run class of at least `pages`. Requires kMinRunPages <= pages <= kMaxCachedRunPages.
constexpr uint32_t RunClass(uint64_t pages) {
  if (pages <= kExactRunPages) return kSmallClasses + static_cast<uint32_t>(pages) - kMinRunPages;
  const uint64_t last = pages - 1;
  const auto top = static_cast<uint32_t>(std::bit_width(last)) - 1;  // 5 .. 7
  return kSmallClasses + kExactRunClasses + (top - 5) * 16 +
         static_cast<uint32_t>((last >> (top - 4)) & 15);
}

constexpr uint32_t RunClassPages(uint32_t size_class) {
  const uint32_t run = size_class - kSmallClasses;
  if (run < kExactRunClasses) return kMinRunPages + run;
  return (17 + (run - kExactRunClasses) % 16) << ((run - kExactRunClasses) / 16 + 1);
}

// The class whose runs have exactly so many pages, or kUncached.
constexpr uint32_t RunClassIfExact(uint64_t pages) {
  if (pages < kMinRunPages || pages > kMaxCachedRunPages) return kUncached;
  const uint32_t size_class = RunClass(pages);
  return RunClassPages(size_class) == pages ? size_class : kUncached;
}

constexpr uint64_t ClassBytes(uint32_t size_class) {
  return size_class < kSmallClasses ? SmallClassBytes(size_class)
                                    : RunClassPages(size_class) * kPageBytes;
}

// The class of a buffer of `bytes` by table: up to 1 KiB in steps of 16, up to kMaxSmallBytes in
// steps of 128.
struct ClassTable {
  uint8_t fine[1024 / 16 + 1];
  uint8_t coarse[kMaxSmallBytes / 128 + 1];
};

constexpr ClassTable MakeClassTable() {
  ClassTable table{};
  for (uint32_t i = 1; i < sizeof(table.fine); ++i)
    table.fine[i] = static_cast<uint8_t>(SmallClass(i * 16));
  for (uint32_t i = 1; i < sizeof(table.coarse); ++i)
    table.coarse[i] = static_cast<uint8_t>(SmallClass(i * 128));
  return table;
}

inline constexpr ClassTable kClassTable = MakeClassTable();

// The class of a buffer of `bytes`; 0 counts as 1. Requires bytes <= kMaxCachedBytes.
inline uint32_t ClassOf(uint64_t bytes) {
  if (bytes <= 1024) return kClassTable.fine[(bytes + 15) / 16];
  if (bytes <= kMaxSmallBytes) return kClassTable.coarse[(bytes + 127) / 128];
  return RunClass((bytes + kPageBytes - 1) / kPageBytes);
}

static_assert(RunClass(kMaxCachedRunPages) == kClasses - 1 &&
              RunClassPages(kClasses - 1) == kMaxCachedRunPages);
static_assert(kUncached <= 255);
static_assert(SmallClass(kMaxSmallBytes) == kSmallClasses - 1);
static_assert(SmallClassBytes(kSmallClasses - 1) == kMaxSmallBytes);

}  // namespace sluice::bemalloc
