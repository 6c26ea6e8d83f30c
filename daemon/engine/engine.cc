// SPDX-License-Identifier: Apache-2.0
// Paths, sessions, and the life of sockets and operations.
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

// Receive requests of our own for one path: contiguous memory, one slot each.
transport::ReceiveRequest ReceiveSlot(std::byte* memory, uint32_t index, uint32_t bytes) {
  return {index, memory + size_t{index} * bytes, bytes, 0};
}

}  // namespace

Engine::Engine(PeerId peer, std::string name, SocketTable& sockets, EngineHost& host,
               const LocalLimits& limits, const Tunables& tunables)
    : peer_(peer),
      name_(std::move(name)),
      sockets_(sockets),
      host_(host),
      limits_(limits),
      tunables_(tunables),
      chain_(limits.send_queue_depth),
      window_(tunables.send_window_bytes) {
  consumed_.reserve(limits.receive_depth);
}

Engine::~Engine() = default;

Engine::State Engine::state() const {
  if (queue_pair_ && !path_broken_) return State::kUp;
  return session_alive_ ? State::kLost : State::kConnecting;
}

void Engine::Configure(const Tunables& tunables) {
  tunables_ = tunables;
  window_.Resize(tunables.send_window_bytes);
}

// --- paths ---

bool Engine::OnPathUp(std::unique_ptr<transport::QueuePair> queue_pair,
                      const SessionParameters& session, uint64_t now_ns) {
  now_ns_ = now_ns;
  const bool same_session = session_alive_ && session.session == session_.session;
  if (session.resumed && !same_session) return false;
  if (queue_pair_) {  // The peer lost the old path before we noticed; the new one replaces it.
    path_broken_ = true;
    break_reason_ = "replaced by a new path";
    LosePath();
  }
  if (session_alive_ && !same_session) SessionOver(ECONNRESET, "the peer daemon restarted");

  session_ = session;
  session_alive_ = true;
  queue_pair_ = std::move(queue_pair);
  credits_ = SendCredits(session.peer_receive_depth);
  returns_ = CreditReturns(limits_.receive_depth);
  if (!receive_memory_) {
    receive_memory_ = std::make_unique_for_overwrite<std::byte[]>(size_t{limits_.receive_depth} *
                                                                  limits_.receive_bytes);
  }
  consumed_.clear();
  for (uint32_t i = 0; i < limits_.receive_depth; ++i) {
    consumed_.push_back(ReceiveSlot(receive_memory_.get(), i, limits_.receive_bytes));
  }
  PostReceives();
  last_heard_ns_ = now_ns;
  next_keepalive_ns_ = now_ns + tunables_.keepalive_interval_ns;
  peer_keepalive_ = 0;
  ++counters_.paths;
  if (!session.resumed) ++counters_.sessions;
  StartResume();
  return true;
}

void Engine::OnPathFailed(bool definite, int error, uint64_t now_ns) {
  now_ns_ = now_ns;
  if (!definite || queue_pair_) return;
  for (Socket* socket = all_.Front(); socket != nullptr;) {
    Socket* next = all_.Next(*socket);
    if (socket->state == SocketState::kOpening) {
      if (!socket->silent) host_.Connected(*socket, Outcome::kFailed, error);
      Retire(*socket);
    }
    socket = next;
  }
}

void Engine::BreakPath(std::string reason) {
  if (path_broken_ || !queue_pair_) return;
  path_broken_ = true;
  break_reason_ = std::move(reason);
}

// Outside the completion loop: destroying the queue pair is the fence after which no memory of ours
// is touched.
void Engine::LosePath() {
  queue_pair_.reset();
  path_broken_ = false;
  resuming_ = false;
  bundle_ = nullptr;
  bundle_slot_ = nullptr;
  control_.clear();
  first_ack_ns_ = 0;
  chain_.Clear([this](const ChainSlot& slot) { ReleaseSlot(slot, true); });
  for (Socket* socket = all_.Front(); socket != nullptr;) {
    Socket* next = all_.Next(*socket);
    ForgetPathState(*socket);
    if (socket->silent && socket->state != SocketState::kIncoming) {
      Retire(*socket);  // The fence is all that it waited for.
    } else {
      FinishAcknowledged(*socket);
      MaybeRetire(*socket);
    }
    socket = next;
  }
  host_.PathLost(*this, false, break_reason_);
  if (std::exchange(peer_said_goodbye_, false)) SessionOver(ESHUTDOWN, break_reason_);
}

void Engine::SayGoodbye(uint64_t now_ns) {
  now_ns_ = now_ns;
  if (goodbye_ || !queue_pair_) return;
  goodbye_ = true;
  Queue(wire::FrameType::kGoodbye, 0, 0, 0, 0);
}

