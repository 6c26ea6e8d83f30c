// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "p4_scheduler/packet/frame.h"

// The one RoCEv2 packet that Rain needs: an RDMA WRITE of a single packet, which a switch makes out
// of a waiting task (paper 3.2.2), and which an agent without an RDMA NIC takes in itself. Codec
// only: PSNs and checks of rkey and range are their owners'.
namespace sluice::rain {

constexpr uint16_t kRoceUdpPort = 4791;
constexpr size_t kBthBytes = 12;
constexpr size_t kRethBytes = 16;
constexpr size_t kIcrcBytes = 4;
constexpr size_t kBthOffset = kHeaderOffset;
constexpr size_t kRethOffset = kBthOffset + kBthBytes;
constexpr size_t kWriteDataOffset = kRethOffset + kRethBytes;
constexpr size_t kMaxWriteFrameBytes = kWriteDataOffset + kMaxRdmaBytes + kIcrcBytes;
constexpr uint32_t kPsnMask = 0xffffff;

enum class WriteOpcode : uint8_t { kRcWriteOnly = 0x0a, kUcWriteOnly = 0x2a };

struct Write {
  WriteOpcode opcode = WriteOpcode::kUcWriteOnly;
  bool wants_ack = false;   // RC only.
  uint32_t queue_pair = 0;  // 24 bits.
  uint32_t psn = 0;         // 24 bits.
  uint64_t address = 0;
  uint32_t rkey = 0;
};

// The CRC of the bytes that all replicas of one task share, so that a replica's ICRC costs the same
// however large the task is.
class SharedWriteData {
 public:
  // `parts` one after the other are what is written: a multiple of 4 bytes, at most kMaxRdmaBytes.
  SharedWriteData(std::span<const std::byte> first, std::span<const std::byte> second);

  size_t bytes() const { return first_.size() + second_.size(); }

 private:
  friend std::span<std::byte> BuildWrite(const Endpoint&, const Endpoint&, uint8_t, const Write&,
                                         const SharedWriteData&, std::span<std::byte>);

  std::span<const std::byte> first_;
  std::span<const std::byte> second_;
  uint32_t crc_;
  unsigned long combine_;  // zlib's operator for appending so many bytes.
};

// Writes a whole frame, ICRC included, and gives its bytes, or none where `out` is too short. The
// destination's port is kRoceUdpPort whatever it says.
std::span<std::byte> BuildWrite(const Endpoint& source, const Endpoint& destination,
                                uint8_t traffic_class, const Write& write,
                                const SharedWriteData& data, std::span<std::byte> out);

enum class BadWrite : uint8_t {
  kNone,
  kNotRoce,    // Some other packet: not for this code.
  kTruncated,  // Ends within its headers, or earlier than its lengths say.
  kOpcode,     // RoCE, but no WRITE of one packet with this transport version, or with padding.
  kLength,     // RETH and UDP lengths do not agree.
  kIcrc,
  kCount_,
};
const char* Name(BadWrite reason);

struct ParsedWrite {
  Endpoint source;
  Endpoint destination;
  Write write;
  std::span<const std::byte> data;
};

[[nodiscard]] BadWrite ParseWrite(std::span<const std::byte> frame, ParsedWrite& parsed);

// What a NIC answers to a WRITE over a reliable connection.
enum class Acknowledgement : uint8_t { kNone, kAck, kNak };
// kNone: it is no acknowledgement. Its ICRC is not looked at: nothing depends on it but a count.
Acknowledgement ReadAcknowledgement(const UdpFrame& udp);

// The invariant CRC of a RoCEv2 packet: `packet` is from the first byte of IPv4 to the last before
// the ICRC. On the wire least significant byte first.
uint32_t Icrc(std::span<const std::byte> packet);

}  // namespace sluice::rain
