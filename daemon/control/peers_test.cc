// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "daemon/control/log.h"

namespace sluice::control {
namespace {

using ::testing::HasSubstr;

class SeededRandom final : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : engine_(seed) {}
  uint64_t Next() override { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

std::unique_ptr<handshake::MacKey> Key(uint8_t fill) {
  const std::vector<std::byte> bytes(handshake::kMinKeyBytes, std::byte{fill});
  return std::move(handshake::MacKey::Create(bytes).value());
}

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    count += entry.exists() || true;
  return count;
}

const SocketAddress kLoopback = *SocketAddress::Parse("127.0.0.1", 0);

// One daemon's Peers, and its I/O threads as a list of what they were told.
struct Node {
  Node(EventLoop& loop, PeersSettings settings, uint64_t seed) : random(seed) {
    peers = std::make_unique<Peers>(
        loop, random, std::move(settings),
        [this](uint32_t thread, io::ToIo message) { Told(thread, std::move(message)); });
  }

  void Told(uint32_t thread, io::ToIo message) {
    if (auto* add = std::get_if<io::AddPeer>(&message)) {
      EXPECT_FALSE(threads.contains(add->peer)) << "a peer is added once";
      threads[add->peer] = thread;
    } else if (auto* up = std::get_if<io::PathUp>(&message)) {
      EXPECT_EQ(threads.at(up->peer), thread) << "an engine lives on one thread";
      paths.push_back(std::move(*up));
    } else if (auto* failed = std::get_if<io::PathFailed>(&message)) {
      EXPECT_EQ(threads.at(failed->peer), thread);
      failures.push_back(std::move(*failed));
    } else if (auto* link = std::get_if<io::LinkSelf>(&message)) {
      links.push_back(std::move(*link));
    } else {
      ADD_FAILURE() << "nothing else comes from Peers";
    }
  }

  io::PathUp& path() { return paths.back(); }
  // The engine's news that its present path is gone.
  void LosePath(bool session_over = false) {
    io::PathUp& last = path();
    last.connection.Reset();
    peers->OnPathLost({.io_thread = threads.at(last.peer),
                       .peer = last.peer,
                       .session = last.session.session,
                       .path_epoch = last.session.path_epoch,
                       .session_over = session_over,
                       .reason = "test"});
  }

  SeededRandom random;
  std::map<PeerId, uint32_t> threads;
  std::vector<io::PathUp> paths;
  std::vector<io::LinkSelf> links;
  std::vector<io::PathFailed> failures;
  std::unique_ptr<Peers> peers;
};

class PeersTest : public ::testing::Test {
 protected:
  PeersTest() {
    SetLogWriter([](LogLevel, const std::string&) {});
    key_ = Key(1);
  }
  ~PeersTest() override { SetLogWriter(nullptr); }

  PeersSettings Settings(uint64_t instance) {
    PeersSettings settings;
    settings.handshake.instance = instance;
    settings.handshake.key = key_.get();
    settings.handshake.name = "node" + std::to_string(instance);
    settings.listen = {kLoopback};
    settings.allow = {*Network::Parse("127.0.0.0/8"), *Network::Parse("::1")};
    settings.backoff_first_ns = kNsPerMs;
    settings.backoff_cap_ns = 20 * kNsPerMs;
    settings.lookup = [](const std::string& host) -> Result<Resolver::Addresses> {
      if (host == "peer.test") return Resolver::Addresses{*SocketAddress::Parse("127.0.0.1", 0)};
      if (host == "two.test") {
        return Resolver::Addresses{*SocketAddress::Parse("::1", 0),
                                   *SocketAddress::Parse("127.0.0.1", 0)};
      }
      return Fail(ErrorCode::kNotFound, "there is no host named \"" + host + "\"");
    };
    return settings;
  }

  std::unique_ptr<Node> Start(PeersSettings settings) {
    const uint64_t seed = settings.handshake.instance * 1'000 + ++seed_;
    auto node = std::make_unique<Node>(loop_, std::move(settings), seed);
    EXPECT_TRUE(node->peers->Listen());
    return node;
  }

  // Turns the loop until `condition` holds; false after ten seconds.
  bool Until(const std::function<bool()>& condition) {
    const uint64_t give_up_ns = clock_.NowNs() + 10 * kNsPerSecond;
    while (!condition()) {
      if (clock_.NowNs() > give_up_ns) return false;
      loop_.RunOnce(kNsPerMs);
    }
    return true;
  }

