// SPDX-License-Identifier: Apache-2.0
// How messages arrive: every frame of every SEND, and the completions of WRITE_WITH_IMM. All of it
// is the peer's word and checked; what no honest peer says breaks the path.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/engine/engine.h"
#include "shm_proto/base/check.h"
#include "shm_proto/base/clock.h"
#include "shm_proto/base/units.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 40;  // More is no length but rubbish.
constexpr uint64_t kMaxOfferBytes = 256 * kKiB;  // Larger messages are asked for one by one.
constexpr uint32_t kMaxIncoming = 4096;          // Sockets that wait for a listener, per thread.
constexpr uint32_t kMaxGrantsPerSocket = 64;

}  // namespace

void Engine::OnReceived(Path& path, std::span<const std::byte> bytes) {
  wire::FrameReader reader(bytes);
  wire::FrameHeader header;
  std::span<const std::byte> payload;
  while (path.usable() && reader.Next(header, payload)) OnFrame(path, header, payload);
  if (reader.malformed()) path.Break("the peer sent bytes that are no frames");
}

void Engine::OnFrame(Path& path, const wire::FrameHeader& header,
                     std::span<const std::byte> payload) {
  // What concerns the path it came on.
  switch (header.type) {
    case wire::FrameType::kCredit:
      if (!path.credits.Return(header.argument))
        path.Break("the peer gave back more credits than it has");
      return;
    case wire::FrameType::kKeepalive:
      if (header.sequence <= path.peer_keepalive)
        return path.Break("the peer's keepalive number does not rise");
      path.peer_keepalive = header.sequence;
      ++counters_.keepalives_received;
      return;
    case wire::FrameType::kFabricOffer:
    case wire::FrameType::kFabricAnswer:
    case wire::FrameType::kFabricProbe:
    case wire::FrameType::kPath: return OnPathFrame(path, header, payload);
    case wire::FrameType::kGoodbye:
      peer_said_goodbye_ = true;
      return path.Break("the peer daemon shut down");
    default: break;
  }
  // Said before the peer knew that the messages take the other path.
  if (&path != path_ || awaiting_marker_) return void(++counters_.stale_frames);
  switch (header.type) {
    case wire::FrameType::kOpen: return OnOpen(header);
    case wire::FrameType::kResume: return OnResume(header);
    case wire::FrameType::kResumed: return OnResumed();
    default: break;
  }
  Socket* socket = sockets_.Find(header.socket);
  if (socket == nullptr || socket->engine != this) {
    ++counters_.stale_frames;  // Sent before the peer knew that the socket is gone.
    // Its other end has only just come to be, and hears of it by this alone.
    if (header.type == wire::FrameType::kOpened)
      Queue(wire::FrameType::kClose, header.argument, 0, 0, ECONNRESET);
    return;
  }
  socket->unconfirmed = false;
  OnSocketFrame(*socket, header, payload);
}

void Engine::OnSocketFrame(Socket& socket, const wire::FrameHeader& header,
                           std::span<const std::byte> payload) {
  switch (header.type) {
    case wire::FrameType::kOpened: return OnOpened(socket, header.argument);
    case wire::FrameType::kRefused:
      return OnRefused(socket, static_cast<int>(header.argument & 0xfff));
    case wire::FrameType::kMessage: return OnMessage(socket, header, payload);
    case wire::FrameType::kWriteRequest: return OnWriteRequest(socket, header);
    case wire::FrameType::kWriteResponse: return OnWriteResponse(socket, header, payload);
    case wire::FrameType::kGrant: return OnGrant(socket, header, payload);
    case wire::FrameType::kAck: return OnAck(socket, header);
    case wire::FrameType::kClose:
      return OnPeerClose(socket, static_cast<int>(header.argument & 0xfff));
    case wire::FrameType::kClosed: return OnClosed(socket);
    case wire::FrameType::kRecall: return OnRecall(socket, header.argument);
    case wire::FrameType::kReturned: return OnReturned(socket, header.argument);
    default: return BreakPath("the peer sent a frame of unknown type");
  }
}

// --- opening and closing ---

