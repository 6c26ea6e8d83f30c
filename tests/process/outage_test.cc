// SPDX-License-Identifier: Apache-2.0
// Daemons that are killed, stopped, or out of reach: every operation ends once, sockets' owners are
// told, and all works again afterwards.
#include <gtest/gtest.h>

#include "tests/process/app.h"

namespace sluice::testing {
namespace {

constexpr uint16_t kService = 700;

class Outage : public TwoHosts {
 protected:
  static DaemonOptions Quick() {
    return {.settings = {{"engine.keepalive_interval_ms", "100"},
                         {"engine.keepalive_timeout_ms", "3000"},
                         {"peer.dial_backoff_max_ms", "200"}}};
  }

  bool BeginWithApps() {
    if (!Begin(Quick(), Quick())) {
      return false;
    }
    client_ = std::make_unique<App>(*left_, "client");
    server_ = std::make_unique<App>(*right_, "server");
    EXPECT_TRUE(server_->Listen(kService));
    EXPECT_TRUE(ConnectApps(*client_, *server_, *right_, kService, pair_));
    EXPECT_TRUE(Exchange(*client_, *server_, pair_));
    return !HasFailure();
  }

  // Sends until some are under way for sure: nobody at the other end takes them.
  void SendSome() {
    for (uint64_t i = 0; i < 20; ++i) {
      if (client_->Send(pair_.from, 100 + i, 30'000) != 0) {
        break;
      }
    }
  }

  // The client's socket is closed with a reason, and every send has ended.
  void ExpectClientTold() {
    const auto closed = client_->Next(SLUICE_EVENT_CLOSED, pair_.from);
    ASSERT_TRUE(closed) << "the socket's owner is not told\n" << left_->Log();
    EXPECT_NE(closed->error, 0) << "a plain close";
    EXPECT_TRUE(client_->WaitAllSent()) << "sends that never end";
    EXPECT_EQ(client_->sends().odd, 0u);
    EXPECT_EQ(client_->Send(pair_.from, 1, 10), -ENOTCONN) << "the name is gone";
  }

  // Connects as often as it takes.
  bool Reconnect() {
    bool connected = false;
    WaitUntil([&] {
      const std::string address = right_->Address() + ":" + std::to_string(kService);
      if (sluice_connect(client_->channel(), address.c_str(), 7, &pair_.from) != 0) {
        return false;
      }
      const auto event = client_->Next(SLUICE_EVENT_CONNECTED, pair_.from);
      connected = event && event->outcome == SLUICE_OK;
      return connected;
    });
    if (!connected) {
      return false;
    }
    // An earlier attempt may have been accepted and given up: the last one is ours.
    std::optional<sluice_event> accepted = server_->Next(SLUICE_EVENT_ACCEPTED);
    while (server_->Waiting(SLUICE_EVENT_ACCEPTED) > 0) {
      accepted = server_->Next(SLUICE_EVENT_ACCEPTED);
    }
    pair_.to = accepted ? accepted->socket : 0;
    return accepted.has_value();
  }

  std::unique_ptr<App> client_;
  std::unique_ptr<App> server_;
  Pair pair_;
};

TEST_F(Outage, OfAPeerThatWasKilledEndsWithItsRestart) {
  if (!BeginWithApps()) {
    return;
  }
  SendSome();
  right_->Kill();
  ExpectClientTold();
  EXPECT_TRUE(server_->Next(SLUICE_EVENT_CLOSED, pair_.to));
  EXPECT_TRUE(server_->Next(SLUICE_EVENT_DETACHED));
  ASSERT_TRUE(right_->Start());
  EXPECT_TRUE(server_->Next(SLUICE_EVENT_REATTACHED));
  ASSERT_TRUE(Reconnect());
  EXPECT_TRUE(Exchange(*client_, *server_, pair_));
}

TEST_F(Outage, OfOnesOwnDaemonEndsWithItsRestart) {
  if (!BeginWithApps()) {
    return;
  }
  SendSome();
  left_->Kill();
  EXPECT_TRUE(client_->Next(SLUICE_EVENT_DETACHED));
  EXPECT_GT(client_->Waiting(SLUICE_EVENT_CLOSED), 0u) << "CLOSED comes before DETACHED";
  EXPECT_EQ(client_->sends().begun, client_->sends().ended()) << "all sends end before DETACHED";
  EXPECT_TRUE(server_->Next(SLUICE_EVENT_CLOSED, pair_.to)) << "the other end is told as well";
  ASSERT_TRUE(left_->Start());
  EXPECT_TRUE(client_->Next(SLUICE_EVENT_REATTACHED));
  ASSERT_TRUE(Reconnect());
  EXPECT_TRUE(Exchange(*client_, *server_, pair_));
  EXPECT_EQ(client_->sends().odd, 0u);
}

TEST_F(Outage, MessagesReceivedBeforeStayReadableAndCanBeFreed) {
  if (!BeginWithApps()) {
    return;
  }
  ASSERT_EQ(client_->Send(pair_.from, 77, 100'000), 0);
  const auto message = server_->Next(SLUICE_EVENT_MESSAGE, pair_.to);
  ASSERT_TRUE(message);
  right_->Kill();
  EXPECT_TRUE(server_->Next(SLUICE_EVENT_DETACHED));
  EXPECT_TRUE(HasPattern(message->data, 77, 100'000));
  ASSERT_TRUE(right_->Start());
  EXPECT_TRUE(server_->Next(SLUICE_EVENT_REATTACHED));
  EXPECT_TRUE(HasPattern(message->data, 77, 100'000));
  server_->Free(*message);
}

TEST_F(Outage, OfAPeerOutOfReachIsNoticedByKeepalivesAndEnds) {
  if (!BeginWithApps()) {
    return;
  }
  SendSome();
  ASSERT_TRUE(network_->Unplug(1));
  ExpectClientTold();
  EXPECT_GT(client_->sends().unknown + client_->sends().ok, 0u);
  EXPECT_TRUE(server_->Next(SLUICE_EVENT_CLOSED, pair_.to));
  ASSERT_TRUE(network_->Plug(1));
  ASSERT_TRUE(Reconnect());
  EXPECT_TRUE(Exchange(*client_, *server_, pair_));
}

TEST_F(Outage, OfAnIdleConnectionIsNoticedToo) {
  if (!BeginWithApps()) {
    return;
  }
  ASSERT_TRUE(network_->Unplug(1));
  ExpectClientTold();
}

TEST_F(Outage, OfAStoppedPeerIsNoticedByKeepalivesAndEnds) {
  if (!BeginWithApps()) {
    return;
  }
  SendSome();
  right_->Freeze();
  ExpectClientTold();
  right_->Thaw();
  EXPECT_TRUE(server_->Next(SLUICE_EVENT_CLOSED, pair_.to));
  ASSERT_TRUE(Reconnect());
  EXPECT_TRUE(Exchange(*client_, *server_, pair_));
}

TEST_F(Outage, ShorterThanTheKeepalivesIsNone) {
  DaemonOptions options = Quick();
  options.settings["engine.keepalive_timeout_ms"] = "20000";
  if (!Begin(options, options)) {
    return;
  }
  client_ = std::make_unique<App>(*left_, "client");
  server_ = std::make_unique<App>(*right_, "server");
  ASSERT_TRUE(server_->Listen(kService));
  ASSERT_TRUE(ConnectApps(*client_, *server_, *right_, kService, pair_));
  right_->Freeze();
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_EQ(client_->Send(pair_.from, i, 10'000), 0);
  }
  client_->Poll(500);
  right_->Thaw();
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(server_->Receive(pair_.to, i, 10'000));
  }
  EXPECT_TRUE(client_->WaitAllSent());
  EXPECT_EQ(client_->sends().ok, 10u);
  EXPECT_EQ(client_->Waiting(SLUICE_EVENT_CLOSED), 0u);
}

TEST_F(Outage, RepeatedTenTimesLeavesNothingBehind) {
  if (!BeginWithApps()) {
    return;
  }
  const auto round = [&] {
    SendSome();
    right_->Kill();
    ExpectClientTold();
    ASSERT_TRUE(right_->Start());
    ASSERT_TRUE(Reconnect());
    ASSERT_TRUE(Exchange(*client_, *server_, pair_));
  };
  round();  // The first one warms pools and tables up.
  const Usage before = left_->usage();
  for (int i = 0; i < 10 && !HasFailure(); ++i) {
    round();
  }
  EXPECT_TRUE(left_->ReturnsTo(before));
}

}  // namespace
}  // namespace sluice::testing
