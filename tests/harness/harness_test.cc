// SPDX-License-Identifier: Apache-2.0
#include "tests/harness/harness.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sluice::testing {
namespace {

Fd ListenOn(const Network& network, int host, uint16_t port) {
  InNamespace inside(network.Namespace(host));
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&any), sizeof(any)) != 0 ||
      listen(fd.get(), 8) != 0)
    fd.Reset();
  return fd;
}

TEST(Network, ThreeHostsReachEachOther) {
  SLUICE_NEED_NETWORK();
  auto network = Network::Create(3);
  ASSERT_TRUE(network) << network.error().message;
  const Fd listener = ListenOn(**network, 2, 7000);
  ASSERT_TRUE(listener.valid());
  for (int host = 0; host < 3; ++host) {
    auto connection = (*network)->Connect(host, (*network)->Address(2), 7000);
    EXPECT_TRUE(connection) << "from host " << host << ": " << connection.error().message;
  }
}

TEST(Network, AnUnpluggedHostIsABlackHoleUntilItIsPluggedIn) {
  SLUICE_NEED_NETWORK();
  auto network = Network::Create(2);
  ASSERT_TRUE(network) << network.error().message;
  const Fd listener = ListenOn(**network, 1, 7000);
  auto connection = (*network)->Connect(0, (*network)->Address(1), 7000);
  ASSERT_TRUE(connection) << connection.error().message;
  const Fd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE((*network)->Unplug(1));
  ASSERT_EQ(send(connection->get(), "x", 1, 0), 1) << "the sender must not notice";
  const timeval timeout{.tv_sec = 0, .tv_usec = 300'000};
  setsockopt(accepted.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  char byte = 0;
  EXPECT_EQ(recv(accepted.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_TRUE((*network)->Plug(1));
  EXPECT_TRUE(WaitUntil([&] { return recv(accepted.get(), &byte, 1, 0) == 1; }))
      << "TCP sends it again";
}

TEST(Process, IsKilledAndReapedWithItsObject) {
  pid_t pid = 0;
  {
    auto process = Process::Start({.arguments = {"sleep", "1000"}});
    ASSERT_TRUE(process) << process.error().message;
    pid = (*process)->pid();
    EXPECT_TRUE((*process)->Running());
  }
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(Process, AProgramThatIsNotThereIsAnError) {
  auto process = Process::Start({.arguments = {"no-such-program-anywhere"}});
  ASSERT_FALSE(process);
  EXPECT_EQ(process.error().code, ErrorCode::kNotFound);
}

TEST(Process, RunGivesExitCodeAndOutput) {
  const Finished finished = RunCommand(
      {.arguments = {"sh", "-c", "echo $WORD; echo more >&2; exit 3"},
       .environment = {{"WORD", "hello"}}});
  EXPECT_EQ(finished.exit_code, 3);
  EXPECT_EQ(finished.output, "hello\nmore\n");
  EXPECT_EQ(RunCommand({.arguments = {"sh", "-c", "kill -9 $$"}}).exit_code, 128 + SIGKILL);
  EXPECT_EQ(RunCommand({.arguments = {"sleep", "100"}}, milliseconds(50)).exit_code, -1);
}

TEST(Process, LimitsHoldInTheChildOnly) {
  const Finished finished = RunCommand(
      {.arguments = {"sh", "-c", "ulimit -n"}, .limits = {{RLIMIT_NOFILE, 64}}});
  EXPECT_EQ(finished.output, "64\n");
}

TEST(Process, UsageSeesDescriptorsAndMemfds) {
  const Usage before = UsageOf(getpid()).value();
  const Fd memfd(memfd_create("harness-test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memfd.get(), 1 << 20), 0);
  void* memory = mmap(nullptr, 1 << 20, PROT_READ, MAP_SHARED, memfd.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  const Usage after = UsageOf(getpid()).value();
  EXPECT_EQ(after.descriptors, before.descriptors + 1);
  EXPECT_EQ(after.memfd_bytes, before.memfd_bytes + (1 << 20));
  EXPECT_GT(after.resident_bytes, 0u);
  munmap(memory, 1 << 20);
  EXPECT_FALSE(UsageOf(999'999'999));
}

}  // namespace
}  // namespace sluice::testing
