// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace sluice::control {
namespace {

constexpr int kBacklog = 128;

// What the holder of a lock file wrote into it, for people.
std::string ReadHolder(int fd) {
  char text[32] = {};
  const ssize_t got = pread(fd, text, sizeof(text) - 1, 0);
  std::string holder = got > 0 ? std::string(text, static_cast<size_t>(got)) : std::string();
  while (!holder.empty() && (holder.back() == '\n' || holder.back() == '\0')) holder.pop_back();
  return holder.empty() ? "another sluiced" : "another sluiced (process " + holder + ")";
}

Result<> RemoveStaleSocket(const std::string& path) {
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return {};
    return FailErrno("looking at " + path);
  }
  if (!S_ISSOCK(status.st_mode)) {
    return Fail(ErrorCode::kExists,
                path + " exists and is not a socket; remove it or choose another run directory");
  }
  if (unlink(path.c_str()) != 0) return FailErrno("removing the stale socket " + path);
  return {};
}

}  // namespace

Result<> PrepareRunDirectory(const std::string& path, mode_t mode) {
  const bool made = mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) return FailErrno("making the run directory " + path);
  const Fd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory.valid()) return FailErrno("opening the run directory " + path);
  if (made && fchmod(directory.get(), mode) != 0) return FailErrno("setting the mode of " + path);

  struct stat status;
  if (fstat(directory.get(), &status) != 0) return FailErrno("looking at " + path);
  if (status.st_uid != geteuid()) {
    return Fail(ErrorCode::kPermission, "the run directory " + path + " belongs to user " +
                                            std::to_string(status.st_uid) +
                                            ", the daemon runs as " + std::to_string(geteuid()));
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Fail(ErrorCode::kPermission, "others can write to the run directory " + path +
                                            " and could put their own socket there; chmod go-w it");
  }
  return {};
}

Result<InstanceLock> InstanceLock::Acquire(const std::string& run_dir) {
  std::string path = run_dir + "/sluiced.lock";
  Fd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid()) return FailErrno("opening " + path);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return FailErrno("locking " + path);
    return Fail(ErrorCode::kExists, ReadHolder(fd.get()) + " holds " + path +
                                        "; stop it, or give this one a run directory of its own");
  }
  const std::string self = std::to_string(getpid()) + "\n";
  if (ftruncate(fd.get(), 0) != 0 ||
      pwrite(fd.get(), self.data(), self.size(), 0) != static_cast<ssize_t>(self.size())) {
    return FailErrno("writing " + path);
  }
  return InstanceLock(std::move(fd), std::move(path));
}

Result<Fd> ListenUnix(const std::string& path, int type, mode_t mode, const InstanceLock&) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Fail(ErrorCode::kInvalid, "the socket path " + path + " is longer than " +
                                         std::to_string(sizeof(address.sun_path) - 1) +
                                         " bytes; choose a shorter run directory");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  if (Result<> removed = RemoveStaleSocket(path); !removed) return std::unexpected(removed.error());

  Fd fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return FailErrno("making the socket for " + path);
  // Nobody but us may connect before the mode is right. Done at start, when no other thread makes
  // files.
  const mode_t before = umask(0177);
  const int bound = bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int bind_errno = errno;
  umask(before);
  if (bound != 0) return FailErrno("binding " + path, bind_errno);
  if (listen(fd.get(), kBacklog) != 0) return FailErrno("listening on " + path);
  if (chmod(path.c_str(), mode) != 0) return FailErrno("setting the mode of " + path);
  return fd;
}

}  // namespace sluice::control
