// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "libclient/include/sluice/sluice.h"
#include "libclient/src/fake_daemon_testing.h"

namespace sluice::client {

// A fake daemon in a directory of its own, and the C interface in front of it.
class ClientTest : public testing::Test {
 protected:
  static constexpr int kPatienceMs = 10'000;

  void SetUp() override {
    char directory[] = "/tmp/sluice-client-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    path_ = directory_ + "/sluiced.sock";
  }

  void TearDown() override {
    EXPECT_EQ(channel_ != nullptr ? sluice_channel_close(channel_) : 0, 0);
    EXPECT_EQ(client_ != nullptr ? sluice_detach(client_) : 0, 0);
    daemon_.reset();
    unlink(path_.c_str());
    rmdir(directory_.c_str());
  }

  void StartDaemon(FakeDaemon::Options options = {}) {
    daemon_ = std::make_unique<FakeDaemon>(path_, std::move(options));
    daemon_->Start();
  }

  int TryAttach(sluice_client** client, uint32_t timeout_ms = 0) {
    sluice_options options{};
    options.size = sizeof(options);
    options.socket_path = path_.c_str();
    options.name = "test";
    options.attach_timeout_ms = timeout_ms;
    return sluice_attach(&options, client);
  }

  void Attach() { ASSERT_EQ(TryAttach(&client_), 0) << sluice_error_text(); }

  // A daemon, a client, a channel and its ring pair with I/O thread 0.
  void Begin(FakeDaemon::Options options = {}, uint32_t ring_entries = 16) {
    StartDaemon(std::move(options));
    Attach();
    ASSERT_EQ(sluice_channel_open(client_, ring_entries, &channel_), 0) << sluice_error_text();
    port_ = &daemon_->OpenPort(0, 0);
  }

  // The next event, which must come.
  sluice_event Next() {
    sluice_event event{};
    EXPECT_EQ(sluice_wait(channel_, &event, 1, kPatienceMs), 1) << "no event came";
    return event;
  }
  sluice_event Next(sluice_event_type type) {
    const sluice_event event = Next();
    EXPECT_EQ(event.type, static_cast<uint32_t>(type));
    return event;
  }
  bool Quiet() {
    sluice_event event;
    return sluice_poll(channel_, &event, 1) == 0;
  }

  // A connected socket, known to the daemon as `name`.
  sluice_socket Connected(uint32_t name, uint64_t user_data = 0) {
    sluice_socket socket = 0;
    EXPECT_EQ(sluice_connect(channel_, "host:7", user_data, &socket), 0) << sluice_error_text();
    port_->Connected(daemon_->WaitForConnect().token, name);
    EXPECT_EQ(Next(SLUICE_EVENT_CONNECTED).socket, socket);
    return socket;
  }

  std::string directory_, path_;
  std::unique_ptr<FakeDaemon> daemon_;
  FakeDaemon::Port* port_ = nullptr;
  sluice_client* client_ = nullptr;
  sluice_channel* channel_ = nullptr;
};

}  // namespace sluice::client
