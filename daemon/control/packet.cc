// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/packet.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>

#include "shm_proto/base/check.h"

namespace sluice::control {
namespace {

// Room for far more descriptors than any message has: those that fit are closed one by one, the
// kernel drops the rest.
constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int) * 32);

}  // namespace

ReceiveStatus ReceivePacket(int socket, Packet& packet) {
  packet.fds.clear();
  alignas(cmsghdr) char control[kControlBytes];
  iovec part{packet.bytes.data(), packet.bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got;
  do {
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    return errno == EAGAIN ? ReceiveStatus::kNothing : ReceiveStatus::kHangUp;
  }
  for (cmsghdr* part_of = CMSG_FIRSTHDR(&message); part_of != nullptr;
       part_of = CMSG_NXTHDR(&message, part_of)) {
    if (part_of->cmsg_level != SOL_SOCKET || part_of->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part_of->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part_of) + i * sizeof(int), sizeof(fd));
      packet.fds.emplace_back(fd);
    }
  }
  packet.size = static_cast<size_t>(got);
  packet.truncated = (message.msg_flags & MSG_TRUNC) != 0;
  packet.fds_truncated = (message.msg_flags & MSG_CTRUNC) != 0;
  // No message is empty, so 0 can only be the end (or rubbish that may as well end it).
  return got == 0 ? ReceiveStatus::kHangUp : ReceiveStatus::kPacket;
}

SendStatus SendPacket(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  SLUICE_CHECK(fds.size() <= kMaxPacketFds, "no message carries more descriptors");
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPacketFds)] = {};
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  for (;;) {
    if (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return SendStatus::kSent;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM ? SendStatus::kFull
                                                                  : SendStatus::kBroken;
  }
}

}  // namespace sluice::control