void Engine::OnOpen(const wire::FrameHeader& header) {
  // Said again after a path change: answer again, never open twice.
  for (Socket* known = all_.Front(); changed_path_ && known != nullptr; known = all_.Next(*known)) {
    if (known->remote_id != header.argument || known->state == SocketState::kOpening) continue;
    if (known->state != SocketState::kIncoming)
      Queue(wire::FrameType::kOpened, known->remote_id, 0, 0, known->id);
    return;
  }
  uint32_t id;
  Socket* socket = incoming_ < kMaxIncoming ? sockets_.Add(id) : nullptr;
  if (socket == nullptr || header.sequence == 0 || header.sequence > 0xffff) {
    if (socket != nullptr) sockets_.Remove(id);
    return Queue(wire::FrameType::kRefused, header.argument, 0, 0,
                 socket == nullptr ? ENOBUFS : EINVAL);
  }
  socket->id = id;
  socket->remote_id = header.argument;
  socket->engine = this;
  socket->service = static_cast<uint16_t>(header.sequence);
  socket->state = SocketState::kIncoming;
  ++incoming_;
  all_.Push(*socket);
  host_.Incoming(*socket);
}

void Engine::OnOpened(Socket& socket, uint32_t remote_id) {
  if (socket.state != SocketState::kOpening) return;  // Said twice after a path change.
  socket.remote_id = remote_id;
  if (socket.silent) {
    socket.state = SocketState::kClosing;
    return StartClose(socket);
  }
  socket.state = SocketState::kOpen;
  host_.Connected(socket, Outcome::kOk, 0);
}

void Engine::OnRefused(Socket& socket, int error) {
  if (socket.state != SocketState::kOpening)
    return BreakPath("the peer refused a socket that is open");
  if (!socket.silent) host_.Connected(socket, Outcome::kFailed, error != 0 ? error : ECONNREFUSED);
  Retire(socket);
}

void Engine::OnPeerClose(Socket& socket, int error) {
  if (socket.remote_id != 0) {
    QueueAck(socket);
    Queue(wire::FrameType::kClosed, socket.remote_id, 0, 0, 0);
  }
  PeerEndGone(socket, error);
}

void Engine::PeerEndGone(Socket& socket, int error) {
  if (socket.state == SocketState::kIncoming || socket.state == SocketState::kOpening) {
    if (socket.state == SocketState::kOpening && !socket.silent) {
      host_.Connected(socket, Outcome::kFailed, error != 0 ? error : ECONNREFUSED);
    }
    socket.silent = socket.state == SocketState::kOpening || socket.silent;
    if (socket.state == SocketState::kIncoming) {
      socket.refused_by_peer = true;  // The control thread still answers for it.
      return;
    }
    return Retire(socket);
  }
  if (socket.state == SocketState::kPeerClosed) return;
  // Both closed at once: our kClose is on its way, and so is the answer to it. Before that the
  // close waited for acknowledgements, which will not come any more.
  if (socket.state == SocketState::kClosing && socket.close_sent) return;
  socket.close_error = socket.state == SocketState::kClosing ? 0 : error;
  socket.state = SocketState::kPeerClosed;
  ready_.Remove(socket);
  // The peer's last WRITE came before its kClose on the same queue pair: nothing lands any more.
  FreeReceiveSide(socket, false);
  EndOperations(socket, error, false);
  MaybeRetire(socket);
}

void Engine::OnClosed(Socket& socket) {
  if (!socket.close_sent || socket.state != SocketState::kClosing)
    return BreakPath("the peer confirmed no close of ours");
  socket.close_confirmed = true;
  FreeReceiveSide(socket, true);
  EndOperations(socket, ECONNRESET, false);
  MaybeRetire(socket);
}

// --- messages ---

// Whether message `sequence` may arrive now. Below: a duplicate after a path change. Beyond: the
// peer broke the protocol.
bool Engine::Expected(Socket& socket, uint64_t sequence) {
  if (sequence < socket.expected) {
    ++counters_.stale_frames;
    return false;
  }
  if (sequence != socket.expected || sequence - socket.delivered >= limits_.message_window) {
    BreakPath("the peer sent a message out of order or beyond the socket's window");
    return false;
  }
  return true;
}

void Engine::OnMessage(Socket& socket, const wire::FrameHeader& header,
                       std::span<const std::byte> payload) {
  if (header.length != payload.size())
    return BreakPath("the peer sent a message with a wrong length");
  if (socket.silent || socket.deaf || socket.state == SocketState::kPeerClosed) return;
  if (socket.state != SocketState::kOpen && socket.state != SocketState::kClosing) {
    return BreakPath("the peer sent a message on a socket that is not open");
  }
  if (!Expected(socket, header.sequence)) return;
  std::optional<PoolBuffer> buffer;
  const bool is_inline = payload.size() <= kInlineBytes;
  if (!is_inline && socket.held == 0) buffer = host_.Allocate(socket, payload.size());
  // The pool is full. Our own copy keeps the posted receive free for other sockets; at most a
  // window of them per socket, and of all sockets as much as the host allows.
  const bool hold = !is_inline && !buffer;
  if (hold && !host_.Hold(socket, payload.size())) return Reset(socket, ENOBUFS);
  ReadyMessage* message = messages_.Take();
  message->length = header.length;
  message->trace_id = header.trace_id;
  message->traffic_class = header.traffic_class;
  if (is_inline) {
    std::copy(payload.begin(), payload.end(), message->inline_data.begin());
  } else if (hold) {
    message->held = new std::byte[payload.size()];
    std::memcpy(message->held, payload.data(), payload.size());
    ++socket.held;
  } else {
    message->buffer = *buffer;
    std::memcpy(buffer->address, payload.data(), payload.size());
  }
  Arrived(socket, *message);
}

