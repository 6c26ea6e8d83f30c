// SPDX-License-Identifier: Apache-2.0
#include "tests/harness/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "shm_proto/base/check.h"
#include "tests/harness/process.h"

namespace sluice::testing {
namespace {

constexpr const char* kPrefix = "sluice-test-";
constexpr const char* kNamespaces = "/run/netns";

constexpr int kVmHosts = 2;

bool InVm() { return std::getenv("SLUICE_IN_VM") != nullptr; }

// The words are separated by single spaces.
Result<> Run(const std::string& program, const std::string& words) {
  Command command{.arguments = {program}};
  for (size_t start = 0; start <= words.size();) {
    const size_t end = std::min(words.find(' ', start), words.size());
    command.arguments.push_back(words.substr(start, end - start));
    start = end + 1;
  }
  const Finished finished = RunCommand(command);
  if (finished.exit_code == 0) return {};
  return Fail(ErrorCode::kSystem, program + " " + words + ": " + finished.output);
}

Result<> Ip(const std::string& words) { return Run("ip", words); }

// Namespaces of test processes that are gone.
void RemoveLeftovers() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(kNamespaces, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix)) continue;
    const pid_t pid = std::atoi(name.c_str() + std::string(kPrefix).size());
    if (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH) (void)Ip("netns del " + name);
  }
}

}  // namespace

std::string Network::WhyUnavailable() {
  if (geteuid() != 0) return "needs root to make network namespaces";
  if (RunCommand({.arguments = {"ip", "-V"}}).exit_code != 0)
    return "the command ip is missing (scripts/setup)";
  static const std::string reason = [] {
    auto trial = Create(1);
    return trial ? "" : "no network namespaces here: " + trial.error().message;
  }();
  return reason;
}

Network::Network(int hosts) : hosts_(hosts) {
  static int count = 0;
  prefix_ = kPrefix + std::to_string(getpid()) + "-" + std::to_string(++count) + "-";
}

Result<std::unique_ptr<Network>> Network::Create(int hosts) {
  SLUICE_CHECK(hosts >= 1 && hosts <= 9, "a test network has one to nine hosts");
  RemoveLeftovers();
  std::unique_ptr<Network> network(new Network(hosts));
  network->in_vm_ = InVm() && hosts == kVmHosts;
  if (network->in_vm_) return network;
  if (auto built = network->Build(); !built) return std::unexpected(built.error());
  return network;
}

Result<> Network::Build() {
  const std::string hub = prefix_ + "switch";
  std::vector<std::string> steps = {"netns add " + hub, "-n " + hub + " link add br0 type bridge",
                                    "-n " + hub + " link set br0 up"};
  for (int host = 0; host < hosts_; ++host) {
    const std::string name = Namespace(host), port = "port" + std::to_string(host);
    for (const std::string& step :
         {"netns add " + name,
          "-n " + name + " link add eth0 type veth peer name " + port + " netns " + hub,
          "-n " + hub + " link set " + port + " master br0 up", "-n " + name + " link set lo up",
          "-n " + name + " address add " + Address(host) + "/24 dev eth0",
          "-n " + name + " link set eth0 up"}) {
      steps.push_back(step);
    }
  }
  for (const std::string& step : steps) {
    if (auto done = Ip(step); !done) return done;
  }
  return {};
}

Network::~Network() {
  if (in_vm_) {
    (void)Vm("heal");
    return;
  }
  for (int host = 0; host < hosts_; ++host) (void)Ip("netns del " + Namespace(host));
  (void)Ip("netns del " + prefix_ + "switch");
}

Result<> Network::Vm(const std::string& words) { return Run(SLUICE_VM_NETWORK_PROGRAM, words); }

std::string Network::Namespace(int host) const {
  return in_vm_ ? "" : prefix_ + std::to_string(host);
}

std::string Network::Address(int host) const {
  return (in_vm_ ? "10.88.0." : "10.77.0.") + std::to_string(host + 1);
}

std::map<std::string, std::string> Network::DaemonSettings(int host) const {
  if (!in_vm_) return {};
  return {{"peer.listen", "[\"" + Address(host) + "\"]"},
          {"rdma.device", "\"rxe" + std::to_string(host) + "\""},
          {"http.listen", "\"127.0.0.1:" + std::to_string(9450 + host) + "\""}};
}

Result<> Network::Unplug(int host) {
  if (in_vm_) return Vm("drop all");
  return Ip("-n " + prefix_ + "switch link set port" + std::to_string(host) + " nomaster");
}

Result<> Network::Plug(int host) {
  if (in_vm_) return Vm("heal");
  return Ip("-n " + prefix_ + "switch link set port" + std::to_string(host) + " master br0");
}

Result<Fd> Network::Connect(int from_host, const std::string& address, uint16_t port) const {
  Fd socket_fd;
  {
    std::optional<InNamespace> host;
    if (!in_vm_) host.emplace(Namespace(from_host));
    if (host && !host->entered()) return FailErrno("setns " + Namespace(from_host));
    socket_fd.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  if (!socket_fd.valid()) return FailErrno("socket");
  const timeval timeout{.tv_sec = 5, .tv_usec = 0};
  setsockopt(socket_fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_port = htons(port);
  if (inet_pton(AF_INET, address.c_str(), &target.sin_addr) != 1) {
    return Fail(ErrorCode::kInvalid, address + " is no IPv4 address");
  }
  if (connect(socket_fd.get(), reinterpret_cast<const sockaddr*>(&target), sizeof(target)) != 0) {
    return FailErrno("connect to " + address);
  }
  return socket_fd;
}

InNamespace::InNamespace(const std::string& name) {
  home_.Reset(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  const Fd target(open((std::string(kNamespaces) + "/" + name).c_str(), O_RDONLY | O_CLOEXEC));
  entered_ = home_.valid() && target.valid() && setns(target.get(), CLONE_NEWNET) == 0;
}

InNamespace::~InNamespace() {
  if (!entered_) return;
  SLUICE_CHECK(setns(home_.get(), CLONE_NEWNET) == 0,
               "a thread can go back to the namespace it came from");
}

}  // namespace sluice::testing
