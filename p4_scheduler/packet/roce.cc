// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/packet/roce.h"

#include <zlib.h>

#include <algorithm>

#include "p4_scheduler/packet/bytes.h"
#include "shm_proto/base/check.h"

namespace sluice::rain {
namespace {

// Offsets into the packet, that is from the first byte of IPv4.
constexpr size_t kMaskedOffsets[] = {
    1,  // Type of service.
    8,  // Time to live.
    10,
    11,  // Header checksum.
    kIpv4Bytes + 6,
    kIpv4Bytes + 7,              // UDP checksum.
    kIpv4Bytes + kUdpBytes + 4,  // What routers may set in the BTH.
};
constexpr size_t kMaskedBytes = kIpv4Bytes + kUdpBytes + kBthBytes;
constexpr size_t kPseudoBytes = 8;   // In place of InfiniBand's local route header.
constexpr uint8_t kMigrated = 0x40;  // And no padding, transport version 0.
constexpr uint16_t kDefaultPartition = 0xffff;
constexpr uint8_t kAckRequest = 0x80;
constexpr uint16_t kFirstSourcePort = 0xc000;  // RoCE's; the rest spreads queue pairs over paths.

const Bytef* AsZlib(const std::byte* bytes) { return reinterpret_cast<const Bytef*>(bytes); }

uint32_t Crc(uint32_t crc, std::span<const std::byte> bytes) {
  if (bytes.empty()) return crc;  // zlib answers a null pointer with its initial value.
  return static_cast<uint32_t>(crc32(crc, AsZlib(bytes.data()), static_cast<uInt>(bytes.size())));
}

// Of the pseudo header and the first kMaskedBytes of the packet, changeable fields masked.
uint32_t CrcOfHeaders(const std::byte* packet) {
  std::array<std::byte, kPseudoBytes + kMaskedBytes> masked;
  std::fill_n(masked.begin(), kPseudoBytes, std::byte{0xff});
  std::copy_n(packet, kMaskedBytes, masked.begin() + kPseudoBytes);
  for (const size_t offset : kMaskedOffsets) masked[kPseudoBytes + offset] = std::byte{0xff};
  return Crc(0, masked);
}

void StoreIcrc(uint32_t icrc, std::byte* to) {
  for (size_t i = 0; i < kIcrcBytes; ++i) to[i] = static_cast<std::byte>(icrc >> (8 * i));
}

uint32_t LoadIcrc(const std::byte* from) {
  uint32_t icrc = 0;
  for (size_t i = 0; i < kIcrcBytes; ++i) icrc |= static_cast<uint32_t>(from[i]) << (8 * i);
  return icrc;
}

}  // namespace

const char* Name(BadWrite reason) {
  switch (reason) {
    case BadWrite::kNone: return "none";
    case BadWrite::kNotRoce: return "not_roce";
    case BadWrite::kTruncated: return "truncated";
    case BadWrite::kOpcode: return "opcode";
    case BadWrite::kLength: return "length";
    case BadWrite::kIcrc: return "icrc";
    case BadWrite::kCount_: break;
  }
  return "unknown";
}

uint32_t Icrc(std::span<const std::byte> packet) {
  SLUICE_CHECK(packet.size() >= kMaskedBytes, "a RoCEv2 packet has its headers");
  return Crc(CrcOfHeaders(packet.data()), packet.subspan(kMaskedBytes));
}

SharedWriteData::SharedWriteData(std::span<const std::byte> first,
                                 std::span<const std::byte> second)
    : first_(first), second_(second), crc_(Crc(Crc(0, first), second)) {
  SLUICE_CHECK(bytes() % kPaddingBytes == 0 && bytes() <= kMaxRdmaBytes,
               "a WRITE is one padded RDMA packet");
  combine_ = crc32_combine_gen(static_cast<z_off_t>(bytes()));
}

std::span<std::byte> BuildWrite(const Endpoint& source, const Endpoint& destination,
                                uint8_t traffic_class, const Write& write,
                                const SharedWriteData& data, std::span<std::byte> out) {
  const size_t frame_bytes = kWriteDataOffset + data.bytes() + kIcrcBytes;
  if (out.size() < frame_bytes) return {};
  Endpoint from = source, to = destination;
  from.port = static_cast<uint16_t>(kFirstSourcePort | (write.queue_pair & 0x3fff));
  to.port = kRoceUdpPort;
  WriteUdpHeaders(from, to, traffic_class, frame_bytes - kHeaderOffset, out);

  std::byte* bth = out.data() + kBthOffset;
  StoreBigEndian<uint8_t>(bth, static_cast<uint8_t>(write.opcode));
  StoreBigEndian<uint8_t>(bth + 1, kMigrated);
  StoreBigEndian<uint16_t>(bth + 2, kDefaultPartition);
  StoreBigEndian<uint32_t>(bth + 4, write.queue_pair & kPsnMask);
  StoreBigEndian<uint32_t>(bth + 8, write.psn & kPsnMask);
  if (write.wants_ack) bth[8] = std::byte{kAckRequest};

  std::byte* reth = out.data() + kRethOffset;
  StoreBigEndian<uint64_t>(reth, write.address);
  StoreBigEndian<uint32_t>(reth + 8, write.rkey);
  StoreBigEndian<uint32_t>(reth + 12, static_cast<uint32_t>(data.bytes()));

  std::ranges::copy(data.first_, out.begin() + kWriteDataOffset);
  std::ranges::copy(data.second_,
                    out.begin() + static_cast<ptrdiff_t>(kWriteDataOffset + data.first_.size()));
  const uint32_t of_headers = Crc(CrcOfHeaders(out.data() + kIpv4Offset),
                                  out.subspan(kRethOffset, kRethBytes));
  StoreIcrc(static_cast<uint32_t>(crc32_combine_op(of_headers, data.crc_, data.combine_)),
            out.data() + kWriteDataOffset + data.bytes());
  return out.first(frame_bytes);
}

BadWrite ParseWrite(std::span<const std::byte> frame, ParsedWrite& parsed) {
  UdpFrame udp;
  switch (ParseUdp(frame, kRoceUdpPort, udp)) {
    case Malformed::kNone: break;
    case Malformed::kNotRain: return BadWrite::kNotRoce;
    case Malformed::kTruncated: return BadWrite::kTruncated;
    default: return BadWrite::kLength;
  }
  if (udp.payload.size() < kBthBytes + kIcrcBytes) return BadWrite::kTruncated;
  const std::byte* bth = udp.payload.data();
  const auto opcode = static_cast<WriteOpcode>(bth[0]);
  if ((opcode != WriteOpcode::kRcWriteOnly && opcode != WriteOpcode::kUcWriteOnly) ||
      (LoadBigEndian<uint8_t>(bth + 1) & 0x3f) != 0) {
    return BadWrite::kOpcode;
  }
  if (udp.payload.size() < kBthBytes + kRethBytes + kIcrcBytes) return BadWrite::kTruncated;
  const std::byte* reth = bth + kBthBytes;
  const size_t data_bytes = udp.payload.size() - kBthBytes - kRethBytes - kIcrcBytes;
  if (LoadBigEndian<uint32_t>(reth + 12) != data_bytes || data_bytes % kPaddingBytes != 0) {
    return BadWrite::kLength;
  }
  const size_t packet_bytes = kIpv4Bytes + kUdpBytes + udp.payload.size() - kIcrcBytes;
  if (Icrc(frame.subspan(kIpv4Offset, packet_bytes)) !=
      LoadIcrc(frame.data() + kIpv4Offset + packet_bytes)) {
    return BadWrite::kIcrc;
  }
  parsed.source = udp.source;
  parsed.destination = udp.destination;
  parsed.write = {.opcode = opcode,
                  .wants_ack = (bth[8] & std::byte{kAckRequest}) != std::byte{0},
                  .queue_pair = LoadBigEndian<uint32_t>(bth + 4) & kPsnMask,
                  .psn = LoadBigEndian<uint32_t>(bth + 8) & kPsnMask,
                  .address = LoadBigEndian<uint64_t>(reth),
                  .rkey = LoadBigEndian<uint32_t>(reth + 8)};
  parsed.data = udp.payload.subspan(kBthBytes + kRethBytes, data_bytes);
  return BadWrite::kNone;
}

Acknowledgement ReadAcknowledgement(const UdpFrame& udp) {
  constexpr uint8_t kAcknowledge = 0x11;
  constexpr size_t kAethBytes = 4;
  if (udp.payload.size() < kBthBytes + kAethBytes + kIcrcBytes ||
      LoadBigEndian<uint8_t>(udp.payload.data()) != kAcknowledge) {
    return Acknowledgement::kNone;
  }
  // The upper bits of the syndrome: 0 acknowledged; 1 receiver not ready; 3 refused.
  const uint8_t syndrome = LoadBigEndian<uint8_t>(udp.payload.data() + kBthBytes);
  return (syndrome >> 5 & 3) == 0 ? Acknowledgement::kAck : Acknowledgement::kNak;
}

}  // namespace sluice::rain
