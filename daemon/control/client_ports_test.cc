// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/client_ports.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/control/client_server_testing.h"
#include "daemon/control/host_address.h"
#include "shm_proto/ring.h"

namespace sluice::control::testing {
namespace {

class ClientPortsTest : public ClientServerTest {
 protected:
  void AttachClient() {
    Attached attached;
    fd_ = AttachRaw(&attached);
    client_ = attached.client;
  }
  ConnectFailed ExpectConnectFailed(int error) {
    const auto reply = Expect<ConnectFailed>(fd_, Type::kConnectFailed);
    EXPECT_EQ(reply.error, error) << reply.text;
    return reply;
  }
  CloseChannel CloseMessage(uint32_t channel) {
    auto message = MakeMessage<CloseChannel>(Type::kCloseChannel, 11);
    message.channel = channel;
    return message;
  }
  ClientSnapshot Client() { return server->Snapshot().clients.at(0); }

  Fd fd_;
  io::ClientId client_ = 0;
  std::vector<Mapping> rings_;
};

TEST_F(ClientPortsTest, ARingPairCarriesDescriptorsAndDoorbellsBothWaysAcrossTheCountersWrap) {
  options.ring_start = UINT32_MAX - 2;
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 3, 16);
  ASSERT_TRUE(Send(fd_, ConnectMessage(3, "there", 9, 5)));
  Fd doorbell;
  const Region region = MapNext(fd_, rings_, &doorbell);
  EXPECT_EQ(region.channel, 3u);
  EXPECT_EQ(region.capacity, 16u);
  ASSERT_TRUE(Until([&] { return Told<io::AddPort>(0) != nullptr; }));
  const auto* port = Told<io::AddPort>(0);

  RingProducer client_submits({rings_[0].base, 16});
  RingConsumer client_completes({rings_[0].base + RingBytes(16), 16});
  RingConsumer thread_takes(port->submissions);
  RingProducer thread_gives(port->completions);
  for (uint64_t i = 0; i < 40; ++i) {
    Descriptor item{};
    item.token = i;
    ASSERT_TRUE(client_submits.Stage(item));
    client_submits.Publish();
    Descriptor copy{};
    ASSERT_TRUE(thread_takes.Pop(copy));
    thread_takes.Release();
    ASSERT_TRUE(thread_gives.Stage(copy));
    thread_gives.Publish();
    ASSERT_TRUE(client_completes.Pop(copy));
    client_completes.Release();
    EXPECT_EQ(copy.token, i);
  }
  char byte;
  EXPECT_EQ(send(doorbell.get(), "x", 1, MSG_DONTWAIT), 1);
  EXPECT_EQ(recv(port->doorbell.get(), &byte, 1, MSG_DONTWAIT), 1);
  EXPECT_EQ(send(port->doorbell.get(), "x", 1, MSG_DONTWAIT), 1);
  EXPECT_EQ(recv(doorbell.get(), &byte, 1, MSG_DONTWAIT), 1);
}

TEST_F(ClientPortsTest, AShutDownDoorbellIsNotReadableForEver) {
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 16);
  ASSERT_TRUE(Send(fd_, ConnectMessage(0, "there", 9, 5)));
  Fd doorbell;
  MapNext(fd_, rings_, &doorbell);
  ASSERT_TRUE(Until([&] { return Told<io::AddPort>(0) != nullptr; }));
  shutdown(doorbell.get(), SHUT_RDWR);
  doorbell.Reset();
  const Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, Told<io::AddPort>(0)->doorbell.get(), &event), 0);
  EXPECT_EQ(epoll_wait(epoll.get(), &event, 1, 0), 0);
}

TEST_F(ClientPortsTest, RingsAreSealedBeforeTheirThreadHearsOfThem) {
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 16);
  ASSERT_TRUE(Send(fd_, ConnectMessage(0, "there", 9, 5)));
  std::vector<Fd> fds;
  const auto region = Expect<Region>(fd_, Type::kRegion, &fds);
  ASSERT_EQ(fds.size(), 2u);
  Settle();
  EXPECT_EQ(Told<io::AddPort>(0), nullptr);
  ASSERT_TRUE(Send(fd_, MappedMessage(region.region)));
  ASSERT_TRUE(Until([&] { return Told<io::AddPort>(0) != nullptr; }));
  EXPECT_EQ(fallocate(fds[0].get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(ftruncate(fds[0].get(), 0), -1);
}

TEST_F(ClientPortsTest, OneRingPairServesAllSocketsOfAChannelOnAThread) {
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 16);
  for (uint64_t token = 1; token <= 3; ++token)
    ASSERT_TRUE(Send(fd_, ConnectMessage(0, "there", 9, token)));
  MapNext(fd_, rings_);
  ASSERT_TRUE(Until([&] { return CountTold<io::OpenSocket>(0) == 3; }));
  EXPECT_EQ(CountTold<io::AddPort>(0), 1u);
  EXPECT_EQ(Client().sockets, 3u);
  server->OnIoMessage(io::SocketGone{0, client_});
  EXPECT_EQ(Client().sockets, 2u);
}

