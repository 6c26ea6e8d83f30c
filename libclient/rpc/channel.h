// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <queue>
#include <set>
#include <sluice/rpc.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libclient/rpc/call.h"
#include "libclient/rpc/endpoint.h"
#include "libclient/rpc/latency_window.h"
#include "libclient/rpc/retry_budget.h"
#include "libclient/rpc/wire.h"

namespace sluice::rpc {

// Calls a service: which replica, how often, until when.
// Invariant: an active call has a live attempt, a retry that waits or an end that is due, and a
// timer no later than whatever of it is due next. A destination's `outstanding` is the number of
// live attempts that point at it. Thread: its endpoint's. Owns: the calls and their requests, the
// destinations.
class ChannelImpl final : public Member {
 public:
  ChannelImpl(EndpointImpl& endpoint, std::unique_ptr<Source> source);
  ~ChannelImpl() override;

  // only: nullptr, or the one destination.
  CallId Begin(const Method& method, uint32_t shard, Destination* only, Payload request, Done done,
               const CallOptions& options, bool probe);
  CallId Call(const Method& method, uint32_t shard, Payload request, Done done,
              const CallOptions& options);
  bool Cancel(CallId call);

  uint32_t shards() const { return static_cast<uint32_t>(shards_.size()); }
  uint32_t replicas(uint32_t shard) const;
  bool connected(uint32_t shard, uint32_t replica) const;
  std::string MetricsText() const;
  std::string Explain() const;
  EndpointImpl& endpoint() { return endpoint_; }

  void OnEvent(const sluice_event& event, uint64_t now_ns) override;
  uint64_t OnTurn(uint64_t now_ns) override;

 private:
  struct Shard {
    std::vector<Destination*> replicas;
    std::array<uint64_t, kCodes> ended{};
  };
  struct Counters {
    uint64_t attempts = 0, retries = 0, hedges = 0, hedges_won = 0, timeouts = 0;
    uint64_t connect_failures = 0, late_replies = 0, rubbish = 0, over_budget = 0, probes = 0;
    uint64_t reloads = 0, bad_reloads = 0;
  };
  using Timer = std::pair<uint64_t, CallId>;

  // channel.cc and attempts.cc: the life of a call.
  CallState* Lookup(CallId call);
  CallState& NewCall(CallId& id);
  void Launch(CallState& call, bool hedge, bool budgeted, uint64_t now_ns);
  Destination* ChooseDestination(const CallState& call, uint64_t now_ns);
  bool SendAttempt(CallState& call, Attempt& attempt, uint64_t now_ns);
  int SendMessage(CallState& call, const Attempt& attempt, uint64_t now_ns);
  void AttemptTimedOut(CallState& call, Attempt& attempt, uint64_t now_ns);
  void AttemptOver(CallState& call, Attempt& attempt, Code code, uint64_t now_ns);
  bool RetryIsSafe(const CallState& call, Code code) const;
  void RetryOrWait(CallState& call, Code code, uint64_t now_ns);
  uint64_t BackoffNs(const CallState& call);
  void Retry(CallState& call, uint64_t now_ns);
  void Forget(CallState& call, Attempt& attempt, bool cancel);
  void End(CallState& call, Code code, Payload payload, int replica);
  void EndSoon(CallState& call, Code code, uint64_t now_ns);
  void HandleDue(CallState& call, uint64_t now_ns);
  void SetTimer(const CallState& call);
  uint64_t NextDue(const CallState& call) const;
  CallId IdOf(const CallState& call) const;

  // channel_events.cc: destinations, and what comes from them.
  void Apply(const ServiceMap& map, uint64_t now_ns);
  void AskSource(uint64_t now_ns);
  void Connect(Destination& destination, uint64_t now_ns);
  void ConnectFailed(Destination& destination, uint64_t now_ns);
  void Lost(Destination& destination, uint64_t now_ns);
  void OnConnected(Destination& destination, const sluice_event& event, uint64_t now_ns);
  void OnSent(const sluice_event& event, uint64_t now_ns);
  void OnMessage(Destination& destination, const sluice_event& event, uint64_t now_ns);
  void OnReply(Destination& destination, const ReplyHeader& header, Payload payload,
               uint64_t now_ns);
  void OnPart(CallState& call, Attempt& attempt, const ReplyHeader& header, Payload payload,
              uint64_t now_ns);
  void Flush(Destination& destination, uint64_t now_ns);
  uint64_t Ping(Destination& destination, const Done& done, uint64_t now_ns);
  void Probe(Destination& destination, uint64_t now_ns);
  uint64_t AskPath(Destination& destination, uint64_t now_ns);
  Destination* DestinationOf(const Replica& replica, uint32_t index);
  bool InUse(const Destination& destination) const;
  uint64_t TurnOf(Destination& destination, uint64_t now_ns);

  EndpointImpl& endpoint_;
  std::unique_ptr<Source> source_;
  std::string source_error_;
  uint64_t ask_source_ns_ = 0;
  ServiceMap map_;
  QuarantineSettings quarantine_;
  std::vector<std::unique_ptr<Destination>> destinations_;
  std::vector<Shard> shards_;
  std::unordered_map<sluice_socket, Destination*> by_socket_;
  std::deque<CallState> calls_;  // Never shrinks, so that references stay.
  std::vector<uint32_t> free_;
  uint32_t active_ = 0;
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  std::set<uint64_t> tokens_;  // Sequences of calls that are not over.
  uint64_t client_id_;
  uint64_t next_sequence_ = 1;
  RetryBudget budget_{0, 0};
  LatencyWindow latency_;
  Counters counters_;
};

}  // namespace sluice::rpc
