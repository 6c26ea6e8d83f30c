// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "libclient/src/client_fixture_testing.h"

namespace sluice::client {
namespace {

using testing::HasSubstr;

class ChannelTest : public ClientTest {};

TEST_F(ChannelTest, ConnectsSendsAndLearnsTheOutcome) {
  Begin();
  sluice_socket socket = 0;
  ASSERT_EQ(sluice_connect(channel_, "example:7001:42", 5, &socket), 0);
  const control::Connect connect = daemon_->WaitForConnect();
  EXPECT_STREQ(connect.host, "example:7001");
  EXPECT_EQ(connect.service, 42u);
  EXPECT_EQ(sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0), -ENOTCONN);
  port_->Connected(connect.token, 9);
  const sluice_event connected = Next(SLUICE_EVENT_CONNECTED);
  EXPECT_EQ(connected.outcome, static_cast<uint32_t>(SLUICE_OK));
  EXPECT_EQ(connected.socket, socket);
  EXPECT_EQ(connected.user_data, 5u);

  void* buffer = sluice_alloc(channel_, 1000);
  ASSERT_NE(buffer, nullptr) << sluice_error_text();
  std::memset(buffer, 'a', 1000);
  ASSERT_EQ(sluice_send(channel_, socket, buffer, 1000, 0, 77, 99), 0) << sluice_error_text();
  const Descriptor sent = port_->Next();
  EXPECT_EQ(sent.op, static_cast<uint8_t>(SubmitOp::kSend));
  EXPECT_EQ(sent.socket, 9u);
  EXPECT_EQ(sent.trace_id, 99u);
  EXPECT_EQ(sent.region.length, 1000u);
  EXPECT_EQ(daemon_->Read(sent.region.offset, 1000), std::string(1000, 'a'));
  EXPECT_EQ(sluice_free(channel_, buffer), -EINVAL) << "a buffer under way is not the caller's";
  port_->Sent(sent.token);
  const sluice_event done = Next(SLUICE_EVENT_SENT);
  EXPECT_EQ(done.outcome, static_cast<uint32_t>(SLUICE_OK));
  EXPECT_EQ(done.user_data, 77u);
  EXPECT_EQ(done.data, nullptr);
  EXPECT_EQ(sluice_free(channel_, buffer), -EINVAL) << "the send has freed it";
}

TEST_F(ChannelTest, EveryEventOfASocketSaysWhetherItsMessagesTakeTcpForWantOfRdma) {
  Begin();
  const sluice_socket socket = Connected(1);
  sluice_listener listener = 0;
  ASSERT_EQ(sluice_listen(channel_, 42, 11, &listener), 0) << sluice_error_text();
  const uint64_t token = daemon_->WaitForListen().token;
  uint32_t name = 2;
  for (const bool degraded : {false, true, false}) {
    const uint32_t expected = degraded ? SLUICE_EVENT_DEGRADED_TCP : 0;
    port_->path_flags = degraded ? kFlagDegraded : 0;
    ASSERT_EQ(sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0), 0);
    port_->Sent(port_->NextOf(SubmitOp::kSend).token);
    EXPECT_EQ(Next(SLUICE_EVENT_SENT).flags, expected);
    port_->MessageInline(1, "small");
    const sluice_event message = Next(SLUICE_EVENT_MESSAGE);
    EXPECT_EQ(message.flags, expected);
    EXPECT_EQ(message.length, 5u);
    EXPECT_EQ(sluice_free(channel_, message.data), 0);
    port_->Accepted(token, name++);
    EXPECT_EQ(Next(SLUICE_EVENT_ACCEPTED).flags, expected);
    sluice_socket another = 0;
    ASSERT_EQ(sluice_connect(channel_, "example:7001:42", 5, &another), 0);
    port_->Connected(daemon_->WaitForConnect().token, name++);
    EXPECT_EQ(Next(SLUICE_EVENT_CONNECTED).flags, expected);
  }
}

