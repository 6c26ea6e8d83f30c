// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/status_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "shm_proto/base/clock.h"

namespace sluice::control {
namespace {

using Json = nlohmann::ordered_json;

std::string Hex(uint64_t number) { return fmt::format("{:016x}", number); }

double Seconds(uint64_t ns) { return static_cast<double>(ns) / kNsPerSecond; }

std::string ClientName(const NodeStatus& status, io::ClientId client) {
  const auto found = std::ranges::find(status.clients, client, &ClientStatus::client);
  return found == status.clients.end() ? std::string() : found->name;
}

std::string PeerName(const NodeStatus& status, PeerId peer) {
  for (const ThreadStatus& thread : status.threads) {
    for (const auto& engine : thread.snapshot.engines) {
      if (engine.peer == peer) return engine.name;
    }
  }
  const auto found = std::ranges::find(status.peers, peer, &PeerStatus::peer);
  return found == status.peers.end() ? std::string() : found->name;
}

Json EngineJson(const io::EngineSnapshot& engine, uint32_t io_thread) {
  return {{"peer", engine.peer},
          {"name", engine.name},
          {"state", engine.state},
          {"transport", engine.transport},
          {"limited_by", engine.limited_by},
          {"io_thread", io_thread},
          {"session", Hex(engine.session)},
          {"peer_instance", Hex(engine.peer_instance)},
          {"path_epoch", engine.path_epoch},
          {"sockets", engine.sockets},
          {"window_bytes", engine.window_bytes},
          {"in_flight_bytes", engine.in_flight_bytes},
          {"credits", engine.credits},
          {"sent_messages", engine.sent_messages},
          {"sent_bytes", engine.sent_bytes},
          {"received_messages", engine.received_messages},
          {"received_bytes", engine.received_bytes},
          {"keepalives_sent", engine.keepalives_sent},
          {"keepalives_received", engine.keepalives_received},
          {"window_stalls", engine.window_stalls},
          {"credit_stalls", engine.credit_stalls},
          {"queue_stalls", engine.queue_stalls},
          {"landing_waits", engine.landing_waits},
          {"grants_used", engine.grants_used},
          {"stale_frames", engine.stale_frames},
          {"sessions", engine.sessions},
          {"paths", engine.paths},
          {"rdma_paths", engine.fabric_paths},
          {"rdma_failures", engine.fabric_failures},
          {"not_rdma_because", engine.fabric_reason},
          {"last_heard_s", Seconds(engine.last_heard_ns_ago)},
          {"operations_ok", engine.operations_ok},
          {"operations_failed", engine.operations_failed},
          {"operations_unknown", engine.operations_unknown}};
}

void AddPeer(Json& row, const PeerStatus& peer) {
  row["connection"] = peer.state;
  row["authenticated"] = peer.authenticated;
  row["attempts"] = peer.attempts;
  row["next_dial_s"] = Seconds(peer.next_dial_ns);
  row["last_error"] = peer.last_error;
}

Json ThreadsJson(const NodeStatus& status) {
  Json rows = Json::array();
  for (const ThreadStatus& thread : status.threads) {
    rows.push_back({{"io_thread", thread.io_thread},
                    {"answering", thread.answered},
                    {"silent_s", Seconds(thread.silent_ns)},
                    {"loops", thread.snapshot.loops},
                    {"sleeps", thread.snapshot.sleeps},
                    {"engines", thread.snapshot.engines.size()},
                    {"sockets", thread.snapshot.sockets.size()}});
  }
  return rows;
}

struct Found {
  const io::EngineSnapshot* engine = nullptr;
  const PeerStatus* peer = nullptr;
};

Found FindEngine(const NodeStatus& status, const std::string& name) {
  Found found;
  const auto matches = [&](PeerId peer, const std::string& peer_name) {
    return peer_name == name || std::to_string(peer) == name;
  };
  for (const ThreadStatus& thread : status.threads) {
    for (const auto& engine : thread.snapshot.engines) {
      if (matches(engine.peer, engine.name)) found.engine = &engine;
    }
  }
  for (const PeerStatus& peer : status.peers) {
    if (matches(peer.peer, peer.name)) found.peer = &peer;
  }
  return found;
}

struct Limit {
  std::string name;  // "window", "credits", "ring", "landing", "peer", "none".
  std::string why;
  std::string advice;
};

Limit NoPath(const io::EngineSnapshot* engine, const PeerStatus* peer) {
  const std::string state = peer != nullptr ? peer->state : engine->state;
  std::string why = "there is no path to the peer daemon (" + state + ")";
  if (peer != nullptr && !peer->last_error.empty()) why += ": " + peer->last_error;
  return {
      "peer", why,
      "check that the peer's daemon runs, that its port is open, and that both have the same key"};
}

// The limit that was hit most often between the two pictures; else one that holds right now.
Limit FindLimit(const io::EngineSnapshot& before, const io::EngineSnapshot& now) {
  const uint64_t window = now.window_stalls - before.window_stalls;
  const uint64_t credits = now.credit_stalls - before.credit_stalls;
  const uint64_t queue = now.queue_stalls - before.queue_stalls;
  const uint64_t landing = now.landing_waits - before.landing_waits;
  const uint64_t most = std::max({window, credits, queue, landing});
  const bool busy = most != 0;
  if (busy ? credits == most : now.limited_by == "credits" || now.credits == 0) {
    return {"credits", "the peer has no receives posted for us",
            "raise engine.receive_depth on the peer, or lower its engine.credit_batch"};
  }
  if (busy ? window == most : now.in_flight_bytes >= now.window_bytes) {
    return {
        "window",
        fmt::format("{} of {} bytes are in flight", now.in_flight_bytes, now.window_bytes),
        "raise engine.send_window_bytes if the network has room; it may be the network's limit"};
  }
  if (busy ? queue == most : now.limited_by == "queue") {
    return {"ring", "the transport's send queue is full", "raise engine.send_queue_depth"};
  }
  if (busy) {
    return {"landing", "large messages wait for landing buffers of the receiver",
            "raise engine.landing_ahead, or the receiving tenant's pool_quota_mib on the peer"};
  }
  return {"none", "nothing holds this engine back: its applications offer no more", ""};
}

}  // namespace

Health HealthOf(const NodeStatus& status) {
  for (const ThreadStatus& thread : status.threads) {
    if (thread.answered) continue;
    return {false, fmt::format("I/O thread {} has not answered for {:.1f} s", thread.io_thread,
                               Seconds(thread.silent_ns))};
  }
  if (status.daemon.draining) return {false, "draining"};
  if (!status.daemon.ready) return {false, "starting"};
  return {true, "ok"};
}

Json StatusJson(const NodeStatus& status) {
  const DaemonStatus& daemon = status.daemon;
  const Health health = HealthOf(status);
  const NodeTotals totals = TotalsOf(status);
  uint64_t pool_bytes = 0;
  for (const ClientStatus& client : status.clients) pool_bytes += client.pool_bytes;
  return {{"healthy", health.ok},
          {"health", health.reason},
          {"name", daemon.name},
          {"version", daemon.version},
          {"instance", Hex(daemon.instance)},
          {"process_id", daemon.process_id},
          {"uptime_s", Seconds(daemon.uptime_ns)},
          {"config_file", daemon.config_path},
          {"peer_listen", daemon.peer_listen},
          {"peer_auth", daemon.peer_auth},
          {"idle", daemon.idle},
          {"ready", daemon.ready},
          {"draining", daemon.draining},
          {"io_threads", ThreadsJson(status)},
          {"clients", status.clients.size()},
          {"peers", status.peers.size()},
          {"engines_up", totals.engines_up},
          {"sockets", totals.sockets},
          {"pool_bytes", pool_bytes},
          {"sent_messages", totals.sent_messages},
          {"sent_bytes", totals.sent_bytes},
          {"received_messages", totals.received_messages},
          {"received_bytes", totals.received_bytes},
          {"operations_ok", totals.ok},
          {"operations_failed", totals.failed},
          {"operations_unknown", totals.unknown}};
}

Json ClientsJson(const NodeStatus& status) {
  Json rows = Json::array();
  for (const ClientStatus& client : status.clients) {
    uint64_t submitted = 0, completed = 0, rejected = 0, in_flight = 0;
    for (const ThreadStatus& thread : status.threads) {
      for (const auto& port : thread.snapshot.ports) {
        if (port.client != client.client) continue;
        submitted += port.submitted;
        completed += port.completed;
        rejected += port.rejected;
        in_flight += port.operations_in_flight;
      }
    }
    rows.push_back({{"client", client.client},
                    {"name", client.name},
                    {"tenant", client.tenant},
                    {"uid", client.uid},
                    {"gid", client.gid},
                    {"process_id", client.process_id},
                    {"attached_s", Seconds(client.attached_ns)},
                    {"channels", client.channels},
                    {"sockets", client.sockets},
                    {"listeners", client.listeners},
                    {"pool_bytes", client.pool_bytes},
                    {"pool_quota_bytes", client.pool_quota_bytes},
                    {"submitted", submitted},
                    {"completed", completed},
                    {"rejected", rejected},
                    {"operations_in_flight", in_flight}});
  }
  return rows;
}

Json EnginesJson(const NodeStatus& status) {
  std::map<PeerId, const PeerStatus*> without_engine;
  for (const PeerStatus& peer : status.peers) without_engine[peer.peer] = &peer;
  Json rows = Json::array();
  for (const ThreadStatus& thread : status.threads) {
    for (const auto& engine : thread.snapshot.engines) {
      Json row = EngineJson(engine, thread.io_thread);
      if (const auto peer = without_engine.find(engine.peer); peer != without_engine.end()) {
        AddPeer(row, *peer->second);
        without_engine.erase(peer);
      }
      rows.push_back(std::move(row));
    }
  }
  for (const auto& [id, peer] : without_engine) {
    io::EngineSnapshot nothing;
    nothing.peer = id;
    nothing.name = peer->name;
    nothing.state = "none";
    Json row = EngineJson(nothing, peer->io_thread);
    AddPeer(row, *peer);
    rows.push_back(std::move(row));
  }
  return rows;
}

Json SocketsJson(const NodeStatus& status) {
  Json rows = Json::array();
  for (const ThreadStatus& thread : status.threads) {
    for (const auto& socket : thread.snapshot.sockets) {
      rows.push_back({{"socket", socket.socket},
                      {"remote_socket", socket.remote_socket},
                      {"io_thread", thread.io_thread},
                      {"peer", PeerName(status, socket.peer)},
                      {"client", socket.client},
                      {"client_name", ClientName(status, socket.client)},
                      {"channel", socket.channel},
                      {"service", socket.service},
                      {"state", socket.state},
                      {"queued_messages", socket.queued_messages},
                      {"sent_messages", socket.sent_messages},
                      {"sent_bytes", socket.sent_bytes},
                      {"received_messages", socket.received_messages},
                      {"received_bytes", socket.received_bytes}});
    }
  }
  return rows;
}

Json PoolsJson(const NodeStatus& status) {
  Json rows = Json::array();
  for (const ClientStatus& client : status.clients) {
    uint64_t block_bytes = 0, live_bytes = 0;
    for (const ThreadStatus& thread : status.threads) {
      for (const auto& memory : thread.snapshot.memory) {
        if (memory.client != client.client) continue;
        block_bytes += memory.block_bytes;
        live_bytes += memory.live_bytes;
      }
    }
    rows.push_back({{"client", client.client},
                    {"name", client.name},
                    {"tenant", client.tenant},
                    {"pool_bytes", client.pool_bytes},
                    {"pool_quota_bytes", client.pool_quota_bytes},
                    {"send_block_bytes", client.send_block_bytes},
                    {"receive_block_bytes", block_bytes},
                    {"receive_live_bytes", live_bytes}});
  }
  return rows;
}

// What each I/O thread has of the device (ByteExpress table 3): one completion queue, a queue pair
// for each engine that uses it, and receives that these share if told to.
Json DevicesJson(const NodeStatus& status) {
  Json threads = Json::array();
  for (const ThreadStatus& thread : status.threads) {
    const transport::FabricUse& use = thread.snapshot.fabric;
    threads.push_back({{"io_thread", thread.io_thread},
                       {"completion_queues", use.completions != 0 ? 1 : 0},
                       {"completions", use.completions},
                       {"completions_reserved", use.completions_reserved},
                       {"queue_pairs", use.queue_pairs},
                       {"engines", thread.snapshot.engines.size()},
                       {"shared_receives", use.shared_receives},
                       {"shared_receives_lent", use.shared_lent},
                       {"shared_receives_low", use.shared_low}});
  }
  Json counters = Json::object();
  for (const auto& [name, value] : status.device.counters) counters[name] = value;
  return {{"state", status.device.state},
          {"device", status.device.name},
          {"reason", status.device.reason},
          {"notes", status.device.notes},
          {"opened", status.device.opened},
          {"io_threads", std::move(threads)},
          {"pause_frames_per_s", status.device.pause_frames_per_s},
          {"pause_storms", status.device.pause_storms},
          {"counters", std::move(counters)}};
}

Json ExplainJson(const NodeStatus& before, const NodeStatus& after, const std::string& name) {
  const Found now = FindEngine(after, name);
  if (now.engine == nullptr && now.peer == nullptr) return nullptr;
  const Found then = FindEngine(before, name);
  const bool up = now.engine != nullptr && now.engine->state == "up";
  const Limit limit = up ? FindLimit(then.engine != nullptr ? *then.engine : *now.engine,
                                     *now.engine)
                         : NoPath(now.engine, now.peer);
  return {{"engine", now.engine != nullptr ? now.engine->name : now.peer->name},
          {"state", now.engine != nullptr ? now.engine->state : now.peer->state},
          {"transport", now.engine != nullptr ? now.engine->transport : ""},
          {"not_rdma_because", now.engine != nullptr ? now.engine->fabric_reason : ""},
          {"limit", limit.name},
          {"why", limit.why},
          {"advice", limit.advice},
          {"window_bytes", up ? now.engine->window_bytes : 0},
          {"in_flight_bytes", up ? now.engine->in_flight_bytes : 0},
          {"credits", up ? now.engine->credits : 0}};
}

}  // namespace sluice::control
