// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/client_server.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "daemon/control/client_server_testing.h"

namespace sluice::control::testing {
namespace {

struct OnlyHeader {
  Header header;
};

size_t CountDescriptors() {
  size_t count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// Mappings of shared memory alone: the C library makes and keeps others as it likes.
size_t CountSharedMappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("/memfd:sluice") != std::string::npos;
  return count;
}

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
  ASSERT_EQ(told[1].size(), 4u) << "introduced first: the client, its extent, its port";
  const auto* client = std::get_if<io::AddClient>(&told[1][0]);
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(client->max_message_bytes, attached.max_message_bytes);
  EXPECT_TRUE(std::holds_alternative<io::AddExtent>(told[1][1]));
  EXPECT_TRUE(std::holds_alternative<io::AddPort>(told[1][2]));
  const auto& open = std::get<io::OpenSocket>(told[1][3]);
  EXPECT_EQ(open.peer, 8u);
  EXPECT_EQ(open.token, 42u);
  EXPECT_EQ(open.service, 80);
  EXPECT_TRUE(told[0].empty());

  const ClientServerSnapshot snapshot = server->Snapshot();
  ASSERT_EQ(snapshot.clients.size(), 1u);
  EXPECT_EQ(snapshot.clients[0].name, "raw");
  EXPECT_EQ(snapshot.clients[0].tenant, "tests");
  EXPECT_EQ(snapshot.clients[0].pid, getpid());
  EXPECT_EQ(snapshot.clients[0].pool_bytes, 32 * kMiB);
  EXPECT_EQ(snapshot.clients[0].send_bytes, 8 * kMiB);
  EXPECT_EQ(snapshot.clients[0].sockets, 1u);
  EXPECT_EQ(snapshot.clients[0].listeners, 1u);
  EXPECT_EQ(snapshot.memory_bytes, 32 * kMiB + ring.bytes);
}

// --- attaching ---

TEST_F(ClientServerTest, AVersionMismatchNamesBothSidesVersions) {
  StartServer();
  const Fd fd = ConnectRaw();
  ASSERT_TRUE(Send(fd, AttachMessage(7, 9)));
  const ErrorReply reply = ExpectError(fd, EPROTONOSUPPORT);
  EXPECT_EQ(reply.header.request, 1u);
  EXPECT_EQ(reply.version_min, kVersionMin);
  EXPECT_EQ(reply.version_max, kVersionMax);
  EXPECT_NE(std::string(reply.text).find("7 to 9"), std::string::npos) << reply.text;
  EXPECT_NE(std::string(reply.text).find("this daemon 1 to 1"), std::string::npos) << reply.text;
  EXPECT_TRUE(Ended(fd));
}

TEST_F(ClientServerTest, ALaterVersionsLongerAttachIsAVersionMismatchToo) {
  StartServer();
  const Fd fd = ConnectRaw();
  struct {
    Attach attach = AttachMessage(2, 3);
    uint64_t more[4] = {};
  } longer;
  longer.attach.header.bytes = sizeof(longer);
  ASSERT_TRUE(Send(fd, longer));
  ExpectError(fd, EPROTONOSUPPORT);
  EXPECT_TRUE(Ended(fd));
}

TEST_F(ClientServerTest, AProcessOfNoTenantIsRefusedWithAReason) {
  options.tenants[0].any_user = false;
  options.tenants[0].uids = {getuid() + 1};
  StartServer();
  const Fd fd = ConnectRaw();
  const ErrorReply reply = ExpectError(fd, EACCES);
  EXPECT_NE(std::string(reply.text).find("uid " + std::to_string(getuid())), std::string::npos)
      << reply.text;
  EXPECT_TRUE(Ended(fd));
  EXPECT_EQ(server->client_count(), 0u) << "it waits for nothing that the user says";
  EXPECT_EQ(server->Snapshot().counters.attach_refused, 1u);
  const Fd hasty = ConnectRaw();  // As the library does: it asks before it has heard anything.
  ASSERT_TRUE(Send(hasty, AttachMessage()));
  ExpectError(hasty, EACCES);
  EXPECT_TRUE(Ended(hasty));
}

TEST_F(ClientServerTest, OneClientMoreThanTheTenantMayHaveIsRefusedUntilOneLeaves) {
  options.tenants[0].max_clients = 1;
  StartServer();
  Fd first = AttachRaw();
  const Fd second = ConnectRaw();
  ASSERT_TRUE(Send(second, AttachMessage()));
  ExpectError(second, ENOMEM);
  first.Reset();
  ASSERT_TRUE(Until([&] { return server->client_count() == 0; }));
  AttachRaw();
}

TEST_F(ClientServerTest, AConnectionThatNeverAttachesIsClosed) {
  StartServer();
  const Fd fd = ConnectRaw();
  ASSERT_TRUE(Until([&] { return server->client_count() == 1; }));
  Advance(options.attach_deadline_ns - 1);
  EXPECT_EQ(server->client_count(), 1u);
  Advance(1);
  ExpectError(fd, ETIMEDOUT);
  EXPECT_TRUE(Ended(fd));
}

TEST_F(ClientServerTest, TooManyConnectionsThatDoNotAttachAreRefusedAtTheDoor) {
  StartServer();
  std::vector<Fd> idle;
  for (size_t i = 0; i < ClientServer::kMaxGreetingPerUser; ++i) {
    idle.push_back(ConnectRaw());
    loop.RunOnce(0);
  }
  const Fd fd = ConnectRaw();
  ExpectError(fd, EAGAIN);
  EXPECT_TRUE(Ended(fd));
}

TEST_F(ClientServerTest, ControlBytesInANameAreNotShown) {
  StartServer();
  const Fd fd = ConnectRaw();
  Attach attach = AttachMessage();
  CopyText(attach.name, "a\x1b[31mb");
  ASSERT_TRUE(Send(fd, attach));
  Expect<Attached>(fd, Type::kAttached);
  EXPECT_EQ(server->Snapshot().clients[0].name, "a?[31mb");
}

// --- malformed, out of order, out of range ---

TEST_F(ClientServerTest, PacketsThatAreNoMessagesEndTheConnectionWithAReason) {
  StartServer();
  Attach good = AttachMessage();
  std::vector<std::pair<std::string, std::vector<std::byte>>> cases;
  const auto bytes_of = [](const auto& value, size_t size) {
    const auto* begin = reinterpret_cast<const std::byte*>(&value);
    return std::vector<std::byte>(begin, begin + size);
  };
  cases.emplace_back("one byte", std::vector<std::byte>(1));
  cases.emplace_back("half a header", bytes_of(good, 8));
  cases.emplace_back("shorter than it claims", bytes_of(good, sizeof(good) - 1));
  Attach wrong_magic = good;
  wrong_magic.header.magic ^= 1;
  cases.emplace_back("wrong magic", bytes_of(wrong_magic, sizeof(good)));
  Attach lies = good;
  lies.header.bytes += 8;
  cases.emplace_back("claims more", bytes_of(lies, sizeof(good)));
  std::vector<std::byte> oversized(kMaxMessageBytes + 1);
  std::memcpy(oversized.data(), &good, sizeof(good));
  cases.emplace_back("oversized", oversized);

  for (const bool attached : {false, true}) {
    for (const auto& [what, bytes] : cases) {
      SCOPED_TRACE(what + (attached ? ", attached" : ", before attaching"));
      const Fd fd = attached ? AttachRaw() : ConnectRaw();
      ASSERT_TRUE(SendRaw(fd, bytes.data(), bytes.size()));
      ExpectError(fd, EPROTO);
      if (attached) {
        EXPECT_EQ(Expect<Detached>(fd, Type::kDetached).error, EPROTO);
      }
      EXPECT_TRUE(Ended(fd));
    }
  }
  EXPECT_TRUE(Until([&] { return server->client_count() == 0; }));
}

TEST_F(ClientServerTest, AnEmptyPacketEndsTheConnection) {
  StartServer();
  const Fd fd = AttachRaw();
  ASSERT_TRUE(SendRaw(fd, "", 0));
  EXPECT_TRUE(Ended(fd));
}

TEST_F(ClientServerTest, ARequestBeforeAttachingIsRefusedAndEndsTheConnection) {
  StartServer();
  const Fd fd = ConnectRaw();
  ASSERT_TRUE(Send(fd, GrowMessage(1)));
  EXPECT_EQ(ExpectError(fd, EPROTO).header.request, 5u);
  EXPECT_TRUE(Ended(fd));
}

TEST_F(ClientServerTest, BadRequestsAreAnsweredAndTheClientGoesOn) {
  options.tenants[0].services = {80, 443};
  options.tenants[0].max_channels = 4;
  StartServer();
  const Fd fd = AttachRaw();
  OpenChannelRaw(fd, 1);
  ListenRaw(fd, 1, 80, 1);
  const auto open = [](uint32_t channel, uint32_t capacity) {
    auto message = MakeMessage<OpenChannel>(Type::kOpenChannel, 9);
    message.channel = channel;
    message.ring_capacity = capacity;
    return message;
  };
  const auto refused = [&](const auto& message, int error) {
    ASSERT_TRUE(Send(fd, message));
    ExpectError(fd, error);
  };
  refused(AttachMessage(), EPROTO);  // A second time.
  refused(MakeMessage<OnlyHeader>(static_cast<Type>(50), 9), EOPNOTSUPP);
  refused(MakeMessage<OnlyHeader>(Type::kAttached, 9), EOPNOTSUPP);  // The daemon's own.
  refused(MakeMessage<OnlyHeader>(Type::kGrow, 9), EPROTO);          // Too short for its type.
  refused(open(4, 64), ENOMEM);
  refused(open(UINT32_MAX, 64), ENOMEM);
  refused(open(1, 64), EEXIST);
  for (const uint32_t capacity : {0u, 8u, 63u, 131'072u, UINT32_MAX})
    refused(open(2, capacity), EINVAL);
  auto close = MakeMessage<CloseChannel>(Type::kCloseChannel, 9);
  close.channel = 3;
  refused(close, ENOENT);
  refused(MappedMessage(0), ENOENT);
  refused(MappedMessage(12'345), ENOENT);
  auto unmapped = MakeMessage<Unmapped>(Type::kUnmapped, 9);
  unmapped.region = 1;
  refused(unmapped, ENOENT);
  refused(GrowMessage(0), EINVAL);
  refused(GrowMessage(UINT64_MAX), ENOMEM);
  auto shrink = MakeMessage<Shrink>(Type::kShrink, 9);
  shrink.bytes = 4 * kMiB;
  refused(shrink, EINVAL);
  shrink.pool_offset = UINT64_MAX - 4 * kMiB + 1;
  refused(shrink, EINVAL);
  refused(ListenMessage(1, 0, 2), EINVAL);
  refused(ListenMessage(1, 65'536, 2), EINVAL);
  refused(ListenMessage(2, 443, 2), ENOENT);
  refused(ListenMessage(1, 443, 1), EEXIST);
  refused(ListenMessage(1, 81, 2), EACCES);
  auto unlisten = MakeMessage<Unlisten>(Type::kUnlisten, 9);
  unlisten.token = 99;
  refused(unlisten, ENOENT);

  ListenRaw(fd, 1, 443, 3);
  EXPECT_GT(server->Snapshot().clients[0].rejected_requests, 20u);
  EXPECT_EQ(server->Snapshot().counters.detached, 0u);
}

TEST_F(ClientServerTest, AClientThatMakesNothingButBadRequestsIsDetached) {
  StartServer();
  const Fd fd = AttachRaw();
  const auto unknown = MakeMessage<OnlyHeader>(static_cast<Type>(50), 9);
  for (uint64_t i = 0; i < ClientSession::kMaxRejectedRequests; ++i) {
    ASSERT_TRUE(Send(fd, unknown));
    ExpectError(fd, EOPNOTSUPP);
  }
  ASSERT_TRUE(Send(fd, unknown));
  EXPECT_EQ(Expect<Detached>(fd, Type::kDetached).error, EPROTO);
}

TEST_F(ClientServerTest, AClientThatGoesOnAskingForATakenServiceStaysAttached) {
  options.tenants[0].services = {80};
  StartServer();
  const Fd owner = AttachRaw();
  OpenChannelRaw(owner, 0);
  ListenRaw(owner, 0, 80, 1);
  Fd other = AttachRaw();
  OpenChannelRaw(other, 0);
  for (uint64_t i = 0; i <= ClientSession::kMaxRejectedRequests; ++i) {
    ASSERT_TRUE(Send(other, ListenMessage(0, i % 2 == 0 ? 80 : 81, 1)));
    ExpectError(other, i % 2 == 0 ? EADDRINUSE : EACCES);
    if (HasFailure()) return;
  }
  EXPECT_EQ(server->client_count(), 2u);
}

TEST_F(ClientServerTest, DescriptorsThatNobodyAskedForAreClosedAndTheRequestIsNotExecuted) {
  StartServer();
  const Fd fd = AttachRaw();
  Settle();
  const size_t before = CountDescriptors();
  for (const size_t count :
       {1u, 2u, 32u, 200u}) {  // 200 are more than the server takes: MSG_CTRUNC.
    SCOPED_TRACE(count);
    auto message = ListenMessage(0, 80, 1);
    iovec part{&message, sizeof(message)};
    std::vector<char> control(CMSG_SPACE(count * sizeof(int)));
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    const std::vector<int> fds(count, fd.get());
    std::memcpy(CMSG_DATA(rights), fds.data(), count * sizeof(int));
    ASSERT_EQ(sendmsg(fd.get(), &header, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(message)));
    EXPECT_EQ(ExpectError(fd, EPROTO).header.request, 3u);
    EXPECT_EQ(CountDescriptors(), before);
  }
}

TEST_F(ClientServerTest, AClientThatDoesNotReadIsDetachedAndOthersAreServed) {
  StartServer();
  const Fd slow = AttachRaw();
  const Fd other = AttachRaw();
  OpenChannelRaw(slow, 0);
  auto unlisten = MakeMessage<Unlisten>(Type::kUnlisten, 9);
  unlisten.token = 1;
  // Each pair makes the server say something.
  constexpr int kEnough = 4096;
  for (int i = 0; i < kEnough && server->client_count() == 2; ++i) {
    if (!Send(slow, ListenMessage(0, 80, 1)) || !Send(slow, unlisten)) break;
    loop.RunOnce(0);
  }
  ASSERT_TRUE(Until([&] { return server->client_count() == 1; }));
  EXPECT_EQ(server->Snapshot().counters.rejected_requests, 0u);
  EXPECT_EQ(server->Snapshot().counters.detached, 1u);
  OpenChannelRaw(other, 0);
}

// --- descriptor and mapping counts ---

TEST_F(ClientServerTest, AfterManyClientsWereKilledEverythingIsAsBefore) {
  options.limits.attach_rate_per_s = 1'000'000;
  options.extent_bytes = 4 * kMiB;
  StartServer();
  int rounds = 0;
  const auto round = [&] {
    Fd fd = AttachRaw();
    OpenChannelRaw(fd, 0, 16);
    std::vector<Mapping> mappings;
    ASSERT_TRUE(Send(fd, ConnectMessage(0, "there", 1, 1)));
    MapNext(fd, mappings);
    ASSERT_TRUE(Until([&] { return Told<io::OpenSocket>(0) != nullptr; }));
    if (++rounds % 2 == 0) {  // Killed with memory under way.
      ASSERT_TRUE(Send(fd, GrowMessage(1)));
    }
    fd.Reset();
    mappings.clear();
    ASSERT_TRUE(
        Until([&] { return server->client_count() == 0 && server->reclaiming_count() == 0; }));
    told[0].clear();
  };
  round();
  const size_t descriptors = CountDescriptors();
  for (int i = 0; i < 200; ++i) round();
  EXPECT_EQ(CountDescriptors(), descriptors);
  EXPECT_EQ(CountSharedMappings(), 0u);
  EXPECT_EQ(server->Snapshot().memory_bytes, 0u);
  EXPECT_EQ(loop.timer_count(), 0u);
}

TEST_F(ClientServerTest, AKilledProcessIsNoticedThoughItsChildKeepsTheConnectionOpen) {
  StartServer();
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t client = fork();
  if (client == 0) {
    // The grandchild inherits connection and memory and outlives its parent.
    const Fd fd = ConnectRaw();
    if (!Send(fd, AttachMessage()) || !Send(fd, GrowMessage(1))) _exit(1);
    if (fork() != 0) {
      for (;;) pause();
    }
    const pid_t self = getpid();
    if (write(ready[1], &self, sizeof(self)) != sizeof(self)) _exit(1);
    for (;;) pause();
  }
  pid_t grandchild = 0;
  ASSERT_EQ(read(ready[0], &grandchild, sizeof(grandchild)),
            static_cast<ssize_t>(sizeof(grandchild)));
  ASSERT_TRUE(Until([&] {
    const ClientServerSnapshot snapshot = server->Snapshot();
    return snapshot.counters.extents_made == 1;
  }));
  kill(client, SIGKILL);
  waitpid(client, nullptr, 0);
  EXPECT_TRUE(Until([&] { return server->client_count() == 0; }));
  kill(grandchild, SIGKILL);
  EXPECT_TRUE(UntilInTime([&] { return server->Snapshot().memory_bytes == 0; }));
  close(ready[0]);
  close(ready[1]);
}

TEST_F(ClientServerTest, MemoryIsKeptUntilEveryThreadThatKnewTheClientHasLetGo) {
  StartServer();
  Fd fd = AttachRaw();
  OpenChannelRaw(fd, 0, 16);
  std::vector<Mapping> mappings;
  for (const char* host : {"there", "far"}) {
    ASSERT_TRUE(Send(fd, ConnectMessage(0, host, 1, 1)));
    MapNext(fd, mappings);
  }
  ASSERT_TRUE(Until(
      [&] { return Told<io::OpenSocket>(0) != nullptr && Told<io::OpenSocket>(1) != nullptr; }));
  const auto client = Told<io::OpenSocket>(0)->client;
  io_stalls = true;
  fd.Reset();
  mappings.clear();
  ASSERT_TRUE(Until([&] {
    return Told<io::RemoveClient>(0) != nullptr && Told<io::RemoveClient>(1) != nullptr;
  }));
  EXPECT_EQ(server->Snapshot().clients[0].state, "leaving");
  server->OnIoMessage(io::ClientRemoved{0, client});
  Settle();
  EXPECT_EQ(CountSharedMappings(), 2u) << "the other thread still writes there";
  server->OnIoMessage(io::ClientRemoved{1, client});
  EXPECT_TRUE(Until([&] { return server->client_count() == 0 && CountSharedMappings() == 0; }));
}

TEST_F(ClientServerTest, AClientThatBrokeItsRingIsToldWhyAndLeaves) {
  StartServer();
  const Fd fd = AttachRaw();
  const auto client = server->Snapshot().clients[0].client;
  EXPECT_TRUE(
      server->OnIoMessage(io::ClientBroken{0, client, "its ring's counters make no sense"}));
  const auto detached = Expect<Detached>(fd, Type::kDetached);
  EXPECT_EQ(detached.error, EPROTO);
  EXPECT_STREQ(detached.text, "its ring's counters make no sense");
  EXPECT_TRUE(Ended(fd));
  EXPECT_FALSE(server->OnIoMessage(io::Stopped{0})) << "not about clients";
}

TEST_F(ClientServerTest, ShuttingDownTellsEveryClient) {
  StartServer();
  const Fd fd = AttachRaw();
  server->Shutdown("sluiced stops");
  EXPECT_EQ(Expect<Detached>(fd, Type::kDetached).error, ESHUTDOWN);
  EXPECT_TRUE(Ended(fd));
  const Fd late(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_NE(connect(late.get(), reinterpret_cast<sockaddr*>(&address), address_length), 0);
}

TEST_F(ClientServerTest, DestroyingTheServerWithMemoryUnderWayIsSafe) {
  for (int i = 0; i < 20; ++i) {
    StartServer();
    const Fd fd = AttachRaw();
    OpenChannelRaw(fd, 0, 16);
    ASSERT_TRUE(Send(fd, GrowMessage(1)));
    ASSERT_TRUE(Send(fd, ConnectMessage(0, "there", 1, 1)));
    for (int turn = 0; turn < i; ++turn) loop.RunOnce(kNsPerMs / 4);
    server.reset();
    loop.RunOnce(0);
    EXPECT_EQ(CountSharedMappings(), 0u);
  }
}

}  // namespace
}  // namespace sluice::control::testing
