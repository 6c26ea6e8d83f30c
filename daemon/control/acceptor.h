// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "daemon/control/event_loop.h"
#include "shm_proto/base/fd.h"
#include "shm_proto/base/result.h"

namespace sluice::control {

// Accepts connections from a listening socket without ever spinning: at the descriptor limit it
// spends a reserved descriptor to accept, refuse and close, then pauses. A level-triggered loop
// that leaves such connections waiting would burn a core. Invariant: outside OnReadable() the
// reserve is held, or the acceptor is paused. Thread: control. Owns: the listening socket and the
// reserve.
class Acceptor {
 public:
  static constexpr int kMaxAcceptsPerTurn = 16;
  static constexpr int kMaxRefusalsPerTurn = 4;
  static constexpr uint64_t kPauseNs = 20 * kNsPerMs;

  // Gets each new connection (non-blocking, close-on-exec).
  using AcceptCallback = std::function<void(Fd connection)>;
  // Gets a connection that must go: may write a refusal to it, must not keep it.
  using RefuseCallback = std::function<void(int connection)>;

  Acceptor(EventLoop& loop, Fd listener, AcceptCallback accept, RefuseCallback refuse);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  Result<> Start();
  void Stop();  // Closes the listening socket. Idempotent.

  int fd() const { return listener_.get(); }
  uint64_t accepted() const { return accepted_; }
  uint64_t refused() const { return refused_; }  // At the descriptor limit.

 private:
  void OnReadable();
  bool RefuseOne();
  void Pause();

  EventLoop& loop_;
  Fd listener_;
  Fd reserve_;
  AcceptCallback accept_;
  RefuseCallback refuse_;
  EventLoop::TimerId resume_ = 0;
  uint64_t accepted_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace sluice::control