void Engine::Arrived(Socket& socket, ReadyMessage& message) {
  ++socket.expected;
  ++socket.received_messages;
  socket.received_bytes += message.length;
  ++counters_.received_messages;
  counters_.received_bytes += message.length;
  (socket.ready_tail != nullptr ? socket.ready_tail->next : socket.ready_head) = &message;
  socket.ready_tail = &message;
  ++unacknowledged_messages_;
  OweAck(socket);
  DeliverReady(socket);
}

void Engine::OweAck(Socket& socket) {
  if (!path_->queue_pair || socket.remote_id == 0 || socket.state == SocketState::kPeerClosed)
    return;
  acks_.Push(socket);
  if (first_ack_ns_ == 0) first_ack_ns_ = now_ns_;
}

void Engine::DropHeld(Socket& socket, ReadyMessage& message) {
  delete[] message.held;
  message.held = nullptr;
  --socket.held;
  host_.Unhold(socket, message.length);
}

bool Engine::PlaceHeld(Socket& socket, ReadyMessage& message) {
  auto buffer = host_.Allocate(socket, message.length);
  if (!buffer) {
    socket.waits_memory = true;
    return false;
  }
  message.buffer = *buffer;
  std::memcpy(buffer->address, message.held, message.length);
  DropHeld(socket, message);
  OweAck(socket);
  return true;
}

// Hands on what is here, in order, as far as the owner has memory and room.
void Engine::DeliverReady(Socket& socket) {
  if (socket.silent) return;
  while (ReadyMessage* message = socket.ready_head) {
    if (message->held != nullptr && !PlaceHeld(socket, *message)) return;
    const Delivery delivery{message->length, message->trace_id, message->traffic_class,
                            message->buffer.bytes == 0 ? message->inline_data.data() : nullptr,
                            message->buffer};
    if (!host_.Deliver(socket, delivery)) return;
    socket.ready_head = message->next;
    if (socket.ready_head == nullptr) socket.ready_tail = nullptr;
    messages_.Give(message);
    ++socket.delivered;
    OweAck(socket);
  }
}

// --- landing buffers: the receiver's side ---

// The landing for message `sequence`, if there is one.
Landing* Engine::BoundTo(const Socket& socket, uint64_t sequence) {
  Landing* landing = socket.landing_head;
  while (landing != nullptr && landing->sequence != sequence) landing = landing->next;
  return landing;
}

void Engine::OnWriteRequest(Socket& socket, const wire::FrameHeader& header) {
  if (socket.silent || socket.deaf || socket.state == SocketState::kPeerClosed) return;
  if (socket.state != SocketState::kOpen && socket.state != SocketState::kClosing) {
    return BreakPath("the peer wants to write to a socket that is not open");
  }
  if (header.length == 0 || header.length > kMaxMessageBytes)
    return BreakPath("the peer wants to write an absurd length");
  if (header.length > host_.LargestBuffer(socket)) return Reset(socket, EMSGSIZE);
  if (header.sequence < socket.expected) return void(++counters_.stale_frames);
  if (header.sequence - socket.delivered >= limits_.message_window) {
    return BreakPath("the peer wants to write beyond the socket's window");
  }
  socket.recent_large_bytes = std::max(header.length,
                                       socket.recent_large_bytes - socket.recent_large_bytes / 64);
  socket.last_large_ns = now_ns_;

  Landing* landing = nullptr;
  if (header.flags & wire::kUsesGrant) {
    landing = landings_.Find(header.argument);
    if (landing == nullptr || landing->socket != &socket || landing->bound ||
        landing->buffer.bytes < header.length) {
      return BreakPath("the peer uses a landing buffer it was not granted");
    }
    Unoffer(socket, *landing);
    // Before a path change it may have been asked for another buffer, which nobody will fill.
    if (Landing* former = BoundTo(socket, header.sequence); former != nullptr) {
      if (former->asked) return BreakPath("the peer asks for two buffers for one message");
      FreeLanding(*former);
    }
  } else {
    // Asked for again after a path change: the same buffer serves.
    if (landing = BoundTo(socket, header.sequence); landing != nullptr) {
      landing->asked = true;
      return FillLandings(socket);
    }
    socket.offered_target = std::min(tunables_.landing_ahead, socket.offered_target * 2 + 1);
    uint32_t id;
    landing = landings_.Add(id);
    if (landing == nullptr)
      return BreakPath("the peer wants more landing buffers than there are names");
    landing->id = id;
    landing->socket = &socket;
  }
  landing->bound = true;
  landing->asked = true;
  landing->sequence = header.sequence;
  landing->length = header.length;
  landing->trace_id = header.trace_id;
  landing->traffic_class = header.traffic_class;
  // Almost always at the end.
  Landing** link = &socket.landing_head;
  while (*link != nullptr && (*link)->sequence < landing->sequence) link = &(*link)->next;
  landing->next = *link;
  *link = landing;
  FillLandings(socket);
}

