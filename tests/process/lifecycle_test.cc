// SPDX-License-Identifier: Apache-2.0
// How sluiced starts, changes and ends, as its operator and its service manager see it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/harness/endpoint.h"
#include "tests/harness/harness.h"

namespace sluice::testing {
namespace {

class Lifecycle : public ::testing::Test {
 protected:
  void SetUp() override {
    SLUICE_NEED_NETWORK();
    auto network = Network::Create(1);
    ASSERT_TRUE(network) << network.error().message;
    network_ = std::move(*network);
  }

  // Runs a second sluiced on the same configuration to its end.
  Finished RunBeside(const Daemon& daemon) {
    return RunCommand({.arguments = {DaemonProgram(), "--config", daemon.config_file()},
                       .network_namespace = network_->Namespace(0)});
  }

  std::unique_ptr<Network> network_;
};

TEST_F(Lifecycle, ASecondDaemonOnOneRunDirectoryRefusesAndTheFirstGoesOn) {
  Daemon daemon(*network_, 0);
  ASSERT_TRUE(daemon.Start());
  const Finished second = RunBeside(daemon);
  EXPECT_GT(second.exit_code, 0) << second.output;
  EXPECT_LT(second.exit_code, 128) << second.output;
  EXPECT_NE(second.output.find(daemon.run_dir()), std::string::npos)
      << "says where: " << second.output;
  EXPECT_TRUE(daemon.Running());
  EXPECT_TRUE(Endpoint(daemon).ok());
}

TEST_F(Lifecycle, TwoDaemonsStartedAtOnceLeaveExactlyOne) {
  Daemon daemon(*network_, 0);
  const Command command{.arguments = {DaemonProgram(), "--config", daemon.config_file()},
                        .network_namespace = network_->Namespace(0),
                        .output_file = daemon.log_file()};
  auto first = Process::Start(command), second = Process::Start(command);
  ASSERT_TRUE(first && second);
  ASSERT_TRUE(WaitUntil([&] { return !(*first)->Running() || !(*second)->Running(); }))
      << daemon.Log();
  EXPECT_TRUE(WaitUntil([&] { return Endpoint(daemon).ok(); })) << daemon.Log();
  EXPECT_NE((*first)->Running(), (*second)->Running()) << daemon.Log();
}

TEST_F(Lifecycle, ASocketFileLeftByAKilledDaemonIsNoObstacle) {
  Daemon daemon(*network_, 0);
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(daemon.Start()) << "round " << round;
    ASSERT_TRUE(Endpoint(daemon).ok());
    daemon.Kill();
    struct stat file;
    ASSERT_EQ(stat(daemon.control_socket().c_str(), &file), 0)
        << "the kill must leave the file, or this tests nothing";
  }
  ASSERT_TRUE(daemon.Start());
}

TEST_F(Lifecycle, AnUnknownKeyIsRefusedWithFileLineAndKey) {
  Daemon daemon(*network_, 0, {.settings = {{"engine.fragment_byts", "4096"}}});
  const Finished finished = RunBeside(daemon);
  EXPECT_GT(finished.exit_code, 0);
  EXPECT_LT(finished.exit_code, 128);
  EXPECT_NE(finished.output.find(daemon.config_file() + ":"), std::string::npos) << finished.output;
  EXPECT_NE(finished.output.find("engine.fragment_byts"), std::string::npos) << finished.output;
}

TEST_F(Lifecycle, ABadValueIsRefusedWithTheAllowedRange) {
  Daemon daemon(*network_, 0, {.settings = {{"engine.fragment_bytes", "1"}}});
  const Finished finished = RunBeside(daemon);
  EXPECT_GT(finished.exit_code, 0);
  EXPECT_LT(finished.exit_code, 128);
  EXPECT_NE(finished.output.find("engine.fragment_bytes"), std::string::npos) << finished.output;
  EXPECT_NE(finished.output.find("1024"), std::string::npos)
      << "names the least value: " << finished.output;
}

TEST_F(Lifecycle, SigtermSaysStoppingDrainsAndExitsCleanly) {
  Daemon daemon(*network_, 0);
  ASSERT_TRUE(daemon.Start());
  Endpoint application(daemon);
  ASSERT_TRUE(application.ok());
  EXPECT_TRUE(daemon.Stop());
  EXPECT_TRUE(daemon.WaitNotified("STOPPING=1")) << daemon.Log();
  EXPECT_TRUE(application.Next(SLUICE_EVENT_DETACHED))
      << "the application hears that the daemon is gone";
}

TEST_F(Lifecycle, AnIdleDaemonEndsQuicklyWhateverItsDrainTime) {
  Daemon daemon(*network_, 0, {.settings = {{"daemon.drain_timeout_ms", "600000"}}});
  ASSERT_TRUE(daemon.Start());
  EXPECT_TRUE(daemon.Stop());
}

TEST_F(Lifecycle, ReloadAppliesAGoodFileAndSaysSo) {
  Daemon daemon(*network_, 0);
  ASSERT_TRUE(daemon.Start());
  daemon.Configure({.settings = {{"engine.fragment_bytes", "8192"}}});
  daemon.process().Signal(SIGHUP);
  EXPECT_TRUE(daemon.WaitNotified("RELOADING=1")) << daemon.Log();
  EXPECT_TRUE(WaitUntil([&] {
    return daemon.Ctl({"get", "engine.fragment_bytes"}).output.find("8192") != std::string::npos;
  })) << daemon.Ctl({"get", "engine.fragment_bytes"}).output
      << daemon.Log();
}

TEST_F(Lifecycle, ReloadRefusesABadFileWholeAndGoesOnWithTheOldOne) {
  Daemon daemon(*network_, 0, {.settings = {{"engine.fragment_bytes", "4096"}}});
  ASSERT_TRUE(daemon.Start());
  daemon.Configure(
      {.settings = {{"engine.fragment_bytes", "8192"}, {"engine.send_window_bytes", "0"}}});
  const Finished reload = daemon.Ctl({"reload"});
  EXPECT_EQ(reload.exit_code, 4) << "4: refused. " << reload.output;
  EXPECT_NE(reload.output.find("engine.send_window_bytes"), std::string::npos) << reload.output;
  EXPECT_NE(daemon.Ctl({"get", "engine.fragment_bytes"}).output.find("4096"), std::string::npos)
      << "the good key of a bad file must not apply";
  EXPECT_TRUE(Endpoint(daemon).ok());
}

TEST_F(Lifecycle, TheServiceManagersWatchdogIsFed) {
  Daemon daemon(*network_, 0, {.environment = {{"WATCHDOG_USEC", "400000"}}});
  ASSERT_TRUE(daemon.Start());
  EXPECT_TRUE(daemon.WaitNotified("WATCHDOG=1")) << daemon.Log();
  EXPECT_TRUE(daemon.WaitNotified("STATUS=")) << daemon.Log();
}

}  // namespace
}  // namespace sluice::testing
