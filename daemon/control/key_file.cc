// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "shm_proto/base/fd.h"

namespace sluice::control {
namespace {

std::string HowTo(const std::string& path) {
  return "; make one with: head -c 32 /dev/urandom > " + path + "; chmod 600 " + path +
         " (and copy it to every host of the cluster)";
}

// The systemd unit runs as the user sluice, and the key is often made by root.
std::string Owner(const std::string& path) {
  return "; it must belong to the user that sluiced runs as, here uid " +
         std::to_string(geteuid()) + ": chown sluice " + path + " for the systemd unit";
}

}  // namespace

Result<std::unique_ptr<handshake::MacKey>> ReadKeyFile(const std::string& path) {
  // Non-blocking: a fifo by that name must not stop the start.
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.valid()) {
    const int reason = errno;
    auto error = FailErrno("opening the cluster key " + path, reason);
    const std::string& text = error.error().message;
    if (reason == ENOENT) return Fail(error.error().code, text + HowTo(path));
    if (reason == EACCES) return Fail(error.error().code, text + Owner(path));
    return error;
  }
  struct stat status;
  if (fstat(file.get(), &status) != 0) return FailErrno("looking at the cluster key " + path);
  if (!S_ISREG(status.st_mode))
    return Fail(ErrorCode::kInvalid, "the cluster key " + path + " is not a regular file");
  if ((status.st_mode & 077) != 0) {
    return Fail(ErrorCode::kPermission,
                "the cluster key " + path + " is open to its group or to everyone; chmod 600 " +
                    path + ", and replace the key if others may have read it");
  }
  std::array<std::byte, handshake::kMaxKeyBytes + 1> bytes;
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = read(file.get(), &bytes[size], bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FailErrno("reading the cluster key " + path);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  auto key = handshake::MacKey::Create(std::span(bytes).first(size));
  explicit_bzero(bytes.data(), bytes.size());
  if (!key) {
    std::string size_text = size > handshake::kMaxKeyBytes
                                ? "more than " + std::to_string(handshake::kMaxKeyBytes)
                                : std::to_string(size);
    if (key.error().code != ErrorCode::kInvalid) return key;
    return Fail(ErrorCode::kInvalid, "the cluster key " + path + " has " + size_text +
                                         " bytes; it must have 32 to 4096" + HowTo(path));
  }
  return key;
}

}  // namespace sluice::control
