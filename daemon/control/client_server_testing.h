// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/control/client_server.h"
#include "daemon/control/packet.h"

// What the tests of the client server share: a server with made-up I/O threads, peers and time, and
// a client that speaks the raw protocol and may say anything.
namespace sluice::control::testing {

class ManualClock final : public Clock {
 public:
  uint64_t NowNs() const override { return now_ns; }
  uint64_t now_ns = 1'000 * kNsPerSecond;
};

// Knows the hosts it was told of; answers at once, or when asked to.
class FakePeers final : public PeerDirectory {
 public:
  void Resolve(std::string_view host, uint16_t port, ResolveCallback done) override {
    last_port = port;
    const auto found = peers.find(std::string(host));
    Result<PeerRef> result = Fail(ErrorCode::kNotFound, "no host of that name");
    if (found != peers.end()) result = found->second;
    if (!later) return done(std::move(result));
    waiting.push_back([done = std::move(done), result] { done(result); });
  }
  std::map<std::string, PeerRef> peers = {{"there", {7, 0}}, {"far", {8, 1}}};
  bool later = false;
  std::vector<std::function<void()>> waiting;
  uint16_t last_port = 0;
};

// One message as it came, with its descriptors.
struct Received {
  std::vector<std::byte> bytes;
  std::vector<Fd> fds;
  Type type() const {
    Header header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    return header.type;
  }
  template <typename T>
  T as() const {
    EXPECT_EQ(bytes.size(), sizeof(T));
    T message{};
    std::memcpy(&message, bytes.data(), std::min(bytes.size(), sizeof(T)));
    return message;
  }
};

// A client's mapping.
struct Mapping {
  Mapping(int fd, uint64_t size) : bytes(size) {
    base = static_cast<std::byte*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    EXPECT_NE(base, MAP_FAILED);
  }
  Mapping(Mapping&& other) noexcept
      : base(std::exchange(other.base, nullptr)), bytes(other.bytes) {}
  ~Mapping() {
    if (base != nullptr) munmap(base, bytes);
  }
  std::byte* base;
  uint64_t bytes;
};

class ClientServerTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kIoThreads = 2;

  ClientServerTest() {
    clients::TenantRule rule;
    rule.name = "tests";
    rule.any_user = true;
    rule.pool_quota_bytes = 96 * kMiB;
    options.tenants = {rule};
    options.instance = 77;
    for (auto& mailbox : mailboxes) mailbox = std::make_unique<io::Mailbox<io::ToIo>>();
  }

