// SPDX-License-Identifier: Apache-2.0
// How messages leave: control frames first, then one fragment per socket and turn, all in one
// posted chain.
#include <algorithm>

#include "daemon/engine/engine.h"

namespace sluice {
namespace {

constexpr size_t kMaxControlFrames = 4096;
constexpr size_t kMaxControlFramesPerSocket = 256;
constexpr uint32_t kFrameBytes = sizeof(wire::FrameHeader);
constexpr uint32_t kCopyLimit = 256;  // Smaller payloads are copied behind their header instead of
                                      // a segment of their own.
constexpr int kLookAhead = 16;        // WriteRequests out per socket beyond the message being sent.

}  // namespace

void Engine::Queue(wire::FrameType type, uint32_t socket, uint64_t sequence, uint64_t length,
                   uint32_t argument, uint32_t landing) {
  ControlFrame frame;
  frame.header.type = type;
  frame.header.socket = socket;
  frame.header.sequence = sequence;
  frame.header.length = length;
  frame.header.argument = argument;
  frame.landing = landing;
  control_.push(frame);
  // Almost all of it answers the peer, at most a few frames for each socket at a time.
  if (control_.size() > kMaxControlFrames + kMaxControlFramesPerSocket * all_.size())
    BreakPath("the peer asks for more than it takes answers to");
}

bool Engine::Flush(uint64_t now_ns) {
  now_ns_ = now_ns;
  if (peer_said_goodbye_) EndSession(ESHUTDOWN, "the peer daemon shut down", now_ns);
  if (wire_.broken) LoseWire();
  if (fabric_.broken) LoseFabric();
  if (now_ns >= next_fabric_ns_) StepFabric();
  for (Path* path : {&wire_, &fabric_}) {
    if (!path->usable()) continue;
    if (auto posted = path->PostReceives(); !posted)
      path->Break("posting receives: " + posted.error().message);
    path->WriteSaid();
  }
  limited_by_ = "nothing";
  if (path_->usable() && fabric_step_ != FabricStep::kSwitching) WriteMessages();
  bool any = false;
  for (Path* path : {&wire_, &fabric_}) {
    if (!path->usable() || path->chain.Pending() == 0) continue;
    any = true;
    if (!path->chain.Post(*path->queue_pair)) path->Break("the transport took no more requests");
  }
  return any;
}

void Engine::WriteMessages() {
  const bool ack_due = first_ack_ns_ != 0 &&
                       (now_ns_ - first_ack_ns_ >= tunables_.ack_delay_ns ||
                        unacknowledged_messages_ >= limits_.message_window / 4);
  bool open_for_data = WriteControl() && !resuming_;
  while (open_for_data && !ready_.empty()) {
    Socket& socket = *ready_.Front();
    switch (SendTurn(socket)) {
      case Turn::kMore: ready_.Rotate(); break;
      case Turn::kNothing: ready_.Remove(socket); break;
      case Turn::kBlocked: open_for_data = false; break;
    }
  }
  // Acknowledgements ride on whatever goes out, or alone when they are due.
  if (acks_.empty()) first_ack_ns_ = 0;
  if (!control_.empty()) {
    acks_stalled_ = true;
  } else if (!acks_.empty() && (ack_due || path_->chain.Pending() > 0)) {
    WriteAcks();
  }
  if (path_->returns.Due(tunables_.credit_batch)) OpenBundle(CreditUse::kControlReturning, 0, 0);
  path_->bundle = nullptr;
  path_->bundle_slot = nullptr;
}

// All of the control queue, as far as slots and credits reach. False: some had to stay.
bool Engine::WriteControl() {
  while (!control_.empty()) {
    ControlFrame& frame = control_.front();
    Landing* landing = frame.landing != 0 ? landings_.Find(frame.landing) : nullptr;
    if (frame.landing != 0 && landing == nullptr) {  // Freed since it was queued.
      control_.pop();
      continue;
    }
    const uint32_t slice_room = landing != nullptr
                                    ? sizeof(transport::RemoteSlice) * transport::kMaxSlices
                                    : 0;
    if (!OpenBundle(path_->returns.owed() > 0 ? CreditUse::kControlReturning : CreditUse::kControl,
                    kFrameBytes + slice_room, 0)) {
      const bool queue_full = path_->chain.Free() == 0;
      Blocked(queue_full ? "queue" : "credits",
              queue_full ? counters_.queue_stalls : counters_.credit_stalls);
      return false;
    }
    std::array<transport::RemoteSlice, transport::kMaxSlices> slices;
    size_t slice_count = 0;
    if (landing != nullptr) {
      const transport::LandingSegment segment{landing->buffer.address, landing->buffer.bytes, 0};
      auto exposed = path_->queue_pair->Expose(landing->id, {&segment, 1}, slices);
      if (!exposed) {
        BreakPath("exposing a landing buffer: " + exposed.error().message);
        return false;
      }
      slice_count = *exposed;
      landing->exposed = true;
    }
    const auto payload = std::as_bytes(std::span(slices).first(slice_count));
    AddFrame(frame.header, payload);
    control_.pop();
  }
  return true;
}

// All below are in the receiver's pool (or inline).
uint64_t Engine::Placed(const Socket& socket) const {
  if (socket.held == 0) return socket.expected;
  uint64_t placed = socket.delivered;
  for (const ReadyMessage* message = socket.ready_head; message->held == nullptr;
       message = message->next) {
    ++placed;
  }
  return placed;
}

wire::FrameHeader Engine::AckOf(const Socket& socket) const {
  wire::FrameHeader header{};
  header.type = wire::FrameType::kAck;
  header.socket = socket.remote_id;
  header.sequence = Placed(socket);
  header.length = socket.delivered;
  return header;
}

// What is owed goes in front of a control frame after which the peer would not hear it.
void Engine::QueueAck(Socket& socket) {
  if (!socket.ack_link.queued) return;
  control_.push({AckOf(socket), 0});
  acks_.Remove(socket);
}

// Requires the control queue to be empty: acknowledgements in it are older.
void Engine::WriteAcks() {
  while (Socket* socket = acks_.Front()) {
    if (!OpenBundle(path_->returns.owed() > 0 ? CreditUse::kControlReturning : CreditUse::kControl,
                    kFrameBytes, 0)) {
      acks_stalled_ = true;
      return;
    }
    AddFrame(AckOf(*socket));
    acks_.Remove(*socket);
  }
  first_ack_ns_ = 0;
  unacknowledged_messages_ = 0;
}

// Makes sure that the current SEND takes another frame of this size, beginning a new one where
// needed. False: no free request, or no credit.
bool Engine::OpenBundle(CreditUse use, uint32_t header_bytes, uint64_t payload_bytes) {
  if (path_->bundle != nullptr &&
      RequestChain::Fits(*path_->bundle_slot, *path_->bundle, header_bytes, payload_bytes,
                         session_.peer_receive_bytes)) {
    return true;
  }
  const uint32_t reserve = use == CreditUse::kData ? RequestChain::kControlReserve : 0;
  if (path_->chain.Free() <= reserve || !path_->credits.May(use)) return false;
  path_->credits.Take();
  path_->bundle = &path_->chain.Append(transport::Opcode::kSend, path_->bundle_slot);
  if (path_->returns.owed() > 0) {
    wire::FrameHeader header{};
    header.type = wire::FrameType::kCredit;
    header.argument = path_->returns.TakeAll();
    AddFrame(header);
  }
  return true;
}

// Requires OpenBundle() to have made room.
void Engine::AddFrame(const wire::FrameHeader& header, std::span<const std::byte> payload) {
  wire::FrameHeader complete = header;
  complete.bytes = static_cast<uint32_t>(payload.size());
  path_->chain.AppendCopy(*path_->bundle, *path_->bundle_slot,
                          std::as_bytes(std::span(&complete, 1)));
  if (!payload.empty()) path_->chain.AppendCopy(*path_->bundle, *path_->bundle_slot, payload);
}

Engine::Turn Engine::Blocked(const char* by, uint64_t& counter) {
  limited_by_ = by;
  ++counter;
  return Turn::kBlocked;
}

bool Engine::IsEager(uint64_t length) const {
  const uint64_t limit = std::min<uint64_t>(session_.peer_receive_bytes - 2 * kFrameBytes,
                                            window_.EffectiveFragment(tunables_.fragment_bytes));
  return length <= limit;
}

bool Engine::WithinPeerWindow(const Socket& socket, const SendOperation& operation) const {
  return operation.sequence - socket.peer_delivered < session_.peer_message_window;
}

// One turn: at most one fragment of one message.
Engine::Turn Engine::SendTurn(Socket& socket) {
  SendOperation* operation = socket.cursor;
  if (operation == nullptr || !WithinPeerWindow(socket, *operation)) return Turn::kNothing;
  const Turn turn = IsEager(operation->length) && operation->posted_bytes == 0 &&
                            operation->landing == nullptr && !operation->requested
                        ? SendEager(socket, *operation)
                        : SendFragment(socket, *operation);
  if (turn != Turn::kMore) return turn;
  if (operation->posted) {
    socket.cursor = operation->next;
    ++socket.sent_messages;
    socket.sent_bytes += operation->length;
    ++counters_.sent_messages;
    counters_.sent_bytes += operation->length;
  }
  return socket.cursor != nullptr ? Turn::kMore : Turn::kNothing;
}

Engine::Turn Engine::SendEager(Socket& socket, SendOperation& operation) {
  if (operation.length > window_.Available()) return Blocked("window", counters_.window_stalls);
  const bool copy = operation.length <= kCopyLimit;
  const auto length = static_cast<uint32_t>(operation.length);
  if (!OpenBundle(CreditUse::kData, kFrameBytes + (copy ? length : 0), copy ? 0 : length)) {
    return path_->credits.May(CreditUse::kData) ? Blocked("queue", counters_.queue_stalls)
                                                : Blocked("credits", counters_.credit_stalls);
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kMessage;
  header.traffic_class = operation.traffic_class;
  header.socket = socket.remote_id;
  header.sequence = operation.sequence;
  header.trace_id = operation.trace_id;
  header.length = operation.length;
  header.bytes = length;
  path_->chain.AppendCopy(*path_->bundle, *path_->bundle_slot,
                          std::as_bytes(std::span(&header, 1)));
  if (copy && length > 0) {
    path_->chain.AppendCopy(*path_->bundle, *path_->bundle_slot, {operation.data, length});
  } else if (length > 0) {
    RequestChain::AppendReference(*path_->bundle, *path_->bundle_slot, operation.data, length);
    path_->bundle_slot->operations[path_->bundle_slot->operation_count++] = &operation;
    ++operation.posted_requests;
  }
  path_->bundle_slot->window_bytes += length;
  window_.OnPosted(length);
  operation.posted_bytes = operation.length;
  operation.posted = true;
  return Turn::kMore;
}

// A large message needs somewhere to land: a grant it already has, or one to be asked for. Requests
// for the messages behind it go out too, so that their answers are here when their turn comes.
Engine::Turn Engine::RequestLanding(Socket& socket, SendOperation& operation) {
  if (operation.posted_bytes > 0) return Turn::kMore;
  SendOperation* wanting = &operation;
  for (int ahead = 0; wanting != nullptr && ahead < kLookAhead; ++ahead, wanting = wanting->next) {
    if (wanting->requested || wanting->landing != nullptr || IsEager(wanting->length)) continue;
    if (!WithinPeerWindow(socket, *wanting)) break;
    if (!socket.grants.empty() && socket.grants.front()->bytes >= wanting->length) {
      wanting->landing = socket.grants.front();
      socket.grants.pop();
      ++counters_.grants_used;
      continue;
    }
    if (!OpenBundle(CreditUse::kData, kFrameBytes, 0))
      return Blocked("credits", counters_.credit_stalls);
    wire::FrameHeader header{};
    header.type = wire::FrameType::kWriteRequest;
    header.traffic_class = wanting->traffic_class;
    header.socket = socket.remote_id;
    header.sequence = wanting->sequence;
    header.trace_id = wanting->trace_id;
    header.length = wanting->length;
    AddFrame(header);
    wanting->requested = true;
    wanting->announced = true;
    ++counters_.landing_waits;
  }
  return operation.landing != nullptr ? Turn::kMore : Turn::kNothing;
}

Engine::Turn Engine::SendFragment(Socket& socket, SendOperation& operation) {
  const Turn request = RequestLanding(socket, operation);
  if (operation.landing == nullptr) return request;

  const RemoteLanding& landing = *operation.landing;
  const uint64_t fragment = window_.EffectiveFragment(tunables_.fragment_bytes);
  uint64_t length = std::min(fragment, operation.length - operation.posted_bytes);
  uint64_t in_slice = operation.posted_bytes;
  uint32_t slice = 0;
  while (slice < landing.slice_count && in_slice >= landing.slices[slice].length) {
    in_slice -= landing.slices[slice++].length;
  }
  length = std::min(length, landing.slices[slice].length - in_slice);
  const bool last = operation.posted_bytes + length == operation.length;

  if (length > window_.Available()) return Blocked("window", counters_.window_stalls);
  if (!operation.announced) {
    if (!OpenBundle(CreditUse::kData, kFrameBytes, 0))
      return Blocked("credits", counters_.credit_stalls);
    wire::FrameHeader header{};
    header.type = wire::FrameType::kWriteRequest;
    header.flags = wire::kUsesGrant;
    header.traffic_class = operation.traffic_class;
    header.socket = socket.remote_id;
    header.sequence = operation.sequence;
    header.trace_id = operation.trace_id;
    header.length = operation.length;
    header.argument = landing.grant;
    AddFrame(header);
    operation.announced = true;
  }
  if (path_->chain.Free() <= RequestChain::kControlReserve)
    return Blocked("queue", counters_.queue_stalls);
  if (last && !path_->credits.May(CreditUse::kData))
    return Blocked("credits", counters_.credit_stalls);
  if (last) path_->credits.Take();

  ChainSlot* slot;
  transport::SendRequest& write = path_->chain.Append(
      last ? transport::Opcode::kWriteImmediate : transport::Opcode::kWrite, slot);
  write.remote_address = landing.slices[slice].address + in_slice;
  write.remote_key = landing.slices[slice].key;
  write.immediate = landing.grant;
  RequestChain::AppendReference(write, *slot, operation.data + operation.posted_bytes,
                                static_cast<uint32_t>(length));
  slot->operations[slot->operation_count++] = &operation;
  slot->window_bytes = static_cast<uint32_t>(length);
  window_.OnPosted(length);
  ++operation.posted_requests;
  operation.posted_bytes += length;
  operation.posted = last;
  // Frames written from here on must not overtake this WRITE: they begin a new SEND behind it.
  path_->bundle = nullptr;
  path_->bundle_slot = nullptr;
  return Turn::kMore;
}

}  // namespace sluice
