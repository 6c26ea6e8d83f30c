// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/packet/checksum.h"

#include <array>
#include <cstring>

#include "p4_scheduler/packet/bytes.h"

#ifdef __x86_64__
#include <nmmintrin.h>
#endif

namespace sluice::rain {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  constexpr uint32_t kReflectedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value & 1) != 0 ? value >> 1 ^ kReflectedPolynomial : value >> 1;
    }
    table[i] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

uint32_t Portable(uint32_t crc, std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) {
    crc = kTable[(crc ^ static_cast<uint32_t>(byte)) & 0xff] ^ crc >> 8;
  }
  return crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) uint32_t WithInstruction(uint32_t crc,
                                                           std::span<const std::byte> bytes) {
  uint64_t wide = crc;
  while (bytes.size() >= sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof(word));
    wide = _mm_crc32_u64(wide, word);
    bytes = bytes.subspan(sizeof(word));
  }
  crc = static_cast<uint32_t>(wide);
  for (const std::byte byte : bytes) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(byte));
  return crc;
}
#endif

}  // namespace

uint16_t Ipv4Checksum(std::span<const std::byte> header) {
  uint32_t sum = 0;
  for (size_t i = 0; i + 1 < header.size(); i += 2) {
    sum += LoadBigEndian<uint16_t>(header.data() + i);
  }
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

uint32_t Crc32c(std::span<const std::byte> bytes) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("sse4.2")) return ~WithInstruction(~0u, bytes);
#endif
  return Crc32cWithoutInstruction(bytes);
}

uint32_t Crc32cWithoutInstruction(std::span<const std::byte> bytes) {
  return ~Portable(~0u, bytes);
}

}  // namespace sluice::rain
