// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/client_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "daemon/control/client_server_testing.h"

namespace sluice::control::testing {
namespace {

// An attached client and what it holds, seen from both sides.
class ClientMemoryTest : public ClientServerTest {
 protected:
  void AttachClient() {
    Attached attached;
    fd_ = AttachRaw(&attached);
    client_ = attached.client;
  }
  // Introduces the client to an I/O thread.
  void ConnectVia(const char* host, uint32_t channel = 0) {
    OpenChannelRaw(fd_, channel, 16);
    ASSERT_TRUE(Send(fd_, ConnectMessage(channel, host, 1, 1)));
    MapNext(fd_, rings_);
    const uint32_t thread = peers.peers.at(host).io_thread;
    ASSERT_TRUE(Until([&] { return Told<io::OpenSocket>(thread) != nullptr; }));
  }
  Blocks GrowBy(uint64_t bytes, bool by_extent) {
    EXPECT_TRUE(Send(fd_, GrowMessage(bytes)));
    if (by_extent) TakeExtent();
    return Expect<Blocks>(fd_, Type::kBlocks);
  }
  void TakeExtent() {
    std::vector<Mapping> mapped;
    const Region region = MapNext(fd_, mapped);
    extents_.emplace(region.pool_offset, std::pair(region.region, std::move(mapped.at(0))));
  }
  void ShrinkBy(const Blocks& blocks) {
    auto message = MakeMessage<Shrink>(Type::kShrink, 6);
    message.pool_offset = blocks.pool_offset;
    message.bytes = blocks.bytes;
    ASSERT_TRUE(Send(fd_, message));
    Settle();
  }
  void ConfirmUnmap(uint32_t region) {
    auto message = MakeMessage<Unmapped>(Type::kUnmapped, 0);
    message.region = region;
    ASSERT_TRUE(Send(fd_, message));
  }
  ClientSnapshot Client() { return server->Snapshot().clients.at(0); }

