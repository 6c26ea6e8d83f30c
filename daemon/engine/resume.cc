// SPDX-License-Identifier: Apache-2.0
// A session goes on over a new path: each end says what it has, and the other sends only the rest
// again.
#include "daemon/engine/engine.h"

namespace sluice {

// First words on a new path.
void Engine::StartResume(bool first) {
  for (Socket* socket = all_.Front(); socket != nullptr; socket = all_.Next(*socket)) {
    socket->resume_seen = false;
    if (first) {
      if (socket->state == SocketState::kOpening) {
        socket->open_sent = true;
        Queue(wire::FrameType::kOpen, 0, socket->service, 0, socket->id);
      }
    } else if (socket->remote_id != 0 && socket->state != SocketState::kIncoming &&
               socket->state != SocketState::kPeerClosed) {
      Queue(wire::FrameType::kResume, socket->remote_id, socket->expected, socket->delivered,
            socket->id);
    }
  }
  if (first) return;
  changed_path_ = true;
  Queue(wire::FrameType::kResumed, 0, 0, 0, 0);
  if (goodbye_) Queue(wire::FrameType::kGoodbye, 0, 0, 0, 0);
  resuming_ = true;
}

void Engine::OnResume(const wire::FrameHeader& header) {
  if (!resuming_) return BreakPath("the peer resumes a session that was not interrupted");
  Socket* socket = sockets_.Find(header.socket);
  if (socket != nullptr && socket->engine == this && socket->state == SocketState::kOpening) {
    OnOpened(*socket, header.argument);  // The answer was lost with the old path.
    socket = sockets_.Find(header.socket);
  }
  if (socket == nullptr || socket->engine != this || socket->remote_id != header.argument ||
      socket->state == SocketState::kPeerClosed) {
    return Queue(wire::FrameType::kClose, header.argument, 0, 0, ECONNRESET);
  }
  if (header.sequence > socket->next_sequence || header.sequence < socket->peer_placed ||
      header.length > header.sequence || header.length < socket->peer_delivered) {
    return BreakPath("the peer resumes at a message that was not sent");
  }
  socket->resume_seen = true;
  socket->unconfirmed = false;
  socket->peer_delivered = header.length;
  // What the peer has needs its acknowledgement only; the rest starts anew.
  socket->cursor = socket->head;
  while (socket->cursor != nullptr && socket->cursor->sequence < header.sequence) {
    socket->cursor->posted = true;
    socket->cursor->posted_bytes = socket->cursor->length;
    socket->cursor = socket->cursor->next;
  }
  for (SendOperation* operation = socket->cursor; operation != nullptr;
       operation = operation->next) {
    operation->posted = false;
    operation->posted_bytes = 0;
  }
  if (socket->cursor != nullptr) ready_.Push(*socket);
}

// The peer has named all its sockets: those it did not name are gone there. One that we accepted
// may not be known there yet, since the answer was lost with the old path or never sent: say it
// again.
void Engine::OnResumed() {
  if (!resuming_) return BreakPath("the peer resumes a session that was not interrupted");
  resuming_ = false;
  for (Socket* socket = all_.Front(); socket != nullptr;) {
    Socket* next = all_.Next(*socket);
    switch (socket->state) {
      case SocketState::kOpening:
        socket->open_sent = true;
        Queue(wire::FrameType::kOpen, 0, socket->service, 0, socket->id);
        break;
      case SocketState::kOpen:
        if (socket->unconfirmed) {
          Queue(wire::FrameType::kOpened, socket->remote_id, 0, 0, socket->id);
        } else if (!socket->resume_seen) {
          PeerEndGone(*socket, ECONNRESET);
        } else {
          Reoffer(*socket);
          OweAck(*socket);
        }
        break;
      case SocketState::kClosing:
        socket->close_sent = false;
        if (socket->unconfirmed) {
          Queue(wire::FrameType::kOpened, socket->remote_id, 0, 0, socket->id);
          StartClose(*socket);
        } else if (!socket->resume_seen) {
          socket->close_sent = true;
          OnClosed(*socket);
        } else {
          OweAck(*socket);
          if (socket->head == nullptr || socket->silent) StartClose(*socket);
        }
        break;
      case SocketState::kIncoming:
      case SocketState::kPeerClosed: break;
    }
    socket = next;
  }
}

// The path is gone, and with it every name that only it understood. Null: its queue pair too.
void Engine::ForgetPathState(Socket& socket, transport::QueuePair* living) {
  for (SendOperation* operation = socket.head; operation != nullptr; operation = operation->next) {
    if (operation->landing != nullptr) remote_landings_.Give(operation->landing);
    operation->landing = nullptr;
    operation->requested = false;
    operation->announced = false;
  }
  while (!socket.grants.empty()) {
    remote_landings_.Give(socket.grants.front());
    socket.grants.pop();
  }
  const auto hide = [living](Landing& landing) {
    if (landing.exposed && living != nullptr) living->Withdraw(landing.id);
    landing.exposed = false;
  };
  for (Landing* landing = socket.landing_head; landing != nullptr; landing = landing->next) {
    hide(*landing);
    landing->asked = false;
  }
  for (Landing* landing = socket.offered; landing != nullptr; landing = landing->next) {
    hide(*landing);
    landing->recalled = false;
  }
  acks_.Remove(socket);
}

// Grants made ahead are told again, encoded for the new path. Bound ones are asked for again by the
// peer.
void Engine::Reoffer(Socket& socket) {
  for (Landing* landing = socket.offered; landing != nullptr; landing = landing->next) {
    landing->exposed = true;
    Queue(wire::FrameType::kGrant, socket.remote_id, 0, landing->buffer.bytes, landing->id,
          landing->id);
  }
}

}  // namespace sluice