TEST_F(ClientPortsTest, ConnectsThatCannotBeAreAnsweredWithTheirTokenAndAReason) {
  options.tenants[0].max_sockets = 1;
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 16);
  const auto refused = [&](const Connect& message, int error) {
    ASSERT_TRUE(Send(fd_, message));
    const ConnectFailed reply = ExpectConnectFailed(error);
    EXPECT_EQ(reply.token, message.token);
    EXPECT_EQ(reply.channel, message.channel);
    EXPECT_NE(reply.text[0], '\0');
  };
  refused(ConnectMessage(0, "nowhere", 9, 1), ENOENT);
  refused(ConnectMessage(1, "there", 9, 2), ENOENT);
  refused(ConnectMessage(0, "there", 0, 3), EINVAL);
  refused(ConnectMessage(0, "there", 65'536, 4), EINVAL);
  refused(ConnectMessage(0, "", 9, 5), EINVAL);
  refused(ConnectMessage(0, "there:0", 9, 6), EINVAL);
  refused(ConnectMessage(0, "a b", 9, 7), EINVAL);
  Connect endless = ConnectMessage(0, "there", 9, 8);
  std::memset(endless.host, 'x', sizeof(endless.host));
  refused(endless, EINVAL);
  EXPECT_EQ(Client().sockets, 0u);
  ASSERT_TRUE(Send(fd_, ConnectMessage(0, "there", 9, 9)));
  MapNext(fd_, rings_);
  refused(ConnectMessage(0, "there", 9, 10), ENOMEM);
}

TEST_F(ClientPortsTest, ANameThatResolvesAfterTheClientLeftHarmsNobody) {
  peers.later = true;
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 16);
  ASSERT_TRUE(Send(fd_, ConnectMessage(0, "there", 9, 1)));
  ASSERT_TRUE(Until([&] { return peers.waiting.size() == 1; }));
  fd_.Reset();
  ASSERT_TRUE(Until([&] { return server->client_count() == 0; }));
  peers.waiting[0]();
  server.reset();
  peers.waiting[0]();
  EXPECT_TRUE(told[0].empty());
}

TEST_F(ClientPortsTest, AClientThatCannotMapItsRingsIsToldThatItsConnectFailed) {
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 16);
  ASSERT_TRUE(Send(fd_, ConnectMessage(0, "there", 9, 1)));
  const auto region = Expect<Region>(fd_, Type::kRegion);
  ASSERT_TRUE(Send(fd_, MappedMessage(region.region, ENOMEM)));
  ExpectConnectFailed(ENOMEM);
  EXPECT_EQ(Client().sockets, 0u);
  ASSERT_TRUE(UntilInTime([&] { return Client().ring_bytes == 0; }));
}

TEST_F(ClientPortsTest, RingsHaveAQuotaOfTheirOwn) {
  options.tenants[0].ring_quota_bytes = 16 * kKiB;
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 4096);
  ASSERT_TRUE(Send(fd_, ConnectMessage(0, "there", 9, 1)));
  ExpectConnectFailed(ENOMEM);
}

TEST_F(ClientPortsTest, FullMemoryFailsTheConnect) {
  headroom = [](uint64_t) -> Result<> {
    return Fail(ErrorCode::kNoMemory, "the memory cgroup is full");
  };
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 16);
  ASSERT_TRUE(Send(fd_, ConnectMessage(0, "there", 9, 1)));
  EXPECT_STREQ(ExpectConnectFailed(ENOMEM).text, "the memory cgroup is full");
  EXPECT_EQ(server->Snapshot().memory_bytes, 0u);
}

TEST_F(ClientPortsTest, WithoutDescriptorsTheConnectFailsAndTheClientGoesOn) {
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 16);
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  std::vector<Fd> fill;
  const rlimit none{64, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (;;) {
    Fd fd(dup(fd_.get()));
    if (!fd.valid()) break;
    fill.push_back(std::move(fd));
  }
  EXPECT_TRUE(Send(fd_, ConnectMessage(0, "there", 9, 1)));
  ExpectConnectFailed(ENOMEM);
  fill.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  ASSERT_TRUE(Send(fd_, ConnectMessage(0, "there", 9, 2)));
  MapNext(fd_, rings_);
  EXPECT_TRUE(Until([&] { return Told<io::OpenSocket>(0) != nullptr; }));
}

