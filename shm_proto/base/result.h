// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstring>
#include <expected>
#include <string>
#include <utility>

namespace sluice {

// Why something was refused. The C ABI and the wire carry these as errno values (ToErrno), so the
// list is closed: add a code only together with its errno.
enum class ErrorCode {
  kInvalid,      // EINVAL: an argument or a message field is wrong.
  kNotFound,     // ENOENT: no such listener, client, key, file.
  kExists,       // EEXIST: taken already.
  kPermission,   // EACCES: the caller may not.
  kNoMemory,     // ENOMEM: memory, descriptors or a quota are exhausted.
  kWouldBlock,   // EAGAIN: full now; try again after a completion.
  kVersion,      // EPROTONOSUPPORT: no common protocol version.
  kProtocol,     // EPROTO: the other party broke the protocol.
  kUnavailable,  // ENOTCONN: the peer or the daemon is not there.
  kRefused,      // ECONNREFUSED: the other party said no.
  kTimeout,      // ETIMEDOUT.
  kClosed,       // ESHUTDOWN: closed on this side.
  kSystem,       // EIO: a system call failed; the message names it.
};

// A code for programs and one sentence for people: what was wrong, where, and what to do.
struct Error {
  ErrorCode code;
  std::string message;
};

template <typename T = void>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> Fail(ErrorCode code, std::string message) {
  return std::unexpected(Error{code, std::move(message)});
}

// For a failed system call: names the call and keeps errno's text.
inline std::unexpected<Error> FailErrno(const std::string& what, int error_number = errno) {
  ErrorCode code = ErrorCode::kSystem;
  if (error_number == ENOMEM || error_number == EMFILE || error_number == ENFILE ||
      error_number == ENOSPC) {
    code = ErrorCode::kNoMemory;
  } else if (error_number == EACCES || error_number == EPERM) {
    code = ErrorCode::kPermission;
  } else if (error_number == ENOENT) {
    code = ErrorCode::kNotFound;
  }
  return Fail(code, what + ": " + std::strerror(error_number));
}

constexpr int ToErrno(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid: return EINVAL;
    case ErrorCode::kNotFound: return ENOENT;
    case ErrorCode::kExists: return EEXIST;
    case ErrorCode::kPermission: return EACCES;
    case ErrorCode::kNoMemory: return ENOMEM;
    case ErrorCode::kWouldBlock: return EAGAIN;
    case ErrorCode::kVersion: return EPROTONOSUPPORT;
    case ErrorCode::kProtocol: return EPROTO;
    case ErrorCode::kUnavailable: return ENOTCONN;
    case ErrorCode::kRefused: return ECONNREFUSED;
    case ErrorCode::kTimeout: return ETIMEDOUT;
    case ErrorCode::kClosed: return ESHUTDOWN;
    case ErrorCode::kSystem: return EIO;
  }
  return EIO;
}

}  // namespace sluice