  struct Answer {
    std::optional<Result<PeerRef>> result;
    bool ok() const { return result && *result; }
  };
  std::shared_ptr<Answer> Resolve(Node& node, const std::string& host, uint16_t port) {
    auto answer = std::make_shared<Answer>();
    node.peers->Resolve(host, port, [answer](Result<PeerRef> result) {
      EXPECT_FALSE(answer->result) << "answered once";
      answer->result = std::move(result);
    });
    return answer;
  }
  // Resolves and turns the loop until the answer is there.
  Result<PeerRef> Ask(Node& node, const std::string& host, uint16_t port) {
    const auto answer = Resolve(node, host, port);
    if (!Until([&] { return answer->result.has_value(); }))
      return Fail(ErrorCode::kTimeout, "no answer at all");
    return *answer->result;
  }

  Fd RawConnection(uint16_t port) {
    Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage storage;
    SocketAddress address = kLoopback;
    address.port = port;
    const socklen_t length = address.ToSockaddr(storage);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length), 0);
    return fd;
  }
  // Whether the other end has closed; takes what it said before.
  static bool Closed(const Fd& fd) {
    char bytes[512];
    for (;;) {
      const ssize_t got = recv(fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (got > 0) continue;
      return got == 0 || errno == ECONNRESET;
    }
  }

  // Whether both are ends of one TCP connection, of which `dialer` was the dialling one.
  static bool Joined(const Fd& dialer, const Fd& listener, uint16_t listen_port) {
    sockaddr_in far{}, near{};
    socklen_t length = sizeof(far);
    if (getpeername(dialer.get(), reinterpret_cast<sockaddr*>(&far), &length) != 0) return false;
    if (ntohs(far.sin_port) != listen_port) return false;
    getsockname(dialer.get(), reinterpret_cast<sockaddr*>(&near), &length);
    getpeername(listener.get(), reinterpret_cast<sockaddr*>(&far), &length);
    return near.sin_port == far.sin_port;
  }

  MonotonicClock clock_;
  EventLoop loop_{clock_};
  std::unique_ptr<handshake::MacKey> key_;
  uint64_t seed_ = 0;
};

TEST_F(PeersTest, ResolvingAnAddressConnectsBothDaemonsInOneSession) {
  auto a = Start(Settings(1)), b = Start(Settings(2));
  const auto ref = Ask(*a, "127.0.0.1", b->peers->listen_port());
  ASSERT_TRUE(ref) << ref.error().message;
  ASSERT_TRUE(Until([&] { return b->paths.size() == 1; }));
  ASSERT_EQ(a->paths.size(), 1u);
  EXPECT_EQ(a->path().peer, ref->peer);
  EXPECT_EQ(a->path().session.session, b->path().session.session);
  EXPECT_EQ(a->path().session.peer_instance, 2u);
  EXPECT_EQ(a->path().session.peer_name, "node2");
  EXPECT_EQ(b->path().session.peer_instance, 1u);
  EXPECT_FALSE(a->path().session.resumed);
  EXPECT_TRUE(Joined(a->path().connection, b->path().connection, b->peers->listen_port()));
  ASSERT_EQ(write(a->path().connection.get(), "x", 1), 1);
  char byte = 0;
  ASSERT_TRUE(Until([&] { return recv(b->path().connection.get(), &byte, 1, MSG_DONTWAIT) == 1; }));
  EXPECT_EQ(byte, 'x');
}

TEST_F(PeersTest, AKnownPeerIsAnsweredAtOnceWithoutAnotherConnection) {
  auto a = Start(Settings(1)), b = Start(Settings(2));
  const auto first = Ask(*a, "127.0.0.1", b->peers->listen_port());
  ASSERT_TRUE(first);
  const auto again = Resolve(*a, "127.0.0.1", b->peers->listen_port());
  ASSERT_TRUE(again->ok());
  EXPECT_EQ(again->result->value().peer, first->peer);
  const auto back = Ask(*b, "127.0.0.1", a->peers->listen_port());
  ASSERT_TRUE(back);
  EXPECT_EQ(b->paths.size(), 1u) << "the peer that came by itself is known by its own address";
  EXPECT_EQ(a->paths.size(), 1u);
}

TEST_F(PeersTest, ANameAndAnAddressOfOneDaemonShareItsEngine) {
  auto a = Start(Settings(1)), b = Start(Settings(2));
  const auto by_name = Ask(*a, "Peer.Test", b->peers->listen_port());
  ASSERT_TRUE(by_name) << by_name.error().message;
  EXPECT_EQ(Ask(*a, "127.0.0.1", b->peers->listen_port())->peer, by_name->peer);
  EXPECT_EQ(Ask(*a, "peer.test", b->peers->listen_port())->peer, by_name->peer);
  EXPECT_EQ(a->paths.size(), 1u);
}

TEST_F(PeersTest, AnotherAddressOfAKnownDaemonJoinsItsEngine) {
  PeersSettings wide = Settings(2);
  wide.listen = {*SocketAddress::Parse("0.0.0.0", 0)};
  auto a = Start(Settings(1)), b = Start(std::move(wide));
  const auto one = Ask(*a, "127.0.0.1", b->peers->listen_port());
  ASSERT_TRUE(one);
  const auto two = Ask(*a, "127.0.0.2", b->peers->listen_port());
  ASSERT_TRUE(two) << two.error().message;
  EXPECT_EQ(one->peer, two->peer);
  ASSERT_TRUE(Until([&] { return b->peers->pending_handshakes() == 0; }));
  EXPECT_EQ(a->paths.size(), 1u);
  EXPECT_EQ(b->paths.size(), 1u) << "and the path stays as it is";
}

TEST_F(PeersTest, ManyWhoAskAtOnceShareOneHandshake) {
  auto a = Start(Settings(1)), b = Start(Settings(2));
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 50; ++i) answers.push_back(Resolve(*a, "127.0.0.1", b->peers->listen_port()));
  ASSERT_TRUE(Until([&] {
    return std::ranges::all_of(answers, [](const auto& answer) { return answer->ok(); });
  }));
  EXPECT_EQ(a->paths.size(), 1u);
  EXPECT_EQ(b->peers->counters().accepted, 1u);
}