TEST_F(ClientPortsTest, WhoWaitsForAStoppedClientsRingsIsRefusedInTime) {
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 16);
  ListenRaw(fd_, 0, 80, 1);
  server->OnIoMessage(io::IncomingSocket{0, 7, 21, 80});
  const auto region = Expect<Region>(fd_, Type::kRegion);
  Advance(options.mapping_deadline_ns);
  ASSERT_NE(Told<io::RefuseSocket>(0), nullptr);
  EXPECT_EQ(Told<io::RefuseSocket>(0)->error, ETIMEDOUT);
  EXPECT_EQ(Client().sockets, 0u);
  ASSERT_TRUE(Send(fd_, MappedMessage(region.region)));  // It wakes up.
  server->OnIoMessage(io::IncomingSocket{0, 7, 22, 80});
  ASSERT_TRUE(Until([&] { return Told<io::AcceptSocket>(0) != nullptr; }));
  EXPECT_EQ(Told<io::AcceptSocket>(0)->socket, 22u);
}

// --- closing channels ---

TEST_F(ClientPortsTest, AClosedChannelIsConfirmedOnceItsThreadsHaveLetGo) {
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 16);
  ASSERT_TRUE(Send(fd_, ConnectMessage(0, "there", 9, 1)));
  MapNext(fd_, rings_);
  ASSERT_TRUE(Until([&] { return Told<io::OpenSocket>(0) != nullptr; }));
  io_stalls = true;
  ASSERT_TRUE(Send(fd_, CloseMessage(0)));
  ASSERT_TRUE(Until([&] { return Told<io::RemovePort>(0) != nullptr; }));
  EXPECT_TRUE(Silent(fd_));
  auto open = MakeMessage<OpenChannel>(Type::kOpenChannel, 12);
  open.ring_capacity = 16;
  ASSERT_TRUE(Send(fd_, open));
  ExpectError(fd_, EEXIST);
  server->OnIoMessage(io::PortRemoved{0, client_, 0});
  EXPECT_EQ(Expect<ChannelClosed>(fd_, Type::kChannelClosed).header.request, 11u);
  rings_.clear();
  ASSERT_TRUE(UntilInTime([&] { return server->Snapshot().memory_bytes == 0; }));
  OpenChannelRaw(fd_, 0, 32);
}

TEST_F(ClientPortsTest, AChannelClosedWhileItsRingsAreMadeOrOfferedLeavesNothing) {
  StartServer();
  AttachClient();
  for (const bool offered : {false, true}) {
    OpenChannelRaw(fd_, 0, 16);
    ASSERT_TRUE(Send(fd_, ConnectMessage(0, "there", 9, 1)));
    Region region{};
    if (offered) region = Expect<Region>(fd_, Type::kRegion);
    ASSERT_TRUE(Send(fd_, CloseMessage(0)));
    if (!offered) {
      // Whether the rings were offered before the close arrived is the worker's speed.
      auto next = Receive(fd_);
      ASSERT_TRUE(next);
      if (next->type() == Type::kRegion) {
        ExpectConnectFailed(ESHUTDOWN);
      } else {
        EXPECT_EQ(next->as<ConnectFailed>().error, ESHUTDOWN);
      }
    } else {
      ExpectConnectFailed(ESHUTDOWN);
    }
    Expect<ChannelClosed>(fd_, Type::kChannelClosed);
    if (offered) {
      ASSERT_TRUE(Send(fd_, MappedMessage(region.region)));  // Too late, and no offence.
    }
    ASSERT_TRUE(UntilInTime([&] { return Client().ring_bytes == 0; }));
    EXPECT_TRUE(Silent(fd_));
  }
  EXPECT_EQ(Told<io::AddPort>(0), nullptr);
}

TEST_F(ClientPortsTest, ClosingAChannelClosesItsListeners) {
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 16);
  ListenRaw(fd_, 0, 80, 1);
  ASSERT_TRUE(Send(fd_, CloseMessage(0)));
  Expect<ChannelClosed>(fd_, Type::kChannelClosed);
  server->OnIoMessage(io::IncomingSocket{0, 7, 21, 80});
  Settle();
  ASSERT_NE(Told<io::RefuseSocket>(0), nullptr);
  EXPECT_EQ(Told<io::RefuseSocket>(0)->error, ECONNREFUSED);
}

// --- incoming sockets ---

