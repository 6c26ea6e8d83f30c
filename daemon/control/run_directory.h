// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <string>

#include "shm_proto/base/fd.h"
#include "shm_proto/base/result.h"

namespace sluice::control {

// Makes the daemon's run directory with this mode, so that it has it before any socket appears in
// it. One that exists is taken if it is a directory of ours that nobody else can write to; it is
// never changed.
Result<> PrepareRunDirectory(const std::string& path, mode_t mode);

// Held for the life of the daemon: one daemon per run directory. A lock of the kernel's on a file,
// so that a killed daemon leaves none behind; the process id inside is for people only. Thread:
// any. Owns: the descriptor that holds the lock.
class InstanceLock {
 public:
  // kExists, naming the holder, when another daemon runs.
  static Result<InstanceLock> Acquire(const std::string& run_dir);
  const std::string& path() const { return path_; }

 private:
  InstanceLock(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Fd fd_;
  std::string path_;
};

// A listening Unix socket (non-blocking) at `path`, whose file is closed to everybody until it has
// `mode`. Removes the socket file that a killed daemon left there: the lock says that nobody is
// listening on it. Anything else at that path is left alone and is an error.
Result<Fd> ListenUnix(const std::string& path, int type, mode_t mode, const InstanceLock& held);

}  // namespace sluice::control
