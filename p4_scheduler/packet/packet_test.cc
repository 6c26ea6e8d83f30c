// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "p4_scheduler/packet/bytes.h"
#include "p4_scheduler/packet/checksum.h"
#include "p4_scheduler/packet/golden_testing.h"

namespace sluice::rain {
namespace {

std::vector<std::byte> Bytes(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> Pattern(size_t bytes) {
  std::vector<std::byte> pattern(bytes);
  for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<std::byte>(i * 7 + 3);
  return pattern;
}

// Restores the IPv4 checksum after a test has changed that header.
void FixIpv4(std::vector<std::byte>& frame) {
  StoreBigEndian<uint16_t>(&frame[kIpv4Offset + 10], 0);
  const uint16_t sum = Ipv4Checksum(std::span(frame).subspan(kIpv4Offset, kIpv4Bytes));
  StoreBigEndian<uint16_t>(&frame[kIpv4Offset + 10], sum);
}

Malformed Parse(std::span<const std::byte> frame, uint16_t port = kUdpPort) {
  RainFrame parsed;
  return ParseFrame(frame, port, parsed);
}

TEST(RainPacket, GoldenFramesAreParsedToTheirFields) {
  for (const GoldenPacket& golden : GoldenPackets()) {
    SCOPED_TRACE(golden.name);
    RainFrame parsed;
    ASSERT_EQ(ParseFrame(golden.frame, golden.destination.port, parsed), Malformed::kNone);
    EXPECT_EQ(parsed.source, golden.source);
    EXPECT_EQ(parsed.destination, golden.destination);
    EXPECT_EQ(parsed.header, golden.header);
    if ((golden.header.flags & kPrewritten) == 0) {
      EXPECT_EQ(Bytes(parsed.Payload()), golden.payload);
    } else {
      EXPECT_TRUE(parsed.Payload().empty());
    }
  }
}

TEST(RainPacket, GoldenFramesAreBuiltBitForBit) {
  std::set<Kind> kinds;
  for (const GoldenPacket& golden : GoldenPackets()) {
    SCOPED_TRACE(golden.name);
    std::vector<std::byte> out(kMaxFrameBytes, std::byte{0xee});
    const auto built = BuildFrame(golden.source, golden.destination, golden.header, golden.payload,
                                  out);
    EXPECT_EQ(Bytes(built), golden.frame);
    EXPECT_EQ(FrameBytes(golden.header), golden.frame.size());
    kinds.insert(golden.header.kind);
  }
  EXPECT_EQ(kinds.size(), 8u) << "the file has every kind";
}

TEST(RainPacket, APayloadOrItsDigestLiesInTheHeader) {
  for (const GoldenPacket& golden : GoldenPackets()) {
    SCOPED_TRACE(golden.name);
    if (golden.header.kind == Kind::kProbe) continue;  // Its data is no payload.
    Header header;
    SetPayload(header, golden.payload);
    EXPECT_EQ(header.size, golden.header.size);
    EXPECT_EQ(header.data, golden.header.data);
    if (IsLarge(header.size)) {
      EXPECT_EQ(DigestIn(header), DigestOf(golden.payload));
    }
  }
}

TEST(RainPacket, EverySizeSurvivesTheRoundTrip) {
  const Endpoint a{{2, 0, 0, 0, 0, 1}, 1, 17001}, b{{2, 0, 0, 0, 0, 2}, 2, kUdpPort};
  for (const size_t bytes : {0, 1, 7, 8, 9, 11, 12, 13, 1400, 4052, 4055, 4056}) {
    SCOPED_TRACE(bytes);
    const std::vector<std::byte> payload = Pattern(bytes);
    Header header{.fragments = 1};
    SetPayload(header, payload);
    std::vector<std::byte> out(kMaxFrameBytes);
    const auto built = BuildFrame(a, b, header, payload, out);
    RainFrame parsed;
    ASSERT_EQ(ParseFrame(built, kUdpPort, parsed), Malformed::kNone);
    EXPECT_EQ(parsed.header, header);
    EXPECT_EQ(Bytes(parsed.Payload()), payload);
    EXPECT_EQ((built.size() - kBodyOffset) % 4, 0u);
    EXPECT_TRUE(BuildFrame(a, b, header, payload, std::span(out).first(built.size() - 1)).empty());
  }
}

TEST(RainPacket, OneByteMoreThanTheLargestPayloadIsRefused) {
  std::vector<std::byte> frame = GoldenPacketNamed("large task").frame;
  StoreBigEndian<uint16_t>(&frame[kHeaderOffset + 10], kMaxPayloadBytes + 1);
  EXPECT_EQ(Parse(frame), Malformed::kSize);
}

TEST(RainPacket, NoPrefixOfAFrameIsAFrame) {
  for (const GoldenPacket& golden : GoldenPackets()) {
    SCOPED_TRACE(golden.name);
    for (size_t bytes = 0; bytes < golden.frame.size(); ++bytes) {
      // A copy of exactly that size, so that a sanitizer sees a read beyond it.
      const std::vector<std::byte> prefix(golden.frame.begin(),
                                          golden.frame.begin() + static_cast<ptrdiff_t>(bytes));
      ASSERT_EQ(Parse(prefix, golden.destination.port),
                bytes < kHeaderOffset ? Malformed::kNotRain : Malformed::kTruncated)
          << bytes;
    }
  }
}

TEST(RainPacket, BytesAfterTheIpPacketAreIgnored) {
  std::vector<std::byte> frame = GoldenPacketNamed("token").frame;
  frame.resize(frame.size() + 5);
  EXPECT_EQ(Parse(frame), Malformed::kNone);
}

TEST(RainPacket, OtherTrafficIsNotRain) {
  const std::vector<std::byte> good = GoldenPacketNamed("small task").frame;
  EXPECT_EQ(Parse(good, kUdpPort + 1), Malformed::kNotRain);
  const auto with = [&](size_t offset, uint8_t value) {
    std::vector<std::byte> frame = good;
    frame[offset] = static_cast<std::byte>(value);
    FixIpv4(frame);
    return Parse(frame);
  };
  EXPECT_EQ(with(13, 0x06), Malformed::kNotRain) << "ARP";
  EXPECT_EQ(with(kIpv4Offset, 0x46), Malformed::kNotRain) << "IPv4 with options";
  EXPECT_EQ(with(kIpv4Offset + 9, 6), Malformed::kNotRain) << "TCP";
  EXPECT_EQ(with(kIpv4Offset + 7, 1), Malformed::kNotRain) << "a later fragment has no UDP header";
  EXPECT_EQ(with(kIpv4Offset + 6, 0x20), Malformed::kIpv4) << "the first fragment has one";
}

TEST(RainPacket, EachWrongFieldIsNamed) {
  struct Case {
    const char* packet;
    size_t offset;  // Into the Rain header.
    uint8_t value;
    Malformed reason;
  };
  const Case cases[] = {
      {"small task", 0, 2, Malformed::kVersion},
      {"small task", 1, 0, Malformed::kKind},
      {"small task", 1, 9, Malformed::kKind},
      {"small task", 2, kQueued, Malformed::kFlags},
      {"token", 2, kAnswer, Malformed::kFlags},
      {"probe", 2, kPrewritten, Malformed::kFlags},
      {"dispatch from the queue", 2, kQueued | kPrewritten, Malformed::kFlags},
      {"descriptor of a large task", 2, kPrewritten, Malformed::kFlags},
      {"small task", 3, 1, Malformed::kCode},
      {"reset", 3, 0, Malformed::kCode},
      {"reset", 3, 4, Malformed::kCode},
      {"reject: queue full", 3, 0, Malformed::kCode},
      {"reject: queue full", 3, 6, Malformed::kCode},
      {"token", 11, 1, Malformed::kSize},
      {"reject of a token", 11, 1, Malformed::kSize},
      {"small task", 6, 1, Malformed::kFragment},
      {"small task", 7, 2, Malformed::kFragment},
      {"large task", 7, 0, Malformed::kFragment},
      {"token", 7, 1, Malformed::kFragment},
      {"later packet", 6, 0, Malformed::kFragment},
      {"later packet", 6, 3, Malformed::kFragment},
      {"descriptor of a large task", 7, 1, Malformed::kFragment},
      {"large task", 11, 105, Malformed::kLength},
      {"task of 9 bytes", 11, 8, Malformed::kLength},
      {"task of 8 bytes", 11, 9, Malformed::kLength},
  };
  for (const Case& c : cases) {
    std::vector<std::byte> frame = GoldenPacketNamed(c.packet).frame;
    frame[kHeaderOffset + c.offset] = static_cast<std::byte>(c.value);
    EXPECT_EQ(Parse(frame, GoldenPacketNamed(c.packet).destination.port), c.reason)
        << c.packet << ", byte " << c.offset << " = " << int{c.value} << ": "
        << Name(Parse(frame, GoldenPacketNamed(c.packet).destination.port));
  }
}

TEST(RainPacket, LengthsThatDisagreeAreRefused) {
  const std::vector<std::byte> good = GoldenPacketNamed("small task").frame;
  std::vector<std::byte> frame = good;
  frame[kIpv4Offset + 10] ^= std::byte{1};
  EXPECT_EQ(Parse(frame), Malformed::kIpv4);

  frame = good;
  StoreBigEndian<uint16_t>(&frame[kIpv4Offset + 2],
                           static_cast<uint16_t>(good.size() - kIpv4Offset + 1));
  FixIpv4(frame);
  EXPECT_EQ(Parse(frame), Malformed::kTruncated);

  for (const int udp_bytes : {0, 7, 47, 49, 65535}) {
    frame = good;
    StoreBigEndian<uint16_t>(&frame[kUdpOffset + 4], static_cast<uint16_t>(udp_bytes));
    EXPECT_EQ(Parse(frame), Malformed::kLength) << udp_bytes;
  }
}

TEST(RainPacket, RandomValidHeadersSurviveTheRoundTripAndOthersAreRefused) {
  std::mt19937 random(1);
  int valid = 0;
  for (int i = 0; i < 600'000; ++i) {
    std::array<std::byte, kHeaderBytes> bytes;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    bytes[0] = std::byte{kVersion};
    // Mostly small values, since most large ones are refused at once.
    for (const size_t small : {1, 2, 3, 6, 7}) bytes[small] = static_cast<std::byte>(random() % 9);
    bytes[10] = static_cast<std::byte>(random() % 17);
    if (random() % 2 == 0) bytes[10] = bytes[11] = std::byte{0};
    Header header;
    if (DecodeHeader(bytes, header) != Malformed::kNone) continue;
    ++valid;
    ASSERT_LE(header.size, kMaxPayloadBytes);
    std::array<std::byte, kHeaderBytes> again;
    EncodeHeader(header, again);
    ASSERT_EQ(again, bytes) << "every byte of the header is a field";
  }
  EXPECT_GT(valid, 500);
}

TEST(RainPacket, ADescriptorFitsOnlyItsOwnTasksSlot) {
  const Header descriptor = GoldenPacketNamed("descriptor of a large task").header;
  Header slot;
  const GoldenWrite& replica = GoldenWriteNamed("replica of the large task");
  ASSERT_EQ(DecodeHeader(std::span(replica.data).first<kHeaderBytes>(), slot), Malformed::kNone);
  EXPECT_TRUE(DescribesSameTask(descriptor, slot));
  for (auto change :
       {+[](Header& h) { ++h.ticket; }, +[](Header& h) { ++h.request; },
        +[](Header& h) { ++h.client; }, +[](Header& h) { ++h.size; }, +[](Header& h) { ++h.type; },
        +[](Header& h) { ++h.slice; }, +[](Header& h) { h.data[0] ^= std::byte{1}; }}) {
    Header other = slot;
    change(other);
    EXPECT_FALSE(DescribesSameTask(descriptor, other));
  }
}

TEST(Checksums, Crc32cHasTheStandardsCheckValue) {
  const char* text = "123456789";
  const std::span bytes(reinterpret_cast<const std::byte*>(text), 9);
  EXPECT_EQ(Crc32c(bytes), 0xe3069283u);
  EXPECT_EQ(Crc32cWithoutInstruction(bytes), 0xe3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
}

TEST(Checksums, Crc32cIsTheSameWithAndWithoutTheInstruction) {
  const std::vector<std::byte> bytes = Pattern(300);
  for (size_t offset = 0; offset < 9; ++offset) {
    for (size_t length = 0; length + offset <= bytes.size(); length += 1 + length / 7) {
      const auto part = std::span(bytes).subspan(offset, length);
      ASSERT_EQ(Crc32c(part), Crc32cWithoutInstruction(part)) << offset << " " << length;
    }
  }
}

}  // namespace
}  // namespace sluice::rain
