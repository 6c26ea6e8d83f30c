// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <map>

#include "libclient/src/client_fixture_testing.h"

namespace sluice::client {
namespace {

using testing::HasSubstr;

class ReattachTest : public ClientTest {
 protected:
  void RestartDaemon(FakeDaemon::Options options = {}) {
    daemon_.reset();
    StartDaemon(std::move(options));
  }
};

TEST_F(ReattachTest, EverythingUnderWayEndsOnceThenTheSocketsThenComesDetached) {
  Begin({}, 64);
  const sluice_socket first = Connected(1, 100), second = Connected(2, 200);
  sluice_socket connecting = 0;
  ASSERT_EQ(sluice_connect(channel_, "host:7", 300, &connecting), 0);
  daemon_->WaitForConnect();
  std::map<uint64_t, int> ended;
  std::vector<uint64_t> tokens;
  for (uint64_t i = 0; i < 20; ++i) {
    const sluice_socket socket = i % 2 == 0 ? first : second;
    const std::string payload(i * 10, 'x');
    const uint32_t flags = i % 3 == 0 ? SLUICE_SEND_SILENT : 0;
    ASSERT_EQ(sluice_send_copy(channel_, socket, payload.data(), payload.size(), flags, i, 0), 0);
    tokens.push_back(port_->Next().token);
  }
  port_->Sent(tokens[4]);  // Answered, but not yet heard, when the daemon dies.
  port_->Sent(tokens[6]);  // The same, and silent.
  daemon_->Kill();

  std::vector<sluice_event> events;
  while (events.empty() || events.back().type != SLUICE_EVENT_DETACHED) events.push_back(Next());
  std::vector<sluice_socket> closed;
  for (const sluice_event& event : events) {
    if (event.type == SLUICE_EVENT_SENT) {
      EXPECT_TRUE(closed.empty()) << "operations end before their sockets";
      ++ended[event.user_data];
      EXPECT_EQ(event.outcome,
                static_cast<uint32_t>(event.user_data == 4 ? SLUICE_OK : SLUICE_UNKNOWN));
    } else if (event.type == SLUICE_EVENT_CLOSED) {
      closed.push_back(event.socket);
      EXPECT_EQ(event.error, ENOTCONN);
      EXPECT_NE(event.text, nullptr);
    } else if (event.type == SLUICE_EVENT_CONNECTED) {
      EXPECT_EQ(event.outcome, static_cast<uint32_t>(SLUICE_UNKNOWN));
      EXPECT_EQ(event.user_data, 300u);
      closed.push_back(event.socket);
    }
  }
  EXPECT_EQ(ended.size(), 19u) << "all but the silent one that went well";
  for (const auto& [operation, times] : ended) EXPECT_EQ(times, 1) << operation;
  EXPECT_THAT(closed, testing::UnorderedElementsAre(first, second, connecting));
  EXPECT_EQ(sluice_send_copy(channel_, first, "x", 1, 0, 0, 0), -ENOTCONN);
  EXPECT_TRUE(Quiet());
}

TEST_F(ReattachTest, ComesBackWithItsListenersAndWorksAgain) {
  Begin();
  sluice_listener listener = 0;
  ASSERT_EQ(sluice_listen(channel_, 42, 77, &listener), 0);
  const uint64_t token = daemon_->WaitForListen().token;
  RestartDaemon();
  const sluice_event detached = Next(SLUICE_EVENT_DETACHED);
  EXPECT_NE(detached.text, nullptr);
  EXPECT_EQ(Next(SLUICE_EVENT_REATTACHED).error, 0);
  const control::Listen again = daemon_->WaitForListen();
  EXPECT_EQ(again.token, token);
  EXPECT_EQ(again.service, 42u);
  port_ = &daemon_->OpenPort(0, 1);
  port_->Accepted(token, 3);
  const sluice_event accepted = Next(SLUICE_EVENT_ACCEPTED);
  EXPECT_EQ(accepted.listener, listener);
  EXPECT_EQ(accepted.user_data, 77u);
  ASSERT_EQ(sluice_send_copy(channel_, accepted.socket, std::string(500, 'n').data(), 500, 0, 0, 0),
            0);
  const Descriptor sent = port_->Next();
  EXPECT_EQ(daemon_->Read(sent.region.offset, 500), std::string(500, 'n'));
  port_->Sent(sent.token);
  Next(SLUICE_EVENT_SENT);
}

TEST_F(ReattachTest, OldBuffersStayReadableAreNeverSentAndCanBeFreed) {
  Begin();
  Connected(1);
  const uint64_t offset = daemon_->ReceiveBuffer(1000);
  std::memset(daemon_->At(offset), 'r', 1000);
  port_->MessageAt(1, offset, 1000);
  const sluice_event received = Next(SLUICE_EVENT_MESSAGE);
  auto* own = static_cast<char*>(sluice_alloc(channel_, 1000));
  std::memset(own, 'o', 1000);
  RestartDaemon();
  Next(SLUICE_EVENT_CLOSED);
  Next(SLUICE_EVENT_DETACHED);
  Next(SLUICE_EVENT_REATTACHED);
  port_ = &daemon_->OpenPort(0, 0);
  const sluice_socket socket = Connected(1);
  EXPECT_EQ(std::string(static_cast<char*>(received.data), 1000), std::string(1000, 'r'));
  EXPECT_EQ(std::string(own, 1000), std::string(1000, 'o'));
  EXPECT_EQ(sluice_send(channel_, socket, own, 1000, 0, 0, 0), -EINVAL);
  EXPECT_THAT(sluice_error_text(), HasSubstr("before the daemon restarted"));
  EXPECT_EQ(sluice_send(channel_, socket, received.data, 1000, 0, 0, 0), -EINVAL);
  EXPECT_EQ(sluice_send_copy(channel_, socket, own, 1000, 0, 0, 0), 0) << "but it can be copied";
  EXPECT_EQ(sluice_free(channel_, own), 0);
  EXPECT_EQ(sluice_free(channel_, received.data), 0);
  EXPECT_EQ(sluice_free(channel_, received.data), -EINVAL);
}

TEST_F(ReattachTest, EndsWithRoomForOneEventAtATime) {
  Begin();
  const sluice_socket socket = Connected(1);
  for (uint64_t i = 0; i < 3; ++i)
    ASSERT_EQ(sluice_send_copy(channel_, socket, "x", 1, 0, i, 0), 0);
  port_->MessageInline(1, "last words");
  daemon_->Kill();
  EXPECT_EQ(Next(SLUICE_EVENT_MESSAGE).length, 10u) << "what the old ring still holds comes first";
  for (int i = 0; i < 3; ++i) Next(SLUICE_EVENT_SENT);
  Next(SLUICE_EVENT_CLOSED);
  Next(SLUICE_EVENT_DETACHED);
  EXPECT_TRUE(Quiet());
}

TEST_F(ReattachTest, AChannelThatSleptThroughTwoLivesHearsOfOneRestart) {
  Begin();
  for (int life = 0; life < 3; ++life) {
    RestartDaemon();
    ASSERT_TRUE(daemon_->WaitForMessage(control::Type::kOpenChannel));
  }
  Next(SLUICE_EVENT_DETACHED);
  Next(SLUICE_EVENT_REATTACHED);
  EXPECT_TRUE(Quiet());
  EXPECT_NE(sluice_alloc(channel_, 100), nullptr);
}

TEST_F(ReattachTest, RingsOfTheNewLifeWaitUntilTheOldOneHasEnded) {
  Begin();
  sluice_listener listener = 0;
  ASSERT_EQ(sluice_listen(channel_, 42, 0, &listener), 0);
  const sluice_socket socket = Connected(1);
  ASSERT_EQ(sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0), 0);
  RestartDaemon();
  const uint64_t token = daemon_->WaitForListen().token;
  daemon_->OpenPort(0, 0).Accepted(token, 1);  // Before the application has polled at all.
  Next(SLUICE_EVENT_SENT);
  EXPECT_EQ(Next(SLUICE_EVENT_CLOSED).socket, socket);
  Next(SLUICE_EVENT_DETACHED);
  Next(SLUICE_EVENT_REATTACHED);
  EXPECT_NE(Next(SLUICE_EVENT_ACCEPTED).socket, socket);
}

TEST_F(ReattachTest, SaysWhichListenerIsNotBackAndGoesOnTrying) {
  Begin();
  sluice_listener listener = 0;
  ASSERT_EQ(sluice_listen(channel_, 42, 0, &listener), 0);
  FakeDaemon::Options options;
  auto refusals = std::make_shared<int>(0);
  options.intercept = [refusals](FakeDaemon& daemon, const control::Header& header, auto) {
    if (header.type != control::Type::kListen || ++*refusals > 1) return false;
    daemon.SendError(header.request, EADDRINUSE, "taken meanwhile");
    return true;
  };
  RestartDaemon(options);
  Next(SLUICE_EVENT_DETACHED);
  const sluice_event back = Next(SLUICE_EVENT_REATTACHED);
  EXPECT_EQ(back.error, EADDRINUSE);
  EXPECT_THAT(back.text, HasSubstr("42"));
  EXPECT_THAT(back.text, HasSubstr("taken meanwhile"));
  EXPECT_TRUE(daemon_->WaitForMessage(control::Type::kListen, 2)) << "it is tried again";
}

TEST_F(ReattachTest, AChannelThatTheDaemonDoesNotTakeBackSaysSoAndStaysAway) {
  Begin();
  sluice_channel* second = nullptr;
  ASSERT_EQ(sluice_channel_open(client_, 16, &second), 0);
  FakeDaemon::Options options;
  options.intercept = [](FakeDaemon& daemon, const control::Header& header, auto packet) {
    control::OpenChannel open{};
    if (header.type != control::Type::kOpenChannel) return false;
    std::memcpy(&open, packet.data(), sizeof(open));
    if (open.channel != 1) return false;
    daemon.SendError(header.request, ENOMEM, "one channel is enough");
    return true;
  };
  for (int life = 0; life < 2; ++life) {
    RestartDaemon(options);
    Next(SLUICE_EVENT_DETACHED);
    EXPECT_EQ(Next(SLUICE_EVENT_REATTACHED).error, 0) << "the first is taken";
  }
  sluice_event event{};
  ASSERT_EQ(sluice_wait(second, &event, 1, kPatienceMs), 1);
  EXPECT_EQ(event.type, static_cast<uint32_t>(SLUICE_EVENT_DETACHED));
  ASSERT_EQ(sluice_wait(second, &event, 1, kPatienceMs), 1);
  EXPECT_EQ(event.type, static_cast<uint32_t>(SLUICE_EVENT_REATTACHED));
  EXPECT_EQ(event.error, ENOMEM);
  EXPECT_THAT(event.text, HasSubstr("one channel is enough"));
  EXPECT_EQ(sluice_poll(second, &event, 1), 0) << "said once";
  sluice_socket socket = 0;
  EXPECT_EQ(sluice_connect(second, "host:7", 0, &socket), -ENOTCONN);
  EXPECT_THAT(sluice_error_text(), HasSubstr("one channel is enough"));
  EXPECT_EQ(sluice_alloc(second, 10), nullptr);
  RestartDaemon();
  ASSERT_EQ(sluice_wait(second, &event, 1, kPatienceMs), 1);
  EXPECT_EQ(event.type, static_cast<uint32_t>(SLUICE_EVENT_REATTACHED));
  EXPECT_EQ(event.error, 0);
  EXPECT_NE(sluice_alloc(second, 10), nullptr);
  EXPECT_EQ(sluice_channel_close(second), 0);
}

TEST_F(ReattachTest, TellsTheDaemonsReasonForDetaching) {
  Begin();
  control::Detached goodbye{};
  goodbye.error = EPROTO;
  std::strcpy(goodbye.text, "its ring was broken");
  daemon_->Send(goodbye, control::Type::kDetached, 0);
  EXPECT_THAT(Next(SLUICE_EVENT_DETACHED).text, HasSubstr("its ring was broken"));
  Next(SLUICE_EVENT_REATTACHED);
}

TEST_F(ReattachTest, TellsTheDaemonsLastWordsThatAnswerNothing) {
  Begin();
  daemon_->SendError(0, EPROTO, "a message shorter than its header");
  daemon_->HangUp();
  EXPECT_THAT(Next(SLUICE_EVENT_DETACHED).text, HasSubstr("shorter than its header"));
  Next(SLUICE_EVENT_REATTACHED);
}

TEST_F(ReattachTest, RequestsThatWaitEndWhenTheDaemonDies) {
  FakeDaemon::Options options;
  options.answers_grow = false;
  Begin(options);
  std::thread killer([this] {
    EXPECT_TRUE(daemon_->WaitForMessage(control::Type::kGrow));
    daemon_->HangUp();
  });
  EXPECT_EQ(sluice_alloc(channel_, 100), nullptr);
  EXPECT_EQ(errno, ENOTCONN);
  killer.join();
}

TEST_F(ReattachTest, RefusesNewWorkWhileTheDaemonIsAway) {
  Begin();
  daemon_->Kill();
  Next(SLUICE_EVENT_DETACHED);
  sluice_socket socket;
  sluice_listener listener;
  sluice_channel* another;
  EXPECT_EQ(sluice_connect(channel_, "host:7", 0, &socket), -ENOTCONN);
  EXPECT_EQ(sluice_listen(channel_, 7, 0, &listener), -ENOTCONN);
  EXPECT_EQ(sluice_channel_open(client_, 16, &another), -ENOTCONN);
  EXPECT_EQ(sluice_alloc(channel_, 10), nullptr);
  EXPECT_EQ(errno, ENOTCONN);
}

TEST_F(ReattachTest, ChannelsThatCloseWhileItIsAwayDoNotComeBack) {
  Begin();
  sluice_channel* second = nullptr;
  ASSERT_EQ(sluice_channel_open(client_, 16, &second), 0);
  daemon_->Kill();
  ASSERT_EQ(sluice_channel_close(second), 0);
  daemon_->Start();
  Next(SLUICE_EVENT_DETACHED);
  Next(SLUICE_EVENT_REATTACHED);
  EXPECT_EQ(daemon_->seen(control::Type::kOpenChannel), 1u);
}

TEST_F(ReattachTest, AnOldPoolIsUnmappedOnceItsLastBufferIsFreed) {
  Begin();
  auto* first = static_cast<char*>(sluice_alloc(channel_, 1000));
  auto* second = static_cast<char*>(sluice_alloc(channel_, 1000));
  ASSERT_EQ(sluice_free(channel_, first), 0);
  auto* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(second) & ~uintptr_t{4095});
  RestartDaemon();
  Next(SLUICE_EVENT_DETACHED);
  Next(SLUICE_EVENT_REATTACHED);
  sluice_event event;
  EXPECT_EQ(sluice_wait(channel_, &event, 1, 2'500), 0);  // More than two rounds of maintenance.
  EXPECT_EQ(msync(page, 4096, MS_ASYNC), 0) << "one buffer is still held";
  ASSERT_EQ(sluice_free(channel_, second), 0);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (msync(page, 4096, MS_ASYNC) == 0 && std::chrono::steady_clock::now() < deadline) {
    sluice_wait(channel_, &event, 1, 50);
  }
  EXPECT_NE(msync(page, 4096, MS_ASYNC), 0);
}

}  // namespace
}  // namespace sluice::client
