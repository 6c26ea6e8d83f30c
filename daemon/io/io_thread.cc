// SPDX-License-Identifier: Apache-2.0
#include "daemon/io/io_thread.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "shm_proto/base/check.h"
#include "shm_proto/base/units.h"

namespace sluice::io {
namespace {

constexpr size_t kCompletionsPerTurn = 256;
constexpr int kRequestsPerPortAndTurn = 64;  // So that one client cannot keep the others waiting.
constexpr uint64_t kMaxHeldBytes = 64 *
                                   kMiB;  // Of one client: messages kept while its pool is full.
constexpr uint64_t kTickNs = 10 * kNsPerMs;
constexpr uint64_t kLongestSleepNs = 100 * kNsPerMs;

Port* OwnerOf(const Socket& socket) { return static_cast<Port*>(socket.owner); }

// What every completion of a socket says of its path. Without an engine: nothing.
uint8_t PathFlags(const Socket& socket) {
  return socket.engine != nullptr && socket.engine->degraded() ? kFlagDegraded : 0;
}

Descriptor Result(CompletionOp op, const Socket& socket, uint64_t token, Outcome outcome,
                  int error) {
  Descriptor answer{};
  answer.op = static_cast<uint8_t>(op);
  answer.flags = PathFlags(socket);
  answer.socket = socket.id;
  answer.token = token;
  answer.result.outcome = static_cast<uint32_t>(outcome);
  answer.result.error = error;
  answer.result.service = socket.service;
  return answer;
}

}  // namespace

IoThread::IoThread(const Options& options, const Clock& clock, Networks networks,
                   Mailbox<FromIo>& control)
    : index_(options.index),
      limits_(options.limits),
      settings_(options.settings),
      clock_(clock),
      control_(control),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      networks_(std::move(networks)),
      completions_(kCompletionsPerTurn) {
  budget_.Resize(settings_.tunables.thread_window_bytes);
  SLUICE_CHECK(epoll_.valid(), "an I/O thread is made at start, when descriptors are there");
  Watch(networks_.wire->fd(), kTransportTag);
  Watch(mailbox_.fd(), kMailboxTag);
}

IoThread::~IoThread() = default;

void IoThread::Run() {
  while (!stopped_) {
    const uint64_t now_ns = clock_.NowNs();
    if (PollOnce(now_ns)) {
      last_busy_ns_ = now_ns;
      continue;
    }
    const bool spin = settings_.idle == IdlePolicy::kSpin ||
                      (settings_.idle == IdlePolicy::kAdaptive &&
                       now_ns - last_busy_ns_ < settings_.spin_ns);
    if (!spin && !stopped_) Sleep(now_ns);
  }
}

// Completions first, since acknowledgements free what the rings wait for; then the rings and the
// timers, then what goes out because of all that, which for applications of this host arrives in
// the same turn; then bounded control work.
bool IoThread::PollOnce(uint64_t now_ns) {
  now_ns_ = now_ns;
  loops_.store(loops_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  bool busy = PollCompletions(*networks_.wire, now_ns);
  busy |= PollFabric(now_ns);
  busy |= DrainRings();
  if (now_ns >= next_tick_ns_) Tick(now_ns);
  RetryStalled();
  busy |= FlushEngines(now_ns);
  busy |= PollCompletions(*networks_.loop, now_ns);
  busy |= HandleMailbox(now_ns);
  for (Port* port : ports_) port->Publish();
  if (stopping_) busy |= StopStep(now_ns);
  return busy || next_tick_ns_ == 0;
}

bool IoThread::PollCompletions(transport::Transport& transport, uint64_t now_ns) {
  const size_t count = transport.Poll(completions_, now_ns);
  for (size_t i = 0; i < count; ++i) {
    static_cast<Engine*>(completions_[i].context)->OnCompletion(completions_[i], now_ns);
  }
  return count > 0;
}

bool IoThread::PollFabric(uint64_t now_ns) {
  if (!networks_.fabric) return false;
  const size_t count = networks_.fabric->Poll(completions_, now_ns);
  for (size_t i = 0; i < count; ++i) {
    static_cast<Engine*>(completions_[i].context)->OnFabricCompletion(completions_[i], now_ns);
  }
  return count > 0;
}

// --- from the rings ---

bool IoThread::DrainRings() {
  bool busy = false;
  for (size_t i = 0; i < ports_.size(); ++i) {
    Port& port = *ports_[i];
    if (port.client().removing) continue;
    Descriptor request;
    if (port.parked) {
      if (mailbox_.Pending()) continue;
      request = *std::exchange(port.parked, std::nullopt);
      Submit(port, request);
      busy = true;
    }
    for (int taken = 0; taken < kRequestsPerPortAndTurn && !port.parked && port.Take(request);
         ++taken) {
      Submit(port, request);
      busy = true;
    }
    if (const char* fault = port.fault(); fault != nullptr) {
      port.client().removing = true;  // Told once; RemoveClient does the rest.
      control_.Post(ClientBroken{index_, port.client().id, fault});
    }
  }
  return busy;
}

void IoThread::Submit(Port& port, const Descriptor& request) {
  switch (static_cast<SubmitOp>(request.op)) {
    case SubmitOp::kSend: return SubmitSend(port, request);
    case SubmitOp::kFree: return SubmitFree(port, request);
    case SubmitOp::kClose: return SubmitClose(port, request);
  }
  ++port.rejected;
  port.Answer(Result(CompletionOp::kSent, {}, request.token, Outcome::kFailed, EINVAL));
}

void IoThread::SubmitSend(Port& port, const Descriptor& request) {
  const auto refuse = [&](int error) {
    ++port.rejected;
    Socket named;
    named.id = request.socket;
    port.Answer(Result(CompletionOp::kSent, named, request.token, Outcome::kFailed, error));
  };
  Socket* socket = sockets_.Find(request.socket);
  if (stopping_) return refuse(ESHUTDOWN);
  if (socket == nullptr || socket->owner != &port) return refuse(ENOTCONN);
  Engine::SendRequest send{.data = nullptr,
                           .length = request.region.length,
                           .token = request.token,
                           .trace_id = request.trace_id,
                           .traffic_class = request.traffic_class,
                           .inline_copy = (request.flags & kFlagInline) != 0,
                           .now_ns = now_ns_};
  if (send.inline_copy) {
    if (request.inline_bytes > kInlineBytes) return refuse(EINVAL);
    send.data = reinterpret_cast<const std::byte*>(request.inline_data);
    send.length = request.inline_bytes;
    if (!socket->engine->Send(*socket, send)) refuse(ENOTCONN);
    return;
  }
  if (request.region.length > port.client().max_message_bytes) return refuse(EMSGSIZE);
  auto data = port.client().AcquireSend(request.region.offset, request.region.length);
  if (!data && mailbox_.Pending()) {
    // The client may have got this memory a moment ago, and we are about to be told of it.
    port.parked = request;
    return;
  }
  if (!data) return refuse(EINVAL);
  send.data = *data;
  if (socket->engine->Send(*socket, send)) return;
  if (auto extent = port.client().ReleaseSend(send.data)) {
    control_.Post(ExtentReleased{index_, port.client().id, *extent});
  }
  refuse(ENOTCONN);
}

void IoThread::SubmitFree(Port& port, const Descriptor& request) {
  port.Unreserve();
  const size_t count = request.inline_bytes / sizeof(uint64_t);
  for (size_t i = 0; i < std::min(count, kFreesPerDescriptor); ++i) {
    if (!port.client().FreeReceived(request.free_offsets[i])) ++port.rejected;
  }
}

void IoThread::SubmitClose(Port& port, const Descriptor& request) {
  port.Unreserve();  // kClosed is an event of the socket and comes anyway.
  Socket* socket = sockets_.Find(request.socket);
  if (socket != nullptr && socket->owner == &port) return socket->engine->Close(*socket);
  ++port.rejected;
}

// A budget is shared by those that have something to send now.
bool IoThread::FlushEngines(uint64_t now_ns) {
  if (budget_.bounded()) {
    uint64_t sharers = 0;
    for (auto& [peer, engine] : engines_) sharers += engine->has_unfinished_sends() ? 1 : 0;
    budget_.SetSharers(sharers);
  }
  bool busy = false;
  for (auto& [peer, engine] : engines_) busy |= engine->Flush(now_ns);
  return busy;
}

// --- what waited for a client ---

void IoThread::RetryStalled() {
  for (Port* port : ports_) {
    const bool all_told = port->TellWaiting();
    ReturnQuota(*port);
    if (!all_told || port->waiting_sockets.empty() || !port->HasRoomForMessage()) continue;
    std::vector<uint32_t> waiting;
    waiting.swap(port->waiting_sockets);
    for (uint32_t id : waiting) {
      Socket* socket = sockets_.Find(id);
      if (socket == nullptr) continue;
      socket->in_slot_queue = false;
      socket->engine->Retry(*socket);
    }
  }
  for (auto& [id, client] : clients_) {
    if (!client->memory_freed) continue;
    client->memory_freed = false;
    client->denied = false;
    std::vector<uint32_t> waiting;
    waiting.swap(client->waiting_sockets);
    for (uint32_t socket_id : waiting) {
      Socket* socket = sockets_.Find(socket_id);
      if (socket == nullptr) continue;
      socket->in_memory_queue = false;
      socket->engine->Retry(*socket);
    }
  }
}

// Sockets whose last event is out now: only then may others take their places, or a client that
// takes no events could pile them up here.
void IoThread::ReturnQuota(Port& port) {
  for (uint32_t ended = port.TakeEnded(); ended > 0; --ended) {
    control_.Post(SocketGone{index_, port.client().id});
  }
}

// --- EngineHost: what engines want ---

std::optional<PoolBuffer> IoThread::Allocate(Socket& socket, uint64_t bytes) {
  ClientView& client = OwnerOf(socket)->client();
  const uint64_t offset = client.heap.Allocate(bytes);
  if (offset != Heap::kNone) {
    return PoolBuffer{client.pool_base + offset, offset, client.heap.Find(offset)->bytes};
  }
  if (!socket.in_memory_queue) {
    socket.in_memory_queue = true;
    client.waiting_sockets.push_back(socket.id);
  }
  if (!client.asked_for_blocks && !client.denied && !client.removing) {
    client.asked_for_blocks = true;
    control_.Post(NeedReceiveBlocks{index_, client.id, Heap::BytesToAcquire(bytes)});
  }
  return std::nullopt;
}

void IoThread::Free(Socket& socket, const PoolBuffer& buffer) {
  ClientView& client = OwnerOf(socket)->client();
  SLUICE_CHECK(client.heap.Free(buffer.offset).has_value(), "a landing buffer is freed once");
  client.memory_freed = true;
}

uint64_t IoThread::LargestBuffer(Socket& socket) {
  return OwnerOf(socket)->client().max_message_bytes;
}

bool IoThread::Hold(Socket& socket, uint64_t bytes) {
  ClientView& client = OwnerOf(socket)->client();
  if (!InRange(client.held_bytes, bytes, kMaxHeldBytes)) return false;
  client.held_bytes += bytes;
  return true;
}

void IoThread::Unhold(Socket& socket, uint64_t bytes) {
  OwnerOf(socket)->client().held_bytes -= bytes;
}

bool IoThread::Deliver(Socket& socket, const Delivery& message) {
  Port& port = *OwnerOf(socket);
  Descriptor descriptor{};
  descriptor.op = static_cast<uint8_t>(CompletionOp::kMessage);
  descriptor.flags = PathFlags(socket);
  descriptor.traffic_class = message.traffic_class;
  descriptor.socket = socket.id;
  descriptor.trace_id = message.trace_id;
  if (message.inline_data != nullptr) {
    descriptor.flags |= kFlagInline;
    descriptor.inline_bytes = static_cast<uint8_t>(message.length);
    std::memcpy(descriptor.inline_data, message.inline_data, message.length);
  } else {
    descriptor.region.offset = message.buffer.offset;
    descriptor.region.length = message.length;
  }
  if (!port.Deliver(descriptor)) {
    if (!socket.in_slot_queue) port.waiting_sockets.push_back(socket.id);
    socket.in_slot_queue = true;
    return false;
  }
  if (message.inline_data == nullptr) {
    port.client().heap.set_state(message.buffer.offset, static_cast<uint8_t>(BufferState::kHeld));
  }
  return true;
}

void IoThread::SendOver(Socket& socket, const SendOperation& operation, Outcome outcome,
                        int error) {
  Port& port = *OwnerOf(socket);
  if (operation.data != operation.inline_data.data()) {
    if (auto extent = port.client().ReleaseSend(operation.data)) {
      control_.Post(ExtentReleased{index_, port.client().id, *extent});
    }
  }
  port.Answer(Result(CompletionOp::kSent, socket, operation.token, outcome, error));
}

void IoThread::Connected(Socket& socket, Outcome outcome, int error) {
  OwnerOf(socket)->Tell(Result(CompletionOp::kConnected, socket, socket.token, outcome, error));
}

void IoThread::Incoming(Socket& socket) {
  control_.Post(IncomingSocket{index_, socket.engine->peer(), socket.id, socket.service});
}

void IoThread::Closed(Socket& socket, int error) {
  OwnerOf(socket)->Tell(Result(CompletionOp::kClosed, socket, socket.token, Outcome::kOk, error));
}

void IoThread::Gone(Socket& socket) {
  Port* port = OwnerOf(socket);
  if (port == nullptr) return;
  ClientView& client = port->client();
  if (port->EndSocket()) control_.Post(SocketGone{index_, client.id});
  --client.sockets;
  // The port or the client may only have waited for this; looked at in the next turn's tick, since
  // the engine is still in the middle of its work.
  if (--port->sockets == 0 && port->removing()) next_tick_ns_ = 0;
}

void IoThread::PathChanged(Engine& engine) {
  control_.Post(FabricPath{index_, engine.name(), engine.on_fabric(), engine.fabric_reason()});
}

void IoThread::PathLost(Engine& engine, bool session_over, const std::string& reason) {
  control_.Post(sluice::io::PathLost{index_, engine.peer(), engine.session().session,
                                     engine.session().path_epoch, session_over, reason});
}

// --- time ---

void IoThread::Tick(uint64_t now_ns) {
  next_tick_ns_ = now_ns + kTickNs;
  for (auto& [peer, engine] : engines_) engine->Tick(now_ns);
  for (Port* port : ports_) port->Inspect();
  for (auto client = clients_.begin(); client != clients_.end();) {
    ClientView& view = *(client++)->second;
    std::vector<Port*> removable;
    for (auto& port : view.ports) {
      if (port->removing() && port->sockets == 0) removable.push_back(port.get());
    }
    for (Port* port : removable) RemovePortNow(*port);
    if (view.denied && now_ns >= view.ask_again_ns) view.memory_freed = true;  // Worth a try.
    ReturnEmptyBlocks(view);
    RemoveIfUnused(view);
  }
}

// Sends what is queued, says goodbye to every peer, and ends when all of that is out or time is up.
bool IoThread::StopStep(uint64_t now_ns) {
  const bool late = now_ns >= stop_deadline_ns_;
  bool quiet = true;
  for (auto& [peer, engine] : engines_) {
    if (engine->has_unfinished_sends() && !late) {
      quiet = false;
    } else {
      engine->SayGoodbye(now_ns);
      quiet &= engine->Quiet() || late;
    }
  }
  if (!quiet) return false;
  for (auto& [peer, engine] : engines_) engine->EndSession(ESHUTDOWN, "this daemon stops", now_ns);
  for (Port* port : ports_) port->Publish();
  stopped_ = true;
  control_.Post(Stopped{index_});
  return true;
}

void IoThread::Watch(int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN | (tag > kMailboxTag ? EPOLLET : 0u);
  event.data.u64 = tag;
  SLUICE_CHECK(
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 || errno == ENOMEM || errno == ENOSPC,
      "a descriptor of our own can be watched");
}

// Arm, look once more, then sleep: whoever has something for us either sees that we sleep, or we
// see what it has.
void IoThread::Sleep(uint64_t now_ns) {
  bool may_sleep = networks_.wire->Arm() && networks_.loop->Arm() && !mailbox_.Pending();
  if (networks_.fabric) may_sleep &= networks_.fabric->Arm();
  for (Port* port : ports_) may_sleep &= port->Arm();
  if (may_sleep) {
    uint64_t wake_ns = now_ns + (stopping_ ? kNsPerMs : kLongestSleepNs);
    wake_ns = std::min(wake_ns, networks_.wire->NextPollNs(now_ns));
    if (networks_.fabric) wake_ns = std::min(wake_ns, networks_.fabric->NextPollNs(now_ns));
    for (auto& [peer, engine] : engines_) wake_ns = std::min(wake_ns, engine->NextDeadlineNs());
    timespec timeout{};
    if (wake_ns > now_ns) {
      timeout.tv_sec = static_cast<time_t>((wake_ns - now_ns) / kNsPerSecond);
      timeout.tv_nsec = static_cast<long>((wake_ns - now_ns) % kNsPerSecond);
    }
    std::array<epoll_event, 64> events;
    ++sleeps_;
    const int count = epoll_pwait2(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   &timeout, nullptr);
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = events[static_cast<size_t>(i)].data.u64;
      if (tag > kMailboxTag) reinterpret_cast<Port*>(tag)->DrainDoorbell();
    }
  }
  for (Port* port : ports_) port->Disarm();
}

}  // namespace sluice::io
