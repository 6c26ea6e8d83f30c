// SPDX-License-Identifier: Apache-2.0
// A ring whose whole shared part is in the hands of the other side: the consumer takes at most what
// a ring can hold, the producer writes inside the ring only.
#include <algorithm>
#include <array>
#include <cstring>

#include "shm_proto/base/check.h"
#include "shm_proto/ring.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr uint32_t kCapacity = 16;
constexpr size_t kGuardBytes = 64;

struct alignas(64) Memory {
  std::array<std::byte, kGuardBytes> before;
  std::array<std::byte, sluice::RingBytes(kCapacity)> ring;
  std::array<std::byte, kGuardBytes> after;
};

}  // namespace

std::vector<std::string> sluice::fuzz::Seeds() {
  // Indices as an honest side would have them, then entries.
  return {std::string(RingBytes(kCapacity), '\0'), std::string(RingBytes(kCapacity) + 256, '\x10')};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Memory memory;
  memset(&memory, 0x5a, sizeof(memory));
  const sluice::RingMemory ring{memory.ring.data(), kCapacity};
  sluice::InitializeRing(ring, 0xfffffff8);
  sluice::RingConsumer consumer(ring);
  sluice::RingProducer producer(ring);
  // Each piece of the input is what the other side has just written over everything shared.
  for (int turn = 0; turn < 4; ++turn) {
    const size_t piece = std::min(size, memory.ring.size());
    memcpy(memory.ring.data(), data, piece);
    data += piece;
    size -= piece;
    uint32_t popped = 0;
    sluice::Descriptor item;
    while (consumer.Pop(item)) {
      SLUICE_CHECK(++popped <= kCapacity, "no index makes a ring longer than it is");
    }
    consumer.Release();
    SLUICE_CHECK(producer.Free() <= kCapacity, "no index makes a ring roomier than it is");
    for (uint32_t i = 0; i < 2 * kCapacity && producer.Stage(item); ++i) {
    }
    producer.Publish();
  }
  for (const std::byte byte : memory.before)
    SLUICE_CHECK(byte == std::byte{0x5a}, "nothing before the ring is written");
  for (const std::byte byte : memory.after)
    SLUICE_CHECK(byte == std::byte{0x5a}, "nothing after the ring is written");
  return 0;
}
