// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "daemon/transport/transport.h"

// How requests travel over TCP. After the handshake each direction of the connection is a sequence
// of batches. A batch is 1 to 64 headers, one per send request in posting order, then the requests'
// payloads, back to back in the same order. All headers come first so that one system call of the
// receiver can put all payloads of a batch where they belong. There is no padding and no version:
// the handshake settled what both ends speak. All numbers are little endian.
//
//   offset  size
//        0     1  magic      kWireMagic: tells a stream that lost its place from a header
//        1     1  operation  1 SEND, 2 WRITE, 3 WRITE_WITH_IMM
//        2     2  following  headers that still follow in this batch; 0 in its last
//        4     4  length     payload bytes
//        8     4  immediate  WRITE_WITH_IMM: handed to the receiver; else 0
//       12     4  key        WRITE, WRITE_WITH_IMM: the grant's id; SEND: 0
//       16     8  address    WRITE, WRITE_WITH_IMM: offset of the first byte in the grant; SEND: 0
//
// A SEND longer than the receiver's posted receives, a SEND or WRITE_WITH_IMM without a posted
// receive, a WRITE that leaves its grant, and any other value in magic, operation or following end
// the connection. A WRITE to a grant that is not out is read and thrown away: it may have been
// under way when the grant was withdrawn.
namespace sluice::transport {

static_assert(std::endian::native == std::endian::little,
              "the wire format is this machine's memory format");

constexpr uint8_t kWireMagic = 0xb5;
constexpr uint16_t kMaxBatch = 64;  // Headers.

enum class WireOperation : uint8_t { kSend = 1, kWrite = 2, kWriteImmediate = 3 };

struct WireHeader {
  uint8_t magic;
  uint8_t operation;
  uint16_t following;
  uint32_t length;
  uint32_t immediate;
  uint32_t key;
  uint64_t address;
};
static_assert(sizeof(WireHeader) == 24 && std::is_trivially_copyable_v<WireHeader>);

}  // namespace sluice::transport
