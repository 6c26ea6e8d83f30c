// SPDX-License-Identifier: Apache-2.0
// The parts that need no daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "libclient/src/address.h"
#include "libclient/src/granules.h"
#include "libclient/src/inline_slab.h"
#include "libclient/src/name_map.h"
#include "libclient/src/operations.h"
#include "libclient/src/sockets.h"
#include "shm_proto/base/units.h"

namespace sluice::client {
namespace {

TEST(AddressTest, SplitsHostPortAndService) {
  const std::map<std::string, std::pair<std::string, int>> good = {
      {"host:7", {"host", 7}},
      {"host:7001:65535", {"host:7001", 65535}},
      {"10.0.0.1:1", {"10.0.0.1", 1}},
      {"[fe80::1%eth0]:7", {"[fe80::1%eth0]", 7}},
      {"[::1]:7001:9", {"[::1]:7001", 9}}};
  for (const auto& [text, parts] : good) {
    const auto address = ParseAddress(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address->host, parts.first);
    EXPECT_EQ(address->service, parts.second);
  }
}

TEST(AddressTest, RefusesWhatIsNone) {
  for (const std::string text : {"", "host", ":7", "host:", "host:0", "host:65536", "host:x",
                                 "host:1:", "host::7", "host:0:7", "host:1:2:3", "::1:7", "[]:7",
                                 "[::1:7", "[::1]", "[::1]7", "host:-1", "host:+1", "host: 1"}) {
    EXPECT_FALSE(ParseAddress(text)) << text;
  }
  EXPECT_FALSE(ParseAddress(std::string(300, 'h') + ":7"));
  EXPECT_FALSE(ParseAddress(std::string("a\0b:7", 5)));
}

TEST(NameMapTest, BehavesLikeAMapUnderRandomUse) {
  std::mt19937 random(1);
  NameMap names;
  std::map<uint32_t, uint64_t> model;
  for (int i = 0; i < 200'000; ++i) {
    const auto name = static_cast<uint32_t>(random() % 300) * 65'536;
    if (model.contains(name)) {
      ASSERT_EQ(names.Find(name), model[name]);
      if (random() % 2 == 0) {
        names.Remove(name);
        model.erase(name);
      }
    } else {
      ASSERT_EQ(names.Find(name), 0u);
      names.Remove(name);  // Nothing happens.
      names.Insert(name, static_cast<uint64_t>(i) + 1);
      model[name] = static_cast<uint64_t>(i) + 1;
    }
    ASSERT_EQ(names.size(), model.size());
  }
}

// Hidden from the optimiser, which else proves the checks against wrong tokens to be needed and
// warns of them.
[[gnu::noipa]] uint32_t Slots(uint32_t slots) { return slots; }

TEST(OperationTableTest, FindsAnOperationOnceAndOnlyByItsToken) {
  OperationTable table(Slots(4));
  std::vector<uint64_t> tokens;
  for (uint64_t i = 0; i < 4; ++i) {
    Operation operation;
    operation.user_data = i;
    tokens.push_back(table.Begin(operation));
  }
  EXPECT_TRUE(table.full());
  Operation ended;
  ASSERT_TRUE(table.End(tokens[2], ended));
  EXPECT_EQ(ended.user_data, 2u);
  EXPECT_FALSE(table.End(tokens[2], ended));
  EXPECT_NE(table.Begin(Operation{}), tokens[2]) << "the slot has a new generation";
  EXPECT_FALSE(table.End(tokens[2], ended));
  EXPECT_FALSE(table.End(4, ended));
  int left = 0;
  while (table.EndAny(ended)) ++left;
  EXPECT_EQ(left, 4);
  EXPECT_EQ(table.busy(), 0u);
}

TEST(SocketTableTest, ForgetsOldNamesAndKnowsOtherChannelsNames) {
  SocketTable sockets(3), others(4);
  const uint64_t first = sockets.Add(SocketRecord::State::kOpen, 1);
  EXPECT_NE(first, 0u);
  EXPECT_EQ(others.Find(first), nullptr);
  others.Add(SocketRecord::State::kOpen, 1);
  EXPECT_EQ(others.Find(first), nullptr);
  sockets.Remove(first);
  EXPECT_EQ(sockets.Find(first), nullptr);
  const uint64_t second = sockets.Add(SocketRecord::State::kOpen, 2);
  EXPECT_NE(first, second);
  EXPECT_EQ(sockets.Find(0), nullptr);
}

TEST(GranulesTest, FollowsABufferFromBirthToDeath) {
  Granules granules;
  ASSERT_TRUE(granules.Reserve(kMiB));
  ASSERT_TRUE(granules.Born(4096, 130));
  EXPECT_FALSE(granules.Born(4096, 1));
  EXPECT_EQ(granules.Find(4096, 192, kMiB), 4096u);
  EXPECT_EQ(granules.Find(4096 + 100, 30, kMiB), 4096u);
  EXPECT_EQ(granules.Find(4096 + 191, 1, kMiB), 4096u);
  EXPECT_EQ(granules.Find(4096, 193, kMiB), Granules::kNone);
  EXPECT_EQ(granules.Find(4096 + 192, 0, kMiB), Granules::kNone);
  EXPECT_EQ(granules.Find(0, 1, kMiB), Granules::kNone);
  EXPECT_EQ(granules.Find(kMiB, 0, kMiB), Granules::kNone);
  EXPECT_EQ(granules.Find(~uint64_t{0}, 1, kMiB), Granules::kNone);
  EXPECT_TRUE(granules.Send(4096));
  EXPECT_FALSE(granules.Send(4096));
  EXPECT_FALSE(granules.Die(4096));
  EXPECT_FALSE(granules.Empty(0, 8192));
  EXPECT_TRUE(granules.Return(4096));
  EXPECT_TRUE(granules.Die(4096));
  EXPECT_FALSE(granules.Die(4096));
  EXPECT_TRUE(granules.Empty(0, kMiB));
}

TEST(InlineSlabTest, BalancesCellsBetweenChannels) {
  InlineSlab slab;
  ASSERT_TRUE(slab.Reserve());
  InlineSlab::Cache taker, giver;
  // One channel receives, the other frees: the cells must go round.
  std::vector<std::byte*> cells;
  std::byte *lowest = nullptr, *highest = nullptr;
  for (int round = 0; round < 1000; ++round) {
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(slab.Ready(taker));
      cells.push_back(slab.Take(taker));
      lowest = lowest == nullptr ? cells.back() : std::min(lowest, cells.back());
      highest = std::max(highest, cells.back());
    }
    for (std::byte* cell : cells) ASSERT_TRUE(slab.Free(cell, &giver));
    for (std::byte* cell : cells) ASSERT_FALSE(slab.Free(cell, &giver)) << "freed twice";
    cells.clear();
  }
  EXPECT_LT(highest - lowest, 1000 * 64);
}

TEST(InlineSlabTest, SaysWhenAllCellsAreHeld) {
  InlineSlab slab;
  ASSERT_TRUE(slab.Reserve());
  InlineSlab::Cache cache;
  uint32_t taken = 0;
  for (; slab.Ready(cache); ++taken) slab.Take(cache);
  EXPECT_EQ(taken, InlineSlab::kMaxCells);
}

}  // namespace
}  // namespace sluice::client
