// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/client_server.h"

#include <gtest/gtest.h>

#include "daemon/control/client_server_testing.h"

namespace sluice::control::testing {
namespace {

TEST_F(ClientServerTest, AClientAttachesOpensAChannelListensConnectsAndGrows) {
  StartServer();
  Attached attached;
  const Fd fd = AttachRaw(&attached);
  EXPECT_EQ(attached.version, kVersionMax);
  EXPECT_EQ(attached.io_threads, kIoThreads);
  EXPECT_EQ(attached.instance, 77u);
  EXPECT_EQ(attached.pool_reserve_bytes, 96 * kMiB);
  OpenChannelRaw(fd, 0);
  ListenRaw(fd, 0, 80, 1234);

  std::vector<Mapping> mappings;
  ASSERT_TRUE(Send(fd, GrowMessage(5 * kMiB)));
  const Region extent = MapNext(fd, mappings);
  EXPECT_EQ(extent.kind, RegionKind::kExtent);
  EXPECT_EQ(extent.bytes, 32 * kMiB);
  const auto blocks = Expect<Blocks>(fd, Type::kBlocks);
  EXPECT_EQ(blocks.bytes, 8 * kMiB);
  EXPECT_EQ(blocks.header.request, 5u);

  ASSERT_TRUE(Send(fd, ConnectMessage(0, "far:99", 80, 42)));
  const Region ring = MapNext(fd, mappings);
  EXPECT_EQ(ring.kind, RegionKind::kRingPair);
  EXPECT_EQ(ring.io_thread, 1u);
  ASSERT_TRUE(Until([&] { return Told<io::OpenSocket>(1) != nullptr; }));
  EXPECT_EQ(peers.last_port, 99);
  ASSERT_EQ(told[1].size(), 4u);
  EXPECT_TRUE(std::holds_alternative<io::AddClient>(told[1][0]));
  EXPECT_TRUE(std::holds_alternative<io::AddExtent>(told[1][1]));
  EXPECT_TRUE(std::holds_alternative<io::AddPort>(told[1][2]));
  const auto& open = std::get<io::OpenSocket>(told[1][3]);
  EXPECT_EQ(open.peer, 8u);
  EXPECT_EQ(open.token, 42u);
  EXPECT_EQ(open.service, 80);
  EXPECT_TRUE(told[0].empty());
}

}  // namespace
}  // namespace sluice::control::testing
