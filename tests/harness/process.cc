// SPDX-License-Identifier: Apache-2.0
#include "tests/harness/process.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "shm_proto/base/check.h"
#include "shm_proto/base/fd.h"

extern char** environ;

namespace sluice::testing {
namespace {

// Everything the child needs between fork and exec, where it may not allocate.
struct Prepared {
  std::vector<char*> arguments;
  std::vector<std::string> environment_text;
  std::vector<char*> environment;
  Fd network_namespace;
  Fd output;
  Fd cgroup;
};

Result<Prepared> Prepare(const Command& command) {
  Prepared prepared;
  for (const std::string& argument : command.arguments) {
    prepared.arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  prepared.arguments.push_back(nullptr);
  for (const auto& [name, value] : command.environment) {
    prepared.environment_text.push_back(name + "=" + value);
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name(*entry, strcspn(*entry, "="));
    if (!command.environment.contains(name)) prepared.environment_text.emplace_back(*entry);
  }
  for (std::string& entry : prepared.environment_text) prepared.environment.push_back(entry.data());
  prepared.environment.push_back(nullptr);
  if (!command.network_namespace.empty()) {
    const std::string path = "/run/netns/" + command.network_namespace;
    prepared.network_namespace.Reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!prepared.network_namespace.valid()) return FailErrno("open " + path);
  }
  if (!command.output_file.empty()) {
    prepared.output.Reset(
        open(command.output_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!prepared.output.valid()) return FailErrno("open " + command.output_file);
  }
  if (!command.cgroup_folder.empty()) {
    const std::string path = command.cgroup_folder + "/cgroup.procs";
    prepared.cgroup.Reset(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!prepared.cgroup.valid()) return FailErrno("open " + path);
  }
  return prepared;
}

bool BecomeUser(uid_t user) {
  const auto group = static_cast<gid_t>(user);
  return setgroups(0, nullptr) == 0 && setresgid(group, group, group) == 0 &&
         setresuid(user, user, user) == 0;
}

// In the child: never returns; tells `failure` errno when the program could not be started.
[[noreturn]] void Become(const Command& command, const Prepared& prepared, pid_t parent,
                         int failure) {
  bool ok = prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent;
  if (ok && prepared.network_namespace.valid())
    ok = setns(prepared.network_namespace.get(), CLONE_NEWNET) == 0;
  if (ok && prepared.cgroup.valid()) ok = write(prepared.cgroup.get(), "0", 1) == 1;
  if (ok && prepared.output.valid()) {
    ok = dup2(prepared.output.get(), STDOUT_FILENO) >= 0 &&
         dup2(prepared.output.get(), STDERR_FILENO) >= 0;
  }
  for (const auto& [resource, value] : command.limits) {
    const rlimit limit{value, value};
    ok = ok && setrlimit(static_cast<__rlimit_resource_t>(resource), &limit) == 0;
  }
  // Changing the user clears the death signal.
  if (ok && command.user) ok = BecomeUser(*command.user) && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
  if (ok) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execvpe(prepared.arguments[0], prepared.arguments.data(), prepared.environment.data());
  }
  const int error = errno;
  if (write(failure, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

}  // namespace

bool WaitUntil(const std::function<bool()>& condition, milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) return condition();
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

TemporaryFolder::TemporaryFolder() {
  std::string path = std::filesystem::temp_directory_path() / "sluice-test-XXXXXX";
  SLUICE_CHECK(mkdtemp(path.data()) != nullptr, "a test can make a temporary folder");
  path_ = path;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // A folder left in /tmp is no reason to fail a test.
  std::filesystem::remove_all(path_, ignored);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& text, mode_t mode) {
  std::ofstream(path, std::ios::trunc) << text;
  SLUICE_CHECK(chmod(path.c_str(), mode) == 0, "a test can write into its folder");
}

std::optional<Usage> UsageOf(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  std::error_code error;
  Usage usage;
  for (auto entry = std::filesystem::directory_iterator(folder + "/fd", error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    ++usage.descriptors;
  }
  if (error) return std::nullopt;
  std::ifstream maps(folder + "/maps");
  for (std::string line; std::getline(maps, line);) {
    ++usage.mappings;
    if (line.find("/memfd:") == std::string::npos) continue;
    char* rest = nullptr;
    const uint64_t start = std::strtoull(line.c_str(), &rest, 16);
    usage.memfd_bytes += std::strtoull(rest + 1, nullptr, 16) - start;
  }
  uint64_t pages = 0;
  std::ifstream statm(folder + "/statm");
  statm >> pages >> pages;
  usage.resident_bytes = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const std::string stat = ReadFile(folder + "/stat");
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 2)));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user_ticks = 0, system_ticks = 0;
  fields >> user_ticks >> system_ticks;
  usage.cpu_seconds = (user_ticks + system_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return usage;
}

Result<std::unique_ptr<Process>> Process::Start(const Command& command) {
  auto prepared = Prepare(command);
  if (!prepared) return std::unexpected(prepared.error());
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return FailErrno("pipe2");
  Fd reader(ends[0]), writer(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return FailErrno("fork");
  if (pid == 0) Become(command, *prepared, parent, writer.get());
  std::unique_ptr<Process> process(new Process(pid));
  writer.Reset();
  int error = 0;
  // The pipe closes without a word when the program has started.
  if (read(reader.get(), &error, sizeof(error)) > 0)
    return FailErrno("start " + command.arguments[0], error);
  return process;
}

Process::~Process() { Kill(); }

bool Process::Running() { return !Wait(milliseconds(0)).has_value(); }

void Process::Signal(int signal) {
  if (Running()) kill(pid_, signal);
}

std::optional<int> Process::Wait(milliseconds timeout) {
  WaitUntil(
      [this] {
        int status = 0;
        if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
        return status_.has_value();
      },
      timeout);
  return status_;
}

void Process::Kill() {
  if (!Running()) return;
  kill(pid_, SIGKILL);
  Wait();
}

Finished RunCommand(Command command, milliseconds timeout) {
  TemporaryFolder folder;
  Finished finished;
  if (command.output_file.empty()) command.output_file = folder.File("output");
  auto process = Process::Start(command);
  if (!process) {
    finished.output = process.error().message;
    return finished;
  }
  const std::optional<int> status = (*process)->Wait(timeout);
  if (status)
    finished.exit_code = WIFEXITED(*status) ? WEXITSTATUS(*status) : 128 + WTERMSIG(*status);
  finished.output = ReadFile(command.output_file);
  return finished;
}

}  // namespace sluice::testing
