// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "libclient/src/client.h"
#include "libclient/src/control_port.h"
#include "libclient/src/control_socket.h"

namespace sluice::client {

// The thread behind a client ("sluice-ctl"): waits for the control socket, for other threads'
// requests and for the client's deadlines. Takes no signals. Invariant: the socket is used by this
// thread alone between Start() and Stop(). Thread: Start() and Stop() the one that owns the client.
// Owns: the socket, a wake-up, the thread.
class ControlThread final : public ControlPort {
 public:
  ControlThread(std::string socket_path, const Clock& clock)
      : clock_(clock), socket_(std::move(socket_path)) {}
  ~ControlThread() override { Stop(); }

  Result<> Start(Client& client);
  void Stop();

  Result<> Connect() override;
  Result<bool> Send(std::span<const std::byte> packet) override { return socket_.Send(packet); }
  void Close() override { socket_.Close(); }
  void Wake() override;
  bool Await(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
             uint64_t deadline_ns) override;

 private:
  static constexpr int kMaxPacketsPerTurn = 256;

  void Run();
  void Receive();
  void WaitFor(uint64_t deadline_ns, bool writable);

  const Clock& clock_;
  ControlSocket socket_;
  Client* client_ = nullptr;
  Fd wake_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace sluice::client
