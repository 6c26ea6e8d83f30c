// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shm_proto/base/fd.h"
#include "tests/harness/network.h"
#include "tests/harness/process.h"

// sluiced as a process of a test.
namespace sluice::testing {

struct DaemonOptions {
  std::map<std::string, std::string> settings =
      {};                      // {"engine.fragment_bytes", "4096"}: TOML values.
  std::string more_toml = {};  // After the settings; for [[tenant]] tables.
  std::vector<std::pair<int, uint64_t>> limits = {};  // See Command.
  std::string cgroup_folder = {};
  std::map<std::string, std::string> environment = {};
};

// One sluiced on one host, with a run directory of its own that outlives its restarts.
// Thread: one. Owns: the process and the directory.
class Daemon {
 public:
  // Writes the configuration; Start() runs it. All daemons of this test process share one cluster
  // key.
  Daemon(const Network& network, int host, DaemonOptions options = {});

  // Starts it, and waits until it says READY. On failure the message holds the daemon's log.
  ::testing::AssertionResult Start();
  ::testing::AssertionResult WaitReady();

  // SIGTERM; succeeds when it exits with 0 in time.
  ::testing::AssertionResult Stop(milliseconds timeout = kPatience);
  void Kill() { process_.reset(); }  // SIGKILL.
  void Freeze() { process_->Signal(SIGSTOP); }
  void Thaw() { process_->Signal(SIGCONT); }
  bool Running() { return process_ != nullptr && process_->Running(); }

  // Writes the configuration anew (for a reload).
  void Configure(DaemonOptions options);

  // Waits for one line, or several, in what it told its service manager, as "STATUS=" or
  // "RELOADING=1".
  bool WaitNotified(const std::string& text, milliseconds timeout = kPatience);

  Process& process() { return *process_; }
  Usage usage() { return UsageOf(process_->pid()).value_or(Usage{}); }

  // Waits until descriptors and memfd bytes are back at `before`, and mappings nearly so (malloc
  // keeps some).
  ::testing::AssertionResult ReturnsTo(const Usage& before, milliseconds timeout = kPatience);

  // Runs sluicectl against it.
  Finished Ctl(std::vector<std::string> arguments, milliseconds timeout = kPatience) const;

  std::string run_dir() const { return folder_.path(); }
  std::string control_socket() const { return folder_.File("sluiced.sock"); }
  std::string admin_socket() const { return folder_.File("admin.sock"); }
  std::string config_file() const { return config_folder_.File("sluiced.toml"); }
  std::string log_file() const { return config_folder_.File("log"); }
  std::string Log() const { return ReadFile(log_file()); }
  std::string Address() const { return network_.Address(host_); }
  int host() const { return host_; }

 private:
  void ReadNotifications();

  const Network& network_;
  const int host_;
  DaemonOptions options_;
  TemporaryFolder folder_;         // The run directory.
  TemporaryFolder config_folder_;  // Configuration, log, notification socket.
  Fd notify_;
  std::string notified_;
  std::unique_ptr<Process> process_;
};

// For tests that run sluiced by themselves.
std::string DaemonProgram();
std::string CtlProgram();

}  // namespace sluice::testing

// At the start of a test that needs hosts.
#define SLUICE_NEED_NETWORK()                                                               \
  if (const std::string why = ::sluice::testing::Network::WhyUnavailable(); !why.empty()) { \
    GTEST_SKIP() << why;                                                                    \
  }
