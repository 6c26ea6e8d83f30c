// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/service_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace sluice::control {
namespace {

using testing::HasSubstr;

class FakeClock final : public Clock {
 public:
  uint64_t NowNs() const override { return now_ns; }
  uint64_t now_ns = 5 * kNsPerSecond;
};

class FakeStatus final : public StatusSource {
 public:
  void Collect(Callback done) override { done(status); }
  NodeStatus status;
};

// A service manager that only listens.
class Service : public testing::Test {
 protected:
  Service() {
    char directory[] = "/tmp/sluice-notify-XXXXXX";
    directory_ = mkdtemp(directory);
    const std::string path = directory_ + "/notify";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    fd_.Reset(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  ~Service() override {
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) unsetenv(name);
    std::filesystem::remove_all(directory_);
  }
  void Start(const char* watchdog_us = nullptr) {
    if (watchdog_us != nullptr) {
      setenv("WATCHDOG_USEC", watchdog_us, 1);
      setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
    }
    manager_.emplace(loop_, status_);
  }
  void Pass(uint64_t ns) {
    clock_.now_ns += ns;
    loop_.RunOnce(0);
  }
  std::string Told() {
    char buffer[4096];
    std::string all;
    for (ssize_t got; (got = recv(fd_.get(), buffer, sizeof(buffer), 0)) > 0;) {
      all.append(buffer, static_cast<size_t>(got)).append("\n");
    }
    return all;
  }

  FakeClock clock_;
  EventLoop loop_{clock_};
  FakeStatus status_;
  std::string directory_;
  Fd fd_;
  std::optional<ServiceManager> manager_;
};

TEST_F(Service, IsToldTheLifeOfTheDaemon) {
  Start();
  manager_->Ready("serving");
  EXPECT_EQ(Told(), "READY=1\nSTATUS=serving\n");
  manager_->Status("2 clients\nREADY=0");
  EXPECT_EQ(Told(), "STATUS=2 clients READY=0\n");
  manager_->Reloading();
  EXPECT_THAT(Told(), HasSubstr("RELOADING=1\nMONOTONIC_USEC=5000000\n"));
  manager_->Stopping("draining");
  EXPECT_EQ(Told(), "STOPPING=1\nSTATUS=draining\n");
}

TEST_F(Service, FeedsTheWatchdogWhileEveryThreadAnswers) {
  Start("3000000");
  EXPECT_EQ(manager_->watchdog_interval_ns(), 3 * kNsPerSecond);
  manager_->Ready("");
  EXPECT_THAT(Told(), HasSubstr("WATCHDOG=1"));
  Pass(kNsPerSecond - 1);
  EXPECT_EQ(Told(), "");
  Pass(1);
  EXPECT_EQ(Told(), "WATCHDOG=1\n");
  manager_->Ready("again");
  EXPECT_EQ(Told(), "READY=1\nSTATUS=again\n");
  Pass(kNsPerSecond);
  EXPECT_EQ(Told(), "WATCHDOG=1\n");
}

TEST_F(Service, StarvesTheWatchdogWhenAThreadHangsAndFeedsItAgainAfterwards) {
  Start("3000000");
  manager_->Ready("");
  Told();
  status_.status.threads.push_back({.answered = false});
  Pass(kNsPerSecond);
  EXPECT_EQ(Told(), "");
  status_.status.threads[0].answered = true;
  Pass(kNsPerSecond);
  EXPECT_EQ(Told(), "WATCHDOG=1\n");
}

TEST_F(Service, WantsNoWatchdogUnlessItSaysSo) {
  Start();
  manager_->Ready("");
  EXPECT_EQ(loop_.timer_count(), 0u);
}

TEST(NoService, IsNoTrouble) {
  FakeClock clock;
  EventLoop loop(clock);
  FakeStatus status;
  ServiceManager manager(loop, status);
  manager.Ready("x");
  manager.Stopping("y");
}

}  // namespace
}  // namespace sluice::control