TEST_F(ClientPortsTest, WithoutAListenerAnIncomingSocketIsRefused) {
  StartServer();
  server->OnIoMessage(io::IncomingSocket{1, 7, 21, 80});
  Settle();
  ASSERT_NE(Told<io::RefuseSocket>(1), nullptr);
  EXPECT_EQ(Told<io::RefuseSocket>(1)->socket, 21u);
  EXPECT_EQ(Told<io::RefuseSocket>(1)->error, ECONNREFUSED);
}

TEST_F(ClientPortsTest, ListenersOfOneServiceTakeTurnsAndGetRingsOnTheSocketsThread) {
  StartServer();
  AttachClient();
  for (const uint32_t channel : {0u, 1u}) {
    OpenChannelRaw(fd_, channel, 16);
    ListenRaw(fd_, channel, 80, 100 + channel);
  }
  for (uint32_t socket = 0; socket < 4; ++socket)
    server->OnIoMessage(io::IncomingSocket{1, 7, socket, 80});
  MapNext(fd_, rings_);
  MapNext(fd_, rings_);
  ASSERT_TRUE(Until([&] { return CountTold<io::AcceptSocket>(1) == 4; }));
  std::map<uint64_t, int> accepted;
  for (const io::ToIo& message : told[1]) {
    if (const auto* accept = std::get_if<io::AcceptSocket>(&message)) {
      ++accepted[accept->listener];
      EXPECT_EQ(accept->listener, 100 + accept->channel);
      EXPECT_EQ(accept->client, client_);
    }
  }
  EXPECT_EQ(accepted, (std::map<uint64_t, int>{{100, 2}, {101, 2}}));
}

TEST_F(ClientPortsTest, AServiceBelongsToOneClientUntilItLeaves) {
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 16);
  ListenRaw(fd_, 0, 80, 1);
  const Fd other = AttachRaw();
  OpenChannelRaw(other, 0, 16);
  ASSERT_TRUE(Send(other, ListenMessage(0, 80, 1)));
  ExpectError(other, EADDRINUSE);
  fd_.Reset();
  ASSERT_TRUE(Until([&] { return server->client_count() == 1; }));
  ListenRaw(other, 0, 80, 1);
}

TEST_F(ClientPortsTest, AListenerWithoutRoomForSocketsRefusesForWantOfRoom) {
  options.tenants[0].max_sockets = 1;
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 16);
  ListenRaw(fd_, 0, 80, 1);
  server->OnIoMessage(io::IncomingSocket{0, 7, 1, 80});
  server->OnIoMessage(io::IncomingSocket{0, 7, 2, 80});
  Settle();
  ASSERT_NE(Told<io::RefuseSocket>(0), nullptr);
  EXPECT_EQ(Told<io::RefuseSocket>(0)->socket, 2u);
  EXPECT_EQ(Told<io::RefuseSocket>(0)->error, ENOMEM);
  MapNext(fd_, rings_);
  EXPECT_TRUE(Until([&] { return Told<io::AcceptSocket>(0) != nullptr; }));
}

TEST_F(ClientPortsTest, AClientThatDiesBeforeMappingRefusesWhoWaitsForIt) {
  StartServer();
  AttachClient();
  OpenChannelRaw(fd_, 0, 16);
  ListenRaw(fd_, 0, 80, 1);
  server->OnIoMessage(io::IncomingSocket{0, 7, 21, 80});
  Expect<Region>(fd_, Type::kRegion);
  fd_.Reset();
  ASSERT_TRUE(Until([&] { return Told<io::RefuseSocket>(0) != nullptr; }));
  EXPECT_TRUE(
      Until([&] { return server->client_count() == 0 && server->reclaiming_count() == 0; }));
  EXPECT_EQ(Told<io::RemoveClient>(0), nullptr) << "the thread never heard of it";
}

// --- addresses ---

TEST(HostAddress, NamesAndAddressesWithAndWithoutPorts) {
  const auto parsed = [](std::string_view text) {
    const auto address = ParseHostAddress(text);
    return address ? address->host + "|" + std::to_string(address->port) : "refused";
  };
  EXPECT_EQ(parsed("node-1.rack"), "node-1.rack|0");
  EXPECT_EQ(parsed("10.0.0.1:4500"), "10.0.0.1|4500");
  EXPECT_EQ(parsed("[fe80::1%eth0]:1"), "fe80::1%eth0|1");
  EXPECT_EQ(parsed("[::1]"), "::1|0");
  EXPECT_EQ(parsed("::1"), "::1|0");
  for (const char* bad : {"", ":", ":1", "a:", "a:0", "a:65536", "a:-1", "a:1x", "[::1", "[]",
                          "[::1]x", "[::1]:", "a b", "a/b", "a\nb"}) {
    EXPECT_EQ(parsed(bad), "refused") << bad;
  }
}

}  // namespace
}  // namespace sluice::control::testing
