// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/switch/layer2.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice::rain {
namespace {

Mac Numbered(uint32_t number) {
  return {2,
          0,
          static_cast<uint8_t>(number >> 24),
          static_cast<uint8_t>(number >> 16),
          static_cast<uint8_t>(number >> 8),
          static_cast<uint8_t>(number)};
}

TEST(MacTable, KnowsWhereAnAddressWasLastSeen) {
  MacTable table(64);
  EXPECT_EQ(table.Find(Numbered(1)), std::nullopt);
  table.Learn(Numbered(1), 3);
  table.Learn(Numbered(2), 4);
  EXPECT_EQ(table.Find(Numbered(1)), 3);
  table.Learn(Numbered(1), 5);
  EXPECT_EQ(table.Find(Numbered(1)), 5);
  EXPECT_EQ(table.Find(Numbered(2)), 4);
}

TEST(MacTable, NeverLearnsAGroup) {
  MacTable table(64);
  const Mac broadcast = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
  table.Learn(broadcast, 1);
  EXPECT_EQ(table.Find(broadcast), std::nullopt);
  EXPECT_TRUE(IsMulticast(broadcast));
}

TEST(MacTable, ForgetsOldOnesWhenFullButNeverLies) {
  MacTable table(64);
  for (uint32_t i = 0; i < 10'000; ++i) {
    table.Learn(Numbered(i), static_cast<uint16_t>(i % 7));
    ASSERT_EQ(table.Find(Numbered(i)), i % 7) << "the newest is there";
  }
  int found = 0;
  for (uint32_t i = 0; i < 10'000; ++i) {
    const auto port = table.Find(Numbered(i));
    if (!port) continue;
    ++found;
    ASSERT_EQ(*port, i % 7);
  }
  EXPECT_EQ(found, 64) << "and the table is full";
}

TEST(Arp, ARequestForTheSwitchBecomesItsAnswer) {
  const Endpoint own{{2, 0, 0, 0, 0, 0xfe}, 0x0a4d00fe, kUdpPort};
  const auto bytes = [](std::initializer_list<int> list) {
    std::vector<std::byte> out;
    for (const int value : list) out.push_back(static_cast<std::byte>(value));
    return out;
  };
  std::vector<std::byte> frame = bytes(
      {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0,  0,  0, 0, 1, 8, 6, 0, 1, 8, 0,  6,  4, 0,
       1,    2,    0,    0,    0,    0,    1, 10, 77, 0, 1, 0, 0, 0, 0, 0, 0, 10, 77, 0, 0xfe});
  const std::vector<std::byte> request = frame;
  ASSERT_TRUE(AnswerArp(own, frame));
  EXPECT_EQ(frame,
            bytes({2, 0, 0, 0, 0, 1, 2,    0,  0,  0, 0,    0xfe, 8, 6, 0, 1, 8, 0,  6,  4, 0,
                   2, 2, 0, 0, 0, 0, 0xfe, 10, 77, 0, 0xfe, 2,    0, 0, 0, 0, 1, 10, 77, 0, 1}));
  for (size_t length = 0; length < request.size(); ++length) {
    std::vector<std::byte> cut(request.begin(), request.begin() + static_cast<ptrdiff_t>(length));
    ASSERT_FALSE(AnswerArp(own, cut)) << length;
  }
  frame = request;
  frame.back() = std::byte{1};
  EXPECT_FALSE(AnswerArp(own, frame)) << "for somebody else";
  frame = request;
  frame[21] = std::byte{2};
  EXPECT_FALSE(AnswerArp(own, frame)) << "an answer";
}

}  // namespace
}  // namespace sluice::rain