TEST_F(PeersTest, ANameWithADeadAddressConnectsToTheOtherFamily) {
  auto a = Start(Settings(1)), b = Start(Settings(2));
  const auto ref = Ask(*a, "two.test", b->peers->listen_port());
  EXPECT_TRUE(ref) << ref.error().message;
}

TEST_F(PeersTest, EachLaneIsAnEngineOfItsOwn) {
  PeersSettings left = Settings(1), right = Settings(2);
  left.lanes = right.lanes = 2;
  left.io_threads = right.io_threads = 2;
  auto a = Start(std::move(left)), b = Start(std::move(right));
  const auto one = Ask(*a, "127.0.0.1", b->peers->listen_port());
  const auto two = Ask(*a, "127.0.0.1", b->peers->listen_port());
  ASSERT_TRUE(one && two);
  EXPECT_NE(one->peer, two->peer);
  EXPECT_NE(one->io_thread, two->io_thread) << "round robin";
  ASSERT_TRUE(Until([&] { return b->paths.size() == 2; }));
  EXPECT_NE(b->paths[0].peer, b->paths[1].peer);
  EXPECT_EQ(Ask(*a, "127.0.0.1", b->peers->listen_port())->peer, one->peer);
}

// --- losing and finding again ---

TEST_F(PeersTest, ALostPathIsResumedInTheSameSessionWithTheNextEpoch) {
  auto a = Start(Settings(1)), b = Start(Settings(2));
  const auto ref = Ask(*a, "127.0.0.1", b->peers->listen_port());
  ASSERT_TRUE(Until([&] { return b->paths.size() == 1; }));
  const uint64_t session = a->path().session.session;
  for (uint32_t epoch = 2; epoch < 6; ++epoch) {
    a->LosePath();
    b->LosePath();
    ASSERT_TRUE(Until([&] { return a->paths.size() == epoch && b->paths.size() == epoch; }))
        << epoch;
    EXPECT_EQ(a->path().session.session, session);
    EXPECT_EQ(b->path().session.session, session);
    EXPECT_TRUE(a->path().session.resumed);
    EXPECT_TRUE(b->path().session.resumed);
    EXPECT_EQ(a->path().session.path_epoch, epoch);
    EXPECT_EQ(b->path().session.path_epoch, epoch);
    EXPECT_EQ(a->path().peer, ref->peer);
  }
  EXPECT_EQ(a->peers->counters().resumed, 4u);
}

TEST_F(PeersTest, WhenOnlyOneEndSawThePathDieTheNewOneReplacesTheOld) {
  auto a = Start(Settings(1)), b = Start(Settings(2));
  ASSERT_TRUE(Ask(*a, "127.0.0.1", b->peers->listen_port()));
  ASSERT_TRUE(Until([&] { return b->paths.size() == 1; }));
  for (Node* end : {a.get(), b.get()}) {
    const size_t before = a->paths.size();
    end->LosePath();
    ASSERT_TRUE(
        Until([&] { return a->paths.size() == before + 1 && b->paths.size() == before + 1; }));
    EXPECT_EQ(a->path().session.session, b->path().session.session);
    EXPECT_EQ(a->path().session.path_epoch, before + 1);
    EXPECT_EQ(b->path().session.path_epoch, before + 1);
  }
}

