// SPDX-License-Identifier: Apache-2.0
// What an I/O thread tells about itself when asked.
#include "daemon/io/io_thread.h"

namespace sluice::io {
namespace {

const char* Name(Engine::State state) {
  switch (state) {
    case Engine::State::kConnecting: return "connecting";
    case Engine::State::kUp: return "up";
    case Engine::State::kLost: return "lost";
  }
  return "?";
}

const char* Name(SocketState state) {
  switch (state) {
    case SocketState::kOpening: return "opening";
    case SocketState::kIncoming: return "incoming";
    case SocketState::kOpen: return "open";
    case SocketState::kClosing: return "closing";
    case SocketState::kPeerClosed: return "closed by peer";
  }
  return "?";
}

EngineSnapshot Describe(const Engine& engine, uint64_t now_ns) {
  EngineSnapshot out;
  out.peer = engine.peer();
  out.name = engine.name();
  out.state = Name(engine.state());
  out.transport = engine.transport_kind();
  out.limited_by = engine.LimitedBy();
  out.session = engine.session_alive() ? engine.session().session : 0;
  out.peer_instance = engine.session().peer_instance;
  out.path_epoch = engine.session().path_epoch;
  out.sockets = static_cast<uint32_t>(engine.socket_count());
  out.window_bytes = engine.window().window_bytes();
  out.in_flight_bytes = engine.window().in_flight_bytes();
  out.credits = engine.credits();
  const EngineCounters& counters = engine.counters();
  out.sent_messages = counters.sent_messages;
  out.sent_bytes = counters.sent_bytes;
  out.received_messages = counters.received_messages;
  out.received_bytes = counters.received_bytes;
  out.keepalives_sent = counters.keepalives_sent;
  out.keepalives_received = counters.keepalives_received;
  out.window_stalls = counters.window_stalls;
  out.credit_stalls = counters.credit_stalls;
  out.queue_stalls = counters.queue_stalls;
  out.landing_waits = counters.landing_waits;
  out.grants_used = counters.grants_used;
  out.stale_frames = counters.stale_frames;
  out.sessions = counters.sessions;
  out.paths = counters.paths;
  out.fabric_paths = counters.fabric_paths;
  out.fabric_failures = counters.fabric_failures;
  out.fabric_reason = engine.fabric_reason();
  out.operations_ok = counters.operations_ok;
  out.operations = counters.operations;
  out.operations_failed = counters.operations_failed;
  out.operations_unknown = counters.operations_unknown;
  out.last_heard_ns_ago = engine.session_alive() ? now_ns - engine.last_heard_ns() : 0;
  return out;
}

SocketSnapshot Describe(const Socket& socket) {
  SocketSnapshot out;
  out.socket = socket.id;
  out.remote_socket = socket.remote_id;
  out.peer = socket.engine->peer();
  if (const auto* port = static_cast<const Port*>(socket.owner)) {
    out.client = port->client().id;
    out.channel = port->channel();
  }
  out.service = socket.service;
  out.state = Name(socket.state);
  out.queued_messages = socket.next_sequence - socket.peer_placed;
  out.sent_messages = socket.sent_messages;
  out.sent_bytes = socket.sent_bytes;
  out.received_messages = socket.received_messages;
  out.received_bytes = socket.received_bytes;
  return out;
}

}  // namespace

ThreadSnapshot IoThread::Snapshot(uint64_t now_ns) {
  ThreadSnapshot out;
  out.io_thread = index_;
  out.loops = progress();
  out.sleeps = sleeps_;
  if (networks_.fabric) out.fabric = networks_.fabric->use();
  for (const auto& [peer, engine] : engines_) out.engines.push_back(Describe(*engine, now_ns));
  sockets_.ForEach([&](const Socket& socket) { out.sockets.push_back(Describe(socket)); });
  for (const auto& [id, client] : clients_) {
    out.memory.push_back({id, client->heap.block_bytes(), client->heap.live_bytes()});
    for (const auto& port : client->ports) {
      out.ports.push_back({id, port->channel(), port->submitted, port->completed, port->rejected,
                           port->operations_in_flight(), port->doorbells});
    }
  }
  return out;
}

}  // namespace sluice::io
