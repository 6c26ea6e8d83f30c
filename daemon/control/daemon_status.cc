// SPDX-License-Identifier: Apache-2.0
// The daemon's own account of itself: what sluicectl, /metrics and the status page are made of.
#include <unistd.h>

#include <utility>

#include "daemon/control/daemon.h"
#include "daemon/control/version.h"

namespace sluice::control {
namespace {

const char* Name(Fabrics::State state) {
  switch (state) {
    case Fabrics::State::kClosed: return "none";
    case Fabrics::State::kOpening: return "opening";
    case Fabrics::State::kUp: return "up";
    case Fabrics::State::kLeaving:
    case Fabrics::State::kClosing: return "leaving";
  }
  return "?";
}

}  // namespace

StatusParts Daemon::MakeStatusParts() {
  StatusParts parts;
  parts.daemon = [this] { return Describe(); };
  parts.clients = [this] { return DescribeClients(); };
  parts.peers = [this] { return DescribePeers(); };
  parts.device = [this] { return DescribeDevice(); };
  parts.numbers = [this] { return DescribeNumbers(); };
  for (auto& thread : io_) {
    parts.io_threads.push_back(
        [thread = thread.get()](io::ToIo message) { thread->mailbox().Post(std::move(message)); });
  }
  return parts;
}

DaemonStatus Daemon::Describe() const {
  const Config& config = store_.config();
  return {.name = name_,
          .version = kVersion,
          .instance = instance_,
          .process_id = getpid(),
          .uptime_ns = clock_.NowNs() - started_ns_,
          .config_path = store_.path(),
          .peer_auth = config.peer.auth,
          .peer_listen = config.peer.listen,
          .idle = config.daemon.idle,
          .ready = ready_ && !draining_,
          .draining = draining_};
}

std::vector<ClientStatus> Daemon::DescribeClients() const {
  std::vector<ClientStatus> out;
  for (const ClientSnapshot& client : clients_->Snapshot().clients) {
    out.push_back({.client = client.client,
                   .name = client.name,
                   .tenant = client.tenant,
                   .uid = client.uid,
                   .gid = client.gid,
                   .process_id = client.pid,
                   .attached_ns = client.attached_ns_ago,
                   .channels = client.channels,
                   .sockets = client.sockets,
                   .listeners = client.listeners,
                   .pool_bytes = client.pool_bytes,
                   .pool_quota_bytes = client.quota_bytes,
                   .send_block_bytes = client.send_bytes,
                   .receive_block_bytes = client.receive_bytes});
  }
  return out;
}

std::vector<PeerStatus> Daemon::DescribePeers() const {
  std::vector<PeerStatus> out;
  for (const PeerSnapshot& peer : peers_->Snapshot()) {
    out.push_back({.peer = peer.peer,
                   .name = peer.address.empty() ? peer.name : peer.address,
                   .state = peer.state,
                   .io_thread = peer.io_thread,
                   .instance = peer.instance,
                   .authenticated = peer.authenticated,
                   .attempts = peer.attempts,
                   .next_dial_ns = peer.next_retry_in_ns,
                   .last_error = peer.last_error});
  }
  return out;
}

DeviceStatus Daemon::DescribeDevice() const {
  if (!fabrics_) return {.state = "off", .reason = "rdma.mode is \"off\""};
  FabricDeviceInfo info = fabrics_->Info();
  return {.state = Name(fabrics_->state()),
          .name = std::move(info.name),
          .reason = fabrics_->reason(),
          .notes = std::move(info.notes),
          .counters = std::move(info.counters),
          .opened = fabrics_->opened(),
          .pause_frames_per_s = fabrics_->pauses().rate(),
          .pause_storms = fabrics_->pauses().storms()};
}

std::vector<NamedNumber> Daemon::DescribeNumbers() const {
  const ClientServerSnapshot clients = clients_->Snapshot();
  const PeerCounters& peers = peers_->counters();
  const auto counter = [](const char* name, const char* help, uint64_t value) {
    return NamedNumber{.name = name, .help = help, .value = static_cast<double>(value)};
  };
  const auto gauge = [](const char* name, const char* help, uint64_t value) {
    return NamedNumber{
        .name = name, .help = help, .value = static_cast<double>(value), .counter = false};
  };
  return {
      counter("client_attaches_total", "Clients that attached.", clients.counters.attached),
      counter("client_attaches_refused_total", "Attempts to attach that were refused.",
              clients.counters.attach_refused),
      counter("clients_detached_total", "Clients that broke the rules and were detached.",
              clients.counters.detached),
      counter("client_requests_rejected_total", "Malformed or forbidden control requests.",
              clients.counters.rejected_requests),
      counter("client_memory_refused_total", "Requests for memory refused for quota or want of it.",
              clients.counters.memory_refused),
      counter("incoming_sockets_refused_total", "Sockets of peers to services nobody listens on.",
              clients.counters.incoming_refused),
      counter("extents_made_total", "Pool extents made.", clients.counters.extents_made),
      counter("extents_released_total", "Pool extents given back.",
              clients.counters.extents_released),
      gauge("client_memory_bytes", "Pools and rings of all clients.", clients.memory_bytes),
      gauge("client_memory_limit_bytes", "The node's limit for them.", clients.memory_limit_bytes),
      gauge("client_memory_lingering_bytes", "Memory still held after its client's time.",
            clients.lingering_bytes),
      counter("peer_connections_accepted_total", "Peer connections from allowed networks.",
              peers.accepted),
      counter("peer_connections_refused_total", "Peer connections from outside the allow-list.",
              peers.refused_network),
      counter("peer_handshakes_failed_total", "Incoming handshakes that failed.",
              peers.failed_incoming),
      counter("peer_dials_total", "Attempts to reach a peer.", peers.dials),
      counter("peer_dials_failed_total", "Attempts to reach a peer that failed.",
              peers.failed_dials),
      counter("peer_paths_total", "Paths to peers that came up.", peers.paths),
      counter("peer_paths_resumed_total", "Of them: paths of a session that went on.",
              peers.resumed),
  };
}

}  // namespace sluice::control
