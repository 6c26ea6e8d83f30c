// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <cstring>

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

}  // namespace
}  // namespace sluice::client
