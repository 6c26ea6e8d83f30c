// SPDX-License-Identifier: Apache-2.0
#include "libclient/src/control_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "shm_proto/control.h"

namespace sluice::client {
namespace {

constexpr size_t
    kMaxDescriptors = 16;  // More than any message carries; surplus is truncated and refused.

void TakeDescriptors(msghdr& message, std::vector<Fd>& descriptors) {
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr;
       item = CMSG_NXTHDR(&message, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(fd));
      descriptors.emplace_back(fd);
    }
  }
}

}  // namespace

Result<> ControlSocket::Connect() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof(address.sun_path)) {
    return Fail(ErrorCode::kInvalid, "the socket's path is too long: " + path_);
  }
  std::memcpy(address.sun_path, path_.data(), path_.size());
  socket_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_.valid()) return FailErrno("cannot make a socket");
  if (connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0)
    return {};
  const int error = errno;
  socket_.Reset();
  if (error == ENOENT) {
    return Fail(ErrorCode::kNotFound,
                "no daemon: " + path_ + " does not exist; is sluiced running?");
  }
  if (error == ECONNREFUSED) {
    return Fail(ErrorCode::kNotFound,
                "no daemon: nobody listens on " + path_ + "; is sluiced running?");
  }
  return FailErrno("cannot connect to " + path_, error);
}

Result<bool> ControlSocket::Send(std::span<const std::byte> packet) {
  const ssize_t sent = send(socket_.get(), packet.data(), packet.size(),
                            MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) return true;
  if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS) return false;
  return FailErrno("the daemon hung up");
}

Result<bool> ControlSocket::Receive(std::vector<std::byte>& packet, std::vector<Fd>& descriptors) {
  packet.resize(control::kMaxMessageBytes);
  descriptors.clear();
  alignas(cmsghdr) char room[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  iovec bytes{packet.data(), packet.size()};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  const ssize_t got = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got < 0) return FailErrno("the daemon hung up");
  TakeDescriptors(message, descriptors);
  if (got == 0) return Fail(ErrorCode::kUnavailable, "the daemon hung up");
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return Fail(ErrorCode::kProtocol, "the daemon sent an oversized control message");
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return Fail(
        ErrorCode::kProtocol,
        "descriptors from the daemon were lost: too many, or this process may open no more");
  }
  packet.resize(static_cast<size_t>(got));
  return true;
}

}  // namespace sluice::client