TEST_F(ChannelTest, AcceptsReceivesAndReturnsTheBuffer) {
  Begin();
  sluice_listener listener = 0;
  ASSERT_EQ(sluice_listen(channel_, 42, 11, &listener), 0) << sluice_error_text();
  port_->Accepted(daemon_->WaitForListen().token, 3);
  const sluice_event accepted = Next(SLUICE_EVENT_ACCEPTED);
  EXPECT_EQ(accepted.listener, listener);
  EXPECT_EQ(accepted.user_data, 11u);
  ASSERT_EQ(sluice_set_user_data(channel_, accepted.socket, 12), 0);

  port_->MessageInline(3, "small");
  sluice_event message = Next(SLUICE_EVENT_MESSAGE);
  EXPECT_EQ(message.user_data, 12u);
  EXPECT_EQ(std::string(static_cast<char*>(message.data), message.length), "small");
  EXPECT_EQ(sluice_free(channel_, message.data), 0);
  EXPECT_EQ(sluice_free(channel_, message.data), -EINVAL);

  const uint64_t offset = daemon_->ReceiveBuffer(5000);
  std::memset(daemon_->At(offset), 'z', 5000);
  port_->MessageAt(3, offset, 5000);
  message = Next(SLUICE_EVENT_MESSAGE);
  EXPECT_EQ(std::string(static_cast<char*>(message.data), message.length), std::string(5000, 'z'));
  EXPECT_EQ(sluice_free(channel_, message.data), 0);
  EXPECT_EQ(sluice_free(channel_, message.data), -EINVAL);
  EXPECT_TRUE(Quiet());
  ASSERT_TRUE(port_->WaitForFrees(1));
  EXPECT_EQ(port_->freed()[0], offset);
}

TEST_F(ChannelTest, KeepGivesTheBufferBackAndSilentSaysNothing) {
  Begin();
  const sluice_socket socket = Connected(1);
  void* buffer = sluice_alloc(channel_, 100);
  ASSERT_EQ(sluice_send(channel_, socket, buffer, 100, SLUICE_SEND_KEEP, 1, 0), 0);
  EXPECT_EQ(sluice_send(channel_, socket, buffer, 100, 0, 1, 0), -EINVAL) << "it is under way";
  port_->Sent(port_->Next().token);
  EXPECT_EQ(Next(SLUICE_EVENT_SENT).data, buffer);
  ASSERT_EQ(sluice_send(channel_, socket, buffer, 100, SLUICE_SEND_SILENT, 2, 0), 0);
  port_->Sent(port_->Next().token);
  ASSERT_EQ(sluice_send_copy(channel_, socket, "x", 1, SLUICE_SEND_SILENT, 3, 0), 0);
  port_->Sent(port_->Next().token, Outcome::kFailed, ECONNREFUSED);
  const sluice_event failed = Next(SLUICE_EVENT_SENT);
  EXPECT_EQ(failed.user_data, 3u) << "a silent send is silent about success only";
  EXPECT_EQ(failed.outcome, static_cast<uint32_t>(SLUICE_FAILED));
  EXPECT_EQ(failed.error, ECONNREFUSED);
  ASSERT_NE(failed.text, nullptr);
  EXPECT_EQ(sluice_free(channel_, buffer), -EINVAL) << "the silent send has freed it";
  EXPECT_EQ(sluice_send_copy(channel_, socket, "x", 1, 3, 0, 0), -EINVAL) << "KEEP and SILENT";
}

TEST_F(ChannelTest, TakesBackPressureAtHalfTheRingAndGoesOnAfterACompletion) {
  Begin({}, 16);
  const sluice_socket socket = Connected(1);
  std::vector<uint64_t> tokens;
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(sluice_send_copy(channel_, socket, &i, sizeof(i), 0, 0, 0), 0);
    tokens.push_back(port_->Next().token);
  }
  EXPECT_EQ(sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0), -EAGAIN);
  port_->Sent(tokens[3]);
  Next(SLUICE_EVENT_SENT);
  EXPECT_EQ(sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0), 0);
  EXPECT_EQ(sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0), -EAGAIN);
}