  Fd fd_;
  io::ClientId client_ = 0;
  std::vector<Mapping> rings_;
  std::map<uint64_t, std::pair<uint32_t, Mapping>> extents_;  // By offset: region and mapping.
};

TEST_F(ClientMemoryTest, BlocksComeFromExtentsThatAreThereBeforeANewOneIsMade) {
  StartServer();
  AttachClient();
  EXPECT_EQ(GrowBy(4 * kMiB, true).pool_offset, 0u);
  EXPECT_EQ(GrowBy(1, false).pool_offset, 4 * kMiB);
  EXPECT_EQ(GrowBy(24 * kMiB, false).pool_offset, 8 * kMiB);
  EXPECT_EQ(GrowBy(1, true).pool_offset, 32 * kMiB);
  EXPECT_EQ(Client().extents, 2u);
}

TEST_F(ClientMemoryTest, AfterConfirmingTheClientCannotTouchTheFileAnyMore) {
  StartServer();
  AttachClient();
  ASSERT_TRUE(Send(fd_, GrowMessage(1)));
  std::vector<Fd> fds;
  const auto region = Expect<Region>(fd_, Type::kRegion, &fds);
  ASSERT_EQ(fds.size(), 1u);
  const Mapping mapping(fds[0].get(), region.bytes);
  ASSERT_TRUE(Send(fd_, MappedMessage(region.region)));
  Expect<Blocks>(fd_, Type::kBlocks);
  EXPECT_EQ(fallocate(fds[0].get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(ftruncate(fds[0].get(), 0), -1);
  EXPECT_EQ(write(fds[0].get(), "x", 1), -1);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, fds[0].get(), 0), MAP_FAILED);
  mapping.base[region.bytes - 1] = std::byte{1};
}

TEST_F(ClientMemoryTest, AClientThatPunchesHolesBeforeConfirmingIsDetached) {
  StartServer();
  AttachClient();
  ASSERT_TRUE(Send(fd_, GrowMessage(1)));
  std::vector<Fd> fds;
  const auto region = Expect<Region>(fd_, Type::kRegion, &fds);
  ASSERT_EQ(fallocate(fds.at(0).get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  ASSERT_TRUE(Send(fd_, MappedMessage(region.region)));
  EXPECT_EQ(Expect<Detached>(fd_, Type::kDetached).error, EPROTO);
  EXPECT_TRUE(Ended(fd_));
}

TEST_F(ClientMemoryTest, ConfirmingAnExtentTwiceDetaches) {
  StartServer();
  AttachClient();
  GrowBy(1, true);
  ASSERT_TRUE(Send(fd_, MappedMessage(extents_.begin()->second.first)));
  EXPECT_EQ(Expect<Detached>(fd_, Type::kDetached).error, EPROTO);
}

TEST_F(ClientMemoryTest, AClientThatCannotMapIsAnsweredAndMayTryAgain) {
  StartServer();
  AttachClient();
  ASSERT_TRUE(Send(fd_, GrowMessage(1)));
  std::vector<Fd> fds;
  const auto region = Expect<Region>(fd_, Type::kRegion, &fds);
  fds.clear();
  ASSERT_TRUE(Send(fd_, MappedMessage(region.region, ENOMEM)));
  EXPECT_EQ(ExpectError(fd_, ENOMEM).header.request, 5u);
  ASSERT_TRUE(Until([&] { return Client().pool_bytes == 0; }));
  EXPECT_EQ(GrowBy(1, true).bytes, 4 * kMiB);
}

TEST_F(ClientMemoryTest, BeyondItsQuotaAClientIsRefusedAndKeepsWhatItHas) {
  StartServer();
  AttachClient();
  GrowBy(64 * kMiB, true);
  ASSERT_TRUE(Send(fd_, GrowMessage(64 * kMiB)));
  const ErrorReply reply = ExpectError(fd_, ENOMEM);
  EXPECT_NE(std::string(reply.text).find("quota"), std::string::npos) << reply.text;
  GrowBy(32 * kMiB, true);
  EXPECT_EQ(Client().pool_bytes, 96 * kMiB);
  EXPECT_EQ(server->Snapshot().counters.memory_refused, 1u);
}

TEST_F(ClientMemoryTest, TheNodesCapHoldsAcrossClients) {
  options.limits.memory_bytes = 40 * kMiB;
  StartServer();
  AttachClient();
  GrowBy(1, true);
  const Fd other = AttachRaw();
  ASSERT_TRUE(Send(other, GrowMessage(1)));
  const ErrorReply reply = ExpectError(other, ENOMEM);
  EXPECT_NE(std::string(reply.text).find("node's"), std::string::npos) << reply.text;
  fd_.Reset();
  extents_.clear();
  ASSERT_TRUE(UntilInTime([&] { return server->Snapshot().memory_bytes == 0; }));
  ASSERT_TRUE(Send(other, GrowMessage(1)));
  Expect<Region>(other, Type::kRegion);
}

TEST_F(ClientMemoryTest, FullMemoryIsAnErrorReplyAndNothingIsMade) {
  uint64_t asked_bytes = 0;
  headroom = [&](uint64_t bytes) -> Result<> {
    asked_bytes = bytes;
    return Fail(ErrorCode::kNoMemory, "the memory cgroup is full");
  };
  StartServer();
  AttachClient();
  ASSERT_TRUE(Send(fd_, GrowMessage(1)));
  EXPECT_STREQ(ExpectError(fd_, ENOMEM).text, "the memory cgroup is full");
  EXPECT_EQ(asked_bytes, 32 * kMiB);
  EXPECT_EQ(server->Snapshot().memory_bytes, 0u);
  headroom = nullptr;
  GrowBy(1, true);
}

TEST_F(ClientMemoryTest, AThreadInNeedOfReceiveBlocksGetsThemOnceTheExtentIsConfirmed) {
  StartServer();
  AttachClient();
  ConnectVia("there");
  ConnectVia("far", 1);
  server->OnIoMessage(io::NeedReceiveBlocks{1, client_, 8 * kMiB});
  EXPECT_EQ(Told<io::AddReceiveBlocks>(1), nullptr);
  TakeExtent();
  ASSERT_TRUE(Until([&] { return Told<io::AddReceiveBlocks>(1) != nullptr; }));
  EXPECT_EQ(Told<io::AddReceiveBlocks>(1)->bytes, 8 * kMiB);
  EXPECT_EQ(Told<io::AddExtent>(0)->bytes, 32 * kMiB) << "every thread that knows the client";
  EXPECT_TRUE(std::holds_alternative<io::AddExtent>(told[1][told[1].size() - 2]))
      << "before the blocks in it";
  EXPECT_EQ(Client().receive_bytes, 8 * kMiB);
  // Those are not the client's to send from, nor to give back.
  auto shrink = MakeMessage<Shrink>(Type::kShrink, 6);
  shrink.pool_offset = Told<io::AddReceiveBlocks>(1)->pool_offset;
  shrink.bytes = 4 * kMiB;
  ASSERT_TRUE(Send(fd_, shrink));
  ExpectError(fd_, EINVAL);
  EXPECT_NE(GrowBy(1, false).pool_offset, shrink.pool_offset);
}

TEST_F(ClientMemoryTest, AThreadIsDeniedWhenTheQuotaIsUsedUp) {
  options.tenants[0].pool_quota_bytes = 32 * kMiB;
  StartServer();
  AttachClient();
  ConnectVia("there");
  GrowBy(32 * kMiB, true);
  server->OnIoMessage(io::NeedReceiveBlocks{0, client_, 4 * kMiB});
  ASSERT_TRUE(Until([&] { return Told<io::AddReceiveBlocks>(0) != nullptr; }));
  EXPECT_EQ(Told<io::AddReceiveBlocks>(0)->bytes, 0u);
}

TEST_F(ClientMemoryTest, AStoppedClientsNeedsAreRefusedInTimeAndServedWhenItWakes) {
  StartServer();
  AttachClient();
  ConnectVia("there");
  server->OnIoMessage(io::NeedReceiveBlocks{0, client_, 4 * kMiB});
  ASSERT_TRUE(Until([&] { return server->Snapshot().counters.extents_made == 1; }));
  Advance(options.mapping_deadline_ns);
  ASSERT_NE(Told<io::AddReceiveBlocks>(0), nullptr);
  EXPECT_EQ(Told<io::AddReceiveBlocks>(0)->bytes, 0u);
  TakeExtent();  // It wakes and confirms.
  ASSERT_TRUE(Until([&] { return Told<io::AddExtent>(0) != nullptr; }));
  server->OnIoMessage(io::NeedReceiveBlocks{0, client_, 4 * kMiB});
  ASSERT_TRUE(Until([&] { return Told<io::AddReceiveBlocks>(0)->bytes == 4 * kMiB; }));
}

TEST_F(ClientMemoryTest, UnusedExtentsButOneGoBackAfterAWhile) {
  StartServer();
  AttachClient();
  ConnectVia("there");
  const Blocks lower = GrowBy(32 * kMiB, true);
  const Blocks upper = GrowBy(32 * kMiB, true);
  ShrinkBy(lower);
  ShrinkBy(upper);
  Advance(options.extent_idle_ns - 1);
  EXPECT_EQ(Told<io::RemoveExtent>(0), nullptr);
  Advance(1);
  ASSERT_NE(Told<io::RemoveExtent>(0), nullptr);
  EXPECT_EQ(Told<io::RemoveExtent>(0)->pool_offset, 32 * kMiB);
  const auto unmap = Expect<Unmap>(fd_, Type::kUnmap);
  EXPECT_EQ(unmap.region, extents_.at(32 * kMiB).first);
  EXPECT_EQ(Client().pool_bytes, 64 * kMiB) << "until the client has unmapped it";
  extents_.erase(32 * kMiB);
  ConfirmUnmap(unmap.region);
  ASSERT_TRUE(Until([&] { return Client().pool_bytes == 32 * kMiB; }));
  EXPECT_EQ(CountTold<io::RemoveExtent>(0), 1u) << "one stays";
  EXPECT_EQ(server->Snapshot().memory_bytes, 32 * kMiB + Client().ring_bytes);
  GrowBy(32 * kMiB, false);
}

TEST_F(ClientMemoryTest, AnExtentIsNotUnmappedWhileAThreadStillTouchesIt) {
  StartServer();
  AttachClient();
  ConnectVia("there");
  const Blocks lower = GrowBy(32 * kMiB, true);
  const Blocks upper = GrowBy(32 * kMiB, true);
  ShrinkBy(lower);
  ShrinkBy(upper);
  io_stalls = true;
  Advance(options.extent_idle_ns);
  ASSERT_NE(Told<io::RemoveExtent>(0), nullptr);
  EXPECT_TRUE(Silent(fd_));
  server->OnIoMessage(io::ExtentReleased{0, client_, 32 * kMiB});
  Expect<Unmap>(fd_, Type::kUnmap);
}

TEST_F(ClientMemoryTest, AClientThatClaimsToHaveUnmappedStaysChargedUntilItHas) {
  StartServer();
  AttachClient();
  const Blocks lower = GrowBy(32 * kMiB, true);
  const Blocks upper = GrowBy(32 * kMiB, true);
  ShrinkBy(lower);
  ShrinkBy(upper);
  Advance(options.extent_idle_ns);
  const auto unmap = Expect<Unmap>(fd_, Type::kUnmap);
  ConfirmUnmap(unmap.region);  // A lie: the mapping is still there.
  ASSERT_TRUE(Until([&] { return server->Snapshot().lingering_bytes == 32 * kMiB; }));
  EXPECT_EQ(Client().pool_bytes, 64 * kMiB);
  ConfirmUnmap(unmap.region);  // Once is enough.
  ExpectError(fd_, ENOENT);
  extents_.erase(32 * kMiB);
  Advance(ClientServer::kReclaimPollNs);
  EXPECT_TRUE(Until([&] { return Client().pool_bytes == 32 * kMiB; }));
}

TEST_F(ClientMemoryTest, UnusedExtentsMakeWayForABufferThatNeedsTheQuota) {
  StartServer();
  AttachClient();
  const Blocks lower = GrowBy(32 * kMiB, true);
  const Blocks upper = GrowBy(32 * kMiB, true);
  ShrinkBy(lower);
  ShrinkBy(upper);
  ASSERT_TRUE(Send(fd_, GrowMessage(80 * kMiB)));
  for (int i = 0; i < 2; ++i) {
    const auto unmap = Expect<Unmap>(fd_, Type::kUnmap);
    std::erase_if(extents_, [&](const auto& entry) { return entry.second.first == unmap.region; });
    ConfirmUnmap(unmap.region);
  }
  TakeExtent();
  EXPECT_EQ(Expect<Blocks>(fd_, Type::kBlocks).bytes, 80 * kMiB);
}

TEST_F(ClientMemoryTest, IdleReceiveBlocksCanBeLeasedAgain) {
  options.tenants[0].pool_quota_bytes = 32 * kMiB;
  StartServer();
  AttachClient();
  ConnectVia("there");
  server->OnIoMessage(io::NeedReceiveBlocks{0, client_, 32 * kMiB});
  TakeExtent();
  ASSERT_TRUE(Until([&] { return Told<io::AddReceiveBlocks>(0) != nullptr; }));
  server->OnIoMessage(io::ReceiveBlocksIdle{0, client_, 8 * kMiB, 8 * kMiB});
  EXPECT_EQ(GrowBy(8 * kMiB, false).pool_offset, 8 * kMiB);
}

TEST_F(ClientMemoryTest, ALoweredQuotaAppliesToAttachedClients) {
  StartServer();
  AttachClient();
  GrowBy(1, true);
  options.tenants[0].pool_quota_bytes = 32 * kMiB;
  server->Reconfigure(options.tenants, options.limits);
  ASSERT_TRUE(Send(fd_, GrowMessage(32 * kMiB)));
  ExpectError(fd_, ENOMEM);
  EXPECT_EQ(Client().quota_bytes, 32 * kMiB);
}

}  // namespace
}  // namespace sluice::control::testing
