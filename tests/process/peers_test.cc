// SPDX-License-Identifier: Apache-2.0
// What other hosts may do to a daemon: say nothing, talk rubbish, hang, die, vanish.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <vector>

#include "tests/harness/endpoint.h"
#include "tests/harness/harness.h"

namespace sluice::testing {
namespace {

constexpr uint16_t kPeerPort = 4500;
constexpr uint16_t kService = 7;

// Settings with which a silent peer is given up within a second.
const std::map<std::string, std::string> kQuick = {{"peer.handshake_timeout_ms", "500"},
                                                   {"peer.dial_backoff_max_ms", "200"},
                                                   {"engine.keepalive_interval_ms", "100"},
                                                   {"engine.keepalive_timeout_ms", "1000"}};

// Whether the other side has closed this connection; what it said before is read and forgotten.
bool Closed(const Fd& connection) {
  char bytes[4096];
  ssize_t count;
  while ((count = recv(connection.get(), bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
  }
  return count == 0 || errno != EAGAIN;
}

std::string Rubbish(size_t bytes, uint32_t seed) {
  std::string text(bytes, '\0');
  for (char& byte : text) {
    seed = seed * 1'664'525 + 1'013'904'223;
    byte = static_cast<char>(seed >> 24);
  }
  return text;
}

class Peers : public ::testing::Test {
 protected:
  void SetUp() override {
    SLUICE_NEED_NETWORK();
    auto network = Network::Create(2);
    ASSERT_TRUE(network) << network.error().message;
    network_ = std::move(*network);
    left_ = std::make_unique<Daemon>(*network_, 0, DaemonOptions{.settings = kQuick});
    right_ = std::make_unique<Daemon>(*network_, 1, DaemonOptions{.settings = kQuick});
    ASSERT_TRUE(left_->Start());
  }

  // Both daemons, an application on each, and a connected socket between them.
  void ConnectApplications() {
    ASSERT_TRUE(right_->Start());
    sender_ = std::make_unique<Endpoint>(*left_);
    receiver_ = std::make_unique<Endpoint>(*right_);
    ASSERT_TRUE(sender_->ok());
    ASSERT_TRUE(receiver_->ok());
    ASSERT_TRUE(receiver_->Listen(kService));
    socket_ = sender_->Connected(RightService());
    ASSERT_NE(socket_, 0u) << left_->Log();
    ASSERT_TRUE(Exchange(*sender_, socket_, *receiver_, "hello"));
  }

  std::string RightService() const { return right_->Address() + ":" + std::to_string(kService); }

  std::unique_ptr<Network> network_;
  std::unique_ptr<Daemon> left_, right_;
  std::unique_ptr<Endpoint> sender_, receiver_;
  sluice_socket socket_ = 0;
};

TEST_F(Peers, OneThatSaysNothingIsDroppedAndCostsNothing) {
  const Usage before = left_->usage();
  std::vector<Fd> connections;
  for (int i = 0; i < 20; ++i) {
    auto connection = network_->Connect(1, left_->Address(), kPeerPort);
    ASSERT_TRUE(connection) << connection.error().message;
    connections.push_back(std::move(*connection));
  }
  for (const Fd& connection : connections) {
    EXPECT_TRUE(WaitUntil([&] { return Closed(connection); })) << left_->Log();
  }
  EXPECT_TRUE(left_->ReturnsTo(before));
}

TEST_F(Peers, RubbishIsDroppedAndCostsNothing) {
  const Usage before = left_->usage();
  for (uint32_t round = 0; round < 50; ++round) {
    auto connection = network_->Connect(1, left_->Address(), kPeerPort);
    ASSERT_TRUE(connection) << connection.error().message;
    const std::string rubbish = Rubbish(1 + (round * 37) % 4000, round);
    (void)send(connection->get(), rubbish.data(), rubbish.size(), MSG_NOSIGNAL);
    shutdown(connection->get(), SHUT_WR);
    EXPECT_TRUE(WaitUntil([&] { return Closed(*connection); }))
        << "round " << round << left_->Log();
  }
  EXPECT_TRUE(left_->ReturnsTo(before));
}

TEST_F(Peers, OneWithTheWrongKeyIsRefusedAndToldSo) {
  TemporaryFolder folder;
  WriteFile(folder.File("key"), std::string(64, 'b') + "\n", 0600);
  auto settings = kQuick;
  settings["peer.key_file"] = "\"" + folder.File("key") + "\"";
  settings["engine.connect_timeout_ms"] = "1500";
  Daemon stranger(*network_, 1, {.settings = settings});
  ASSERT_TRUE(stranger.Start());
  Endpoint application(stranger), listener(*left_);
  ASSERT_TRUE(listener.Listen(kService));
  const std::string target = left_->Address() + ":" + std::to_string(kService);
  ASSERT_NE(application.Connect(target), 0u);
  const auto event = application.Next(SLUICE_EVENT_CONNECTED);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->outcome, SLUICE_FAILED);
  EXPECT_FALSE(listener.Next(SLUICE_EVENT_ACCEPTED, milliseconds(0)));
}

TEST_F(Peers, AKilledDaemonEndsItsSocketsAndTheNextOneIsReachedAgain) {
  ConnectApplications();
  const Usage before = left_->usage();
  right_->Kill();
  const auto closed = sender_->Next(SLUICE_EVENT_CLOSED);
  ASSERT_TRUE(closed) << left_->Log();
  EXPECT_EQ(closed->socket, socket_);
  EXPECT_NE(closed->error, 0);
  EXPECT_TRUE(left_->ReturnsTo(before));
  ASSERT_TRUE(right_->Start());
  ASSERT_TRUE(receiver_->Next(SLUICE_EVENT_REATTACHED));
  socket_ = sender_->Connected(RightService());
  ASSERT_NE(socket_, 0u) << left_->Log();
  EXPECT_TRUE(Exchange(*sender_, socket_, *receiver_, "again"));
}

// What a frozen or unreachable peer must lead to: every send ends once, none as
// failed-for-certain-but-delivered, the socket ends, and when the peer is back a new one works.
TEST_F(Peers, AStoppedDaemonIsGivenUpAndTakenBack) {
  ConnectApplications();
  right_->Freeze();
  constexpr uint64_t kSends = 8;
  for (uint64_t i = 0; i < kSends; ++i) ASSERT_EQ(sender_->Send(socket_, Rubbish(30'000, 1), i), 0);
  for (uint64_t i = 0; i < kSends; ++i) {
    const auto sent = sender_->Next(SLUICE_EVENT_SENT);
    ASSERT_TRUE(sent) << "send " << i << " never ended\n" << left_->Log();
    EXPECT_NE(sent->outcome, SLUICE_OK);
  }
  ASSERT_TRUE(sender_->Next(SLUICE_EVENT_CLOSED)) << left_->Log();
  EXPECT_FALSE(sender_->Next(SLUICE_EVENT_SENT, milliseconds(0))) << "an operation ended twice";

  const double cpu_before = left_->usage().cpu_seconds;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(sender_->Connected(RightService(), milliseconds(700)), 0u) << "nobody can answer";
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  EXPECT_LT(left_->usage().cpu_seconds - cpu_before, 0.5 * waited.count())
      << "waits, does not spin";

  right_->Thaw();
  socket_ = sender_->Connected(RightService());
  ASSERT_NE(socket_, 0u) << left_->Log();
  ASSERT_TRUE(receiver_->Next(SLUICE_EVENT_CLOSED)) << "the other end of the lost socket ends too";
}

TEST_F(Peers, ABlackHoleIsNoticedAndLeft) {
  ConnectApplications();
  ASSERT_TRUE(network_->Unplug(1));
  ASSERT_EQ(sender_->Send(socket_, Rubbish(200'000, 2), 9), 0);
  const auto sent = sender_->Next(SLUICE_EVENT_SENT);
  ASSERT_TRUE(sent) << left_->Log();
  EXPECT_NE(sent->outcome, SLUICE_OK);  // FAILED where it never had somewhere to go.
  EXPECT_TRUE(sender_->Next(SLUICE_EVENT_CLOSED)) << left_->Log();
  EXPECT_TRUE(receiver_->Next(SLUICE_EVENT_CLOSED)) << right_->Log();
  ASSERT_TRUE(network_->Plug(1));
  socket_ = sender_->Connected(RightService());
  ASSERT_NE(socket_, 0u) << left_->Log();
  EXPECT_TRUE(Exchange(*sender_, socket_, *receiver_, "back"));
}

}  // namespace
}  // namespace sluice::testing
