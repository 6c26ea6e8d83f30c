// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <csignal>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "endpoint.h"
#include "ledger.h"
#include "shard.h"

namespace sluice_ps {

struct ServerOptions {
  std::string socket_path;
  std::string name = "sluice-ps server";
  uint16_t service = 0;      // Of the first shard; each further one listens on the next.
  uint32_t first_shard = 0;  // Of the shards that this process holds.
  uint32_t last_shard = 0;
  TableShape shape;
};

struct ServerStats {
  ShardCounters shards;  // Summed.
  OutcomeCounts sends;
  uint64_t sends_lost = 0;
  uint64_t connections = 0;
  uint64_t rows_wrong = 0;  // Found in the tables at the end.
  double cpu_s = 0;
};

// Serves shards of the table to whoever connects, with one thread. A connection whose replies do
// not get away keeps its requests waiting and delays nobody else. Invariant: replies leave in the
// order of their connection's requests.
class Server {
 public:
  Server(Endpoint& endpoint, const ServerOptions& options);
  ~Server();

  bool Listen();                                     // Says on stderr why it failed.
  void Run(const volatile std::sig_atomic_t& stop);  // Until `stop`.
  void RunOnce(int timeout_ms);
  ServerStats Finish();

 private:
  struct Message {
    void* data;
    size_t bytes;
  };
  struct Connection {
    sluice_socket socket = 0;
    Shard* shard = nullptr;
    std::deque<Message> requests;
    Message reply{nullptr, 0};  // Made and not yet sent.
    std::array<std::byte, sizeof(ReplyHeader)>
        small_reply;  // Where a reply without values is made.
    bool blocked = false;
  };

  void OnEvent(const sluice_event& event);
  void OnAccepted(const sluice_event& event);
  void Serve(Connection& connection);
  bool MakeReply(Connection& connection);
  int SendReply(Connection& connection);
  void Drop(Connection& connection);

  Endpoint& endpoint_;
  ServerOptions options_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::unordered_map<sluice_socket, std::unique_ptr<Connection>> connections_;
  std::vector<sluice_socket> blocked_;
  OutcomeLedger sends_;
  uint64_t accepted_ = 0;
};

}  // namespace sluice_ps
