// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "daemon/control/event_loop.h"
#include "daemon/control/packet.h"
#include "shm_proto/base/fd.h"

namespace sluice::control {

// One client's end of the control socket: hands packets up in order and sends without ever
// blocking. Invariant: at most kMaxQueued packets wait for a client that does not read; one more
// ends the connection. After OnConnectionLost(), or Close(), nothing is handed up any more. Thread:
// control. Owns: the socket, the descriptors that wait to be sent.
class ControlConnection {
 public:
  static constexpr size_t kMaxQueued = 64;
  static constexpr int kMaxPacketsPerTurn = 8;

  class Handler {
   public:
    virtual void OnPacket(Packet& packet) = 0;
    // The client is gone or, `too_slow`, has let more than kMaxQueued packets wait. Called from the
    // loop only, never inside Send().
    virtual void OnConnectionLost(bool too_slow) = 0;

   protected:
    ~Handler() = default;
  };

  ControlConnection(EventLoop& loop, Fd socket, Handler& handler);
  ~ControlConnection();
  ControlConnection(const ControlConnection&) = delete;
  ControlConnection& operator=(const ControlConnection&) = delete;

  Result<> Start();

  template <typename T>
  void Send(const T& message, std::vector<Fd> fds = {}) {
    SendBytes(std::as_bytes(std::span(&message, 1)), std::move(fds));
  }

  // Ends the connection; what was sent can still be read by the client. Idempotent.
  void Close();

  bool open() const { return socket_.valid(); }
  int fd() const { return socket_.get(); }

 private:
  struct Queued {
    std::vector<std::byte> bytes;
    std::vector<Fd> fds;
  };

  void SendBytes(std::span<const std::byte> bytes, std::vector<Fd> fds);
  SendStatus TrySend(std::span<const std::byte> bytes, const std::vector<Fd>& fds);
  void OnEvents(uint32_t events);
  void FlushQueue();
  void Fail(bool too_slow);

  EventLoop& loop_;
  Fd socket_;
  Handler& handler_;
  std::deque<Queued> queue_;
  EventLoop::TimerId failure_ = 0;  // Tells the handler from the loop.
};

}  // namespace sluice::control
