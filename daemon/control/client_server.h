// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/clients/tenants.h"
#include "daemon/control/acceptor.h"
#include "daemon/control/client_host.h"
#include "daemon/control/client_session.h"
#include "daemon/control/event_loop.h"
#include "daemon/control/peer_directory.h"
#include "daemon/control/service_table.h"
#include "daemon/io/mailbox.h"
#include "daemon/io/messages.h"
#include "daemon/memory/memory_worker.h"
#include "daemon/memory/reclaimer.h"

namespace sluice::control {

struct TenantSnapshot {
  std::string name;
  uint32_t clients = 0, max_clients = 0;
  uint64_t memory_bytes = 0, memory_quota_bytes = 0;
  uint64_t attached = 0, attach_refused = 0;
};

struct ClientServerSnapshot {
  ClientServerCounters counters;
  uint64_t memory_bytes = 0, memory_limit_bytes = 0;  // Pools and rings of all clients.
  uint64_t lingering_bytes = 0;  // Of them: what clients or their children hold after their time.
  std::vector<TenantSnapshot> tenants;
  std::vector<ClientSnapshot> clients;  // By number.
};

// The control socket's server: clients attach, get their memory and rings, listen and connect; here
// they are taken apart again when they are gone. Invariant: a client's memory is unmapped only
// after every I/O thread that knew the client has let go of it. Thread: control. Owns: the
// listening socket, the clients, their memory, the worker that makes it.
class ClientServer {
 public:
  static constexpr size_t kMaxGreeting = 256;  // Connections that have not attached.
  static constexpr size_t kMaxGreetingPerUser = 64;
  static constexpr uint64_t kReclaimPollNs = 250 * kNsPerMs;

  using HeadroomCheck = std::function<Result<>(uint64_t bytes)>;

  // `io`: the mailboxes of all I/O threads, by number. Loop, mailboxes and directory outlive the
  // server. `headroom` refuses memory that cannot be had without danger (memory::Headroom); it is
  // called on another thread.
  ClientServer(EventLoop& loop, std::vector<io::Mailbox<io::ToIo>*> io, PeerDirectory& peers,
               ClientServerOptions options, HeadroomCheck headroom);
  // I/O threads must have ended, or have let go of all clients.
  ~ClientServer();
  ClientServer(const ClientServer&) = delete;
  ClientServer& operator=(const ClientServer&) = delete;

  // `listener`: a listening SEQPACKET socket (ListenUnix).
  Result<> Start(Fd listener);
  // No new clients; those attached are told `reason` and detached. Idempotent.
  void Shutdown(const std::string& reason);

  // Whether the message concerned clients, and was taken.
  bool OnIoMessage(const io::FromIo& message);

  // Live; quotas of attached clients change too, within the address space they reserved.
  void Reconfigure(std::vector<clients::TenantRule> tenants, clients::NodeLimits limits);

  ClientServerSnapshot Snapshot() const;
  size_t client_count() const { return sessions_.size(); }
  // Memory that is being given back or still held by clients after their time.
  size_t reclaiming_count() const { return reclaimer_.pending_count(); }

 private:
  void OnAccept(Fd connection);
  void RefuseAtLimit(int connection);
  void OnFinished(io::ClientId client);
  void PollReclaimer();
  ClientSession* Find(io::ClientId client);

  void On(const io::IncomingSocket& incoming);
  void On(const io::NeedReceiveBlocks& need);
  void On(const io::ReceiveBlocksIdle& idle);
  void On(const io::ExtentReleased& released);
  void On(const io::PortRemoved& removed);
  void On(const io::ClientRemoved& removed);
  void On(const io::ClientBroken& broken);
  void On(const io::SocketGone& gone);

  EventLoop& loop_;
  std::vector<io::Mailbox<io::ToIo>*> io_;
  ClientServerOptions options_;
  HeadroomCheck headroom_;
  ClientServerCounters counters_;
  clients::Tenants tenants_;
  ServiceTable service_table_;
  std::shared_ptr<void> alive_;  // Expires first: what was posted to the loop looks.
  memory::MemoryWorker worker_;
  memory::Reclaimer reclaimer_;
  ClientServices services_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unordered_map<io::ClientId, std::unique_ptr<ClientSession>> sessions_;
  io::ClientId next_client_ = 1;
  EventLoop::TimerId reclaim_timer_ = 0;
};

}  // namespace sluice::control
