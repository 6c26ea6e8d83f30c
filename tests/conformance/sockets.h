// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <utility>

#include "shm_proto/base/fd.h"
#include "shm_proto/base/result.h"

namespace sluice::transport {

// Two ends of one TCP connection on loopback. With tiny buffers reads and writes are cut short all
// the time. (Much smaller receive buffers only exercise the kernel's 200 ms window probes.)
inline Result<std::pair<Fd, Fd>> ConnectedSockets(bool tiny_buffers = false) {
  const auto shrink = [tiny_buffers](int socket) {
    if (!tiny_buffers) return;
    const int send_bytes = 1;  // The kernel makes it its minimum.
    const int receive_bytes = 8 * 1024;
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
    setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
  };
  Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Fd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid() || !client.valid()) return FailErrno("socket");
  shrink(listener.get());
  shrink(client.get());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), generic, length) < 0 || listen(listener.get(), 1) < 0 ||
      getsockname(listener.get(), generic, &length) < 0 ||
      connect(client.get(), generic, length) < 0) {
    return FailErrno("bind, listen or connect on loopback");
  }
  Fd server(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!server.valid()) return FailErrno("accept4");
  return std::pair(std::move(client), std::move(server));
}

}  // namespace sluice::transport
