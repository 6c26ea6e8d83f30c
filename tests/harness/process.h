// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shm_proto/base/result.h"

// Processes as tests need them: limited, in a network namespace, watched from outside, and never
// left behind.
namespace sluice::testing {

using std::chrono::milliseconds;

// Long enough for a loaded machine and a sanitizer; nothing waits for it when all is well.
constexpr milliseconds kPatience{20'000};

// Looks every few milliseconds until the condition holds; false: it did not in time.
bool WaitUntil(const std::function<bool()>& condition, milliseconds timeout = kPatience);

// A new empty folder, removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string ReadFile(const std::string& path);  // Empty when there is none.
void WriteFile(const std::string& path, const std::string& text, mode_t mode = 0644);

struct Command {
  std::vector<std::string> arguments = {};  // [0] is the program: a path, or found in PATH.
  std::map<std::string, std::string> environment = {};  // Added to ours.
  std::string network_namespace = {};                   // Empty: ours.
  std::string output_file = {};  // Gets stdout and stderr, appended. Empty: ours.
  std::vector<std::pair<int, uint64_t>> limits = {};  // {RLIMIT_NOFILE, 64}: both soft and hard.
  std::string cgroup_folder = {};  // Joined before the program starts. Empty: ours.
  std::optional<uid_t> user = {};  // With the group of the same number.
};

// What a process holds, as the kernel sees it.
struct Usage {
  uint64_t descriptors = 0;
  uint64_t mappings = 0;
  uint64_t memfd_bytes = 0;  // Mapped from memfds: pools and rings.
  uint64_t resident_bytes = 0;
  double cpu_seconds = 0;
};
std::optional<Usage> UsageOf(pid_t pid);

// One child process. It dies with this object, and with the thread that started it.
// Thread: one. Owns: the process.
class Process {
 public:
  static Result<std::unique_ptr<Process>> Start(const Command& command);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  bool Running();
  void Signal(int signal);

  // The status as of waitpid(2); empty: it still runs.
  std::optional<int> Wait(milliseconds timeout = kPatience);

  // SIGKILL, and waits for the end.
  void Kill();

 private:
  explicit Process(pid_t pid) : pid_(pid) {}

  pid_t pid_;
  std::optional<int> status_;
};

// Runs a command to its end. exit_code is 128 + the signal when a signal ended it, -1 when it took
// too long.
struct Finished {
  int exit_code = -1;
  std::string output = {};  // stdout and stderr.
};
Finished RunCommand(Command command, milliseconds timeout = kPatience);

}  // namespace sluice::testing