TEST_F(PeersTest, LateNewsOfAnOldPathDoesNotDisturbThePresentOne) {
  auto a = Start(Settings(1)), b = Start(Settings(2));
  ASSERT_TRUE(Ask(*a, "127.0.0.1", b->peers->listen_port()));
  ASSERT_TRUE(Until([&] { return b->paths.size() == 1; }));
  b->LosePath();
  ASSERT_TRUE(Until([&] { return a->paths.size() == 2 && b->paths.size() == 2; }));
  const io::PathUp& old = a->paths[0];
  a->peers->OnPathLost({.io_thread = 0,
                        .peer = old.peer,
                        .session = old.session.session,
                        .path_epoch = old.session.path_epoch,
                        .session_over = false,
                        .reason = "late"});
  EXPECT_EQ(a->peers->Snapshot()[0].state, "up");
  a->peers->OnPathLost({.io_thread = 0,
                        .peer = 4'711,
                        .session = 1,
                        .path_epoch = 1,
                        .session_over = true,
                        .reason = ""});
}

TEST_F(PeersTest, AfterASessionIsOverTheNextPathIsANewSession) {
  auto a = Start(Settings(1)), b = Start(Settings(2));
  ASSERT_TRUE(Ask(*a, "127.0.0.1", b->peers->listen_port()));
  ASSERT_TRUE(Until([&] { return b->paths.size() == 1; }));
  a->LosePath(true);
  ASSERT_TRUE(Until([&] { return a->paths.size() == 2 && b->paths.size() == 2; }));
  EXPECT_NE(a->paths[0].session.session, a->paths[1].session.session);
  EXPECT_EQ(a->path().session.session, b->path().session.session);
  EXPECT_FALSE(a->path().session.resumed);
  EXPECT_EQ(a->path().session.path_epoch, 1u);
}

TEST_F(PeersTest, APeerThatWasKilledAndStartedAgainKeepsItsEngineAndGetsANewSession) {
  auto a = Start(Settings(1)), b = Start(Settings(2));
  const uint16_t port = b->peers->listen_port();
  const auto ref = Ask(*a, "127.0.0.1", port);
  ASSERT_TRUE(ref);
  const uint64_t session = a->path().session.session;
  b.reset();
  a->LosePath();
  ASSERT_TRUE(Until([&] { return a->failures.size() >= 3; })) << "it goes on trying";
  EXPECT_FALSE(a->failures[0].definite);
  EXPECT_THAT(a->failures[0].reason, HasSubstr("refused"));
  EXPECT_EQ(a->failures[0].peer, ref->peer);
  PeersSettings again = Settings(3);
  again.listen[0].port = port;
  b = Start(std::move(again));
  ASSERT_TRUE(Until([&] { return a->paths.size() == 2 && b->paths.size() == 1; }));
  EXPECT_EQ(a->path().peer, ref->peer);
  EXPECT_NE(a->path().session.session, session);
  EXPECT_FALSE(a->path().session.resumed);
  EXPECT_EQ(a->path().session.peer_instance, 3u);
}

TEST_F(PeersTest, ARestartedPeerThatDialsFirstIsRecognisedByItsAddress) {
  auto a = Start(Settings(5)), b = Start(Settings(2));
  const uint16_t port = b->peers->listen_port();
  const auto ref = Ask(*a, "127.0.0.1", port);
  ASSERT_TRUE(ref);
  b.reset();  // And nobody tells `a`.
  PeersSettings again = Settings(3);
  again.listen[0].port = port;
  b = Start(std::move(again));
  ASSERT_TRUE(Ask(*b, "127.0.0.1", a->peers->listen_port()));
  ASSERT_TRUE(Until([&] { return a->paths.size() == 2; }));
  EXPECT_EQ(a->path().peer, ref->peer);
  EXPECT_EQ(a->path().session.peer_instance, 3u);
  EXPECT_FALSE(a->path().session.resumed);
}

TEST_F(PeersTest, APeerNobodyWantsIsNotDialledForEver) {
  PeersSettings settings = Settings(1);
  settings.wanted_ns = 50 * kNsPerMs;
  auto a = Start(std::move(settings)), b = Start(Settings(2));
  const uint16_t port = b->peers->listen_port();
  ASSERT_TRUE(Ask(*a, "127.0.0.1", port));
  b.reset();
  a->LosePath(true);
  ASSERT_TRUE(Until([&] { return a->peers->Snapshot()[0].state == "idle"; }));
  EXPECT_EQ(loop_.timer_count(), 0u);
  PeersSettings again = Settings(3);
  again.listen[0].port = port;
  b = Start(std::move(again));
  ASSERT_TRUE(Ask(*a, "127.0.0.1", port));
  EXPECT_TRUE(Until([&] { return a->paths.size() == 2; })) << "wanted again";
}

TEST_F(PeersTest, APeerWithALiveSessionIsDialledHoweverLongItTakes) {
  PeersSettings settings = Settings(1);
  settings.wanted_ns = 1;
  auto a = Start(std::move(settings)), b = Start(Settings(2));
  ASSERT_TRUE(Ask(*a, "127.0.0.1", b->peers->listen_port()));
  b.reset();
  a->LosePath(false);
  EXPECT_TRUE(Until([&] { return a->failures.size() >= 20; }));
}