class RoomTest : public ChannelTest {
 protected:
  void FillWithSilentSends(sluice_socket socket) {
    while (sluice_send_copy(channel_, socket, "x", 1, SLUICE_SEND_SILENT, 0, 0) == 0) {
      tokens_.push_back(port_->Next().token);
    }
    ASSERT_EQ(tokens_.size(), 8u);
  }
  // Whether a wait ends without an event before its time is up.
  bool WaitEndsForRoom() {
    const auto patience = std::chrono::milliseconds(kPatienceMs);
    const auto end = std::chrono::steady_clock::now() + patience;
    sluice_event event;
    return sluice_wait(channel_, &event, 1, kPatienceMs) == 0 &&
           std::chrono::steady_clock::now() < end;
  }
  std::vector<uint64_t> tokens_;
};

TEST_F(RoomTest, AWaitAfterBackPressureEndsWhenASilentSendGivesRoom) {
  Begin({}, 16);
  const sluice_socket socket = Connected(1);
  FillWithSilentSends(socket);
  std::thread daemon([this] { port_->Sent(tokens_[0]); });
  EXPECT_TRUE(WaitEndsForRoom());
  daemon.join();
  EXPECT_EQ(sluice_send_copy(channel_, socket, "x", 1, SLUICE_SEND_SILENT, 0, 0), 0);
}

TEST_F(RoomTest, RoomThatAPollFoundIsNotWaitedFor) {
  Begin({}, 16);
  const sluice_socket socket = Connected(1);
  FillWithSilentSends(socket);
  port_->Sent(tokens_[0]);
  EXPECT_TRUE(Quiet());
  EXPECT_TRUE(WaitEndsForRoom());
}

TEST_F(RoomTest, SilentSendsDisturbNoWaitThatIsNotForRoom) {
  Begin({}, 16);
  const sluice_socket socket = Connected(1);
  ASSERT_EQ(sluice_send_copy(channel_, socket, "x", 1, SLUICE_SEND_SILENT, 0, 0), 0);
  const uint64_t token = port_->Next().token;
  std::thread daemon([this, token] {
    port_->Sent(token);
    while (port_->completions.Free() < 16) std::this_thread::yield();
    port_->MessageInline(1, "first event");
  });
  Next(SLUICE_EVENT_MESSAGE);
  daemon.join();
}

TEST_F(RoomTest, AWaitAfterAFullRingEndsWhenTheDaemonTookSomething) {
  Begin({}, 16);
  const sluice_socket socket = Connected(1);
  std::vector<void*> buffers;
  for (size_t i = 0; i < 16 * kFreesPerDescriptor; ++i) {
    port_->MessageAt(1, daemon_->ReceiveBuffer(64), 64);
    buffers.push_back(Next(SLUICE_EVENT_MESSAGE).data);
  }
  for (void* buffer : buffers) ASSERT_EQ(sluice_free(channel_, buffer), 0);
  ASSERT_EQ(sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0), -EAGAIN);
  std::thread daemon([&] { EXPECT_TRUE(port_->WaitForFrees(buffers.size())); });
  EXPECT_TRUE(WaitEndsForRoom());
  daemon.join();
  EXPECT_EQ(sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0), 0);
}

