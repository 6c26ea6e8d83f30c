// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/connector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <optional>

namespace sluice::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SocketAddress Address(const char* ip, uint16_t port = 1) {
  return SocketAddress::Parse(ip, port).value();
}

struct Listener {
  explicit Listener(const char* ip, int backlog = 16)
      : fd(socket(Address(ip).family(), SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_storage storage;
    socklen_t length = Address(ip, 0).ToSockaddr(storage);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), length), 0);
    EXPECT_EQ(listen(fd.get(), backlog), 0);
    EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &length), 0);
    address = SocketAddress::FromSockaddr(storage).value();
  }
  Fd fd;
  SocketAddress address;
};

class ConnectorTest : public ::testing::Test {
 protected:
  void Connect(std::vector<SocketAddress> addresses, uint64_t timeout_ns = 5 * kNsPerSecond) {
    connector_.emplace(loop_, std::move(addresses), timeout_ns, [this](Result<Connected> result) {
      EXPECT_FALSE(result_) << "called back once";
      result_.emplace(std::move(result));
    });
    EXPECT_FALSE(result_) << "never inside the constructor";
    const uint64_t give_up_ns = clock_.NowNs() + 10 * kNsPerSecond;
    while (!result_ && clock_.NowNs() < give_up_ns) loop_.RunOnce(kNsPerMs);
    ASSERT_TRUE(result_);
    EXPECT_EQ(loop_.fd_count(), 0u);
    EXPECT_EQ(loop_.timer_count(), 0u);
  }

  MonotonicClock clock_;
  EventLoop loop_{clock_};
  std::optional<Connector> connector_;
  std::optional<Result<Connected>> result_;
};

TEST_F(ConnectorTest, ConnectsToWhoListens) {
  const Listener listener("127.0.0.1");
  Connect({listener.address});
  ASSERT_TRUE(*result_) << result_->error().message;
  EXPECT_EQ(result_->value().address, listener.address);
  EXPECT_GE(Fd(accept(listener.fd.get(), nullptr, nullptr)).get(), 0);
}

TEST_F(ConnectorTest, ARefusingAddressGivesWayToTheNextAtOnce) {
  const Listener listener("127.0.0.1");
  SocketAddress dead = listener.address;
  dead.ip[15] = 9;
  Connect({dead, dead, listener.address});
  ASSERT_TRUE(*result_) << result_->error().message;
  EXPECT_EQ(result_->value().address, listener.address);
}

TEST_F(ConnectorTest, AnAddressThatDoesNotAnswerDoesNotHoldUpTheNext) {
  const Listener full("127.0.0.1", 0), listener("127.0.0.1");
  // A full backlog leaves the third handshake packet unanswered, as a black hole does.
  std::vector<Fd> fill;
  for (int i = 0; i < 4; ++i) {
    sockaddr_storage storage;
    const socklen_t length = full.address.ToSockaddr(storage);
    Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length);
    fill.push_back(std::move(fd));
  }
  Connect({full.address, listener.address});
  ASSERT_TRUE(*result_) << result_->error().message;
  EXPECT_EQ(result_->value().address, listener.address);
}

TEST_F(ConnectorTest, WhenAllRefuseTheLastReasonIsToldWithItsAddress) {
  const uint16_t port = [] { return Listener("127.0.0.1").address.port; }();
  Connect({Address("127.0.0.8", port), Address("127.0.0.9", port)});
  ASSERT_FALSE(*result_);
  EXPECT_EQ(result_->error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(result_->error().message, HasSubstr("127.0.0.9:" + std::to_string(port)));
  EXPECT_THAT(result_->error().message, HasSubstr("refused"));
}

TEST_F(ConnectorTest, GivesUpAtItsDeadline) {
  const Listener full("127.0.0.1", 0);
  std::vector<Fd> fill;
  for (int i = 0; i < 4; ++i) {
    sockaddr_storage storage;
    const socklen_t length = full.address.ToSockaddr(storage);
    Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length);
    fill.push_back(std::move(fd));
  }
  Connect({full.address}, 50 * kNsPerMs);
  ASSERT_FALSE(*result_);
  EXPECT_EQ(result_->error().code, ErrorCode::kTimeout);
}

TEST_F(ConnectorTest, DestroyedBeforeItEndsItSaysNothing) {
  const Listener listener("127.0.0.1");
  connector_.emplace(loop_, std::vector{listener.address}, kNsPerSecond,
                     [](Result<Connected>) { ADD_FAILURE(); });
  loop_.RunOnce(0);
  connector_.reset();
  loop_.RunOnce(0);
  EXPECT_EQ(loop_.fd_count(), 0u);
  EXPECT_EQ(loop_.timer_count(), 0u);
}

TEST_F(ConnectorTest, NoAddressIsAnError) {
  Connect({});
  ASSERT_FALSE(*result_);
  EXPECT_EQ(result_->error().code, ErrorCode::kInvalid);
}

TEST(InterleaveFamilies, TakesThemInTurn) {
  const auto a = Address("10.0.0.1"), b = Address("10.0.0.2"), c = Address("10.0.0.3"),
             six = Address("::1");
  EXPECT_THAT(InterleaveFamilies({a, b, c, six}), ElementsAre(a, six, b, c));
  EXPECT_THAT(InterleaveFamilies({six, a}), ElementsAre(six, a));
  EXPECT_TRUE(InterleaveFamilies({}).empty());
}

}  // namespace
}  // namespace sluice::control
