// SPDX-License-Identifier: Apache-2.0
#include "server.h"

#include <cstdio>

namespace sluice_ps {
namespace {

constexpr int kEventsAtOnce = 64;
constexpr int kBlockedRetryMs = 1;
constexpr int kIdleWaitMs = 100;
constexpr uint64_t kFinishTimeoutNs = 2'000'000'000;

}  // namespace

Server::Server(Endpoint& endpoint, const ServerOptions& options)
    : endpoint_(endpoint), options_(options) {
  for (uint32_t shard = options.first_shard; shard <= options.last_shard; ++shard) {
    shards_.push_back(std::make_unique<Shard>(options.shape, shard));
  }
}

Server::~Server() {
  for (auto& [socket, connection] : connections_) {
    Drop(*connection);
  }
}

bool Server::Listen() {
  for (size_t i = 0; i < shards_.size(); ++i) {
    const auto service = static_cast<uint16_t>(options_.service + i);
    sluice_listener listener = 0;
    if (sluice_listen(endpoint_.channel(), service, i, &listener) != 0) {
      std::fprintf(stderr, "%s: listening on service %u: %s\n", options_.name.c_str(), service,
                   sluice_error_text());
      return false;
    }
  }
  return true;
}

void Server::Run(const volatile std::sig_atomic_t& stop) {
  while (stop == 0) {
    RunOnce(kIdleWaitMs);
  }
}

void Server::RunOnce(int timeout_ms) {
  std::array<sluice_event, kEventsAtOnce> events;
  const int wait_ms = blocked_.empty() ? timeout_ms : kBlockedRetryMs;
  const int count = sluice_wait(endpoint_.channel(), events.data(), kEventsAtOnce, wait_ms);
  std::vector<sluice_socket> retry;
  retry.swap(blocked_);
  for (int i = 0; i < count; ++i) {
    OnEvent(events[static_cast<size_t>(i)]);
  }
  for (const sluice_socket socket : retry) {
    if (const auto found = connections_.find(socket); found != connections_.end()) {
      found->second->blocked = false;
      Serve(*found->second);
    }
  }
}

void Server::OnEvent(const sluice_event& event) {
  switch (event.type) {
    case SLUICE_EVENT_ACCEPTED: OnAccepted(event); break;
    case SLUICE_EVENT_MESSAGE: {
      const auto found = connections_.find(event.socket);
      if (found == connections_.end()) {
        sluice_free(endpoint_.channel(), event.data);
        break;
      }
      found->second->requests.push_back({event.data, event.length});
      Serve(*found->second);
      break;
    }
    case SLUICE_EVENT_SENT: sends_.End(event.user_data, static_cast<Outcome>(event.outcome)); break;
    case SLUICE_EVENT_CLOSED:
      if (const auto found = connections_.find(event.socket); found != connections_.end()) {
        Drop(*found->second);
        connections_.erase(found);
      }
      break;
    default: break;  // DETACHED: its sockets got CLOSED. REATTACHED: the listeners are back.
  }
}

void Server::OnAccepted(const sluice_event& event) {
  auto connection = std::make_unique<Connection>();
  connection->socket = event.socket;
  connection->shard = shards_[event.user_data].get();
  connections_[event.socket] = std::move(connection);
  ++accepted_;
}

void Server::Serve(Connection& connection) {
  while (!connection.blocked &&
         (connection.reply.data != nullptr || !connection.requests.empty())) {
    const int result = MakeReply(connection) ? SendReply(connection) : -EAGAIN;
    if (result == -EAGAIN) {
      connection.blocked = true;
      blocked_.push_back(connection.socket);
    } else if (result != 0) {
      Drop(connection);  // The socket is going; SLUICE_EVENT_CLOSED takes the rest.
    }
  }
}

// The reply's memory comes first: once a push is applied its acknowledgement cannot fail for want
// of memory.
bool Server::MakeReply(Connection& connection) {
  if (connection.reply.data != nullptr) {
    return true;
  }
  const Message request = connection.requests.front();
  const std::span message(static_cast<const std::byte*>(request.data), request.bytes);
  size_t room = connection.shard->ReplyBytes(message);
  void* data = connection.small_reply.data();
  if (room > connection.small_reply.size()) {
    data = sluice_alloc(endpoint_.channel(), room);
    if (data == nullptr) {
      return false;
    }
  }
  connection.requests.pop_front();
  room = connection.shard->Handle(message, {static_cast<std::byte*>(data), room});
  connection.reply = {data, room};
  sluice_free(endpoint_.channel(), request.data);
  return true;
}

int Server::SendReply(Connection& connection) {
  const Message reply = connection.reply;
  const uint64_t token = sends_.Begin();
  const int result = reply.data == connection.small_reply.data()
                         ? sluice_send_copy(endpoint_.channel(), connection.socket, reply.data,
                                            reply.bytes, 0, token, 0)
                         : sluice_send(endpoint_.channel(), connection.socket, reply.data,
                                       reply.bytes, 0, token, 0);
  if (result == 0) {
    connection.reply = {nullptr, 0};
  } else {
    sends_.Cancel(token);
  }
  return result;
}

void Server::Drop(Connection& connection) {
  for (const Message& request : connection.requests) {
    sluice_free(endpoint_.channel(), request.data);
  }
  connection.requests.clear();
  if (connection.reply.data != nullptr && connection.reply.data != connection.small_reply.data()) {
    sluice_free(endpoint_.channel(), connection.reply.data);
  }
  connection.reply = {nullptr, 0};
}

ServerStats Server::Finish() {
  const uint64_t deadline_ns = NowNs() + kFinishTimeoutNs;
  while (sends_.outstanding() > 0 && NowNs() < deadline_ns) {
    RunOnce(kIdleWaitMs);
  }
  ServerStats stats;
  for (const auto& shard : shards_) {
    stats.shards.fetches += shard->counters().fetches;
    stats.shards.pushes_applied += shard->counters().pushes_applied;
    stats.shards.pushes_repeated += shard->counters().pushes_repeated;
    stats.shards.refused += shard->counters().refused;
    stats.rows_wrong += shard->CountWrongRows();
  }
  stats.sends = sends_.counts();
  stats.sends_lost = sends_.outstanding();
  stats.connections = accepted_;
  stats.cpu_s = CpuSeconds();
  return stats;
}

}  // namespace sluice_ps