void Engine::EndSession(int error, const std::string& reason, uint64_t now_ns) {
  now_ns_ = now_ns;
  if (queue_pair_) {
    path_broken_ = true;
    break_reason_ = reason;
    LosePath();
  }
  if (session_alive_) SessionOver(error, reason);
}

// Requires the path to be gone.
void Engine::SessionOver(int error, const std::string& reason) {
  SLUICE_CHECK(!queue_pair_, "a session ends after its path");
  session_alive_ = false;
  receive_memory_.reset();  // The peer may never come back.
  for (Socket* socket = all_.Front(); socket != nullptr;) {
    Socket* next = all_.Next(*socket);
    EndOperations(*socket, error, false);
    FreeReceiveSide(*socket, socket->silent);
    switch (socket->state) {
      case SocketState::kOpening:
        if (socket->open_sent) {
          if (!socket->silent) host_.Connected(*socket, Outcome::kUnknown, error);
          Retire(*socket);
        }
        break;
      case SocketState::kIncoming: Retire(*socket); break;
      case SocketState::kOpen:
      case SocketState::kClosing:
        socket->close_error = socket->state == SocketState::kOpen ? error : 0;
        socket->state = SocketState::kPeerClosed;
        DeliverReady(*socket);
        MaybeRetire(*socket);
        break;
      case SocketState::kPeerClosed: MaybeRetire(*socket); break;
    }
    socket = next;
  }
  host_.PathLost(*this, true, reason);
}

void Engine::PostReceives() {
  if (consumed_.empty()) return;
  auto posted = queue_pair_->PostReceive(consumed_);
  consumed_.clear();
  if (!posted) BreakPath("posting receives: " + posted.error().message);
}

// --- completions ---

void Engine::OnCompletion(const transport::Completion& completion, uint64_t now_ns) {
  now_ns_ = now_ns;
  if (path_broken_ || !queue_pair_) return;  // The path's end flushes everything at once.
  acks_stalled_ = false;
  if (completion.kind == transport::CompletionKind::kDisconnected)
    return BreakPath(queue_pair_->reason());
  if (completion.status != transport::Status::kOk) return;  // kDisconnected follows.
  switch (completion.kind) {
    case transport::CompletionKind::kSent:
      SLUICE_CHECK(chain_.Complete(completion.id,
                                   [this](const ChainSlot& slot) { ReleaseSlot(slot, false); }),
                   "a transport completes only what is in flight");
      return;
    case transport::CompletionKind::kReceived:
    case transport::CompletionKind::kWritten:
      last_heard_ns_ = now_ns;
      SLUICE_CHECK(completion.id < limits_.receive_depth, "a receive completes under its own id");
      if (!returns_.OnConsumed()) return BreakPath("the peer sent without a credit");
      consumed_.push_back(ReceiveSlot(receive_memory_.get(), static_cast<uint32_t>(completion.id),
                                      limits_.receive_bytes));
      if (completion.kind == transport::CompletionKind::kWritten)
        return OnWritten(completion.immediate);
      return OnReceived({completion.data, completion.bytes});
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
  if (queue_pair_ && !path_broken_ && !resuming_) {
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
  if (queue_pair_ && !resuming_) Queue(wire::FrameType::kOpened, socket.remote_id, 0, 0, socket.id);
}

void Engine::Refuse(Socket& socket, int error) {
  SLUICE_CHECK(socket.state == SocketState::kIncoming, "only an incoming socket is refused");
  if (queue_pair_ && !resuming_) {
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
  if (socket.close_sent || !queue_pair_ || resuming_) return;  // OnResumed() comes back to it.
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
  if (!queue_pair_ && !session_alive_) return Retire(socket);
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
      if (!queue_pair_)
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
  if (queue_pair_) FillLandings(socket);
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
    last_heard_ns_ = std::max(last_heard_ns_, now_ns - tunables_.keepalive_interval_ns);
  }
  last_tick_ns_ = now_ns;

  if (now_ns >= next_scan_ns_) {
    Scan(now_ns);
  }
  if (!session_alive_) return;
  // Any byte is a sign of life, also of a message that takes long to be whole.
  if (queue_pair_) last_heard_ns_ = std::max(last_heard_ns_, queue_pair_->last_heard_ns());
  if (now_ns - last_heard_ns_ > tunables_.keepalive_timeout_ns) {
    return EndSession(ETIMEDOUT, "the peer daemon was silent for the keepalive timeout", now_ns);
  }
  if (queue_pair_ && !path_broken_ && now_ns >= next_keepalive_ns_) {
    next_keepalive_ns_ = now_ns + tunables_.keepalive_interval_ns;
    Queue(wire::FrameType::kKeepalive, 0, ++keepalive_sequence_, 0, 0);
    ++counters_.keepalives_sent;
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
  return deadline_ns;
}

}  // namespace sluice