TEST_F(ChannelTest, SendsMessagesOfEverySizeFromNothingToTheLargest) {
  FakeDaemon::Options options;
  options.max_message_bytes = 5 * kMiB;
  Begin(options);
  const sluice_socket socket = Connected(1);
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{40}, size_t{41}, size_t{4096}, size_t{5 * kMiB}}) {
    const std::string payload(size, static_cast<char>('a' + size % 26));
    ASSERT_EQ(sluice_send_copy(channel_, socket, payload.data(), size, 0, size, 0), 0) << size;
    const Descriptor sent = port_->Next();
    if (size <= kInlineBytes) {
      EXPECT_EQ(sent.flags & kFlagInline, kFlagInline);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(sent.inline_data), sent.inline_bytes),
                payload);
    } else {
      EXPECT_EQ(sent.region.length, size);
      EXPECT_EQ(daemon_->Read(sent.region.offset, size), payload);
    }
    port_->Sent(sent.token);
    EXPECT_EQ(Next(SLUICE_EVENT_SENT).user_data, size);
  }
  const std::string too_long(5 * kMiB + 1, 'x');
  EXPECT_EQ(sluice_send_copy(channel_, socket, too_long.data(), too_long.size(), 0, 0, 0),
            -EMSGSIZE);
  EXPECT_EQ(sluice_alloc(channel_, too_long.size()), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(ChannelTest, ReceivesTheEmptyAndTheLargestMessage) {
  Begin();
  Connected(1);
  port_->MessageInline(1, "");
  sluice_event event = Next(SLUICE_EVENT_MESSAGE);
  EXPECT_NE(event.data, nullptr);
  EXPECT_EQ(event.length, 0u);
  EXPECT_EQ(sluice_free(channel_, event.data), 0);
  const uint64_t offset = daemon_->ReceiveBuffer(16 * kMiB);
  *daemon_->At(offset + 16 * kMiB - 1) = std::byte{7};
  port_->MessageAt(1, offset, 16 * kMiB);
  event = Next(SLUICE_EVENT_MESSAGE);
  ASSERT_EQ(event.length, 16 * kMiB);
  EXPECT_EQ(static_cast<std::byte*>(event.data)[16 * kMiB - 1], std::byte{7});
  EXPECT_EQ(sluice_free(channel_, event.data), 0);
}

TEST_F(ChannelTest, SendsReceivedBuffersOnAndReturnsThemAfterwards) {
  Begin();
  const sluice_socket socket = Connected(1);
  const uint64_t offset = daemon_->ReceiveBuffer(1000);
  port_->MessageAt(1, offset, 1000);
  const sluice_event large = Next(SLUICE_EVENT_MESSAGE);
  auto* inside = static_cast<char*>(large.data) + 100;
  EXPECT_EQ(sluice_send(channel_, socket, inside, 10'000, 0, 0, 0), -EINVAL) << "past its end";
  ASSERT_EQ(sluice_send(channel_, socket, inside, 900, 0, 0, 0), 0) << sluice_error_text();
  const Descriptor sent = port_->Next();
  EXPECT_EQ(sent.region.offset, offset + 100);
  EXPECT_EQ(sluice_free(channel_, large.data), -EINVAL);
  port_->Sent(sent.token);
  Next(SLUICE_EVENT_SENT);
  EXPECT_TRUE(Quiet());
  ASSERT_TRUE(port_->WaitForFrees(1));
  EXPECT_EQ(port_->freed()[0], offset);

  port_->MessageInline(1, "little");
  const sluice_event small = Next(SLUICE_EVENT_MESSAGE);
  ASSERT_EQ(sluice_send(channel_, socket, small.data, 6, SLUICE_SEND_KEEP, 0, 0), 0);
  EXPECT_EQ(sluice_free(channel_, small.data), -EINVAL);
  port_->Sent(port_->NextOf(SubmitOp::kSend).token);
  EXPECT_EQ(Next(SLUICE_EVENT_SENT).data, small.data);
  EXPECT_EQ(sluice_free(channel_, small.data), 0);
}

TEST_F(ChannelTest, RefusesBuffersThatAreNotItsOwn) {
  Begin();
  const sluice_socket socket = Connected(1);
  char foreign[100];
  EXPECT_EQ(sluice_send(channel_, socket, foreign, 100, 0, 0, 0), -EINVAL);
  EXPECT_THAT(sluice_error_text(), HasSubstr("sluice_alloc"));
  EXPECT_EQ(sluice_free(channel_, foreign), -EINVAL);
  EXPECT_EQ(sluice_free(channel_, nullptr), 0);
  auto* buffer = static_cast<char*>(sluice_alloc(channel_, 1000));
  EXPECT_EQ(sluice_free(channel_, buffer + 64), -EINVAL) << "not its start";
  EXPECT_EQ(sluice_free(channel_, buffer + 1), -EINVAL);
  EXPECT_EQ(sluice_free(channel_, buffer), 0);
  EXPECT_EQ(sluice_free(channel_, buffer), -EINVAL);
  EXPECT_EQ(sluice_client_free(client_, buffer), -EINVAL);
  EXPECT_EQ(sluice_send(channel_, socket, buffer, 10, 0, 0, 0), -EINVAL);
}

TEST_F(ChannelTest, ConnectsThatFailSayWhyAndTakeTheNameAlong) {
  Begin();
  sluice_socket socket = 0;
  EXPECT_EQ(sluice_connect(channel_, "nonsense", 0, &socket), -EINVAL);
  ASSERT_EQ(sluice_connect(channel_, "host:7", 9, &socket), 0);
  const control::Connect connect = daemon_->WaitForConnect();
  control::ConnectFailed failed{};
  failed.token = connect.token;
  failed.channel = 0;
  failed.error = ENOENT;
  std::strcpy(failed.text, "no such host");
  daemon_->Send(failed, control::Type::kConnectFailed, connect.header.request);
  const sluice_event event = Next(SLUICE_EVENT_CONNECTED);
  EXPECT_EQ(event.outcome, static_cast<uint32_t>(SLUICE_FAILED));
  EXPECT_EQ(event.error, ENOENT);
  EXPECT_EQ(event.user_data, 9u);
  EXPECT_STREQ(event.text, "no such host");
  EXPECT_EQ(sluice_close(channel_, socket), -EINVAL);
}

TEST_F(ChannelTest, ClosesSocketsInEveryState) {
  Begin();
  const sluice_socket open = Connected(1, 5);
  ASSERT_EQ(sluice_close(channel_, open), 0);
  EXPECT_EQ(sluice_send_copy(channel_, open, "x", 1, 0, 0, 0), -ENOTCONN);
  EXPECT_EQ(port_->NextOf(SubmitOp::kClose).socket, 1u);
  port_->Closed(1);
  sluice_event closed = Next(SLUICE_EVENT_CLOSED);
  EXPECT_EQ(closed.socket, open);
  EXPECT_EQ(closed.user_data, 5u);
  EXPECT_EQ(closed.error, 0);

  sluice_socket connecting = 0;
  ASSERT_EQ(sluice_connect(channel_, "host:7", 6, &connecting), 0);
  ASSERT_EQ(sluice_close(channel_, connecting), 0);
  port_->Connected(daemon_->WaitForConnect().token, 2);
  EXPECT_TRUE(Quiet() && Quiet());
  EXPECT_EQ(port_->NextOf(SubmitOp::kClose).socket, 2u);
  port_->Closed(2);
  closed = Next(SLUICE_EVENT_CLOSED);
  EXPECT_EQ(closed.socket, connecting);

  Connected(3);
  port_->Closed(3, ECONNRESET);
  closed = Next(SLUICE_EVENT_CLOSED);
  EXPECT_EQ(closed.error, ECONNRESET);
  EXPECT_NE(closed.text, nullptr);
}

TEST_F(ChannelTest, HidesSocketsOfAListenerThatIsGone) {
  Begin();
  sluice_listener listener = 0;
  ASSERT_EQ(sluice_listen(channel_, 42, 0, &listener), 0);
  const uint64_t token = daemon_->WaitForListen().token;
  ASSERT_EQ(sluice_unlisten(channel_, listener), 0);
  EXPECT_EQ(sluice_unlisten(channel_, listener), -EINVAL);
  port_->Accepted(token, 4);
  const uint64_t offset = daemon_->ReceiveBuffer(100);
  port_->MessageAt(4, offset, 100);
  EXPECT_TRUE(Quiet() && Quiet());
  EXPECT_EQ(port_->NextOf(SubmitOp::kClose).socket, 4u);
  port_->Closed(4);
  EXPECT_TRUE(Quiet() && Quiet());
  ASSERT_TRUE(port_->WaitForFrees(1)) << "nobody else would have freed its message";
}

// Sockets that connect, or that are closed and not polled yet, count here and no longer there.
TEST_F(ChannelTest, TakesWhatTheDaemonAcceptsEvenAtItsOwnLimit) {
  FakeDaemon::Options options;
  options.max_sockets = 2;
  Begin(options);
  sluice_listener listener = 0;
  ASSERT_EQ(sluice_listen(channel_, 42, 0, &listener), 0);
  const uint64_t token = daemon_->WaitForListen().token;
  const sluice_socket open = Connected(1);
  sluice_socket connecting = 0;
  ASSERT_EQ(sluice_connect(channel_, "host:7", 0, &connecting), 0);
  EXPECT_EQ(sluice_connect(channel_, "host:7", 0, &connecting), -ENOMEM);
  port_->Accepted(token, 3);
  const sluice_socket accepted = Next(SLUICE_EVENT_ACCEPTED).socket;
  EXPECT_EQ(sluice_send_copy(channel_, accepted, "x", 1, 0, 0, 0), 0);
  EXPECT_EQ(sluice_send_copy(channel_, open, "x", 1, 0, 0, 0), 0) << sluice_error_text();
}

TEST_F(ChannelTest, RefusesAServiceThatIsTaken) {
  FakeDaemon::Options options;
  options.refused_services = {9};
  Begin(options);
  sluice_listener listener = 0;
  EXPECT_EQ(sluice_listen(channel_, 9, 0, &listener), -EADDRINUSE);
  EXPECT_THAT(sluice_error_text(), HasSubstr("another client's"));
  EXPECT_EQ(sluice_listen(channel_, 0, 0, &listener), -EINVAL);
}

TEST_F(ChannelTest, BatchesFreesFiveToADescriptor) {
  Begin();
  Connected(1);
  std::vector<void*> buffers;
  for (int i = 0; i < 7; ++i) {
    port_->MessageAt(1, daemon_->ReceiveBuffer(64), 64);
    buffers.push_back(Next(SLUICE_EVENT_MESSAGE).data);
  }
  for (void* buffer : buffers) ASSERT_EQ(sluice_free(channel_, buffer), 0);
  EXPECT_EQ(port_->Next().inline_bytes, 5 * sizeof(uint64_t)) << "shown without waiting for a poll";
  EXPECT_FALSE(port_->TryNext().has_value()) << "two wait for company";
  EXPECT_TRUE(Quiet());
  EXPECT_EQ(port_->Next().inline_bytes, 2 * sizeof(uint64_t));
}

TEST_F(ChannelTest, FreesFromAThreadWithoutAChannelWakeTheChannelThatCanReturnThem) {
  Begin();
  Connected(1);
  port_->MessageAt(1, daemon_->ReceiveBuffer(64), 64);
  void* buffer = Next(SLUICE_EVENT_MESSAGE).data;
  std::thread([&] {
    EXPECT_EQ(sluice_client_free(client_, buffer), 0);
    EXPECT_EQ(sluice_client_free(client_, buffer), -EINVAL);
  }).join();
  sluice_event event;
  EXPECT_EQ(sluice_poll(channel_, &event, 1), 0);
  ASSERT_TRUE(port_->WaitForFrees(1));

  port_->MessageAt(1, daemon_->ReceiveBuffer(64), 64);
  buffer = Next(SLUICE_EVENT_MESSAGE).data;
  while (sluice_arm(channel_) == 1) ASSERT_EQ(sluice_poll(channel_, &event, 1), 0);
  std::thread([&] { EXPECT_EQ(sluice_client_free(client_, buffer), 0); }).join();
  pollfd waited{sluice_event_fd(channel_), POLLIN, 0};
  EXPECT_EQ(poll(&waited, 1, kPatienceMs), 1) << "a sleeping channel must be woken for it";
  EXPECT_EQ(sluice_poll(channel_, &event, 1), 0);
  ASSERT_TRUE(port_->WaitForFrees(2));
}

TEST_F(ChannelTest, EventDescriptorSleepsAndWakes) {
  Begin();
  Connected(1);
  sluice_event event;
  while (sluice_arm(channel_) == 1) ASSERT_EQ(sluice_poll(channel_, &event, 1), 0);
  pollfd waited{sluice_event_fd(channel_), POLLIN, 0};
  EXPECT_EQ(poll(&waited, 1, 0), 0) << "nothing has happened";
  port_->MessageInline(1, "wake");
  EXPECT_EQ(poll(&waited, 1, kPatienceMs), 1);
  EXPECT_EQ(Next(SLUICE_EVENT_MESSAGE).length, 4u);
  EXPECT_TRUE(Quiet());
  while (sluice_arm(channel_) == 1) ASSERT_EQ(sluice_poll(channel_, &event, 1), 0);
  EXPECT_EQ(poll(&waited, 1, 0), 0) << "the doorbell was emptied";

  // What comes before arming is not slept through, though no doorbell rings for it.
  port_->MessageInline(1, "early");
  EXPECT_EQ(sluice_arm(channel_), 1);
}

TEST_F(ChannelTest, RingsTheDoorbellOnlyOfADaemonThatSleeps) {
  Begin();
  const sluice_socket socket = Connected(1);
  char byte;
  ASSERT_EQ(sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0), 0);
  EXPECT_EQ(recv(port_->doorbell.get(), &byte, 1, MSG_DONTWAIT), -1);
  port_->Next();
  port_->submissions.Arm();
  ASSERT_EQ(sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0), 0);
  EXPECT_EQ(recv(port_->doorbell.get(), &byte, 1, MSG_DONTWAIT), 1);
}

TEST_F(ChannelTest, WorksAcrossTheWrapOfRingCounters) {
  FakeDaemon::Options options;
  options.ring_start = UINT32_MAX - 20;
  Begin(options, 16);
  const sluice_socket socket = Connected(1);
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(sluice_send_copy(channel_, socket, &i, sizeof(i), 0, i, 0), 0);
    port_->Sent(port_->Next().token);
    EXPECT_EQ(Next(SLUICE_EVENT_SENT).user_data, i);
  }
}