  void StartServer() {
    Fd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un any{};
    any.sun_family = AF_UNIX;  // The kernel chooses an abstract name.
    ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&any), sizeof(sa_family_t)), 0);
    ASSERT_EQ(listen(listener.get(), 64), 0);
    address_length = sizeof(address);
    ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &address_length),
              0);
    server = std::make_unique<ClientServer>(
        loop, std::vector<io::Mailbox<io::ToIo>*>{mailboxes[0].get(), mailboxes[1].get()}, peers,
        options, [this](uint64_t bytes) { return headroom ? headroom(bytes) : Result<>{}; });
    ASSERT_TRUE(server->Start(std::move(listener)));
  }

  // Turns the loop and the I/O threads until `done`, at most half a minute.
  ::testing::AssertionResult Until(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline)
        return ::testing::AssertionFailure() << "not within 30 seconds";
      loop.RunOnce(kNsPerMs);
      TurnIo();
    }
    return ::testing::AssertionSuccess();
  }
  // The same while time passes: for what the server only looks at now and then.
  ::testing::AssertionResult UntilInTime(const std::function<bool()>& done) {
    return Until([&] {
      clock.now_ns += kNsPerMs;
      return done();
    });
  }
  // A few turns, to see that something does not happen.
  void Settle() {
    for (int i = 0; i < 20; ++i) {
      loop.RunOnce(0);
      TurnIo();
    }
  }
  void Advance(uint64_t ns) {
    clock.now_ns += ns;
    Settle();
  }

  // The I/O threads take their messages and, unless `io_stalls`, let go of what they are told to.
  void TurnIo() {
    for (uint32_t thread = 0; thread < kIoThreads; ++thread) {
      for (io::ToIo message; mailboxes[thread]->Take(message);) {
        if (!io_stalls) LetGo(thread, message);
        told[thread].push_back(std::move(message));
      }
    }
  }
  void LetGo(uint32_t thread, const io::ToIo& message) {
    if (const auto* remove = std::get_if<io::RemoveExtent>(&message)) {
      server->OnIoMessage(io::ExtentReleased{thread, remove->client, remove->pool_offset});
    } else if (const auto* port = std::get_if<io::RemovePort>(&message)) {
      server->OnIoMessage(io::PortRemoved{thread, port->client, port->channel});
    } else if (const auto* client = std::get_if<io::RemoveClient>(&message)) {
      server->OnIoMessage(io::ClientRemoved{thread, client->client});
    }
  }
  // The last message of this kind that the thread was told; null if none.
  template <typename T>
  const T* Told(uint32_t thread) {
    for (auto it = told[thread].rbegin(); it != told[thread].rend(); ++it) {
      if (const T* found = std::get_if<T>(&*it)) return found;
    }
    return nullptr;
  }
  template <typename T>
  size_t CountTold(uint32_t thread) {
    size_t count = 0;
    for (const io::ToIo& message : told[thread]) count += std::holds_alternative<T>(message);
    return count;
  }

  // --- a raw client ---

  Fd ConnectRaw() {
    Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), address_length), 0);
    return fd;
  }
  static bool SendRaw(const Fd& fd, const void* bytes, size_t size) {
    return send(fd.get(), bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
  }
  template <typename T>
  static bool Send(const Fd& fd, const T& message) {
    return SendRaw(fd, &message, sizeof(message));
  }
  // The next packet; nullopt when the connection ended.
  std::optional<Received> Receive(const Fd& fd) {
    Packet packet;
    std::optional<Received> received;
    EXPECT_TRUE(Until([&] {
      const ReceiveStatus status = ReceivePacket(fd.get(), packet);
      if (status == ReceiveStatus::kPacket) {
        received = Received{
            {packet.bytes.begin(), packet.bytes.begin() + static_cast<ptrdiff_t>(packet.size)},
            std::move(packet.fds)};
      }
      return status != ReceiveStatus::kNothing;
    }));
    return received;
  }
  template <typename T>
  T Expect(const Fd& fd, Type type, std::vector<Fd>* fds = nullptr) {
    std::optional<Received> received = Receive(fd);
    if (!received) {
      ADD_FAILURE() << "the connection ended; expected message " << static_cast<int>(type);
      return {};
    }
    EXPECT_EQ(static_cast<int>(received->type()), static_cast<int>(type));
    if (received->type() != type) {
      if (received->type() == Type::kError) ADD_FAILURE() << received->as<ErrorReply>().text;
      return {};
    }
    if (fds != nullptr) *fds = std::move(received->fds);
    return received->as<T>();
  }
  bool Ended(const Fd& fd) { return !Receive(fd).has_value(); }
  bool Silent(const Fd& fd) {
    Settle();
    Packet packet;
    return ReceivePacket(fd.get(), packet) == ReceiveStatus::kNothing;
  }

  static Attach AttachMessage(uint16_t version_min = kVersionMin,
                              uint16_t version_max = kVersionMax) {
    auto message = MakeMessage<Attach>(Type::kAttach, 1);
    message.version_min = version_min;
    message.version_max = version_max;
    CopyText(message.name, "raw");
    return message;
  }
  Fd AttachRaw(Attached* attached = nullptr) {
    Fd fd = ConnectRaw();
    EXPECT_TRUE(Send(fd, AttachMessage()));
    const auto reply = Expect<Attached>(fd, Type::kAttached);
    if (attached != nullptr) *attached = reply;
    return fd;
  }
  void OpenChannelRaw(const Fd& fd, uint32_t channel, uint32_t capacity = 64) {
    auto message = MakeMessage<OpenChannel>(Type::kOpenChannel, 2);
    message.channel = channel;
    message.ring_capacity = capacity;
    ASSERT_TRUE(Send(fd, message));
    EXPECT_EQ(Expect<ChannelOpened>(fd, Type::kChannelOpened).channel, channel);
  }
  void ListenRaw(const Fd& fd, uint32_t channel, uint32_t service, uint64_t token) {
    ASSERT_TRUE(Send(fd, ListenMessage(channel, service, token)));
    EXPECT_EQ(Expect<Listening>(fd, Type::kListening).token, token);
  }
  static Listen ListenMessage(uint32_t channel, uint32_t service, uint64_t token) {
    auto message = MakeMessage<Listen>(Type::kListen, 3);
    message.channel = channel;
    message.service = service;
    message.token = token;
    return message;
  }
  static Connect ConnectMessage(uint32_t channel, const char* host, uint32_t service,
                                uint64_t token) {
    auto message = MakeMessage<Connect>(Type::kConnect, 4);
    message.channel = channel;
    message.service = service;
    message.token = token;
    CopyText(message.host, host);
    return message;
  }
  static Grow GrowMessage(uint64_t bytes, uint32_t request = 5) {
    auto message = MakeMessage<Grow>(Type::kGrow, request);
    message.bytes = bytes;
    return message;
  }
  static Mapped MappedMessage(uint32_t region, int32_t error = 0) {
    auto message = MakeMessage<Mapped>(Type::kMapped, 0);
    message.region = region;
    message.error = error;
    return message;
  }
  // Takes the next kRegion, maps it and confirms.
  Region MapNext(const Fd& fd, std::vector<Mapping>& mappings, Fd* doorbell = nullptr) {
    std::vector<Fd> fds;
    const auto region = Expect<Region>(fd, Type::kRegion, &fds);
    const size_t expected = region.kind == RegionKind::kRingPair ? 2 : 1;
    EXPECT_EQ(fds.size(), expected);
    if (fds.size() != expected) return region;
    mappings.emplace_back(fds[0].get(), region.bytes);
    if (doorbell != nullptr && fds.size() == 2) *doorbell = std::move(fds[1]);
    EXPECT_TRUE(Send(fd, MappedMessage(region.region)));
    return region;
  }
  ErrorReply ExpectError(const Fd& fd, int error) {
    const auto reply = Expect<ErrorReply>(fd, Type::kError);
    EXPECT_EQ(reply.error, error) << reply.text;
    return reply;
  }

  ManualClock clock;
  EventLoop loop{clock};
  FakePeers peers;
  std::unique_ptr<io::Mailbox<io::ToIo>> mailboxes[kIoThreads];
  std::deque<io::ToIo> told[kIoThreads];
  bool io_stalls = false;
  ClientServerOptions options;
  std::function<Result<>(uint64_t)> headroom;
  sockaddr_un address{};
  socklen_t address_length = 0;
  std::unique_ptr<ClientServer> server;
};

}  // namespace sluice::control::testing
