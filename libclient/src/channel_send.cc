// SPDX-License-Identifier: Apache-2.0
// Sending, and buffers on their way into and out of operations.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "libclient/src/channel.h"
#include "libclient/src/error_text.h"

namespace sluice::client {
namespace {

constexpr uint32_t kMinSendsPerSocket = 16;
constexpr uint32_t kAllFlags = SLUICE_SEND_KEEP | SLUICE_SEND_SILENT;

}  // namespace

int Channel::CheckSend(sluice_socket socket, const Message& message, RingPort** port,
                       uint32_t* daemon_name) {
  if ((message.flags & ~kAllFlags) != 0 || (message.flags & kAllFlags) == kAllFlags) {
    return Refuse(EINVAL, "unknown send flags, or KEEP together with SILENT");
  }
  const SocketRecord* record = sockets_.Find(socket);
  if (record == nullptr) {
    return Refuse(ENOTCONN,
                  "this channel has no such socket: it was closed, or is another channel's");
  }
  if (record->state == SocketRecord::State::kConnecting) {
    return Refuse(ENOTCONN, "the socket is not connected yet: wait for SLUICE_EVENT_CONNECTED");
  }
  if (record->state == SocketRecord::State::kClosing) {
    return Refuse(ENOTCONN, "the socket is being closed");
  }
  if (phase_ != Phase::kUp)
    return Refuse(ENOTCONN, "the daemon is gone: poll until SLUICE_EVENT_DETACHED");
  if (message.length > limits_.max_message_bytes) {
    return Refuse(EMSGSIZE, "the message is longer than sluice_max_message_bytes()");
  }
  *port = PortOf(*record);
  *daemon_name = record->daemon_name;
  if ((*port)->operations().full()) {
    return Refuse(EAGAIN, "as many sends are under way as half the ring holds: poll and try again");
  }
  // A peer that takes nothing must not use up the places of the channel's other sockets.
  if (record->sends_under_way >= std::max(kMinSendsPerSocket, (*port)->capacity() / 8)) {
    return Refuse(EAGAIN, "this socket has its share of the ring under way: poll and try again");
  }
  return 0;
}

int Channel::SendBuffer(sluice_socket socket, const Message& message) {
  RingPort* port = nullptr;
  uint32_t daemon_name = 0;
  if (int refused = CheckSend(socket, message, &port, &daemon_name); refused != 0) return refused;
  void* start = nullptr;
  if (int refused = TakeBuffer(*port, message, &start); refused != 0) return refused;
  const int refused = Submit(*port, daemon_name, socket, message, start);
  if (refused != 0) PutBack(*port, start);
  return refused;
}

int Channel::CopyAndSend(sluice_socket socket, const Message& message) {
  RingPort* port = nullptr;
  uint32_t daemon_name = 0;
  if (int refused = CheckSend(socket, message, &port, &daemon_name); refused != 0) return refused;
  if ((message.flags & SLUICE_SEND_KEEP) != 0) {
    return Refuse(EINVAL, "SLUICE_SEND_KEEP makes no sense for a copy");
  }
  if (message.data == nullptr && message.length > 0) return Refuse(EINVAL, "no data");
  if (message.length <= kInlineBytes) return Submit(*port, daemon_name, socket, message, nullptr);

  int error = 0;
  void* copy = Allocate(message.length, &error);
  if (copy == nullptr) {
    // Memory that sends under way hold comes back: that is back-pressure, not exhaustion.
    if (error == -ENOMEM && port->operations().busy() > 0) return -EAGAIN;
    return error;
  }
  std::memcpy(copy, message.data, message.length);
  Message copied = message;
  copied.data = copy;
  const int refused = SendBuffer(socket, copied);
  if (refused != 0) Free(copy);
  return refused;
}

// Marks the buffer around the message as under way.
int Channel::TakeBuffer(RingPort& port, const Message& message, void** start) {
  Pool& pool = port.pool();
  if (pool.Contains(message.data)) {
    const uint64_t offset = pool.BeginSend(pool.OffsetOf(message.data), message.length);
    if (offset == Pool::kNone) return ExplainBuffer(message.data, message.length);
    *start = pool.At(offset);
    return 0;
  }
  if (slab_.Contains(message.data)) {
    void* cell = slab_.Start(message.data);
    const auto skipped = static_cast<size_t>(static_cast<const std::byte*>(message.data) -
                                             static_cast<std::byte*>(cell));
    if (InRange(skipped, message.length, kInlineBytes) && slab_.Send(cell)) {
      *start = cell;
      return 0;
    }
  }
  return ExplainBuffer(message.data, message.length);
}

int Channel::ExplainBuffer(const void* data, size_t length) {
  if (pool_->Contains(data) && length > 0 && !pool_->retired()) {
    return Refuse(EINVAL, "not a whole buffer of this client: freed, under way, or too short");
  }
  if (slab_.Contains(data)) {
    return Refuse(EINVAL, "not a whole small message: freed, under way, or too short");
  }
  if (client_.InRetiredPool(data)) {
    return Refuse(
        EINVAL,
        "the buffer is from before the daemon restarted and cannot be sent: copy it into a "
        "new one and free it");
  }
  return Refuse(EINVAL, "not a buffer of this client: use sluice_alloc() or sluice_send_copy()");
}

void Channel::PutBack(RingPort& port, void* start) {
  if (slab_.Contains(start)) {
    slab_.Return(start);
  } else {
    port.pool().CancelSend(port.pool().OffsetOf(start));
  }
}

int Channel::Submit(RingPort& port, uint32_t daemon_name, sluice_socket socket,
                    const Message& message, void* buffer) {
  const bool fits_inline = message.length <= kInlineBytes;
  const bool keeps = (message.flags & SLUICE_SEND_KEEP) != 0;
  // A payload that travels in the descriptor leaves its buffer free at once.
  const bool frees_now = fits_inline && !keeps && buffer != nullptr;

  Operation operation;
  operation.socket = socket;
  operation.user_data = message.user_data;
  operation.buffer = frees_now ? nullptr : buffer;
  operation.flags = message.flags;

  Descriptor descriptor{};
  descriptor.op = static_cast<uint8_t>(SubmitOp::kSend);
  descriptor.socket = daemon_name;
  descriptor.trace_id = message.trace_id;
  descriptor.token = port.operations().Begin(operation);
  if (fits_inline) {
    descriptor.flags = kFlagInline;
    descriptor.inline_bytes = static_cast<uint8_t>(message.length);
    if (message.length > 0) std::memcpy(descriptor.inline_data, message.data, message.length);
  } else {
    descriptor.region.offset = port.pool().OffsetOf(message.data);
    descriptor.region.length = message.length;
  }
  if (!port.StageSend(descriptor)) {
    port.operations().End(descriptor.token, operation);
    return Refuse(EAGAIN, "the ring is full: poll and try again");
  }
  ++sockets_.Find(socket)->sends_under_way;
  if (frees_now) FreeSent(port, buffer);
  if (port.staged_frees() >= kFreesPerDescriptor) {
    port.Flush();
  } else {
    port.Publish();
  }
  return 0;
}

// A buffer that was under way and that nobody keeps.
void Channel::FreeSent(RingPort& port, void* buffer) {
  if (slab_.Contains(buffer)) {
    slab_.Return(buffer);
    slab_.Free(buffer, &cells_);
    return;
  }
  uint32_t io_thread = 0;
  const uint64_t offset = port.pool().OffsetOf(buffer);
  if (port.pool().EndSendFreeing(offset, &io_thread) == Pool::Freed::kToDaemon) {
    RouteReturn(port.pool(), io_thread, offset);
  }
}

void Channel::RouteReturn(Pool& pool, uint32_t io_thread, uint64_t offset) {
  RingPort* port = ports_[io_thread].get();
  if (port != nullptr && &port->pool() == &pool && !port->broken()) {
    port->StageFree(offset);
  } else {
    client_.ReturnToDaemon(pool, io_thread, offset);
  }
}

void* Channel::Allocate(size_t length, int* error) {
  if (length > limits_.max_message_bytes) {
    *error = Refuse(EINVAL, "longer than sluice_max_message_bytes()");
    return nullptr;
  }
  if (phase_ != Phase::kUp) {
    *error = Refuse(ENOTCONN, AwayText());
    return nullptr;
  }
  const Result<uint64_t> offset = pool_->Allocate(length);
  if (!offset) {
    *error = RefuseWith(ToErrno(offset.error().code), offset.error().message);
    return nullptr;
  }
  return pool_->At(*offset);
}

int Channel::Free(void* buffer) {
  if (buffer == nullptr) return 0;
  Pool::Freed freed;
  if (pool_->Contains(buffer)) {
    uint32_t io_thread = 0;
    const uint64_t offset = pool_->OffsetOf(buffer);
    freed = pool_->Free(offset, &io_thread);
    if (freed == Pool::Freed::kToDaemon) {
      RouteReturn(*pool_, io_thread, offset);
      RingPort* port = ports_[io_thread].get();
      if (port != nullptr && port->staged_frees() >= kFreesPerDescriptor) port->Flush();
      return 0;
    }
  } else if (slab_.Contains(buffer)) {
    freed = slab_.Free(buffer, &cells_) ? Pool::Freed::kDone : Pool::Freed::kNotABuffer;
  } else {
    freed = client_.Free(buffer);
  }
  return freed == Pool::Freed::kDone ? 0 : RefuseFree(freed);
}

}  // namespace sluice::client