TEST_F(ChannelTest, ReturnsWhatAClosedChannelLeftBehind) {
  Begin();
  const sluice_socket socket = Connected(1);
  void* buffer = sluice_alloc(channel_, 3 * kMiB);
  ASSERT_EQ(sluice_send(channel_, socket, buffer, 3 * kMiB, 0, 0, 0), 0);
  port_->MessageAt(1, daemon_->ReceiveBuffer(64), 64);
  ASSERT_EQ(sluice_channel_close(channel_), 0);
  ASSERT_TRUE(daemon_->WaitForMessage(control::Type::kCloseChannel));
  ASSERT_EQ(sluice_channel_open(client_, 16, &channel_), 0);
  port_ = &daemon_->OpenPort(daemon_->last_channel(), 0);
  EXPECT_TRUE(Quiet() && Quiet());
  EXPECT_TRUE(port_->WaitForFrees(1)) << "the unread message's buffer goes back over the next ring";
}

TEST_F(ChannelTest, TellsAnExhaustedQuotaFromBackPressure) {
  FakeDaemon::Options options;
  options.pool_bytes = 8 * kMiB;
  options.max_message_bytes = 4 * kMiB;
  Begin(options);
  const sluice_socket socket = Connected(1);
  const std::string payload(4 * kMiB, 'x');
  ASSERT_EQ(sluice_send_copy(channel_, socket, payload.data(), payload.size(), 0, 0, 0), 0);
  ASSERT_EQ(sluice_send_copy(channel_, socket, payload.data(), payload.size(), 0, 0, 0), 0);
  EXPECT_EQ(sluice_alloc(channel_, 100), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_THAT(sluice_error_text(), HasSubstr("quota"));
  EXPECT_EQ(sluice_send_copy(channel_, socket, payload.data(), payload.size(), 0, 0, 0), -EAGAIN)
      << "memory comes back when the sends under way are over";
  port_->Sent(port_->Next().token);
  Next(SLUICE_EVENT_SENT);
  EXPECT_EQ(sluice_send_copy(channel_, socket, payload.data(), payload.size(), 0, 0, 0), 0);
}

}  // namespace
}  // namespace sluice::client