// --- both at once ---

TEST_F(PeersTest, DaemonsThatDialEachOtherAtOnceKeepOneConnection) {
  int kept_of_lower = 0;
  uint64_t crossed = 0;
  for (int round = 0; round < 100; ++round) {
    const bool a_lower = round % 2 == 0;
    auto a = Start(Settings(a_lower ? 10 : 20)), b = Start(Settings(a_lower ? 20 : 10));
    const auto from_a = Resolve(*a, "127.0.0.1", b->peers->listen_port());
    for (int turn = 0; turn < round % 10; ++turn) loop_.RunOnce(0);
    const auto from_b = Resolve(*b, "127.0.0.1", a->peers->listen_port());
    ASSERT_TRUE(Until([&] {
      return from_a->ok() && from_b->ok() && !a->paths.empty() && !b->paths.empty() &&
             a->peers->pending_handshakes() == 0 && b->peers->pending_handshakes() == 0;
    })) << round;
    ASSERT_EQ(a->paths.size(), 1u) << round;
    ASSERT_EQ(b->paths.size(), 1u) << round;
    EXPECT_EQ(a->path().session.session, b->path().session.session) << round;
    const bool a_dialled = Joined(a->path().connection, b->path().connection,
                                  b->peers->listen_port());
    const bool b_dialled = Joined(b->path().connection, a->path().connection,
                                  a->peers->listen_port());
    EXPECT_NE(a_dialled, b_dialled) << round;
    kept_of_lower += a_dialled == a_lower;
    crossed += a->peers->counters().refused_duplicate + b->peers->counters().refused_duplicate;
    EXPECT_TRUE(a->failures.empty() && b->failures.empty()) << "a duplicate is no failure";
  }
  EXPECT_GE(kept_of_lower, 50);
  EXPECT_GT(crossed, 0u) << "or nothing was tested";
}

TEST_F(PeersTest, DaemonsThatLoseTheirPathAtOnceAgreeOnTheNextOne) {
  auto a = Start(Settings(10)), b = Start(Settings(20));
  ASSERT_TRUE(Ask(*a, "127.0.0.1", b->peers->listen_port()));
  ASSERT_TRUE(Until([&] { return b->paths.size() == 1; }));
  for (int round = 0; round < 100; ++round) {
    a->LosePath();
    for (int turn = 0; turn < round % 7; ++turn) loop_.RunOnce(0);
    if (b->peers->Snapshot()[0].state == "up" && b->path().connection.valid()) b->LosePath();
    ASSERT_TRUE(Until([&] {
      return a->peers->Snapshot()[0].state == "up" && b->peers->Snapshot()[0].state == "up" &&
             a->path().session.path_epoch == b->path().session.path_epoch &&
             a->peers->pending_handshakes() == 0 && b->peers->pending_handshakes() == 0;
    })) << round;
    ASSERT_EQ(a->path().session.session, a->paths[0].session.session) << "the session lives on";
  }
}

// --- who is refused ---

TEST_F(PeersTest, ADaemonWithAnotherKeyIsRefusedAtOnceWithTheReason) {
  const auto other = Key(2);
  PeersSettings settings = Settings(2);
  settings.handshake.key = other.get();
  auto a = Start(Settings(1)), b = Start(std::move(settings));
  const auto ref = Ask(*a, "127.0.0.1", b->peers->listen_port());
  ASSERT_FALSE(ref);
  EXPECT_EQ(ref.error().code, ErrorCode::kPermission);
  EXPECT_THAT(ref.error().message, HasSubstr("key"));
  EXPECT_TRUE(a->threads.empty()) << "strangers take up no engine";
  ASSERT_TRUE(Until([&] { return b->peers->counters().failed_incoming >= 1; }));
  EXPECT_TRUE(b->threads.empty());
}

TEST_F(PeersTest, AKeyedAndAnUnkeyedDaemonRefuseEachOther) {
  PeersSettings settings = Settings(2);
  settings.handshake.key = nullptr;
  auto a = Start(Settings(1)), b = Start(std::move(settings));
  EXPECT_FALSE(b->peers->authenticated());
  const auto forth = Ask(*a, "127.0.0.1", b->peers->listen_port());
  const auto back = Ask(*b, "127.0.0.1", a->peers->listen_port());
  ASSERT_FALSE(forth || back);
  EXPECT_THAT(forth.error().message, HasSubstr("authentication off"));
  EXPECT_THAT(back.error().message, HasSubstr("authentication off"));
}

