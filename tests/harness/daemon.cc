// SPDX-License-Identifier: Apache-2.0
#include "tests/harness/daemon.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstring>

#include "shm_proto/base/check.h"

namespace sluice::testing {
namespace {

constexpr uint64_t
    kMappingSlack = 16;  // Arenas and thread stacks that malloc and the C library keep.

Fd MakeNotifySocket(const std::string& path) {
  Fd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  SLUICE_CHECK(path.size() < sizeof(address.sun_path), "a temporary folder has a short name");
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  SLUICE_CHECK(
      fd.valid() && bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0,
      "a test can bind a socket in its folder");
  return fd;
}

const std::string& ClusterKeyFile() {
  static const TemporaryFolder folder;
  static const std::string file = [] {
    std::string path = folder.File("cluster.key");
    WriteFile(path, std::string(64, 'a') + "\n", 0600);
    return path;
  }();
  return file;
}

}  // namespace

std::string DaemonProgram() { return SLUICE_DAEMON_PROGRAM; }
std::string CtlProgram() { return SLUICE_CTL_PROGRAM; }

Daemon::Daemon(const Network& network, int host, DaemonOptions options)
    : network_(network), host_(host) {
  notify_ = MakeNotifySocket(config_folder_.File("notify"));
  Configure(std::move(options));
}

void Daemon::Configure(DaemonOptions options) {
  options_ = std::move(options);
  std::map<std::string, std::string> settings = {
      {"daemon.run_dir", "\"" + run_dir() + "\""},
      {"peer.key_file", "\"" + ClusterKeyFile() + "\""},
      {"log.level", "\"debug\""},
  };
  settings.merge(network_.DaemonSettings(host_));
  for (const auto& [key, value] : options_.settings) settings[key] = value;
  std::string text;
  for (const auto& [key, value] : settings) text += key + " = " + value + "\n";
  WriteFile(config_file(), text + options_.more_toml);
}

::testing::AssertionResult Daemon::Start() {
  process_.reset();
  ReadNotifications();
  notified_.clear();
  auto environment = options_.environment;
  environment["NOTIFY_SOCKET"] = config_folder_.File("notify");
  auto started = Process::Start({.arguments = {DaemonProgram(), "--config", config_file()},
                                 .environment = environment,
                                 .network_namespace = network_.Namespace(host_),
                                 .output_file = log_file(),
                                 .limits = options_.limits,
                                 .cgroup_folder = options_.cgroup_folder});
  if (!started) return ::testing::AssertionFailure() << started.error().message;
  process_ = std::move(*started);
  return WaitReady();
}

::testing::AssertionResult Daemon::WaitReady() {
  WaitUntil([this] {
    ReadNotifications();
    return notified_.find("READY=1") != std::string::npos || !Running();
  });
  if (notified_.find("READY=1") != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << (Running() ? "sluiced is not ready in time" : "sluiced ended before it was ready")
         << "; its log:\n"
         << Log();
}

::testing::AssertionResult Daemon::Stop(milliseconds timeout) {
  if (!Running())
    return ::testing::AssertionFailure() << "sluiced does not run; its log:\n" << Log();
  process_->Signal(SIGTERM);
  const std::optional<int> status = process_->Wait(timeout);
  if (!status)
    return ::testing::AssertionFailure() << "sluiced does not end on SIGTERM; its log:\n" << Log();
  if (WIFEXITED(*status) && WEXITSTATUS(*status) == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "sluiced ended with status " << *status << "; its log:\n"
                                       << Log();
}

bool Daemon::WaitNotified(const std::string& text, milliseconds timeout) {
  return WaitUntil(
      [&] {
        ReadNotifications();
        return notified_.find(text) != std::string::npos;
      },
      timeout);
}

void Daemon::ReadNotifications() {
  char buffer[4096];
  for (ssize_t bytes; (bytes = recv(notify_.get(), buffer, sizeof(buffer), 0)) > 0;) {
    notified_.append(buffer, static_cast<size_t>(bytes)).append("\n");
  }
}

::testing::AssertionResult Daemon::ReturnsTo(const Usage& before, milliseconds timeout) {
  Usage now;
  const bool back = WaitUntil(
      [&] {
        now = usage();
        return now.descriptors > 0 && now.descriptors <= before.descriptors &&
               now.memfd_bytes <= before.memfd_bytes &&
               now.mappings <= before.mappings + kMappingSlack;
      },
      timeout);
  if (back) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "descriptors " << before.descriptors << " -> " << now.descriptors << ", memfd bytes "
         << before.memfd_bytes << " -> " << now.memfd_bytes << ", mappings " << before.mappings
         << " -> " << now.mappings;
}

Finished Daemon::Ctl(std::vector<std::string> arguments, milliseconds timeout) const {
  Command command{.arguments = {CtlProgram(), "--socket", admin_socket()}};
  command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
  return RunCommand(command, timeout);
}

}  // namespace sluice::testing
