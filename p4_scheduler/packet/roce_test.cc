// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/packet/roce.h"

#include <gtest/gtest.h>

#include <set>

#include "p4_scheduler/packet/bytes.h"
#include "p4_scheduler/packet/golden_testing.h"

namespace sluice::rain {
namespace {

BadWrite Parse(std::span<const std::byte> frame) {
  ParsedWrite parsed;
  return ParseWrite(frame, parsed);
}

std::vector<std::byte> Bytes(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

TEST(RoceWrite, GoldenFramesAreBuiltBitForBitHoweverTheDataIsSplit) {
  for (const GoldenWrite& golden : GoldenWrites()) {
    SCOPED_TRACE(golden.name);
    const std::span<const std::byte> data = golden.data;
    for (const size_t split : {size_t{0}, data.size() / 3, data.size()}) {
      const SharedWriteData shared(data.first(split), data.subspan(split));
      std::vector<std::byte> out(kMaxWriteFrameBytes, std::byte{0xee});
      EXPECT_EQ(Bytes(BuildWrite(golden.source, golden.destination, kDefaultTrafficClass,
                                 golden.write, shared, out)),
                golden.frame);
      EXPECT_TRUE(BuildWrite(golden.source, golden.destination, kDefaultTrafficClass, golden.write,
                             shared, std::span(out).first(golden.frame.size() - 1))
                      .empty());
    }
  }
}

TEST(RoceWrite, GoldenFramesAreParsedToTheirFields) {
  for (const GoldenWrite& golden : GoldenWrites()) {
    SCOPED_TRACE(golden.name);
    ParsedWrite parsed;
    ASSERT_EQ(ParseWrite(golden.frame, parsed), BadWrite::kNone);
    EXPECT_EQ(parsed.source.ip, golden.source.ip);
    EXPECT_EQ(parsed.destination.mac, golden.destination.mac);
    EXPECT_EQ(parsed.write.opcode, golden.write.opcode);
    EXPECT_EQ(parsed.write.wants_ack, golden.write.wants_ack);
    EXPECT_EQ(parsed.write.queue_pair, golden.write.queue_pair);
    EXPECT_EQ(parsed.write.psn, golden.write.psn);
    EXPECT_EQ(parsed.write.address, golden.write.address);
    EXPECT_EQ(parsed.write.rkey, golden.write.rkey);
    EXPECT_EQ(Bytes(parsed.data), golden.data);
  }
}

TEST(RoceWrite, TheLargestWriteIsOneMtu) {
  const std::vector<std::byte> data(kMaxRdmaBytes, std::byte{0x5a});
  const SharedWriteData shared(data, {});
  std::vector<std::byte> out(kMaxWriteFrameBytes);
  const auto frame = BuildWrite({}, {}, kDefaultTrafficClass, {}, shared, out);
  ASSERT_EQ(frame.size(), kMaxWriteFrameBytes);
  EXPECT_EQ(Parse(frame), BadWrite::kNone);
}

// Everything but what routers may change is under the ICRC.
TEST(RoceWrite, AnyFlippedBitIsFoundExceptInFieldsThatRoutersChange) {
  const std::vector<std::byte> good = GoldenWriteNamed("replica of the large task").frame;
  const std::set<size_t> free = {kIpv4Offset + 1, kUdpOffset + 6, kUdpOffset + 7, kBthOffset + 4};
  for (size_t offset = kIpv4Offset; offset < good.size(); ++offset) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> frame = good;
      frame[offset] ^= static_cast<std::byte>(1 << bit);
      if (offset < kUdpOffset && (offset - kIpv4Offset) / 2 != 5) {
        // Routers keep IPv4's own checksum right.
        StoreBigEndian<uint16_t>(&frame[kIpv4Offset + 10], 0);
        uint32_t sum = 0;
        for (size_t i = 0; i < kIpv4Bytes; i += 2) {
          sum += LoadBigEndian<uint16_t>(&frame[kIpv4Offset + i]);
        }
        sum = (sum & 0xffff) + (sum >> 16);
        StoreBigEndian<uint16_t>(&frame[kIpv4Offset + 10], static_cast<uint16_t>(~sum));
      }
      const bool may_pass = free.contains(offset) || offset == kIpv4Offset + 8;
      ASSERT_EQ(Parse(frame) == BadWrite::kNone, may_pass) << offset << " bit " << bit;
    }
  }
}

TEST(RoceWrite, EachWrongFieldIsNamed) {
  const std::vector<std::byte> good = GoldenWriteNamed("replica of the large task").frame;
  const auto with = [&](size_t offset, uint8_t value) {
    std::vector<std::byte> frame = good;
    frame[offset] = static_cast<std::byte>(value);
    return Parse(frame);
  };
  EXPECT_EQ(with(kBthOffset, 0x06), BadWrite::kOpcode) << "WRITE FIRST";
  EXPECT_EQ(with(kBthOffset + 1, 0x41), BadWrite::kOpcode) << "another transport version";
  EXPECT_EQ(with(kBthOffset + 1, 0x50), BadWrite::kOpcode) << "padding";
  EXPECT_EQ(with(kRethOffset + 15, 0), BadWrite::kLength);
  EXPECT_EQ(with(kBthOffset + 7, 0), BadWrite::kIcrc) << "another queue pair";
  EXPECT_EQ(with(good.size() - 1, 0), BadWrite::kIcrc);
  EXPECT_EQ(with(kUdpOffset + 3, 0), BadWrite::kNotRoce);
  EXPECT_EQ(Parse(std::span(good).first(good.size() - 1)), BadWrite::kTruncated);
  EXPECT_EQ(Parse({}), BadWrite::kNotRoce);
}

}  // namespace
}  // namespace sluice::rain
