// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shm_proto/base/fd.h"
#include "shm_proto/base/result.h"

namespace sluice::client {

// The client's end of the daemon's control socket: packets out, packets with descriptors in. Never
// blocks. Thread: one. Owns: the socket.
class ControlSocket {
 public:
  explicit ControlSocket(std::string path) : path_(std::move(path)) {}

  Result<> Connect();
  void Close() { socket_.Reset(); }
  int fd() const { return socket_.get(); }

  // False: it cannot be taken now.
  Result<bool> Send(std::span<const std::byte> packet);
  // One packet, its descriptors closed by whoever does not take them. False: there is none now.
  Result<bool> Receive(std::vector<std::byte>& packet, std::vector<Fd>& descriptors);

 private:
  const std::string path_;
  Fd socket_;
};

}  // namespace sluice::client