TEST_F(PeersTest, DaemonsWithoutACommonVersionNameBothRanges) {
  PeersSettings settings = Settings(2);
  settings.handshake.version_min = 3;
  settings.handshake.version_max = 4;
  auto a = Start(Settings(1)), b = Start(std::move(settings));
  const auto ref = Ask(*a, "127.0.0.1", b->peers->listen_port());
  ASSERT_FALSE(ref);
  EXPECT_EQ(ref.error().code, ErrorCode::kVersion);
  EXPECT_THAT(ref.error().message, HasSubstr("speaks 1, the peer 3 to 4"));
}

TEST_F(PeersTest, AnAddressOutsideTheAllowedNetworksIsRefusedBeforeAnythingIsRead) {
  PeersSettings settings = Settings(2);
  settings.allow = {*Network::Parse("10.0.0.0/8")};
  auto a = Start(Settings(1)), b = Start(std::move(settings));
  const auto ref = Ask(*a, "127.0.0.1", b->peers->listen_port());
  ASSERT_FALSE(ref);
  EXPECT_EQ(ref.error().code, ErrorCode::kPermission);
  EXPECT_THAT(ref.error().message, HasSubstr("peer.allow"));
  EXPECT_GE(b->peers->counters().refused_network, 1u);
  EXPECT_EQ(b->peers->counters().accepted, 0u);
  const auto back = Resolve(*b, "127.0.0.1", a->peers->listen_port());
  ASSERT_TRUE(back->result);
  EXPECT_EQ(back->result->error().code, ErrorCode::kPermission);
  EXPECT_EQ(b->peers->counters().dials, 0u);
}

TEST_F(PeersTest, ADaemonThatLooksForItselfBecomesAPeerInsideItself) {
  auto a = Start(Settings(1));
  const auto ref = Ask(*a, "127.0.0.1", a->peers->listen_port());
  ASSERT_TRUE(ref) << ref.error().message;
  const auto again = Ask(*a, "127.0.0.1", a->peers->listen_port());
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->peer, ref->peer) << "one pair of engines serves all";
  EXPECT_EQ(a->links.size(), 1u);
  EXPECT_TRUE(a->paths.empty()) << "no connection carries it";
  for (const PeerId end : {a->links[0].dialer, a->links[0].listener}) {
    a->peers->OnPathLost({.io_thread = 0,
                          .peer = end,
                          .session = a->links[0].session,
                          .path_epoch = 1,
                          .session_over = true,
                          .reason = "test"});
  }
  ASSERT_EQ(a->links.size(), 2u) << "a lost one is made anew, once";
  EXPECT_EQ(a->links[1].dialer, a->links[0].dialer);
  EXPECT_NE(a->links[1].session, a->links[0].session);
}

TEST_F(PeersTest, ANameThatDoesNotExistIsNotFound) {
  auto a = Start(Settings(1));
  EXPECT_EQ(Ask(*a, "nowhere.test", 1).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(a->peers->Snapshot().empty());
  EXPECT_EQ(Resolve(*a, "", 1)->result->error().code, ErrorCode::kInvalid);
  EXPECT_EQ(Resolve(*a, "a b", 1)->result->error().code, ErrorCode::kInvalid);
  EXPECT_EQ(Resolve(*a, std::string(300, 'x'), 1)->result->error().code, ErrorCode::kInvalid);
}

TEST_F(PeersTest, AnAddressWhereNobodyListensTimesOutWithTheLastReason) {
  auto a = Start(Settings(1)), b = Start(Settings(2));
  a->peers->SetResolveTimeout(300 * kNsPerMs);
  const uint16_t port = b->peers->listen_port();
  b.reset();
  const auto ref = Ask(*a, "127.0.0.1", port);
  ASSERT_FALSE(ref);
  EXPECT_EQ(ref.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(ref.error().message, HasSubstr("Connection refused"));
  EXPECT_GE(a->peers->counters().dials, 1u);
  const auto rows = a->peers->Snapshot();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].peer, 0u);
  EXPECT_THAT(rows[0].last_error, HasSubstr("Connection refused"));
}

TEST_F(PeersTest, WhoWaitsForADaemonGetsItWhenItStarts) {
  auto a = Start(Settings(1)), b = Start(Settings(2));
  const uint16_t port = b->peers->listen_port();
  b.reset();
  const auto answer = Resolve(*a, "127.0.0.1", port);
  ASSERT_TRUE(Until([&] { return a->peers->counters().failed_dials >= 3; }));
  EXPECT_FALSE(answer->result);
  PeersSettings late = Settings(3);
  late.listen[0].port = port;
  b = Start(std::move(late));
  EXPECT_TRUE(Until([&] { return answer->ok(); }));
}

// --- hostile and broken connections ---

