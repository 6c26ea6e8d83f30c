// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/packet/frame.h"

#include <algorithm>

#include "p4_scheduler/packet/bytes.h"
#include "p4_scheduler/packet/checksum.h"
#include "shm_proto/base/check.h"

namespace sluice::rain {
namespace {

constexpr uint16_t kEtherTypeIpv4 = 0x0800;
constexpr uint8_t kVersionAndLength = 0x45;  // IPv4, five words: no options.
constexpr uint8_t kProtocolUdp = 17;
constexpr uint16_t kDoNotFragment = 0x4000;

Mac MacAt(const std::byte* from) {
  Mac mac;
  std::memcpy(mac.data(), from, mac.size());
  return mac;
}

}  // namespace

Malformed ParseUdp(std::span<const std::byte> frame, uint16_t port, UdpFrame& parsed) {
  if (frame.size() < kHeaderOffset) return Malformed::kNotRain;
  const std::byte* ethernet = frame.data();
  const std::byte* ip = ethernet + kIpv4Offset;
  const std::byte* udp = ethernet + kUdpOffset;
  if (LoadBigEndian<uint16_t>(ethernet + 12) != kEtherTypeIpv4 ||
      LoadBigEndian<uint8_t>(ip) != kVersionAndLength ||
      LoadBigEndian<uint8_t>(ip + 9) != kProtocolUdp) {
    return Malformed::kNotRain;
  }
  const uint16_t fragment = LoadBigEndian<uint16_t>(ip + 6);
  if ((fragment & 0x1fff) != 0) return Malformed::kNotRain;  // What lies here is no UDP header.
  if (LoadBigEndian<uint16_t>(udp + 2) != port) return Malformed::kNotRain;
  if ((fragment & ~kDoNotFragment) != 0) return Malformed::kIpv4;
  if (Ipv4Checksum({ip, kIpv4Bytes}) != 0) return Malformed::kIpv4;

  const size_t ip_bytes = LoadBigEndian<uint16_t>(ip + 2);
  const size_t udp_bytes = LoadBigEndian<uint16_t>(udp + 4);
  if (ip_bytes > frame.size() - kIpv4Offset) return Malformed::kTruncated;
  if (udp_bytes < kUdpBytes || ip_bytes != kIpv4Bytes + udp_bytes) return Malformed::kLength;
  parsed.source = {MacAt(ethernet + 6), LoadBigEndian<uint32_t>(ip + 12),
                   LoadBigEndian<uint16_t>(udp)};
  parsed.destination = {MacAt(ethernet), LoadBigEndian<uint32_t>(ip + 16), port};
  parsed.payload = frame.subspan(kHeaderOffset, udp_bytes - kUdpBytes);
  return Malformed::kNone;
}

Malformed ParseRain(const UdpFrame& udp, RainFrame& parsed) {
  if (udp.payload.size() < kHeaderBytes) return Malformed::kTruncated;
  const Malformed bad = DecodeHeader(udp.payload.first<kHeaderBytes>(), parsed.header);
  if (bad != Malformed::kNone) return bad;
  if (udp.payload.size() != kHeaderBytes + BodyBytes(parsed.header)) return Malformed::kLength;
  parsed.source = udp.source;
  parsed.destination = udp.destination;
  parsed.body = udp.payload.subspan(kHeaderBytes);
  return Malformed::kNone;
}

Malformed ParseFrame(std::span<const std::byte> frame, uint16_t port, RainFrame& parsed) {
  UdpFrame udp;
  if (const Malformed bad = ParseUdp(frame, port, udp); bad != Malformed::kNone) return bad;
  return ParseRain(udp, parsed);
}

void WriteUdpHeaders(const Endpoint& source, const Endpoint& destination, uint8_t traffic_class,
                     size_t payload_bytes, std::span<std::byte> frame) {
  SLUICE_CHECK(frame.size() >= kHeaderOffset, "there is room for the headers");
  const size_t udp_bytes = kUdpBytes + payload_bytes;
  std::byte* ethernet = frame.data();
  std::memcpy(ethernet, destination.mac.data(), destination.mac.size());
  std::memcpy(ethernet + 6, source.mac.data(), source.mac.size());
  StoreBigEndian<uint16_t>(ethernet + 12, kEtherTypeIpv4);

  std::byte* ip = ethernet + kIpv4Offset;
  StoreBigEndian<uint8_t>(ip, kVersionAndLength);
  StoreBigEndian<uint8_t>(ip + 1, traffic_class);
  StoreBigEndian<uint16_t>(ip + 2, static_cast<uint16_t>(kIpv4Bytes + udp_bytes));
  StoreBigEndian<uint16_t>(ip + 4, 0);
  StoreBigEndian<uint16_t>(ip + 6, kDoNotFragment);
  StoreBigEndian<uint8_t>(ip + 8, kTimeToLive);
  StoreBigEndian<uint8_t>(ip + 9, kProtocolUdp);
  StoreBigEndian<uint16_t>(ip + 10, 0);
  StoreBigEndian<uint32_t>(ip + 12, source.ip);
  StoreBigEndian<uint32_t>(ip + 16, destination.ip);
  StoreBigEndian<uint16_t>(ip + 10, Ipv4Checksum({ip, kIpv4Bytes}));

  std::byte* udp = ethernet + kUdpOffset;
  StoreBigEndian<uint16_t>(udp, source.port);
  StoreBigEndian<uint16_t>(udp + 2, destination.port);
  StoreBigEndian<uint16_t>(udp + 4, static_cast<uint16_t>(udp_bytes));
  StoreBigEndian<uint16_t>(udp + 6, 0);
}

std::span<std::byte> BuildFrame(const Endpoint& source, const Endpoint& destination,
                                const Header& header, std::span<const std::byte> payload,
                                std::span<std::byte> out) {
  const size_t body_bytes = BodyBytes(header);
  const size_t frame_bytes = kBodyOffset + body_bytes;
  if (out.size() < frame_bytes) return {};
  WriteUdpHeaders(source, destination, kDefaultTrafficClass, kHeaderBytes + body_bytes, out);
  EncodeHeader(header, out.subspan<kHeaderOffset, kHeaderBytes>());
  if (body_bytes > 0) {
    SLUICE_CHECK(payload.size() == header.size, "the payload is what SetPayload() was given");
    std::ranges::copy(payload, out.begin() + kBodyOffset);
    std::ranges::fill(out.subspan(kBodyOffset + payload.size(), body_bytes - payload.size()),
                      std::byte{0});
  }
  return out.first(frame_bytes);
}

}  // namespace sluice::rain
