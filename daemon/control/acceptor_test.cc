// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/acceptor.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <string>
#include <vector>

namespace sluice::control {
namespace {

class ManualClock final : public Clock {
 public:
  uint64_t NowNs() const override { return now_ns; }
  uint64_t now_ns = 1'000;
};

// A listening socket with an abstract name, and clients to it.
class AcceptorTest : public ::testing::Test {
 protected:
  AcceptorTest() {
    listener_ = Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un any{};
    any.sun_family = AF_UNIX;
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&any), sizeof(sa_family_t)), 0);
    EXPECT_EQ(listen(listener_.get(), 64), 0);
    length_ = sizeof(address_);
    EXPECT_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address_), &length_), 0);
  }

  Fd NewSocket() { return Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }
  void Connect(const Fd& fd) {
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address_), length_), 0);
  }

  Fd listener_;
  sockaddr_un address_{};
  socklen_t length_;
};

TEST_F(AcceptorTest, HandsOverEveryConnection) {
  ManualClock clock;
  EventLoop loop(clock);
  std::vector<Fd> accepted;
  Acceptor acceptor(
      loop, std::move(listener_), [&](Fd fd) { accepted.push_back(std::move(fd)); }, [](int) {});
  ASSERT_TRUE(acceptor.Start());
  std::vector<Fd> clients;
  for (int i = 0; i < 20; ++i) Connect(clients.emplace_back(NewSocket()));
  loop.RunOnce(0);
  EXPECT_EQ(accepted.size(), size_t{Acceptor::kMaxAcceptsPerTurn}) << "bounded per turn";
  loop.RunOnce(0);
  EXPECT_EQ(accepted.size(), 20u);
  EXPECT_EQ(acceptor.refused(), 0u);
}

TEST_F(AcceptorTest, AtTheDescriptorLimitClientsAreRefusedAndTheLoopRests) {
  ManualClock clock;
  EventLoop loop(clock);
  std::vector<Fd> accepted;
  Acceptor acceptor(
      loop, std::move(listener_), [&](Fd fd) { accepted.push_back(std::move(fd)); },
      [](int fd) { EXPECT_EQ(send(fd, "full", 4, MSG_NOSIGNAL), 4); });
  ASSERT_TRUE(acceptor.Start());
  Fd first = NewSocket();
  Fd second = NewSocket();
  Connect(first);
  Connect(second);

  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit none{static_cast<rlim_t>(second.get()) + 1, old.rlim_max};
  std::vector<Fd> fill;  // Holes below the limit.
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (;;) {
    Fd fd(dup(first.get()));
    if (!fd.valid()) break;
    fill.push_back(std::move(fd));
  }
  loop.RunOnce(0);
  int rested_turns = 0;
  for (int i = 0; i < 10; ++i) rested_turns += loop.RunOnce(0) == 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);

  EXPECT_TRUE(accepted.empty());
  EXPECT_EQ(acceptor.refused(), 2u);
  EXPECT_EQ(rested_turns, 10);
  char text[8];
  EXPECT_EQ(recv(first.get(), text, sizeof(text), MSG_DONTWAIT), 4);
  EXPECT_EQ(recv(first.get(), text, sizeof(text), MSG_DONTWAIT), 0) << "closed";

  fill.clear();
  Fd third = NewSocket();
  Connect(third);
  clock.now_ns += Acceptor::kPauseNs;
  loop.RunOnce(0);  // The pause ends.
  loop.RunOnce(0);
  EXPECT_EQ(accepted.size(), 1u) << "accepts again once there are descriptors";
}

}  // namespace
}  // namespace sluice::control
