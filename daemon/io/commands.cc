// SPDX-License-Identifier: Apache-2.0
// What the control thread asks of an I/O thread: clients, ports, peers and sockets come and go.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "daemon/io/io_thread.h"
#include "shm_proto/base/check.h"

namespace sluice::io {
namespace {

constexpr int kMessagesPerTurn = 16;
constexpr uint64_t kKeepEmptyBytes = 2 *
                                     Heap::kBlockBytes;  // Empty blocks kept for the next burst.

// A shortage may end without anything of this client's being freed.
constexpr uint64_t kMinDeniedPauseNs = 10 * kNsPerMs;
constexpr uint64_t kMaxDeniedPauseNs = kNsPerSecond;

}  // namespace

bool IoThread::HandleMailbox(uint64_t now_ns) {
  if (!mailbox_.Pending()) return false;
  ToIo message = Stop{};
  for (int i = 0; i < kMessagesPerTurn && mailbox_.Take(message); ++i) {
    std::visit([&](auto& known) { Handle(known, now_ns); }, message);
  }
  return true;
}

ClientView* IoThread::FindClient(ClientId id) {
  auto client = clients_.find(id);
  return client != clients_.end() ? client->second.get() : nullptr;
}

Port* IoThread::FindPort(ClientId client, uint32_t channel) {
  ClientView* view = FindClient(client);
  if (view == nullptr) return nullptr;
  for (auto& port : view->ports) {
    if (port->channel() == channel && !port->removing()) return port.get();
  }
  return nullptr;
}

Engine* IoThread::FindEngine(PeerId peer) {
  auto engine = engines_.find(peer);
  return engine != engines_.end() ? engine->second.get() : nullptr;
}

// --- clients ---

void IoThread::Handle(AddClient& message, uint64_t) {
  clients_[message.client] = std::make_unique<ClientView>(
      message.client, std::move(message.name), message.pool_base, message.pool_reserve_bytes,
      message.max_message_bytes);
}

void IoThread::Handle(AddExtent& message, uint64_t) {
  if (ClientView* client = FindClient(message.client)) {
    client->AddExtent(message.pool_offset, message.bytes);
  }
}

void IoThread::Handle(RemoveExtent& message, uint64_t) {
  ClientView* client = FindClient(message.client);
  if (client == nullptr || client->RemoveExtent(message.pool_offset)) {
    control_.Post(ExtentReleased{index_, message.client, message.pool_offset});
  }
}

void IoThread::Handle(AddReceiveBlocks& message, uint64_t now_ns) {
  ClientView* client = FindClient(message.client);
  if (client == nullptr) return;
  client->asked_for_blocks = false;
  if (message.bytes > 0) {
    client->denied_pause_ns = 0;
    client->heap.AddBlocks(message.pool_offset, message.bytes);
    client->memory_freed = true;
    return;
  }
  client->denied = true;
  client->denied_pause_ns = std::clamp(2 * client->denied_pause_ns, kMinDeniedPauseNs,
                                       kMaxDeniedPauseNs);
  client->ask_again_ns = now_ns + client->denied_pause_ns;
  // Granted buffers that nobody has used yet are the first thing to live without.
  sockets_.ForEach([&](Socket& socket) {
    auto* port = static_cast<Port*>(socket.owner);
    if (port != nullptr && &port->client() == client) socket.engine->RecallGrants(socket);
  });
}

// Blocks that have been wholly empty go back, but for a few: registration should not thrash.
void IoThread::ReturnEmptyBlocks(ClientView& client) {
  if (client.removing || client.heap.block_bytes() <= client.heap.live_bytes() + kKeepEmptyBytes) {
    client.empty_since_ns = 0;
    return;
  }
  if (client.empty_since_ns == 0) client.empty_since_ns = now_ns_;
  if (now_ns_ - client.empty_since_ns < 10 * kNsPerSecond) return;
  client.empty_since_ns = 0;
  uint64_t offset, bytes;
  const uint64_t spare = client.heap.block_bytes() - client.heap.live_bytes() - kKeepEmptyBytes;
  if (client.heap.TakeEmptyRun(&offset, &bytes, spare)) {
    control_.Post(ReceiveBlocksIdle{index_, client.id, offset, bytes});
  }
}

void IoThread::Handle(AddPort& message, uint64_t) {
  ClientView* client = FindClient(message.client);
  if (client == nullptr) return;
  auto port = std::make_unique<Port>(*client, message.channel, message.submissions,
                                     message.completions, std::move(message.doorbell));
  Watch(port->doorbell(), reinterpret_cast<uint64_t>(port.get()));
  ports_.push_back(port.get());
  client->ports.push_back(std::move(port));
}

void IoThread::AbortSocketsOf(const std::function<bool(const Port&)>& chosen) {
  std::vector<uint32_t> ids;  // First the ids: aborting may remove sockets from the table.
  sockets_.ForEach([&](Socket& socket) {
    if (socket.owner != nullptr && chosen(*static_cast<Port*>(socket.owner)))
      ids.push_back(socket.id);
  });
  for (uint32_t id : ids) {
    if (Socket* socket = sockets_.Find(id)) socket->engine->Abort(*socket);
  }
}

void IoThread::Handle(RemovePort& message, uint64_t) {
  Port* port = FindPort(message.client, message.channel);
  if (port == nullptr) {
    control_.Post(PortRemoved{index_, message.client, message.channel});
    return;
  }
  port->Publish();
  port->Remove();
  ReturnQuota(*port);
  std::erase(ports_, port);
  AbortSocketsOf([port](const Port& owner) { return &owner == port; });
  next_tick_ns_ = 0;
}

// Requires that no socket names the port.
void IoThread::RemovePortNow(Port& port) {
  ClientView& client = port.client();
  const uint32_t channel = port.channel();
  std::erase_if(client.ports, [&](const auto& owned) { return owned.get() == &port; });
  if (!client.gone) control_.Post(PortRemoved{index_, client.id, channel});
}

void IoThread::Handle(RemoveClient& message, uint64_t) {
  ClientView* client = FindClient(message.client);
  if (client == nullptr) {
    control_.Post(ClientRemoved{index_, message.client});
    return;
  }
  client->removing = true;
  client->gone = true;
  for (auto& port : client->ports) {
    port->Remove();
    std::erase(ports_, port.get());
  }
  AbortSocketsOf([client](const Port& owner) { return &owner.client() == client; });
  next_tick_ns_ = 0;
}

void IoThread::RemoveIfUnused(ClientView& client) {
  if (!client.gone || !client.ports.empty()) return;
  SLUICE_CHECK(client.sockets == 0, "a client's sockets name one of its ports");
  const ClientId id = client.id;
  clients_.erase(id);
  control_.Post(ClientRemoved{index_, id});
}

// --- peers ---

void IoThread::Handle(AddPeer& message, uint64_t) {
  engines_[message.peer] = std::make_unique<Engine>(message.peer, std::move(message.name), sockets_,
                                                    *this, limits_, settings_.tunables);
}

void IoThread::Handle(LinkSelf& message, uint64_t now_ns) {
  if (FindEngine(message.dialer) == nullptr) {
    AddPeer dialer{message.dialer, message.name}, listener{message.listener, message.name};
    Handle(dialer, now_ns);
    Handle(listener, now_ns);
  }
  Engine& from = *FindEngine(message.dialer);
  Engine& to = *FindEngine(message.listener);
  SessionParameters session;
  session.session = message.session;
  session.path_epoch = 1;
  session.peer_receive_depth = limits_.receive_depth;
  session.peer_receive_bytes = limits_.receive_bytes;
  session.peer_message_window = limits_.message_window;
  session.peer_name = message.name;
  auto [pair_from, pair_to] = networks_.make_loop(
      {limits_.send_queue_depth, limits_.receive_depth, limits_.receive_bytes}, &from, &to);
  from.OnPathUp(std::move(pair_from), session, now_ns);
  to.OnPathUp(std::move(pair_to), session, now_ns);
}

void IoThread::Handle(PathUp& message, uint64_t now_ns) {
  Engine* engine = FindEngine(message.peer);
  if (engine == nullptr) return;
  const auto refuse = [&](bool session_over, std::string reason) {
    control_.Post(sluice::io::PathLost{index_, message.peer, message.session.session,
                                       message.session.path_epoch, session_over,
                                       std::move(reason)});
  };
  const transport::QueuePairLimits limits{limits_.send_queue_depth, limits_.receive_depth,
                                          limits_.receive_bytes};
  auto queue_pair = networks_.adopt(std::move(message.connection), limits, engine);
  if (!queue_pair) return refuse(false, queue_pair.error().message);
  if (!engine->OnPathUp(std::move(*queue_pair), message.session, now_ns)) {
    refuse(true, "the session it would resume is over");
  }
}

void IoThread::Handle(SetFabric& message, uint64_t now_ns) {
  for (auto& [peer, engine] : engines_) engine->LeaveFabric(message.reason, now_ns);
  networks_.fabric = std::move(message.fabric);
  control_.Post(FabricSet{index_});
  if (!networks_.fabric) return;
  if (regions_) networks_.fabric->SetRegions(regions_);
  Watch(networks_.fabric->fd(), kTransportTag);
  for (auto& [peer, engine] : engines_) engine->OnFabricChanged(now_ns);
}

void IoThread::Handle(SetRegions& message, uint64_t) {
  regions_ = std::move(message.regions);
  if (networks_.fabric) networks_.fabric->SetRegions(regions_);
}

void IoThread::Handle(PathFailed& message, uint64_t now_ns) {
  if (Engine* engine = FindEngine(message.peer)) {
    engine->OnPathFailed(message.definite, message.error, now_ns);
  }
}

// --- sockets ---

void IoThread::NotConnected(Port* port, const OpenSocket& request, int error) {
  if (port == nullptr) return control_.Post(SocketGone{index_, request.client});
  Descriptor answer{};
  answer.op = static_cast<uint8_t>(CompletionOp::kConnected);
  answer.token = request.token;
  answer.result.outcome = static_cast<uint32_t>(Outcome::kFailed);
  answer.result.error = error;
  port->Tell(answer);
  if (port->EndSocket()) control_.Post(SocketGone{index_, request.client});
}

void IoThread::Handle(OpenSocket& message, uint64_t now_ns) {
  Port* port = FindPort(message.client, message.channel);
  Engine* engine = FindEngine(message.peer);
  if (port == nullptr || engine == nullptr || stopping_) {
    return NotConnected(port, message, stopping_ ? ESHUTDOWN : ENOENT);
  }
  Socket* socket = engine->Open(port, message.token, message.service, now_ns);
  if (socket == nullptr) return NotConnected(port, message, ENOBUFS);
  ++port->sockets;
  ++port->client().sockets;
}

void IoThread::Handle(AcceptSocket& message, uint64_t) {
  Socket* socket = sockets_.Find(message.socket);
  Port* port = FindPort(message.client, message.channel);
  const bool known = socket != nullptr && socket->state == SocketState::kIncoming;
  if (!known || port == nullptr || socket->refused_by_peer) {
    control_.Post(SocketGone{index_, message.client});
    if (known) socket->engine->Refuse(*socket, ECONNREFUSED);
    return;
  }
  ++port->sockets;
  ++port->client().sockets;
  socket->engine->Accept(*socket, port, message.listener);
  Descriptor event{};
  event.op = static_cast<uint8_t>(CompletionOp::kAccepted);
  event.flags = socket->engine->degraded() ? kFlagDegraded : 0;
  event.socket = socket->id;
  event.token = message.listener;
  event.result.service = socket->service;
  port->Tell(event);
}

void IoThread::Handle(RefuseSocket& message, uint64_t) {
  Socket* socket = sockets_.Find(message.socket);
  if (socket != nullptr && socket->state == SocketState::kIncoming) {
    socket->engine->Refuse(*socket, message.error);
  }
}

// --- everything else ---

void IoThread::Handle(Configure& message, uint64_t) {
  settings_ = message;
  budget_.Resize(message.tunables.thread_window_bytes);
  for (auto& [peer, engine] : engines_) engine->Configure(message.tunables);
}

void IoThread::Handle(Stop& message, uint64_t) {
  stopping_ = true;
  stop_deadline_ns_ = message.deadline_ns;
}

void IoThread::Handle(Query& message, uint64_t now_ns) { message.done(Snapshot(now_ns)); }

}  // namespace sluice::io
