// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::rain {

// The Internet checksum of an IPv4 header as it lies in the packet, to be stored big endian. Over a
// header with a right checksum in it the result is 0.
uint16_t Ipv4Checksum(std::span<const std::byte> header);

// CRC-32C (Castagnoli), as iSCSI and SSE4.2 have it; with the processor's instruction where it has
// one.
uint32_t Crc32c(std::span<const std::byte> bytes);
uint32_t Crc32cWithoutInstruction(std::span<const std::byte> bytes);

}  // namespace sluice::rain