// Finds memory for the bound landings that have none, oldest first, and tells the peer.
void Engine::FillLandings(Socket& socket) {
  if (socket.silent) return;
  for (Landing* landing = socket.landing_head; landing != nullptr; landing = landing->next) {
    if (landing->exposed || !landing->asked) continue;
    if (landing->buffer.bytes == 0) {
      auto buffer = host_.Allocate(socket, landing->length);
      if (!buffer) {
        socket.waits_memory = true;
        return;
      }
      landing->buffer = *buffer;
    }
    landing->exposed = true;
    Queue(wire::FrameType::kWriteResponse, socket.remote_id, landing->sequence,
          landing->buffer.bytes, landing->id, landing->id);
  }
}

void Engine::OnWritten(uint32_t grant) {
  Landing* landing = landings_.Find(grant);
  if (landing == nullptr) return void(++counters_.stale_frames);
  Socket& socket = *landing->socket;
  if (!landing->bound) return BreakPath("the peer filled a landing buffer for no message");
  if (socket.silent || socket.deaf || socket.state == SocketState::kPeerClosed)
    return FreeLanding(*landing);
  if (!Expected(socket, landing->sequence)) return;
  ReadyMessage* message = messages_.Take();
  message->length = landing->length;
  message->trace_id = landing->trace_id;
  message->traffic_class = landing->traffic_class;
  message->buffer = landing->buffer;
  landing->buffer = {};
  FreeLanding(*landing);
  Arrived(socket, *message);
  OfferLandings(socket);
}

// A socket that receives large messages gets buffers granted ahead, so that the next ones need no
// exchange.
void Engine::OfferLandings(Socket& socket) {
  if (socket.state != SocketState::kOpen || socket.recent_large_bytes > kMaxOfferBytes ||
      socket.waits_memory)
    return;
  const uint64_t bytes = RoundUp(socket.recent_large_bytes, 4 * kKiB);
  while (socket.offered_count < std::min(socket.offered_target, tunables_.landing_ahead)) {
    auto buffer = host_.Allocate(socket, bytes);
    if (!buffer) return;  // A luxury: nobody waits for it.
    uint32_t id;
    Landing* landing = landings_.Add(id);
    if (landing == nullptr) return host_.Free(socket, *buffer);
    landing->id = id;
    landing->socket = &socket;
    landing->buffer = *buffer;
    landing->exposed = true;
    landing->next = socket.offered;
    socket.offered = landing;
    ++socket.offered_count;
    Queue(wire::FrameType::kGrant, socket.remote_id, 0, buffer->bytes, id, id);
  }
}

void Engine::Unoffer(Socket& socket, Landing& landing) {
  Landing** link = &socket.offered;
  while (*link != &landing) link = &(*link)->next;
  *link = landing.next;
  landing.next = nullptr;
  --socket.offered_count;
}

// Requires that the peer cannot write into it any more.
void Engine::FreeLanding(Landing& landing) {
  Socket& socket = *landing.socket;
  if (landing.bound) {
    Landing** link = &socket.landing_head;
    while (*link != &landing) link = &(*link)->next;
    *link = landing.next;
  } else {
    Unoffer(socket, landing);
  }
  if (path_->queue_pair && landing.exposed) path_->queue_pair->Withdraw(landing.id);
  if (landing.buffer.bytes > 0) host_.Free(socket, landing.buffer);
  landings_.Remove(landing.id);
}

