// SPDX-License-Identifier: Apache-2.0
// What befalls RDMA between two daemons, on the kernel's Soft-RoCE in the VM: whatever it is,
// messages go on over TCP with none lost, duplicated or out of order, and go back to RDMA once it
// works again.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <regex>
#include <thread>

#include "tests/process/app.h"

namespace sluice::testing {
namespace {

constexpr uint16_t kService = 700;
constexpr milliseconds kLong{60'000};  // Everything is slow under software emulation.

class RdmaFaults : public TwoHosts {
 protected:
  static DaemonOptions Options() {
    return {.settings = {{"engine.keepalive_interval_ms", "200"},
                         {"engine.keepalive_timeout_ms", "10000"},
                         {"peer.dial_backoff_max_ms", "200"},
                         {"rdma.settle_ms", "100"}}};
  }

  void SetUp() override {
    if (std::getenv("SLUICE_IN_VM") == nullptr) GTEST_SKIP() << "needs the VM of tests/vm/run";
  }

  // Two daemons, an application on each, a socket between these.
  bool BeginWithApps(
      const DaemonOptions& left = Options(), const DaemonOptions& right = Options(),
      const std::function<void()>& before_connecting = [] {}) {
    if (!Begin(left, right)) return false;
    client_ = std::make_unique<App>(*left_, "client");
    server_ = std::make_unique<App>(*right_, "server");
    EXPECT_TRUE(server_->Listen(kService));
    before_connecting();
    EXPECT_TRUE(ConnectApps(*client_, *server_, *right_, kService, pair_));
    return !HasFailure();
  }

  bool BeginOnRdma(const DaemonOptions& options = Options()) {
    if (!BeginWithApps(options, options)) return false;
    EXPECT_TRUE(Takes("rc"));
    return !HasFailure();
  }

  // Waits until the left daemon's engine is on that transport, "rc" or "tcp".
  ::testing::AssertionResult Takes(const std::string& transport) {
    const std::regex wanted("\"transport\": *\"" + transport + "\"");
    std::string last;
    const bool taken = WaitUntil(
        [&] {
          client_->Poll();
          server_->Poll();
          last = left_->Ctl({"--json", "engines"}).output;
          return std::regex_search(last, wanted);
        },
        kLong);
    if (taken) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "messages do not take " << transport << ":\n"
                                         << last << left_->Log();
  }

  // Messages of sizes from a few bytes to several fragments, numbered on from the last ones.
  void SendSome(int count = 12) {
    for (int i = 0; i < count; ++i) {
      const size_t length = Length(next_sent_);
      int result = -EAGAIN;
      WaitUntil([&] {
        result = client_->Send(pair_.from, next_sent_, length);
        if (result != 0) server_->Poll();
        return result != -EAGAIN && result != -ENOMEM;
      });
      ASSERT_EQ(result, 0) << sluice_error_text();
      ++next_sent_;
    }
  }
  void ExpectAllThatWasSent() {
    for (; next_received_ < next_sent_; ++next_received_) {
      ASSERT_TRUE(server_->Receive(pair_.to, next_received_, Length(next_received_), kLong))
          << left_->Log() << right_->Log();
    }
    EXPECT_TRUE(client_->WaitAllSent(kLong));
    EXPECT_EQ(client_->sends().ok, client_->sends().begun);
    EXPECT_EQ(client_->sends().odd, 0u);
    server_->Poll(50);
    EXPECT_EQ(server_->Waiting(SLUICE_EVENT_MESSAGE), 0u) << "a message came twice";
    EXPECT_EQ(client_->Waiting(SLUICE_EVENT_CLOSED), 0u) << "the socket did not survive";
  }
  static size_t Length(uint64_t seed) {
    constexpr size_t kLengths[] = {10, 100'000, 3'000, 300'000};
    return kLengths[seed % std::size(kLengths)];
  }

  // A fault in the midst of messages, and what must be true of all that RDMA cannot survive.
  void ExpectTcpDuring(const std::string& fault, const std::string& end_of_fault) {
    if (!BeginOnRdma()) return;
    SendSome();
    ASSERT_TRUE(Network::Vm(fault));
    SendSome();
    ASSERT_TRUE(Takes("tcp"));
    ExpectAllThatWasSent();
    ASSERT_TRUE(Network::Vm(end_of_fault));
    ASSERT_TRUE(Takes("rc"));
    SendSome();
    ExpectAllThatWasSent();
  }

  std::unique_ptr<App> client_;
  std::unique_ptr<App> server_;
  Pair pair_;
  uint64_t next_sent_ = 1;
  uint64_t next_received_ = 1;
};

uint64_t SentBytes(const std::string& interface) {
  return std::strtoull(ReadFile("/sys/class/net/" + interface + "/statistics/tx_bytes").c_str(),
                       nullptr, 10);
}

TEST_F(RdmaFaults, WithoutAnyMessagesTakeRdmaOverTheWire) {
  if (!BeginOnRdma()) return;
  const uint64_t before = SentBytes("v0");
  SendSome(40);
  ExpectAllThatWasSent();
  EXPECT_GT(SentBytes("v0") - before, 2'000'000u);
  const std::string devices = left_->Ctl({"devices"}).output;
  EXPECT_NE(devices.find("the driver of v0 does not count them"), std::string::npos) << devices;
  EXPECT_TRUE(Takes("rc"));
}

TEST_F(RdmaFaults, RocePacketsVanishWhileTcpLives) { ExpectTcpDuring("drop roce", "heal"); }

TEST_F(RdmaFaults, BothApplicationsAreToldWhileMessagesTakeTcpForWantOfRdma) {
  if (!BeginOnRdma()) return;
  SendSome();
  ExpectAllThatWasSent();
  EXPECT_FALSE(client_->degraded() || server_->degraded());
  ASSERT_TRUE(Network::Vm("drop roce"));
  SendSome();
  ASSERT_TRUE(Takes("tcp"));
  SendSome();
  ExpectAllThatWasSent();
  EXPECT_TRUE(client_->degraded() && server_->degraded());
  ASSERT_TRUE(Network::Vm("heal"));
  ASSERT_TRUE(Takes("rc"));
  SendSome();
  ExpectAllThatWasSent();
  EXPECT_FALSE(client_->degraded() || server_->degraded());
}

TEST_F(RdmaFaults, ReceivesThatPeersShareAreLentAndComeBackWhenRocePacketsVanish) {
  DaemonOptions sharing = Options();
  sharing.settings["rdma.shared_receives"] = "64";
  const auto lent = [&] {
    std::smatch found;
    const std::string devices = left_->Ctl({"--json", "devices"}).output;
    const std::regex wanted("\"shared_receives_lent\": *([0-9]+)");
    EXPECT_TRUE(std::regex_search(devices, found, wanted)) << devices;
    return std::stoi(found[1].str());
  };
  if (!BeginOnRdma(sharing)) return;
  EXPECT_GE(lent(), 8);
  for (int i = 0; i < 10; ++i) SendSome();
  ExpectAllThatWasSent();
  ASSERT_TRUE(Network::Vm("drop roce"));
  SendSome();
  ASSERT_TRUE(Takes("tcp"));
  ExpectAllThatWasSent();
  ASSERT_TRUE(Network::Vm("heal"));
  ASSERT_TRUE(Takes("rc"));
  EXPECT_GE(lent(), 8);
  SendSome();
  ExpectAllThatWasSent();
}

TEST_F(RdmaFaults, TheDeviceIsRemovedAtTheNearEndAndComesBack) {
  ExpectTcpDuring("remove_device rxe0", "add_device rxe0");
}

TEST_F(RdmaFaults, TheDeviceIsRemovedAtTheFarEndAndComesBack) {
  ExpectTcpDuring("remove_device rxe1", "add_device rxe1");
}

TEST_F(RdmaFaults, TcpPacketsVanishWhileRoceLives) {
  if (!BeginOnRdma()) return;
  SendSome();
  ASSERT_TRUE(Network::Vm("drop tcp"));
  SendSome();
  ExpectAllThatWasSent();
  ASSERT_TRUE(Network::Vm("heal"));
  SendSome();
  ExpectAllThatWasSent();
  EXPECT_TRUE(Takes("rc"));
}

TEST_F(RdmaFaults, TheLinkGoesDownForAMoment) {
  if (!BeginOnRdma()) return;
  for (int flap = 0; flap < 3; ++flap) {
    SendSome(6);
    ASSERT_TRUE(Network::Vm("unplug v1"));
    SendSome(6);
    ASSERT_TRUE(Network::Vm("plug v1"));
  }
  ExpectAllThatWasSent();
  EXPECT_TRUE(Takes("rc"));
  SendSome();
  ExpectAllThatWasSent();
}

TEST_F(RdmaFaults, TheAddressMovesToAnotherGidIndex) {
  if (!BeginOnRdma()) return;
  SendSome();
  ASSERT_TRUE(Network::Vm("move_address v1"));
  SendSome();
  ExpectAllThatWasSent();
  // A queue pair made from now on has to find the address where it is now.
  ASSERT_TRUE(Network::Vm("drop roce"));
  SendSome();
  ASSERT_TRUE(Takes("tcp"));
  ASSERT_TRUE(Network::Vm("heal"));
  ASSERT_TRUE(Network::Vm("move_address v1"));
  EXPECT_TRUE(Takes("rc"));
  SendSome();
  ExpectAllThatWasSent();
}

TEST_F(RdmaFaults, TheEndsDifferInTheirMtu) {
  ASSERT_TRUE(Network::Vm("mtu v1 1500"));
  if (!BeginOnRdma()) return;
  SendSome();
  ExpectAllThatWasSent();
}

TEST_F(RdmaFaults, ThePeerIsKilledAndComesBack) {
  if (!BeginOnRdma()) return;
  SendSome();
  right_->Kill();
  const auto closed = client_->Next(SLUICE_EVENT_CLOSED, pair_.from, kLong);
  ASSERT_TRUE(closed) << "the socket's owner is not told\n" << left_->Log();
  EXPECT_TRUE(client_->WaitAllSent(kLong)) << "sends that never end";
  EXPECT_EQ(client_->sends().odd, 0u);
  ASSERT_TRUE(right_->Start());
  ASSERT_TRUE(server_->Next(SLUICE_EVENT_REATTACHED, 0, kLong));
  client_ = std::make_unique<App>(*left_, "client");
  server_ = std::make_unique<App>(*right_, "server");
  ASSERT_TRUE(server_->Listen(kService));
  ASSERT_TRUE(ConnectApps(*client_, *server_, *right_, kService, pair_));
  ASSERT_TRUE(Takes("rc"));
  EXPECT_TRUE(Exchange(*client_, *server_, pair_, 1, 100'000));
}

TEST_F(RdmaFaults, ThePeerIsStoppedForGood) {
  DaemonOptions impatient = Options();
  impatient.settings["engine.keepalive_timeout_ms"] = "3000";
  if (!BeginOnRdma(impatient)) return;
  SendSome();
  right_->Freeze();
  const auto closed = client_->Next(SLUICE_EVENT_CLOSED, pair_.from, kLong);
  EXPECT_TRUE(closed) << "the socket's owner is not told\n" << left_->Log();
  EXPECT_TRUE(client_->WaitAllSent(kLong)) << "sends that never end";
  right_->Thaw();
  EXPECT_TRUE(server_->Next(SLUICE_EVENT_CLOSED, pair_.to, kLong));
}

// The kernel's own limit on a group of processes stands for a NIC that has no more to give.
TEST_F(RdmaFaults, TheDeviceHasNoQueuePairsLeft) {
  const std::string group = "/sys/fs/cgroup/sluice-rdma";
  WriteFile("/sys/fs/cgroup/cgroup.subtree_control", "+rdma");
  std::filesystem::create_directory(group);
  ASSERT_TRUE(std::filesystem::exists(group + "/rdma.max")) << "the kernel has no such limit";
  DaemonOptions limited = Options();
  limited.cgroup_folder = group;
  if (!BeginWithApps(limited, Options(), [&] {
        // Memory that the device knows already, so that only the queue pair is one too many.
        void* buffer = sluice_alloc(client_->channel(), 1000);
        ASSERT_NE(buffer, nullptr) << sluice_error_text();
        ASSERT_EQ(sluice_free(client_->channel(), buffer), 0);
        std::smatch used;
        const std::string now = ReadFile(group + "/rdma.current");
        ASSERT_TRUE(std::regex_search(now, used, std::regex("rxe0.* hca_object=([1-9][0-9]*)")))
            << "nothing of the device is used: " << now;
        WriteFile(group + "/rdma.max", "rxe0 hca_object=" + used[1].str());
      })) {
    return;
  }
  SendSome();
  ExpectAllThatWasSent();
  EXPECT_TRUE(Takes("tcp"));
  WriteFile(group + "/rdma.max", "rxe0 hca_object=max");
  EXPECT_TRUE(Takes("rc"));
  SendSome();
  ExpectAllThatWasSent();
  client_.reset();
  left_.reset();
  std::filesystem::remove(group);
}

TEST_F(RdmaFaults, ADaemonThatMayNotLockEnoughMemoryStaysOnTcpAndSaysSo) {
  // Root is above that limit; what a thread without the privilege starts is not.
  std::thread([this] {
    ASSERT_EQ(prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0), 0);
    DaemonOptions limited = Options();
    limited.limits = {{RLIMIT_MEMLOCK, 64 * 1024}};
    if (!BeginWithApps(limited)) return;
    SendSome();
    ExpectAllThatWasSent();
    EXPECT_TRUE(Takes("tcp"));
    EXPECT_NE(left_->Log().find("LimitMEMLOCK"), std::string::npos) << left_->Log();
    client_.reset();
    server_.reset();
    left_.reset();
    right_.reset();
  }).join();
}

}  // namespace
}  // namespace sluice::testing
