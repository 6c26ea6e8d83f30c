// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "p4_scheduler/packet/header.h"

// Rain packets as Ethernet frames: Ethernet, IPv4 without options, UDP, the Rain header, and the
// body. Codec only: parsing gives views into the frame, building writes into the caller's bytes.
namespace sluice::rain {

constexpr size_t kEthernetBytes = 14;
constexpr size_t kIpv4Bytes = 20;
constexpr size_t kUdpBytes = 8;
constexpr size_t kIpv4Offset = kEthernetBytes;
constexpr size_t kUdpOffset = kIpv4Offset + kIpv4Bytes;
constexpr size_t kHeaderOffset = kUdpOffset + kUdpBytes;
constexpr size_t kBodyOffset = kHeaderOffset + kHeaderBytes;
constexpr size_t kMaxFrameBytes = kBodyOffset + kMaxPayloadBytes + kTrailerBytes;

using Mac = std::array<uint8_t, 6>;

// One end of a UDP packet; numbers in host byte order.
struct Endpoint {
  Mac mac = {};
  uint32_t ip = 0;
  uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
};

// The addresses of a frame that carries UDP over IPv4, and what follows.
struct UdpFrame {
  Endpoint source;
  Endpoint destination;
  std::span<const std::byte> payload;  // As long as the UDP header says.
};

// A packet for UDP port `port`, of whatever protocol. kNotRain: anything else. Bytes of the frame
// after the IPv4 packet (Ethernet padding) are ignored. The UDP checksum is not looked at: a switch
// cannot see enough of a packet to check it, and Rain has checksums of its own.
[[nodiscard]] Malformed ParseUdp(std::span<const std::byte> frame, uint16_t port, UdpFrame& parsed);

// One Rain packet.
struct RainFrame {
  Endpoint source;
  Endpoint destination;
  Header header;
  std::span<const std::byte> body;  // Padded payload and trailer, or nothing.

  // The payload where this packet has it: not that of a kPrewritten DISPATCH. A view into this
  // object or the frame.
  std::span<const std::byte> Payload() const {
    if (!IsLarge(header.size)) return std::span(header.data).first(header.size);
    return body.empty() ? body : body.first(header.size);
  }
};

// The second half of ParseFrame().
[[nodiscard]] Malformed ParseRain(const UdpFrame& udp, RainFrame& parsed);
[[nodiscard]] Malformed ParseFrame(std::span<const std::byte> frame, uint16_t port,
                                   RainFrame& parsed);

constexpr size_t FrameBytes(const Header& header) { return kBodyOffset + BodyBytes(header); }

// What the network shall do with a packet (DSCP and ECN: whether PFC and ECN apply to it).
constexpr uint8_t kDefaultTrafficClass = 0;
constexpr uint8_t kTimeToLive = 64;

// Writes Ethernet, IPv4 and UDP headers in front of `payload_bytes` that are there or will be. The
// UDP checksum is 0, that is none. Requires kHeaderOffset bytes.
void WriteUdpHeaders(const Endpoint& source, const Endpoint& destination, uint8_t traffic_class,
                     size_t payload_bytes, std::span<std::byte> frame);

// Writes a whole packet and gives its bytes, or none where `out` is too short. `payload` is the
// whole payload, as given to SetPayload().
std::span<std::byte> BuildFrame(const Endpoint& source, const Endpoint& destination,
                                const Header& header, std::span<const std::byte> payload,
                                std::span<std::byte> out);

}  // namespace sluice::rain