void Engine::RecallGrants(Socket& socket) {
  if (!path_->queue_pair || resuming_ || socket.state != SocketState::kOpen) return;
  socket.offered_target = 0;
  for (Landing* landing = socket.offered; landing != nullptr; landing = landing->next) {
    if (landing->recalled) continue;
    landing->recalled = true;
    Queue(wire::FrameType::kRecall, socket.remote_id, 0, 0, landing->id);
  }
}

void Engine::OnReturned(Socket& socket, uint32_t grant) {
  Landing* landing = landings_.Find(grant);
  if (landing == nullptr || landing->socket != &socket || landing->bound)
    return;  // Used before the recall arrived.
  FreeLanding(*landing);
}

// --- landing buffers: the sender's side ---

// Null: what the peer says makes no sense and the path is broken.
RemoteLanding* Engine::ReadSlices(const wire::FrameHeader& header,
                                  std::span<const std::byte> payload) {
  const size_t count = payload.size() / sizeof(transport::RemoteSlice);
  if (count == 0 || count > transport::kMaxSlices ||
      payload.size() % sizeof(transport::RemoteSlice) != 0) {
    BreakPath("the peer granted a landing buffer without a place");
    return nullptr;
  }
  RemoteLanding* landing = remote_landings_.Take();
  landing->grant = header.argument;
  landing->slice_count = static_cast<uint32_t>(count);
  std::memcpy(landing->slices.data(), payload.data(), payload.size());
  for (size_t i = 0; i < count; ++i) {
    const uint64_t length = landing->slices[i].length;
    landing->bytes += length;
    if (length == 0 || length > kMaxMessageBytes) landing->bytes = 0;
  }
  if (landing->bytes == 0 || landing->bytes > kMaxMessageBytes) {
    remote_landings_.Give(landing);
    BreakPath("the peer granted a landing buffer of absurd size");
    return nullptr;
  }
  return landing;
}

void Engine::OnGrant(Socket& socket, const wire::FrameHeader& header,
                     std::span<const std::byte> payload) {
  RemoteLanding* landing = ReadSlices(header, payload);
  if (landing == nullptr) return;
  if (socket.state != SocketState::kOpen || socket.grants.size() >= kMaxGrantsPerSocket) {
    remote_landings_.Give(landing);
    return Queue(wire::FrameType::kReturned, socket.remote_id, 0, 0, header.argument);
  }
  socket.grants.push(landing);
}

void Engine::OnWriteResponse(Socket& socket, const wire::FrameHeader& header,
                             std::span<const std::byte> payload) {
  RemoteLanding* landing = ReadSlices(header, payload);
  if (landing == nullptr) return;
  SendOperation* operation = socket.cursor;
  while (operation != nullptr && operation->sequence != header.sequence)
    operation = operation->next;
  if (operation == nullptr || !operation->requested || operation->landing != nullptr ||
      landing->bytes < operation->length) {
    const bool too_small = operation != nullptr && landing->bytes < operation->length;
    remote_landings_.Give(landing);
    if (too_small) BreakPath("the peer answered with a landing buffer that is too small");
    return;  // Else the operation ended meanwhile.
  }
  operation->landing = landing;
  if (socket.state != SocketState::kPeerClosed) ready_.Push(socket);
}

void Engine::OnRecall(Socket& socket, uint32_t grant) {
  for (size_t i = socket.grants.size(); i > 0; --i) {
    RemoteLanding* landing = socket.grants.front();
    socket.grants.pop();
    if (landing->grant == grant) {
      remote_landings_.Give(landing);
    } else {
      socket.grants.push(landing);
    }
  }
  // Also from a message that was to use it and has not said so yet.
  for (SendOperation* operation = socket.cursor; operation != nullptr;
       operation = operation->next) {
    if (operation->landing == nullptr || operation->landing->grant != grant ||
        operation->announced || operation->requested)
      continue;
    remote_landings_.Give(std::exchange(operation->landing, nullptr));
    ready_.Push(socket);
  }
  // Whether it was unused or its use is on the way: after this frame no new use begins.
  Queue(wire::FrameType::kReturned, socket.remote_id, 0, 0, grant);
}

void Engine::OnAck(Socket& socket, const wire::FrameHeader& header) {
  if (header.sequence > socket.next_sequence || header.length > header.sequence ||
      header.sequence < socket.peer_placed || header.length < socket.peer_delivered) {
    return BreakPath("the peer acknowledged what was not sent");
  }
  socket.peer_placed = header.sequence;
  socket.peer_delivered = header.length;
  if (socket.cursor != nullptr && socket.state != SocketState::kPeerClosed) ready_.Push(socket);
  FinishAcknowledged(socket);
  MaybeRetire(socket);
}

}  // namespace sluice
