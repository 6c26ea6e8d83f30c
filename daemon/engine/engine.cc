// SPDX-License-Identifier: Apache-2.0
// Completions, and the life of sockets and operations.
#include "daemon/engine/engine.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "shm_proto/base/check.h"
#include "shm_proto/base/clock.h"

namespace sluice {
namespace {

// Within this time a peer's engine, which asks nobody, must have answered.
constexpr uint64_t kAnswerTimeoutNs = 30 * kNsPerSecond;
constexpr uint64_t kScanIntervalNs = 20 * kNsPerMs;       // While sockets are opening.
constexpr uint64_t kIdleScanIntervalNs = 500 * kNsPerMs;  // Ten thousand idle sockets cost little.
constexpr uint64_t kMinTickNs = 10 * kNsPerMs;            // Tick() need not come more often.

}  // namespace

Engine::Engine(PeerId peer, std::string name, SocketTable& sockets, EngineHost& host,
               const LocalLimits& limits, const Tunables& tunables)
    : peer_(peer),
      name_(std::move(name)),
      sockets_(sockets),
      host_(host),
      limits_(limits),
      tunables_(tunables),
      wire_(limits),
      fabric_(limits),
      window_(tunables.send_window_bytes, host.budget()) {}

Engine::~Engine() = default;

Engine::State Engine::state() const {
  if (path_->usable()) return State::kUp;
  return session_alive_ ? State::kLost : State::kConnecting;
}

void Engine::Configure(const Tunables& tunables) {
  tunables_ = tunables;
  window_.Resize(tunables.send_window_bytes);
}

// --- completions ---

void Engine::OnCompletion(const transport::Completion& completion, uint64_t now_ns) {
  now_ns_ = now_ns;
  Receive(wire_, completion);
}

void Engine::OnFabricCompletion(const transport::Completion& completion, uint64_t now_ns) {
  now_ns_ = now_ns;
  Receive(fabric_, completion);
}

void Engine::Receive(Path& path, const transport::Completion& completion) {
  if (!path.usable()) return;  // The path's end flushes everything at once.
  acks_stalled_ = false;
  if (completion.kind == transport::CompletionKind::kDisconnected)
    return path.Break(path.queue_pair->reason());
  if (completion.status != transport::Status::kOk) return;  // kDisconnected follows.
  switch (completion.kind) {
    case transport::CompletionKind::kSent:
      SLUICE_CHECK(path.chain.Complete(completion.id,
                                       [this](const ChainSlot& slot) { ReleaseSlot(slot, false); }),
                   "a transport completes only what is in flight");
      return;
    case transport::CompletionKind::kReceived:
    case transport::CompletionKind::kWritten:
      last_heard_ns_ = path.last_heard_ns = now_ns_;
      if (&path == &fabric_ && fabric_step_ == FabricStep::kSwitching)
        return early_.push_back(completion);  // A few of the receives that are posted.
      if (!path.returns.OnConsumed()) return path.Break("the peer sent without a credit");
      path.OnConsumed(completion.id);
      if (completion.kind == transport::CompletionKind::kReceived)
        return OnReceived(path, {completion.data, completion.bytes});
      if (&path != path_ || awaiting_marker_) return void(++counters_.stale_frames);
      return OnWritten(completion.immediate);
    case transport::CompletionKind::kDisconnected: return;
  }
}

void Engine::ReleaseSlot(const ChainSlot& slot, bool on_path_end) {
  window_.OnDone(slot.window_bytes);
  for (uint32_t i = 0; i < slot.operation_count; ++i) {
    SendOperation& operation = *slot.operations[i];
    --operation.posted_requests;
    if (on_path_end || operation.posted_requests > 0)
      continue;  // At a path's end the caller looks at every socket.
    Socket& socket = *operation.socket;
    FinishAcknowledged(socket);
    MaybeRetire(socket);
  }
}

// --- operations ---

bool Engine::Send(Socket& socket, const SendRequest& request) {
  if (socket.state != SocketState::kOpen) return false;
  SendOperation* operation = operations_.Take();
  operation->socket = &socket;
  operation->length = request.length;
  operation->token = request.token;
  operation->trace_id = request.trace_id;
  operation->begun_ns = request.now_ns;
  operation->traffic_class = request.traffic_class;
  operation->sequence = socket.next_sequence++;
  operation->data = request.data;
  if (request.inline_copy) {
    std::copy_n(request.data, request.length, operation->inline_data.begin());
    operation->data = operation->inline_data.data();
  }
  (socket.tail != nullptr ? socket.tail->next : socket.head) = operation;
  socket.tail = operation;
  if (socket.cursor == nullptr) socket.cursor = operation;
  ready_.Push(socket);
  return true;
}

// Requires the operation to be its socket's oldest and no request to name its memory.
void Engine::FinishOperation(Socket& socket, SendOperation& operation, Outcome outcome, int error) {
  SLUICE_CHECK(socket.head == &operation && operation.posted_requests == 0,
               "operations end in order, after the transport");
  socket.head = operation.next;
  if (socket.head == nullptr) socket.tail = nullptr;
  if (socket.cursor == &operation) socket.cursor = operation.next;
  if (operation.landing != nullptr) remote_landings_.Give(operation.landing);
  if (outcome == Outcome::kOk) {
    ++counters_.operations_ok;
    counters_.operations.Add(now_ns_ - std::min(now_ns_, operation.begun_ns));
  }
  if (outcome == Outcome::kFailed) ++counters_.operations_failed;
  if (outcome == Outcome::kUnknown) ++counters_.operations_unknown;
  host_.SendOver(socket, operation, outcome, error);
  operations_.Give(&operation);
}

void Engine::FinishAcknowledged(Socket& socket) {
  while (socket.head != nullptr && socket.head->sequence < socket.peer_placed &&
         socket.head->posted_requests == 0) {
    FinishOperation(socket, *socket.head, Outcome::kOk, 0);
  }
  if (socket.state == SocketState::kClosing && socket.head == nullptr) StartClose(socket);
  if (socket.state == SocketState::kPeerClosed || socket.close_confirmed) {
    EndOperations(socket, socket.close_error, false);
  }
}

// Ends what can end now, oldest first: acknowledged ones as OK, then the rest truthfully. Stops at
// one whose memory is still named by a request; its completion comes back here.
void Engine::EndOperations(Socket& socket, int error, bool unposted_only) {
  const int reason = error != 0 ? error : ECONNRESET;
  if (!unposted_only) {
    while (SendOperation* operation = socket.head) {
      if (operation->posted_requests > 0) return;
      const bool acknowledged = operation->sequence < socket.peer_placed;
      const bool certain = !operation->posted;
      FinishOperation(
          socket, *operation,
          acknowledged ? Outcome::kOk : (certain ? Outcome::kFailed : Outcome::kUnknown),
          acknowledged ? 0 : reason);
    }
    return;
  }
  // The tail that never began: cut it off and end it.
  SendOperation** link = &socket.head;
  SendOperation* last = nullptr;
  while (*link != nullptr &&
         ((*link)->posted_bytes > 0 || (*link)->posted || (*link)->posted_requests > 0)) {
    last = *link;
    link = &last->next;
  }
  SendOperation* rest = *link;
  *link = nullptr;
  socket.tail = last;
  socket.cursor = nullptr;
  while (rest != nullptr) {
    SendOperation* next = rest->next;
    if (rest->landing != nullptr) remote_landings_.Give(rest->landing);
    ++counters_.operations_failed;
    host_.SendOver(socket, *rest, Outcome::kFailed, reason);
    operations_.Give(rest);
    rest = next;
  }
}

// --- sockets ---

Socket* Engine::Open(void* owner, uint64_t token, uint16_t service, uint64_t now_ns) {
  uint32_t id;
  Socket* socket = sockets_.Add(id);
  if (socket == nullptr) return nullptr;
  socket->id = id;
  socket->engine = this;
  socket->owner = owner;
  socket->token = token;
  socket->service = service;
  socket->state = SocketState::kOpening;
  socket->deadline_ns = now_ns + tunables_.connect_timeout_ns;
  all_.Push(*socket);
  next_scan_ns_ = std::min(next_scan_ns_, now_ns + kScanIntervalNs);
  if (path_->queue_pair && !path_->broken && !resuming_) {
    socket->open_sent = true;
    Queue(wire::FrameType::kOpen, 0, service, 0, id);
  }
  return socket;
}

void Engine::Accept(Socket& socket, void* owner, uint64_t listener) {
  SLUICE_CHECK(socket.state == SocketState::kIncoming, "only an incoming socket is accepted");
  socket.owner = owner;
  socket.token = listener;
  socket.state = SocketState::kOpen;
  socket.unconfirmed = true;
  --incoming_;
  if (path_->queue_pair && !resuming_)
    Queue(wire::FrameType::kOpened, socket.remote_id, 0, 0, socket.id);
}

void Engine::Refuse(Socket& socket, int error) {
  SLUICE_CHECK(socket.state == SocketState::kIncoming, "only an incoming socket is refused");
  if (path_->queue_pair && !resuming_) {
    Queue(wire::FrameType::kRefused, socket.remote_id, 0, 0, static_cast<uint32_t>(error));
  }
  Retire(socket);
}

void Engine::Close(Socket& socket) {
  switch (socket.state) {
    case SocketState::kOpening:
      // The peer may be answering just now: keep the name until it has, silently.
      host_.Connected(socket, Outcome::kFailed, ECANCELED);
      Abort(socket);
      return;
    case SocketState::kOpen:
      socket.state = SocketState::kClosing;
      if (socket.head == nullptr) StartClose(socket);
      return;
    case SocketState::kIncoming:
    case SocketState::kClosing:
    case SocketState::kPeerClosed: return;
  }
}

void Engine::StartClose(Socket& socket) {
  if (socket.close_sent || !path_->queue_pair || resuming_)
    return;  // OnResumed() comes back to it.
  socket.close_sent = true;
  socket.deadline_ns = now_ns_ + kAnswerTimeoutNs;
  QueueAck(socket);
  Queue(wire::FrameType::kClose, socket.remote_id, socket.next_sequence, 0,
        static_cast<uint32_t>(socket.close_error));
}

// Our side cannot go on with it: the peer is told why, and so is our owner once it has confirmed.
void Engine::Reset(Socket& socket, int error) {
  if (socket.state != SocketState::kOpen && socket.state != SocketState::kClosing) return;
  socket.state = SocketState::kClosing;
  socket.close_error = error;
  socket.deaf = true;
  EndOperations(socket, error, true);
  ready_.Remove(socket);
  StartClose(socket);
}

void Engine::Abort(Socket& socket) {
  if (socket.silent) return;
  socket.silent = true;
  EndOperations(socket, ECANCELED, true);
  ready_.Remove(socket);
  DropReady(socket);
  if (!path_->queue_pair && !session_alive_) return Retire(socket);
  switch (socket.state) {
    case SocketState::kOpening:
      socket.deadline_ns = now_ns_ + kAnswerTimeoutNs;
      if (!socket.open_sent) Retire(socket);
      return;  // Else kOpened or kRefused ends it.
    case SocketState::kIncoming: return Refuse(socket, ECONNREFUSED);
    case SocketState::kOpen:
    case SocketState::kClosing:
      socket.state = SocketState::kClosing;
      socket.close_error = ECONNRESET;
      if (!path_->queue_pair)
        return Retire(
            socket);  // Nothing touches its memory; the peer learns of it when it resumes.
      StartClose(socket);
      return;
    case SocketState::kPeerClosed: MaybeRetire(socket); return;
  }
}

void Engine::FreeReceiveSide(Socket& socket, bool ready_too) {
  while (socket.landing_head != nullptr) FreeLanding(*socket.landing_head);
  while (socket.offered != nullptr) FreeLanding(*socket.offered);
  if (ready_too) DropReady(socket);
}

void Engine::DropReady(Socket& socket) {
  while (socket.ready_head != nullptr) {
    ReadyMessage* message = socket.ready_head;
    socket.ready_head = message->next;
    if (message->buffer.bytes > 0) host_.Free(socket, message->buffer);
    if (message->held != nullptr) DropHeld(socket, *message);
    messages_.Give(message);
  }
  socket.ready_tail = nullptr;
}

// The last step of a socket that is closed at both ends: everything handed on, every operation
// over.
void Engine::MaybeRetire(Socket& socket) {
  if (socket.state != SocketState::kPeerClosed && !socket.close_confirmed) return;
  if (socket.head != nullptr || socket.ready_head != nullptr) return;
  if (!socket.silent) host_.Closed(socket, socket.close_error);
  Retire(socket);
}

void Engine::Retire(Socket& socket) {
  EndOperations(socket, ECONNRESET, false);
  SLUICE_CHECK(socket.head == nullptr, "a socket leaves after its last request");
  if (socket.state == SocketState::kIncoming) --incoming_;
  FreeReceiveSide(socket, true);
  while (!socket.grants.empty()) {
    remote_landings_.Give(socket.grants.front());
    socket.grants.pop();
  }
  ready_.Remove(socket);
  acks_.Remove(socket);
  all_.Remove(socket);
  host_.Gone(socket);
  sockets_.Remove(socket.id);
}

void Engine::Retry(Socket& socket) {
  socket.waits_memory = false;
  DeliverReady(socket);
  if (path_->queue_pair) FillLandings(socket);
  MaybeRetire(socket);
}

// --- time ---

void Engine::Tick(uint64_t now_ns) {
  now_ns_ = now_ns;
  // A loop that slept long (stopped, starved, suspended) must not judge its peers by its own
  // absence. Ticks come once an interval even when nothing happens (NextDeadlineNs): only a gap
  // well above that is absence.
  const uint64_t absence_ns = std::max(tunables_.keepalive_timeout_ns / 2, 2 * kMinTickNs);
  if (last_tick_ns_ != 0 && now_ns - last_tick_ns_ > absence_ns) {
    const uint64_t lately_ns = now_ns - tunables_.keepalive_interval_ns;
    for (uint64_t* heard_ns : {&last_heard_ns_, &wire_.last_heard_ns, &fabric_.last_heard_ns})
      *heard_ns = std::max(*heard_ns, lately_ns);
  }
  last_tick_ns_ = now_ns;

  if (now_ns >= next_scan_ns_) {
    Scan(now_ns);
  }
  if (!session_alive_) return;
  KeepPathsAlive();
}

void Engine::KeepPathsAlive() {
  for (Path* path : {&wire_, &fabric_}) {
    if (!path->usable()) continue;
    // Any byte is a sign of life, also of a message that takes long to be whole.
    path->last_heard_ns = std::max(path->last_heard_ns, path->queue_pair->last_heard_ns());
    last_heard_ns_ = std::max(last_heard_ns_, path->last_heard_ns);
  }
  if (now_ns_ - last_heard_ns_ > tunables_.keepalive_timeout_ns) {
    return EndSession(ETIMEDOUT, "the peer daemon was silent for the keepalive timeout", now_ns_);
  }
  for (Path* path : {&wire_, &fabric_}) {
    if (!path->usable() || (path == &fabric_ && path_ != &fabric_)) continue;
    if (now_ns_ - path->last_heard_ns > tunables_.keepalive_timeout_ns) {
      path->Break("the peer was silent on this path for the keepalive timeout");
    } else if (now_ns_ >= path->next_keepalive_ns) {
      path->next_keepalive_ns = now_ns_ + tunables_.keepalive_interval_ns;
      path->Say(wire::FrameType::kKeepalive, ++path->keepalive_sequence, 0);
      ++counters_.keepalives_sent;
    }
  }
}

bool Engine::IsAnswerOverdue(const Socket& socket, uint64_t now_ns) const {
  const bool waits = socket.state == SocketState::kClosing
                         ? socket.close_sent && !socket.close_confirmed
                         : socket.state == SocketState::kOpening && socket.silent;
  return waits && now_ns >= socket.deadline_ns;
}

// Looks at every socket: opening too long, closing too long, granted buffers that nobody uses.
void Engine::Scan(uint64_t now_ns) {
  next_scan_ns_ = now_ns + kIdleScanIntervalNs;
  for (Socket* socket = all_.Front(); socket != nullptr;) {
    Socket* next = all_.Next(*socket);
    if (socket->state == SocketState::kOpening && !socket->silent &&
        now_ns >= socket->deadline_ns) {
      host_.Connected(*socket, Outcome::kFailed, ETIMEDOUT);
      Abort(*socket);
    } else if (IsAnswerOverdue(*socket, now_ns)) {
      BreakPath("the peer did not answer the closing of a socket in time");
    } else if (socket->state == SocketState::kOpening) {
      next_scan_ns_ = now_ns + kScanIntervalNs;
    } else if (socket->offered != nullptr && now_ns - socket->last_large_ns > kNsPerSecond) {
      RecallGrants(*socket);
    }
    socket = next;
  }
}

uint64_t Engine::NextDeadlineNs() const {
  uint64_t deadline_ns = ~uint64_t{0};
  if (first_ack_ns_ != 0 && !acks_stalled_) deadline_ns = first_ack_ns_ + tunables_.ack_delay_ns;
  if (session_alive_) {
    const uint64_t tick_ns = std::max(tunables_.keepalive_interval_ns, kMinTickNs);
    deadline_ns = std::min(deadline_ns, last_tick_ns_ + tick_ns);
  }
  return std::min(deadline_ns, next_fabric_ns_);
}

}  // namespace sluice