TEST_F(PeersTest, ASilentPeerIsDroppedAtItsDeadline) {
  PeersSettings settings = Settings(1);
  settings.handshake.step_timeout_ns = 30 * kNsPerMs;
  auto a = Start(std::move(settings));
  const size_t before = OpenDescriptors();
  {
    const Fd silent = RawConnection(a->peers->listen_port());
    ASSERT_TRUE(Until([&] { return a->peers->pending_handshakes() == 1; }));
    ASSERT_TRUE(Until([&] { return Closed(silent); }));
  }
  EXPECT_EQ(a->peers->counters().failed_incoming, 1u);
  EXPECT_EQ(a->peers->pending_handshakes(), 0u);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(PeersTest, RubbishEndsTheConnectionAtOnce) {
  auto a = Start(Settings(1));
  const Fd rubbish = RawConnection(a->peers->listen_port());
  const std::string text = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + std::string(10'000, 'x');
  ASSERT_EQ(write(rubbish.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ASSERT_TRUE(Until([&] { return a->peers->counters().failed_incoming == 1; }));
  EXPECT_TRUE(Until([&] { return Closed(rubbish); }));
}

TEST_F(PeersTest, AValidBeginningByteByByteIsCutOffAtTheDeadline) {
  PeersSettings settings = Settings(1);
  settings.handshake.step_timeout_ns = 50 * kNsPerMs;
  auto a = Start(std::move(settings));
  SeededRandom random(1);
  const handshake::Settings other = Settings(2).handshake;
  const auto dialer = handshake::Handshake::Dial(other, {}, random, 0);
  const Fd slow = RawConnection(a->peers->listen_port());
  size_t sent = 0;
  ASSERT_TRUE(Until([&] {
    if (sent + 1 < dialer.Output().size()) {
      if (send(slow.get(), &dialer.Output()[sent], 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) ++sent;
    }
    return Closed(slow);
  }));
  EXPECT_LT(sent, dialer.Output().size());
  EXPECT_EQ(a->peers->counters().failed_incoming, 1u);
}

TEST_F(PeersTest, APeerThatNeverFinishesIsNotDialledTwiceAtOnceAndTimesOut) {
  PeersSettings settings = Settings(1);
  settings.handshake.step_timeout_ns = 20 * kNsPerMs;
  settings.resolve_timeout_ns = 300 * kNsPerMs;
  auto a = Start(std::move(settings));
  const Fd mute(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage storage;
  socklen_t length = kLoopback.ToSockaddr(storage);
  ASSERT_EQ(bind(mute.get(), reinterpret_cast<sockaddr*>(&storage), length), 0);
  ASSERT_EQ(listen(mute.get(), 64), 0);
  ASSERT_EQ(getsockname(mute.get(), reinterpret_cast<sockaddr*>(&storage), &length), 0);
  const auto ref = Ask(*a, "127.0.0.1", SocketAddress::FromSockaddr(storage)->port);
  ASSERT_FALSE(ref);
  EXPECT_EQ(ref.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(ref.error().message, HasSubstr("no Reply came within 20 ms"));
}

TEST_F(PeersTest, ManySilentPeersDisplaceEachOtherButNotAnHonestOne) {
  PeersSettings settings = Settings(2);
  settings.max_pending_handshakes = 8;
  settings.max_pending_per_source = 100;
  auto a = Start(Settings(1)), b = Start(std::move(settings));
  std::vector<Fd> silent;
  for (int i = 0; i < 30; ++i) silent.push_back(RawConnection(b->peers->listen_port()));
  ASSERT_TRUE(Until([&] { return b->peers->counters().accepted == 30; }));
  EXPECT_EQ(b->peers->pending_handshakes(), 8u);
  EXPECT_EQ(b->peers->counters().refused_busy, 22u);
  EXPECT_TRUE(Closed(silent[0]));
  EXPECT_FALSE(Closed(silent[29]));
  EXPECT_TRUE(Ask(*a, "127.0.0.1", b->peers->listen_port()));
}

TEST_F(PeersTest, OneSourceGetsNoMoreThanItsShareOfHandshakes) {
  PeersSettings settings = Settings(1);
  settings.max_pending_per_source = 4;
  auto a = Start(std::move(settings));
  std::vector<Fd> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(RawConnection(a->peers->listen_port()));
  ASSERT_TRUE(Until(
      [&] { return a->peers->counters().accepted + a->peers->counters().refused_busy == 10; }));
  EXPECT_EQ(a->peers->pending_handshakes(), 4u);
  EXPECT_TRUE(Closed(silent[9]));
}

TEST_F(PeersTest, TwoHundredFailedConnectionsLeaveNoDescriptorBehind) {
  const auto other = Key(2);
  PeersSettings settings = Settings(2);
  settings.handshake.key = other.get();
  auto a = Start(Settings(1)), b = Start(std::move(settings)), gone = Start(Settings(3));
  const uint16_t dead_port = gone->peers->listen_port();
  gone.reset();
  const size_t before = OpenDescriptors();
  const auto refused = Resolve(*a, "127.0.0.1", b->peers->listen_port());
  const auto nobody = Resolve(*a, "127.0.0.1", dead_port);
  ASSERT_TRUE(Until([&] { return a->peers->counters().failed_dials >= 200; }));
  a->peers->Stop();
  ASSERT_TRUE(Until([&] { return b->peers->pending_handshakes() == 0; }));
  EXPECT_EQ(OpenDescriptors() + 2, before)
      << "the listening socket and its reserve are closed, nothing else changed";
  b->peers->Stop();
  EXPECT_EQ(loop_.timer_count(), 0u);
}

TEST_F(PeersTest, MoreDaemonsThanAllowedAreRefusedUntilOneIsForgotten) {
  PeersSettings settings = Settings(1);
  settings.max_peers = 2;
  settings.wanted_ns = 1;
  auto a = Start(std::move(settings));
  std::vector<std::unique_ptr<Node>> others;
  for (uint64_t i = 2; i < 5; ++i) others.push_back(Start(Settings(i)));
  for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(Ask(*a, "127.0.0.1", others[i]->peers->listen_port()));
  EXPECT_EQ(Ask(*a, "127.0.0.1", others[2]->peers->listen_port()).error().code,
            ErrorCode::kNoMemory);
  const PeerId oldest = a->paths[0].peer;
  others[0].reset();
  io::PathUp& first = a->paths[0];
  a->peers->OnPathLost({.io_thread = 0,
                        .peer = first.peer,
                        .session = first.session.session,
                        .path_epoch = first.session.path_epoch,
                        .session_over = true,
                        .reason = "test"});
  const auto ref = Ask(*a, "127.0.0.1", others[2]->peers->listen_port());
  ASSERT_TRUE(ref) << ref.error().message;
  EXPECT_EQ(ref->peer, oldest) << "its engine serves the new one";
}

TEST_F(PeersTest, StoppingAnswersEverybodyAndClosesEverything) {
  const size_t before = OpenDescriptors();
  auto a = Start(Settings(1)), b = Start(Settings(2));
  const uint16_t port = b->peers->listen_port();
  const auto waiting = Resolve(*a, "127.0.0.1", port);
  const Fd silent = RawConnection(port);
  ASSERT_TRUE(Until([&] { return b->peers->pending_handshakes() >= 1; }));
  a->peers->Stop();
  b->peers->Stop();
  ASSERT_TRUE(waiting->result);
  if (!waiting->ok()) {
    EXPECT_EQ(waiting->result->error().code, ErrorCode::kClosed);
  }
  EXPECT_TRUE(Until([&] { return Closed(silent); }));
  EXPECT_EQ(Resolve(*a, "127.0.0.1", port)->result->error().code, ErrorCode::kClosed);
  EXPECT_EQ(loop_.timer_count(), 0u);
  EXPECT_EQ(loop_.fd_count(), 0u);
  a.reset();
  b.reset();
  EXPECT_EQ(OpenDescriptors(), before + 1);
}

TEST_F(PeersTest, ListeningOnATakenAddressNamesIt) {
  auto a = Start(Settings(1));
  PeersSettings settings = Settings(2);
  settings.listen[0].port = a->peers->listen_port();
  Node b(loop_, std::move(settings), 9);
  const auto listening = b.peers->Listen();
  ASSERT_FALSE(listening);
  EXPECT_THAT(listening.error().message,
              HasSubstr("127.0.0.1:" + std::to_string(a->peers->listen_port())));
}

TEST_F(PeersTest, TheSnapshotShowsPeersAndWhoIsLookedFor) {
  auto a = Start(Settings(1)), b = Start(Settings(2));
  ASSERT_TRUE(Ask(*a, "peer.test", b->peers->listen_port()));
  const auto rows = a->peers->Snapshot();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].state, "up");
  EXPECT_EQ(rows[0].name, "node2");
  EXPECT_EQ(rows[0].address, "peer.test:" + std::to_string(b->peers->listen_port()));
  EXPECT_TRUE(rows[0].authenticated);
  EXPECT_EQ(rows[0].instance, 2u);
  EXPECT_EQ(rows[0].session, a->path().session.session);
  EXPECT_EQ(rows[0].path_epoch, 1u);
  b.reset();
  a->LosePath();
  ASSERT_TRUE(Until([&] { return a->failures.size() >= 2; }));
  const auto lost = a->peers->Snapshot()[0];
  EXPECT_EQ(lost.state, "waiting");
  EXPECT_THAT(lost.last_error, HasSubstr("refused"));
  EXPECT_GE(lost.attempts, 2u);
}

}  // namespace
}  // namespace sluice::control
