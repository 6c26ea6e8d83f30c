// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "daemon/control/event_loop.h"
#include "daemon/control/socket_address.h"
#include "shm_proto/base/fd.h"
#include "shm_proto/base/result.h"

namespace sluice::control {

struct Connected {
  Fd socket;  // Non-blocking, close-on-exec, TCP_NODELAY.
  SocketAddress address;
};

// One try to open a TCP connection to whichever of several addresses answers first. They are begun
// one after the other, families in turn, each a little after the one before or at once when that
// failed (as RFC 8305 advises). Invariant: calls back exactly once, from the loop and never from
// the constructor, and holds no descriptor afterwards. Destroying it before gives up quietly.
// Thread: control. Owns: the sockets that are not connected yet.
class Connector {
 public:
  using Callback = std::function<void(Result<Connected>)>;  // May destroy the connector.

  static constexpr uint64_t kStaggerNs = 150 * kNsPerMs;

  // Error: kTimeout, or what the last address to fail said.
  Connector(EventLoop& loop, std::vector<SocketAddress> addresses, uint64_t timeout_ns,
            Callback done);
  ~Connector();
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

 private:
  struct Attempt {
    Fd socket;
    SocketAddress address;
  };
  void Next();
  Result<Fd> Begin(const SocketAddress& address);
  void OnReady(int fd);
  void OnTimeout();
  void Finish(Result<Connected> result);
  void Clear();

  EventLoop& loop_;
  std::vector<SocketAddress> addresses_;
  size_t next_ = 0;
  std::vector<Attempt> attempts_;  // In flight; at most one for each address.
  Error last_error_;
  EventLoop::TimerId step_ = 0, deadline_ = 0;
  Callback done_;
};

// The addresses with their families in turn, the first family kept first.
std::vector<SocketAddress> InterleaveFamilies(const std::vector<SocketAddress>& addresses);

}  // namespace sluice::control
