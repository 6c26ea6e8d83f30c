// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/client_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <type_traits>
#include <utility>
#include <variant>

#include "daemon/control/log.h"
#include "daemon/control/packet.h"

namespace sluice::control {
namespace {

// A last word to somebody who gets no further.
void SendRefusal(int connection, int error, const std::string& text) {
  auto reply = MakeMessage<ErrorReply>(Type::kError, 0);
  reply.error = error;
  reply.version_min = kVersionMin;
  reply.version_max = kVersionMax;
  CopyText(reply.text, text);
  SendPacket(connection, std::as_bytes(std::span(&reply, 1)), {});
  // Unread packets would turn the close into a reset, and the refusal would be lost: no more come,
  // and those that are there are read.
  shutdown(connection, SHUT_RD);
  Packet packet;
  for (int i = 0; i < 4 && ReceivePacket(connection, packet) == ReceiveStatus::kPacket; ++i) {
  }
}

std::function<void()> CompletionsOn(EventLoop& loop, std::weak_ptr<void> alive,
                                    memory::MemoryWorker& worker) {
  return [&loop, alive, &worker] {
    loop.Post([alive, &worker] {
      if (!alive.expired()) worker.RunCompletions();
    });
  };
}

}  // namespace

ClientServer::ClientServer(EventLoop& loop, std::vector<io::Mailbox<io::ToIo>*> io,
                           PeerDirectory& peers, ClientServerOptions options,
                           HeadroomCheck headroom)
    : loop_(loop),
      io_(std::move(io)),
      options_(std::move(options)),
      headroom_(std::move(headroom)),
      tenants_(options_.tenants, options_.limits),
      alive_(std::make_shared<int>(0)),
      worker_(CompletionsOn(loop, alive_, worker_)),
      reclaimer_(worker_, [this] { PollReclaimer(); }),
      services_{loop_,          io_,      peers,     tenants_, worker_, reclaimer_,
                service_table_, options_, counters_, headroom_} {}

ClientServer::~ClientServer() {
  alive_.reset();
  acceptor_.reset();
  loop_.Cancel(reclaim_timer_);
  worker_.Stop();  // Before the pools, into whose addresses it may be building.
}

Result<> ClientServer::Start(Fd listener) {
  acceptor_ = std::make_unique<Acceptor>(
      loop_, std::move(listener), [this](Fd connection) { OnAccept(std::move(connection)); },
      [this](int connection) { RefuseAtLimit(connection); });
  return acceptor_->Start();
}

void ClientServer::Shutdown(const std::string& reason) {
  if (acceptor_ != nullptr) acceptor_->Stop();
  for (auto& [id, session] : sessions_) session->Detach(ESHUTDOWN, reason);
}

void ClientServer::RefuseAtLimit(int connection) {
  ++counters_.attach_refused;
  SendRefusal(connection, EMFILE, "sluiced has no descriptors left; raise its limit (LimitNOFILE)");
}

void ClientServer::OnAccept(Fd connection) {
  const Result<clients::Credentials> who = clients::ReadCredentials(connection.get());
  if (!who) {
    ++counters_.attach_refused;
    return SendRefusal(connection.get(), ToErrno(who.error().code), who.error().message);
  }
  // At once, or a user of no tenant could hold connections until their time to attach is up.
  Result<std::shared_ptr<clients::Tenant>> tenant = tenants_.Match(*who);
  if (!tenant) {
    ++counters_.attach_refused;
    LogWarning("client refused",
               {{"uid", who->uid}, {"pid", who->pid}, {"reason", tenant.error().message}});
    return SendRefusal(connection.get(), ToErrno(tenant.error().code), tenant.error().message);
  }
  size_t greeting = 0;
  size_t of_user = 0;
  for (const auto& [id, session] : sessions_) {
    if (!session->greeting()) continue;
    ++greeting;
    if (session->uid() == who->uid) ++of_user;
  }
  if (greeting >= kMaxGreeting || of_user >= kMaxGreetingPerUser) {
    ++counters_.attach_refused;
    return SendRefusal(connection.get(), EAGAIN,
                       "too many connections that have not attached; try again");
  }
  const io::ClientId id = next_client_++;
  auto session = std::make_unique<ClientSession>(
      services_, id, std::move(connection), *who, std::move(*tenant),
      [this](io::ClientId client) { OnFinished(client); });
  if (Result<> started = session->Start(); !started) {
    ++counters_.attach_refused;
    return SendRefusal(session->connection().fd(), ToErrno(started.error().code),
                       started.error().message);
  }
  sessions_[id] = std::move(session);
}

// Said by a session about itself, in the middle of whatever it does.
void ClientServer::OnFinished(io::ClientId client) {
  loop_.Post([this, client, alive = std::weak_ptr<void>(alive_)] {
    if (alive.expired()) return;
    sessions_.erase(client);
  });
}

void ClientServer::PollReclaimer() {
  if (reclaim_timer_ != 0) return;
  reclaim_timer_ = loop_.After(kReclaimPollNs, [this] {
    reclaim_timer_ = 0;
    reclaimer_.Poll();
    if (reclaimer_.lingering_count() > 0) PollReclaimer();
  });
}

ClientSession* ClientServer::Find(io::ClientId client) {
  const auto found = sessions_.find(client);
  return found == sessions_.end() ? nullptr : found->second.get();
}

// --- from I/O threads ---

bool ClientServer::OnIoMessage(const io::FromIo& message) {
  return std::visit(
      [this](const auto& one) {
        if constexpr (requires { On(one); }) {
          On(one);
          return true;
        } else {
          return false;
        }
      },
      message);
}

void ClientServer::On(const io::IncomingSocket& incoming) {
  const bool listening = service_table_.Has(incoming.service);
  const bool taken = service_table_.Offer(incoming.service,
                                          [&](const ServiceTable::Listener& listener) {
                                            ClientSession* session = Find(listener.client);
                                            if (session == nullptr || !session->HasRoomForSocket())
                                              return false;
                                            session->OnIncomingSocket(incoming, listener);
                                            return true;
                                          });
  if (taken) return;
  ++counters_.incoming_refused;
  io_[incoming.io_thread]->Post(
      io::RefuseSocket{incoming.peer, incoming.socket, listening ? ENOMEM : ECONNREFUSED});
}

// A client that leaves is forgotten when all its threads have said ClientRemoved, their last word
// about it.

void ClientServer::On(const io::NeedReceiveBlocks& need) {
  if (ClientSession* session = Find(need.client); session != nullptr && session->attached()) {
    session->memory()->OnNeedReceiveBlocks(need);
  }
}

void ClientServer::On(const io::ReceiveBlocksIdle& idle) {
  if (ClientSession* session = Find(idle.client); session != nullptr && session->attached()) {
    session->memory()->OnReceiveBlocksIdle(idle);
  }
}

void ClientServer::On(const io::ExtentReleased& released) {
  if (ClientSession* session = Find(released.client); session != nullptr && session->attached()) {
    session->memory()->OnExtentReleased(released);
  }
}

void ClientServer::On(const io::PortRemoved& removed) {
  if (ClientSession* session = Find(removed.client); session != nullptr && session->attached()) {
    session->ports().OnPortRemoved(removed);
  }
}

void ClientServer::On(const io::ClientRemoved& removed) {
  if (ClientSession* session = Find(removed.client)) session->OnClientRemoved();
}

void ClientServer::On(const io::ClientBroken& broken) {
  if (ClientSession* session = Find(broken.client)) session->Detach(EPROTO, broken.reason);
}

void ClientServer::On(const io::SocketGone& gone) {
  if (ClientSession* session = Find(gone.client)) session->OnSocketGone();
}

// --- configuration and display ---

void ClientServer::Reconfigure(std::vector<clients::TenantRule> tenants,
                               clients::NodeLimits limits) {
  tenants_.Reconfigure(std::move(tenants), limits);
  for (auto& [id, session] : sessions_) {
    if (session->attached()) session->memory()->ApplyQuota();
  }
}

ClientServerSnapshot ClientServer::Snapshot() const {
  ClientServerSnapshot snapshot;
  snapshot.counters = counters_;
  snapshot.memory_bytes = tenants_.memory_bytes();
  snapshot.memory_limit_bytes = tenants_.limits().memory_bytes;
  snapshot.lingering_bytes = reclaimer_.lingering_bytes();
  for (const auto& tenant : tenants_.all()) {
    snapshot.tenants.push_back({tenant->rule.name, tenant->clients, tenant->rule.max_clients,
                                tenant->memory_bytes, tenant->rule.tenant_memory_quota_bytes,
                                tenant->attached, tenant->attach_refused});
  }
  for (const auto& [id, session] : sessions_) snapshot.clients.push_back(session->Snapshot());
  std::ranges::sort(snapshot.clients, {}, &ClientSnapshot::client);
  return snapshot;
}

}  // namespace sluice::control
