// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/client_session.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/control/log.h"
#include "daemon/control/packet.h"
#include "shm_proto/base/check.h"

namespace sluice::control {

ClientSession::ClientSession(ClientServices& services, io::ClientId id, Fd socket,
                             clients::Credentials who, std::shared_ptr<clients::Tenant> tenant,
                             std::function<void(io::ClientId)> on_finished)
    : services_(services),
      id_(id),
      who_(std::move(who)),
      tenant_(std::move(tenant)),
      on_finished_(std::move(on_finished)),
      connection_(services.loop, std::move(socket), *this),
      ports_(*this),
      alive_(std::make_shared<int>(0)) {}

ClientSession::~ClientSession() {
  alive_.reset();
  services_.loop.Cancel(attach_timer_);
  if (process_.valid()) services_.loop.Remove(process_.get());
  for (const auto& [token, listener] : listeners_)
    services_.services.Remove(listener.service, id_, token);
  if (admitted_) services_.tenants.Leave(*tenant_);
}

Result<> ClientSession::Start() {
  attach_timer_ = services_.loop.After(services_.options.attach_deadline_ns, [this] {
    attach_timer_ = 0;
    ++services_.counters.attach_refused;
    Detach(ETIMEDOUT, "it connected and did not attach");
  });
  return connection_.Start();
}

// --- leaving ---

void ClientSession::OnConnectionLost(bool too_slow) {
  if (too_slow) {
    ++services_.counters.detached;
    LogWarning(
        "client detached",
        {{"client", id_}, {"name", name_}, {"reason", "it does not read its control socket"}});
  }
  Leave();
}

void ClientSession::Detach(int error, const std::string& reason) {
  if (state_ == State::kLeaving) return;
  LogWarning(
      state_ == State::kAttached ? "client detached" : "client refused",
      {{"client", id_}, {"uid", who_.uid}, {"pid", who_.pid}, {"name", name_}, {"reason", reason}});
  if (state_ == State::kAttached) {
    ++services_.counters.detached;
    auto message = MakeMessage<Detached>(Type::kDetached, 0);
    message.error = error;
    CopyText(message.text, reason);
    connection_.Send(message);
  } else {
    SendError(0, error, reason);
  }
  Leave();
}

void ClientSession::Leave() {
  if (state_ == State::kLeaving) return;
  const bool was_attached = std::exchange(state_, State::kLeaving) == State::kAttached;
  connection_.Close();
  services_.loop.Cancel(std::exchange(attach_timer_, 0));
  if (process_.valid()) services_.loop.Remove(process_.get());
  process_.Reset();
  if (was_attached) {
    LogInfo("client left", {{"client", id_}, {"name", name_}});
    for (const auto& [token, listener] : listeners_)
      services_.services.Remove(listener.service, id_, token);
    listeners_.clear();
    ports_.Abandon();
    memory_->Abandon();
    removals_left_ = known_threads_.size();
    for (const uint32_t io_thread : known_threads_)
      services_.io[io_thread]->Post(io::RemoveClient{id_});
  }
  CheckFinished();
}

void ClientSession::OnClientRemoved() {
  SLUICE_CHECK(state_ == State::kLeaving && removals_left_ > 0,
               "an I/O thread removes a client once, when told to");
  --removals_left_;
  CheckFinished();
}

void ClientSession::CheckFinished() {
  if (state_ != State::kLeaving || removals_left_ > 0 || jobs_ > 0 || finished_) return;
  finished_ = true;
  DisposeMemory();
  on_finished_(id_);
}

// Nothing touches the memory any more but, perhaps, the client or a child of it.
void ClientSession::DisposeMemory() {
  for (memory::SharedMemory& rings : ports_.TakeMemory()) RetireMemory(std::move(rings), [] {});
  if (memory_ == nullptr) return;
  services_.worker.Run([pool = memory_->TakePool(), reclaimer = &services_.reclaimer,
                        tenants = &services_.tenants,
                        tenant = tenant_]() mutable -> memory::MemoryWorker::Completion {
    std::vector<memory::SharedMemory> memories = pool->Dismantle();
    pool.reset();
    return [memories = std::move(memories), reclaimer, tenants, tenant]() mutable {
      for (memory::SharedMemory& memory : memories) {
        const uint64_t bytes = memory.bytes();
        reclaimer->Retire(std::move(memory),
                          [tenants, tenant, bytes] { tenants->Refund(*tenant, bytes); });
      }
    };
  });
}

// --- what its parts need ---

void ClientSession::Tell(uint32_t io_thread, io::ToIo message) {
  if (state_ != State::kAttached) return;
  if (std::ranges::find(known_threads_, io_thread) == known_threads_.end()) {
    known_threads_.push_back(io_thread);
    const memory::ClientPool& pool = memory_->pool();
    services_.io[io_thread]->Post(
        io::AddClient{id_, pool.base(), pool.reserve_bytes(), max_message_bytes_, name_});
    for (const auto& [offset, extent] : pool.extents()) {
      if (extent.state != memory::ExtentState::kActive) continue;
      services_.io[io_thread]->Post(io::AddExtent{id_, offset, extent.bytes});
    }
  }
  services_.io[io_thread]->Post(std::move(message));
}

void ClientSession::MakeMemory(std::string name, uint64_t bytes, std::byte* address,
                               MadeCallback done) {
  ++jobs_;
  // Even a refusal is told later, so that callers need not expect it in the middle of something.
  Result<> charged = services_.tenants.Charge(*tenant_, bytes);
  services_.worker.Run([this, name = std::move(name), bytes, address, charged,
                        headroom = &services_.headroom, registry = services_.options.registry,
                        done = std::move(done)]() mutable -> memory::MemoryWorker::Completion {
    Result<> allowed = charged ? (*headroom)(bytes) : charged;
    Result<memory::SharedMemory> memory = allowed
                                              ? memory::SharedMemory::Create(name, bytes, address)
                                              : std::unexpected(allowed.error());
    if (memory && address != nullptr && registry != nullptr) {
      if (auto known = registry->Register(address, bytes); !known) {
        memory = std::unexpected(known.error());
      } else {
        memory->BeforeUnmap([=] { registry->Deregister(address); });
      }
    }
    return [this, bytes, charged = charged.has_value(), memory = std::move(memory),
            done = std::move(done)]() mutable {
      if (!memory && charged) services_.tenants.Refund(*tenant_, bytes);
      done(std::move(memory));
      --jobs_;  // We exist at least until here.
      CheckFinished();
    };
  });
}

void ClientSession::RetireMemory(memory::SharedMemory memory,
                                 std::move_only_function<void()> gone) {
  const uint64_t bytes = memory.bytes();
  services_.reclaimer.Retire(
      std::move(memory), [tenants = &services_.tenants, tenant = tenant_, bytes,
                          alive = std::weak_ptr<void>(alive_), gone = std::move(gone)]() mutable {
        tenants->Refund(*tenant, bytes);
        if (!alive.expired()) gone();
      });
}

// --- from I/O threads ---

void ClientSession::OnIncomingSocket(const io::IncomingSocket& incoming,
                                     const ServiceTable::Listener& listener) {
  ++sockets_;
  ports_.Ensure(listener.channel, incoming.io_thread, [this, incoming, listener](Result<> ready) {
    if (ready) {
      return Tell(incoming.io_thread, io::AcceptSocket{incoming.peer, incoming.socket, id_,
                                                       listener.channel, listener.token});
    }
    --sockets_;
    ++services_.counters.incoming_refused;
    services_.io[incoming.io_thread]->Post(
        io::RefuseSocket{incoming.peer, incoming.socket, ToErrno(ready.error().code)});
  });
}

void ClientSession::OnSocketGone() {
  if (state_ != State::kAttached) return;
  SLUICE_CHECK(sockets_ > 0, "a socket goes once");
  --sockets_;
}

ClientSnapshot ClientSession::Snapshot() const {
  ClientSnapshot snapshot;
  snapshot.client = id_;
  snapshot.pid = who_.pid;
  snapshot.uid = who_.uid;
  snapshot.gid = who_.gid;
  snapshot.name = name_;
  snapshot.tenant = tenant_->rule.name;
  snapshot.state = state_ == State::kGreeting   ? "attaching"
                   : state_ == State::kAttached ? "attached"
                                                : "leaving";
  snapshot.attached_ns_ago = attached_at_ns_ != 0 ? services_.loop.now_ns() - attached_at_ns_ : 0;
  snapshot.ring_bytes = ports_.ring_bytes();
  snapshot.channels = static_cast<uint32_t>(ports_.channel_count());
  snapshot.ports = static_cast<uint32_t>(ports_.port_count());
  snapshot.listeners = static_cast<uint32_t>(listeners_.size());
  snapshot.sockets = sockets_;
  snapshot.rejected_requests = rejected_requests_;
  if (memory_ == nullptr || finished_) return snapshot;
  const memory::ClientPool& pool = memory_->pool();
  snapshot.quota_bytes = pool.quota_bytes();
  snapshot.pool_bytes = pool.used_bytes();
  snapshot.extents = static_cast<uint32_t>(pool.extents().size());
  snapshot.send_bytes = pool.leased_bytes(memory::Lessee::Client());
  for (const uint32_t io_thread : known_threads_) {
    snapshot.receive_bytes += pool.leased_bytes(memory::Lessee::Receiver(io_thread));
  }
  return snapshot;
}

}  // namespace sluice::control
