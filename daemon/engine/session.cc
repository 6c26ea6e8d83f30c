// SPDX-License-Identifier: Apache-2.0
// A session's life: wire paths come up, break and end it.
#include <cerrno>
#include <string>
#include <utility>

#include "daemon/engine/engine.h"
#include "shm_proto/base/check.h"

namespace sluice {

bool Engine::OnPathUp(std::unique_ptr<transport::QueuePair> queue_pair,
                      const SessionParameters& session, uint64_t now_ns) {
  now_ns_ = now_ns;
  const bool same_session = session_alive_ && session.session == session_.session;
  if (session.resumed && !same_session) return false;
  if (wire_.queue_pair) {  // The peer lost the old path before we noticed; the new one replaces it.
    wire_.Break("replaced by a new path");
    LoseWire();
  }
  if (session_alive_ && !same_session)
    EndSession(ECONNRESET, "the peer daemon restarted", now_ns);  // With its fabric, if it has one.

  session_ = session;
  session_alive_ = true;
  const bool prepared = wire_.Prepare(session.peer_receive_depth).has_value();
  SLUICE_CHECK(prepared, "a wire has receives of its own");
  wire_.queue_pair = std::move(queue_pair);
  if (auto posted = wire_.PostReceives(); !posted)
    wire_.Break("posting receives: " + posted.error().message);
  last_heard_ns_ = wire_.last_heard_ns = now_ns;
  wire_.next_keepalive_ns = now_ns + tunables_.keepalive_interval_ns;
  ++counters_.paths;
  if (!session.resumed) ++counters_.sessions;
  BeginOnWire();
  return true;
}

// First words on a new wire path.
void Engine::BeginOnWire() {
  if (session_.resumed && MayUseFabric()) {
    wire_.Say(wire::FrameType::kPath, 0, path_ == &fabric_ ? fabric_attempt_ : 0);
    if (path_ == &fabric_) return;  // Nothing has changed for the messages.
    awaiting_marker_ = true;
  } else {
    settle_ns_ = tunables_.fabric_settle_ns;
    changed_path_ = false;
    fabric_.reason.clear();  // The former session's.
  }
  if (fabric_step_ == FabricStep::kNone) next_fabric_ns_ = now_ns_;
  StartResume(!session_.resumed);
}

void Engine::OnPathFailed(bool definite, int error, uint64_t now_ns) {
  now_ns_ = now_ns;
  if (!definite || path_->queue_pair) return;
  for (Socket* socket = all_.Front(); socket != nullptr;) {
    Socket* next = all_.Next(*socket);
    if (socket->state == SocketState::kOpening) {
      if (!socket->silent) host_.Connected(*socket, Outcome::kFailed, error);
      Retire(*socket);
    }
    socket = next;
  }
}

void Engine::BreakPath(std::string reason) { path_->Break(std::move(reason)); }

// Outside the completion loop: destroying the queue pair is the fence after which no memory of ours
// is touched. A fabric that is up carries on alone; one that was being joined goes too.
void Engine::LoseWire() {
  if (fabric_.queue_pair && fabric_step_ != FabricStep::kUp) {
    DropFabric("the connection that it was joined over broke");
  }
  wire_.TakeDown([this](const ChainSlot& slot) { ReleaseSlot(slot, true); });
  awaiting_marker_ = false;
  if (path_ == &wire_) {
    PathsGone();
  } else {
    for (Socket* socket = all_.Front(); socket != nullptr;) {
      Socket* next = all_.Next(*socket);
      FinishAcknowledged(*socket);
      MaybeRetire(*socket);
      socket = next;
    }
  }
  host_.PathLost(*this, false, wire_.reason);
}

// Requires that no queue pair is left.
void Engine::PathsGone() {
  LeavePath(nullptr);
  resuming_ = false;
  for (Socket* socket = all_.Front(); socket != nullptr;) {
    Socket* next = all_.Next(*socket);
    // The fence is all that it waited for.
    if (socket->silent && socket->state != SocketState::kIncoming) Retire(*socket);
    socket = next;
  }
}

void Engine::SayGoodbye(uint64_t now_ns) {
  now_ns_ = now_ns;
  if (goodbye_ || !path_->queue_pair) return;
  goodbye_ = true;
  Queue(wire::FrameType::kGoodbye, 0, 0, 0, 0);
}

void Engine::EndSession(int error, const std::string& reason, uint64_t now_ns) {
  now_ns_ = now_ns;
  if (fabric_.queue_pair) {
    DropFabric(reason);
    path_ = &wire_;
    if (!wire_.queue_pair) PathsGone();
  }
  if (wire_.queue_pair) {
    wire_.reason = reason;
    LoseWire();
  }
  if (session_alive_) SessionOver(error, reason);
}

// Requires the path to be gone.
void Engine::SessionOver(int error, const std::string& reason) {
  SLUICE_CHECK(!wire_.queue_pair && !fabric_.queue_pair, "a session ends after its paths");
  session_alive_ = false;
  peer_said_goodbye_ = false;
  next_fabric_ns_ = ~uint64_t{0};
  wire_.FreeMemory();  // The peer may never come back.
  fabric_.FreeMemory();
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

}  // namespace sluice
