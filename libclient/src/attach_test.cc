// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstring>
#include <fstream>

#include "libclient/src/client_fixture_testing.h"

namespace sluice::client {
namespace {

using testing::HasSubstr;

class AttachTest : public ClientTest {};

TEST_F(AttachTest, SaysThatThereIsNoDaemon) {
  EXPECT_EQ(TryAttach(&client_), -ENOENT);
  EXPECT_THAT(sluice_error_text(), HasSubstr(path_));
  std::ofstream(path_).put('x');  // A file where the socket was.
  EXPECT_EQ(TryAttach(&client_), -ENOENT);
}

TEST_F(AttachTest, TakesTheLimitsThatTheDaemonTells) {
  StartDaemon();
  Attach();
  EXPECT_EQ(sluice_max_message_bytes(client_), 16 * kMiB);
  EXPECT_EQ(sluice_pool_quota_bytes(client_), 64 * kMiB);
  EXPECT_STREQ(sluice_version(), "0.1.0");
}

TEST_F(AttachTest, NamesBothVersionsWhenTheyDiffer) {
  FakeDaemon::Options options;
  options.version_min = 4;
  options.version_max = 6;
  StartDaemon(options);
  EXPECT_EQ(TryAttach(&client_), -EPROTONOSUPPORT);
  EXPECT_THAT(sluice_error_text(), HasSubstr("4 to 6"));
  EXPECT_THAT(sluice_error_text(), HasSubstr("protocol 1"));
}

TEST_F(AttachTest, PassesTheDaemonsRefusalOn) {
  FakeDaemon::Options options;
  options.intercept = [](FakeDaemon& daemon, const control::Header& header, auto) {
    daemon.SendError(header.request, EACCES, "uid 12 belongs to no tenant");
    daemon.HangUp();
    return true;
  };
  StartDaemon(options);
  EXPECT_EQ(TryAttach(&client_), -EACCES);
  EXPECT_STREQ(sluice_error_text(), "uid 12 belongs to no tenant");
}

TEST_F(AttachTest, TakesAnErrorThatAnswersNothingAsTheReasonOfTheHangUp) {
  FakeDaemon::Options options;
  options.intercept = [](FakeDaemon& daemon, const control::Header&, auto) {
    daemon.SendError(0, ENOMEM, "no descriptors left");
    daemon.HangUp();
    return true;
  };
  StartDaemon(options);
  EXPECT_EQ(TryAttach(&client_), -ENOMEM);
  EXPECT_STREQ(sluice_error_text(), "no descriptors left");
}

TEST_F(AttachTest, GivesUpOnADaemonThatSaysNothing) {
  FakeDaemon::Options options;
  options.intercept = [](FakeDaemon&, const control::Header&, auto) { return true; };
  StartDaemon(options);
  EXPECT_EQ(TryAttach(&client_, 50), -ETIMEDOUT);
}

TEST_F(AttachTest, RefusesNonsenseFromWhateverListensThere) {
  FakeDaemon::Options options;
  options.intercept = [](FakeDaemon& daemon, const control::Header&, auto) {
    daemon.SendBytes(std::as_bytes(std::span("HTTP/1.1 400 Bad Request")));
    return true;
  };
  StartDaemon(options);
  EXPECT_EQ(TryAttach(&client_), -ECONNRESET);
  EXPECT_THAT(sluice_error_text(), HasSubstr("does not speak this protocol"));
}

TEST_F(AttachTest, ChecksItsArguments) {
  StartDaemon();
  EXPECT_EQ(sluice_attach(nullptr, nullptr), -EINVAL);
  sluice_options options{};
  options.size = 10'000;
  EXPECT_EQ(sluice_attach(&options, &client_), -EINVAL);
  Attach();
  EXPECT_EQ(sluice_channel_open(client_, 100, &channel_), -EINVAL);
  EXPECT_EQ(sluice_channel_open(client_, 8, &channel_), -EINVAL);
  EXPECT_EQ(sluice_poll(nullptr, nullptr, 0), -EINVAL);
}

TEST_F(AttachTest, RefusesToDetachUnderOpenChannelsAndMoreChannelsThanAllowed) {
  StartDaemon();
  Attach();
  std::vector<sluice_channel*> channels(8);
  for (sluice_channel*& channel : channels)
    ASSERT_EQ(sluice_channel_open(client_, 16, &channel), 0);
  EXPECT_EQ(sluice_channel_open(client_, 16, &channel_), -ENOMEM);
  EXPECT_EQ(sluice_detach(client_), -EBUSY);
  for (sluice_channel* channel : channels) ASSERT_EQ(sluice_channel_close(channel), 0);
}

TEST_F(AttachTest, UsesAChannelsNumberAgainOnlyWhenTheDaemonHasLetGo) {
  FakeDaemon::Options options;
  options.confirms_close = false;
  Begin(options);
  ASSERT_EQ(sluice_channel_close(channel_), 0);
  ASSERT_EQ(sluice_channel_open(client_, 16, &channel_), 0);
  EXPECT_EQ(daemon_->last_channel(), 1u);
  control::ChannelClosed closed{};
  closed.channel = 0;
  daemon_->Send(closed, control::Type::kChannelClosed, 0);
  sluice_channel* third = nullptr;
  // Both come over one connection, in order: this listen is answered after the close was heard.
  sluice_listener listener;
  ASSERT_EQ(sluice_listen(channel_, 5, 0, &listener), 0);
  ASSERT_EQ(sluice_channel_open(client_, 16, &third), 0);
  EXPECT_EQ(daemon_->last_channel(), 0u);
  EXPECT_EQ(sluice_channel_close(third), 0);
}

TEST_F(AttachTest, TwoClientsOfOneProcessLiveApart) {
  FakeDaemon other(directory_ + "/other.sock");
  other.Start();
  Begin();
  sluice_options options{};
  options.size = sizeof(options);
  const std::string path = directory_ + "/other.sock";
  options.socket_path = path.c_str();
  sluice_client* second = nullptr;
  ASSERT_EQ(sluice_attach(&options, &second), 0);
  sluice_channel* channel = nullptr;
  ASSERT_EQ(sluice_channel_open(second, 16, &channel), 0);
  void* buffer = sluice_alloc(channel, 100);
  ASSERT_NE(buffer, nullptr);
  EXPECT_EQ(sluice_free(channel_, buffer), -EINVAL) << "the other client's";
  EXPECT_EQ(sluice_free(channel, buffer), 0);
  ASSERT_EQ(sluice_channel_close(channel), 0);
  ASSERT_EQ(sluice_detach(second), 0);
  other.Kill();
  unlink(path.c_str());
  const sluice_socket socket = Connected(1);
  EXPECT_EQ(sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0), 0) << "the first goes on";
}

TEST_F(AttachTest, OpensTheEnvironmentsSocketByDefault) {
  StartDaemon();
  ASSERT_EQ(setenv("SLUICE_SOCKET", path_.c_str(), 1), 0);
  EXPECT_EQ(sluice_attach(nullptr, &client_), 0) << sluice_error_text();
  unsetenv("SLUICE_SOCKET");
}

TEST_F(AttachTest, AForkedChildsHandlesAreDeadAndTheParentGoesOn) {
  Begin();
  const sluice_socket socket = Connected(1);
  void* buffer = sluice_alloc(channel_, 100);
  const pid_t child = fork();
  if (child == 0) {
    sluice_event event;
    [[maybe_unused]] sluice_client* attached = nullptr;
    bool dead = sluice_poll(channel_, &event, 1) == -EOWNERDEAD &&
                sluice_wait(channel_, &event, 1, 0) == -EOWNERDEAD &&
                sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0) == -EOWNERDEAD &&
                sluice_alloc(channel_, 10) == nullptr && errno == EOWNERDEAD &&
                sluice_free(channel_, buffer) == -EOWNERDEAD &&
                sluice_client_free(client_, buffer) == -EOWNERDEAD &&
                sluice_channel_close(channel_) == -EOWNERDEAD &&
                sluice_detach(client_) == -EOWNERDEAD && sluice_max_message_bytes(client_) == 0;
    dead = dead && strstr(sluice_error_text(), "forked") != nullptr;
#ifndef __SANITIZE_THREAD__  // It starts no threads in a child of a process with several.
    // Attaching again is how a child gets a client of its own.
    sluice_options options{};
    options.size = sizeof(options);
    options.socket_path = "/nonexistent";
    dead = dead && sluice_attach(&options, &attached) == -ENOENT;
#endif
    _exit(dead ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(sluice_send(channel_, socket, buffer, 100, 0, 0, 0), 0);
  port_->Sent(port_->Next().token);
  Next(SLUICE_EVENT_SENT);
}

}  // namespace
}  // namespace sluice::client
