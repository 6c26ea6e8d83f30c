// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/clients/tenants.h"
#include "daemon/control/client_host.h"
#include "daemon/control/client_memory.h"
#include "daemon/control/client_ports.h"
#include "daemon/control/control_connection.h"

namespace sluice::control {

// What sluicectl and the metrics show of one client.
struct ClientSnapshot {
  io::ClientId client = 0;
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  std::string name;
  std::string tenant;
  std::string state;  // "attaching", "attached", "leaving"
  uint64_t attached_ns_ago = 0;
  uint64_t quota_bytes = 0, pool_bytes = 0, send_bytes = 0, receive_bytes = 0, ring_bytes = 0;
  uint32_t extents = 0, channels = 0, ports = 0, listeners = 0, sockets = 0;
  uint64_t rejected_requests = 0;
};

// One connection to the control socket and, once attached, everything its client holds in the
// control thread.
//
// kGreeting -> kAttached -> kLeaving -> finished. A client leaves when its connection or its
// process ends or when it is detached; it is finished when every I/O thread that knew it has let go
// of it and no job works for it. Invariant: after it began to leave nothing is sent to it and no
// I/O thread is told of it but to remove it. Thread: control. Owns: the connection, the pool, the
// rings. Must not be destroyed inside its own callbacks.
class ClientSession final : public ControlConnection::Handler, public ClientHost {
 public:
  static constexpr uint64_t
      kMaxRejectedRequests = 256;  // After that the client is broken beyond hope.
  static constexpr size_t kMaxListeners = 1024;

  // `on_finished` may be called at any time from then on, once.
  ClientSession(ClientServices& services, io::ClientId id, Fd socket, clients::Credentials who,
                std::shared_ptr<clients::Tenant> tenant,
                std::function<void(io::ClientId)> on_finished);
  ~ClientSession();

  Result<> Start();

  // From I/O threads, about this client.
  void OnIncomingSocket(const io::IncomingSocket& incoming, const ServiceTable::Listener& listener);
  bool HasRoomForSocket() const {
    return state_ == State::kAttached && sockets_ < tenant_->rule.max_sockets;
  }
  void OnSocketGone();
  void OnClientRemoved();
  ClientMemory* memory() { return memory_.get(); }
  ClientPorts& ports() { return ports_; }

  bool attached() const { return state_ == State::kAttached; }
  bool greeting() const { return state_ == State::kGreeting; }
  uid_t uid() const { return who_.uid; }
  ClientSnapshot Snapshot() const;

  // ClientHost.
  io::ClientId id() const override { return id_; }
  ClientServices& services() override { return services_; }
  clients::Tenant& tenant() override { return *tenant_; }
  ControlConnection& connection() override { return connection_; }
  uint32_t NextRegion() override { return next_region_++; }
  const std::vector<uint32_t>& known_threads() const override { return known_threads_; }
  void Tell(uint32_t io_thread, io::ToIo message) override;
  void MakeMemory(std::string name, uint64_t bytes, std::byte* address, MadeCallback done) override;
  void RetireMemory(memory::SharedMemory memory, std::move_only_function<void()> gone) override;
  void Detach(int error, const std::string& reason) override;

 private:
  enum class State : uint8_t { kGreeting, kAttached, kLeaving };

  // ControlConnection::Handler.
  void OnPacket(Packet& packet) override;
  void OnConnectionLost(bool too_slow) override;

  bool CheckPacket(const Packet& packet);
  void Dispatch(const Packet& packet);
  template <typename T>
  void Handle(const Packet& packet, void (ClientSession::*handler)(const T&));
  void Reject(uint32_t request, int error, const std::string& text);
  void Answer(uint32_t request, const Result<>& result);  // kError, where it failed.

  void HandleAttach(const Packet& packet);
  void OnAttach(const Attach& message);
  Result<> Admit(const Attach& message);
  Result<> WatchProcess();
  void OnOpenChannel(const OpenChannel& message);
  void OnCloseChannel(const CloseChannel& message);
  void OnMapped(const Mapped& message);
  void OnGrow(const Grow& message);
  void OnShrink(const Shrink& message);
  void OnUnmapped(const Unmapped& message);
  void OnListen(const Listen& message);
  void OnUnlisten(const Unlisten& message);
  void OnConnect(const Connect& message);
  void OnResolved(const Connect& message, Result<PeerRef> peer);
  void FailConnect(const Connect& message, int error, const std::string& text);

  void Leave();
  void CheckFinished();
  void DisposeMemory();

  ClientServices& services_;
  const io::ClientId id_;
  const clients::Credentials who_;
  const std::shared_ptr<clients::Tenant> tenant_;
  std::function<void(io::ClientId)> on_finished_;
  ControlConnection connection_;
  State state_ = State::kGreeting;
  bool admitted_ = false;  // Counted among the tenant's clients.
  bool finished_ = false;
  std::string name_;
  uint64_t attached_at_ns_ = 0;
  uint64_t max_message_bytes_ = 0;  // As it was told when it attached.
  Fd process_;  // A pidfd: liveness alone. A child of the client may hold the connection open for
                // ever.
  EventLoop::TimerId attach_timer_ = 0;

  std::unique_ptr<ClientMemory> memory_;  // Once attached.
  ClientPorts ports_;
  std::map<uint64_t, Listen> listeners_;  // By token.
  uint32_t sockets_ = 0;                  // Opening, open and closing.
  uint32_t next_region_ = 1;
  uint64_t rejected_requests_ = 0;
  std::vector<uint32_t> known_threads_;
  size_t removals_left_ = 0;
  size_t jobs_ = 0;              // The worker's, for this client.
  std::shared_ptr<void> alive_;  // Expires with this object: callbacks that may come later look.
};

}  // namespace sluice::control
