// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/engine/containers.h"
#include "daemon/sched/round_robin.h"
#include "daemon/transport/transport.h"
#include "shm_proto/descriptor.h"

namespace sluice {

class Engine;
struct Socket;

// A buffer in the pool of a socket's owner.
struct PoolBuffer {
  std::byte* address = nullptr;
  uint64_t offset = 0;  // In the pool.
  uint64_t bytes = 0;   // Usable.
};

// A landing buffer that the peer granted us: where one message of ours may be written.
struct RemoteLanding {
  RemoteLanding* next = nullptr;
  uint32_t grant = 0;
  uint32_t slice_count = 0;
  uint64_t bytes = 0;
  std::array<transport::RemoteSlice, transport::kMaxSlices> slices;
};

// One message on its way out. Its memory is the owner's until Engine tells the host that the send
// is over, which happens once: after the peer's acknowledgement and the completion of every request
// that names the memory.
struct SendOperation {
  SendOperation* next = nullptr;
  Socket* socket = nullptr;
  RemoteLanding* landing = nullptr;  // Null until a large message has somewhere to go.
  const std::byte* data = nullptr;   // The payload, or inline_data.
  uint64_t length = 0;
  uint64_t token = 0;
  uint64_t trace_id = 0;
  uint64_t sequence = 0;
  uint64_t begun_ns = 0;
  uint64_t posted_bytes = 0;
  uint32_t posted_requests = 0;  // Requests in the send queue that name `data`.
  uint8_t traffic_class = 0;
  bool requested = false;  // A WriteRequest for it is out.
  bool announced = false;  // The peer knows which grant it goes into.
  bool posted = false;     // All of it was posted (an empty message too).
  std::array<std::byte, kInlineBytes> inline_data;
};

// One message that is here, whole, and waits for the owner to take it.
struct ReadyMessage {
  ReadyMessage* next = nullptr;
  uint64_t trace_id = 0;
  uint64_t length = 0;
  PoolBuffer buffer;          // bytes == 0: inline, or held.
  std::byte* held = nullptr;  // The pool was full: our own copy until there is room.
  uint8_t traffic_class = 0;
  std::array<std::byte, kInlineBytes> inline_data;
};

// A buffer of the owner's pool that the peer may write one message into.
struct Landing {
  Landing* next = nullptr;
  Socket* socket = nullptr;
  uint32_t id = 0;        // The grant's name on the wire.
  bool bound = false;     // To message `sequence`; else it was granted ahead and is open to any.
  bool exposed = false;   // The queue pair knows it, or the frame that tells it is queued.
  bool asked = false;     // The peer asked for it on this path.
  bool recalled = false;  // We asked for it back.
  PoolBuffer buffer;      // bytes == 0: still waiting for memory.
  uint64_t sequence = 0;
  uint64_t length = 0;  // Of the message.
  uint64_t trace_id = 0;
  uint8_t traffic_class = 0;
};

enum class SocketState : uint8_t {
  kOpening,   // We asked, the peer has not answered (or was not asked yet: !open_sent).
  kIncoming,  // The peer asked, our side has not answered.
  kOpen,
  kClosing,     // Our side closes: what is queued still goes out, then kClose, then the peer's
                // kClosed.
  kPeerClosed,  // The peer closed: what has arrived is still handed on, then the owner is told.
};

// One logical connection. Lives in its I/O thread's table; everything about it happens on that
// thread.
struct Socket {
  uint32_t id = 0;
  uint32_t remote_id = 0;
  Engine* engine = nullptr;
  void* owner = nullptr;  // The host's; null while kIncoming.
  uint64_t token = 0;     // The owner's name of its connect or listener.
  uint16_t service = 0;
  SocketState state = SocketState::kOpening;
  bool open_sent = false;
  bool close_sent = false;
  bool close_confirmed = false;  // The peer's kClosed is here.
  bool refused_by_peer = false;  // kIncoming: the peer gave up before our side answered.
  bool unconfirmed = false;      // We accepted it, and have not heard yet that the peer knows.
  bool deaf = false;             // It was reset: messages that still come in are dropped.
  bool silent = false;           // The owner is gone: nothing is handed on any more.
  bool waits_memory = false;     // The host was asked for memory and had none.
  bool in_memory_queue = false;  // The host's mark: it stands in the owner's queue for memory.
  bool in_slot_queue = false;    // The host's mark: it stands in the port's queue for a slot.
  bool resume_seen = false;      // The peer named this socket on the new path.
  int32_t close_error = 0;
  uint64_t deadline_ns = 0;  // For the peer's answer to an open or a close.

  // Sending: head .. cursor are posted and wait for acknowledgement, cursor .. tail wait for their
  // turn.
  SendOperation* head = nullptr;
  SendOperation* tail = nullptr;
  SendOperation* cursor = nullptr;
  uint64_t next_sequence = 0;
  uint64_t peer_placed = 0;  // The peer has all below.
  uint64_t
      peer_delivered = 0;  // The peer handed on all below; beyond this + window nothing is sent.
  Fifo<RemoteLanding*> grants;  // Granted ahead, not yet used.

  // Receiving.
  uint64_t expected = 0;   // The next message to arrive.
  uint64_t delivered = 0;  // Handed on to the owner.
  uint64_t held = 0;       // Of the ready messages, those not in the pool yet.
  ReadyMessage* ready_head = nullptr;
  ReadyMessage* ready_tail = nullptr;
  Landing* landing_head = nullptr;  // Bound ones, by sequence.
  Landing* offered = nullptr;       // Granted ahead.
  uint32_t offered_count = 0;
  uint32_t
      offered_target = 0;  // How many we try to keep out; grows with unforeseen large messages.
  uint64_t recent_large_bytes = 0;  // A slowly falling maximum.
  uint64_t last_large_ns = 0;

  RoundRobinLink<Socket> ready_link;   // Wants to send.
  RoundRobinLink<Socket> ack_link;     // Owes an acknowledgement.
  RoundRobinLink<Socket> engine_link;  // All of its engine.

  uint64_t sent_messages = 0, sent_bytes = 0, received_messages = 0, received_bytes = 0;
};

using SocketTable = IdTable<Socket>;

}  // namespace sluice
