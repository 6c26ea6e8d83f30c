// SPDX-License-Identifier: Apache-2.0
// A channel's destinations: the map, connections and probes, and what comes from them.
#include <algorithm>

#include "libclient/rpc/channel.h"
#include "libclient/rpc/replica_choice.h"

namespace sluice::rpc {
namespace {

constexpr uint64_t kAskSourceNs = 100 * kNsPerMs;
constexpr uint64_t kFirstBackoffNs = 5 * kNsPerMs;
constexpr uint64_t kLongestBackoffNs = 500 * kNsPerMs;

QuarantineSettings SettingsOf(const Tuning& tuning) {
  QuarantineSettings settings;
  settings.connection_failures = tuning.quarantine_connection_failures;
  settings.request_failures = tuning.quarantine_request_failures;
  settings.window_ns = Ns(tuning.quarantine_window_ms);
  settings.first_probe_ns = 2 * Ns(tuning.settle_ms);
  settings.longest_probe_ns = Ns(tuning.longest_settle_ms);
  settings.return_ns = std::max<uint64_t>(Ns(tuning.return_ms), 1);
  settings.settle_ns = Ns(tuning.settle_ms);
  settings.panic_share = tuning.panic_share;
  return settings;
}

}  // namespace

ChannelImpl::ChannelImpl(EndpointImpl& endpoint, std::unique_ptr<Source> source)
    : endpoint_(endpoint), source_(std::move(source)), client_id_(endpoint.RandomNumber()) {
  endpoint_.Join(*this);
  AskSource(endpoint_.now_ns());
}

ChannelImpl::~ChannelImpl() {
  for (CallState& call : calls_) {
    if (call.active && call.request_out) call.request.Release();  // Goes with the channel below.
  }
  endpoint_.Leave(*this);
}

// ---- the map --------------------------------------------------------------------------------

void ChannelImpl::AskSource(uint64_t now_ns) {
  if (now_ns < ask_source_ns_) return;
  ask_source_ns_ = now_ns + kAskSourceNs;
  ServiceMap map;
  std::string error;
  if (source_->Next(map, error)) {
    Apply(map, now_ns);
    source_error_.clear();
    ++counters_.reloads;
  } else if (!error.empty()) {
    source_error_ = error;
    ++counters_.bad_reloads;
  }
}

void ChannelImpl::Apply(const ServiceMap& map, uint64_t now_ns) {
  map_ = map;
  quarantine_ = SettingsOf(map.tuning);
  budget_.Resize(map.tuning.retry_share, map.tuning.retry_reserve);
  for (const auto& destination : destinations_) destination->listed = false;
  for (Shard& shard : shards_) shard.replicas.clear();
  uint32_t shards = 0;
  for (const Replica& replica : map.replicas) {
    if (replica.shard < kMaxShards) shards = std::max(shards, replica.shard + 1);
  }
  shards_.resize(shards);
  for (const Replica& replica : map.replicas) {
    if (replica.shard >= shards || replicas(replica.shard) >= kMaxReplicas) continue;
    auto& list = shards_[replica.shard].replicas;
    list.push_back(DestinationOf(replica, static_cast<uint32_t>(list.size())));
  }
  std::erase_if(destinations_, [&](const auto& destination) {
    if (destination->listed || InUse(*destination)) return false;
    if (destination->socket != 0) sluice_close(endpoint_.channel(), destination->socket);
    by_socket_.erase(destination->socket);
    return true;
  });
  for (const auto& destination : destinations_) {
    if (destination->listed && destination->state == Destination::State::kDown) {
      Connect(*destination, now_ns);
    }
  }
}

// The one that is known already, with its connection and its health, or a new one.
Destination* ChannelImpl::DestinationOf(const Replica& replica, uint32_t index) {
  const auto known = std::ranges::find_if(destinations_, [&](const auto& one) {
    return !one->listed && one->shard == replica.shard && one->address == replica.address;
  });
  Destination* const former = known == destinations_.end() ? nullptr : known->get();
  if (former == nullptr) destinations_.push_back(std::make_unique<Destination>());
  Destination& one = former == nullptr ? *destinations_.back() : *former;
  one.address = replica.address;
  one.domain = replica.domain;
  one.shard = replica.shard;
  one.index = index;
  one.distance = map_.domain.empty() ? 0 : DomainDistance(map_.domain, replica.domain);
  one.listed = true;
  return &one;
}

bool ChannelImpl::InUse(const Destination& destination) const {
  return destination.outstanding > 0 || std::ranges::any_of(calls_, [&](const CallState& call) {
           return call.active && call.only == &destination;
         });
}

// ---- connections ----------------------------------------------------------------------------

void ChannelImpl::Connect(Destination& destination, uint64_t now_ns) {
  if (now_ns < destination.connect_again_ns) return;  // A turn soon will.
  destination.backoff_ns = std::clamp(destination.backoff_ns * 2, kFirstBackoffNs,
                                      kLongestBackoffNs);
  destination.connect_again_ns = now_ns + destination.backoff_ns;
  const int result = sluice_connect(endpoint_.channel(), destination.address.c_str(), 0,
                                    &destination.socket);
  if (result == -ENOTCONN || result == -EAGAIN) {  // Our own daemon's trouble, and no one else's.
    destination.socket = 0;
    return;
  }
  if (result != 0) {
    destination.socket = 0;
    return ConnectFailed(destination, now_ns);
  }
  destination.state = Destination::State::kConnecting;
  destination.connect_by_ns = now_ns + Ns(map_.tuning.connect_timeout_ms);
  endpoint_.Own(destination.socket, *this);
  by_socket_[destination.socket] = &destination;
}

// Also of a connection that was there and is not any more: whatever waits looks elsewhere.
void ChannelImpl::ConnectFailed(Destination& destination, uint64_t now_ns) {
  ++counters_.connect_failures;
  by_socket_.erase(destination.socket);
  destination.state = Destination::State::kDown;
  destination.socket = 0;
  destination.instance = 0;
  destination.health.OnConnectionFailure(now_ns, quarantine_);
  const std::deque<uint64_t> waiting = std::exchange(destination.unsent, {});
  for (const uint64_t name : waiting) {
    CallState* call = Lookup(name);
    Attempt* attempt = call == nullptr ? nullptr : call->Find(static_cast<uint8_t>(name));
    if (attempt != nullptr && attempt->stage == Attempt::Stage::kUnsent) {
      AttemptOver(*call, *attempt, Code::kFailed, now_ns);
    }
  }
}

void ChannelImpl::Lost(Destination& destination, uint64_t now_ns) {
  ConnectFailed(destination, now_ns);
  for (CallState& call : calls_) {
    if (!call.active) continue;
    for (Attempt& attempt : call.attempts) {
      if (attempt.stage == Attempt::Stage::kSent && attempt.destination == &destination) {
        AttemptOver(call, attempt, Code::kUnknown, now_ns);
      }
    }
  }
}

void ChannelImpl::OnConnected(Destination& destination, const sluice_event& event,
                              uint64_t now_ns) {
  if (event.outcome != SLUICE_OK) return ConnectFailed(destination, now_ns);
  destination.state = Destination::State::kUp;
  destination.backoff_ns = 0;
  Flush(destination, now_ns);
}

void ChannelImpl::Flush(Destination& destination, uint64_t now_ns) {
  while (destination.state == Destination::State::kUp && !destination.unsent.empty()) {
    const uint64_t name = destination.unsent.front();
    CallState* call = Lookup(name);
    Attempt* attempt = call == nullptr ? nullptr : call->Find(static_cast<uint8_t>(name));
    const bool waits = attempt != nullptr && attempt->stage == Attempt::Stage::kUnsent;
    if (waits && !SendAttempt(*call, *attempt, now_ns)) return;
    destination.unsent.pop_front();
  }
}

// A call that asks nothing. Its deadline.
uint64_t ChannelImpl::Ping(Destination& destination, const Done& done, uint64_t now_ns) {
  ++counters_.probes;
  CallOptions options;
  options.deadline_ns = now_ns + Ns(map_.tuning.connect_timeout_ms) +
                        Ns(map_.tuning.request_timeout_ms) + kNsPerMs;
  Begin({.id = kPingMethod}, destination.shard, &destination, {}, done, options, true);
  return options.deadline_ns;
}

void ChannelImpl::Probe(Destination& destination, uint64_t now_ns) {
  destination.health.OnProbeSent();
  destination.connect_again_ns = std::min(destination.connect_again_ns, now_ns);
  Destination* probed = &destination;
  const auto done = [this, probed](const Result& result) {
    // The map may have dropped it meanwhile.
    if (std::ranges::any_of(destinations_, [&](const auto& one) { return one.get() == probed; })) {
      probed->health.OnProbe(result.code == Code::kOk, endpoint_.now_ns(), quarantine_);
    }
  };
  Ping(destination, done, now_ns);
}

// Others are preferred to a degraded replica, so its calls may never tell that it is back on RDMA.
// When to ask next.
uint64_t ChannelImpl::AskPath(Destination& destination, uint64_t now_ns) {
  const bool asks = destination.degraded && destination.listed &&
                    destination.state == Destination::State::kUp;
  if (!asks) return kNever;
  if (now_ns >= destination.ask_path_ns) {
    const uint64_t over_ns = Ping(destination, nullptr, now_ns);
    destination.ask_path_ns = std::max(over_ns, now_ns + Ns(map_.tuning.settle_ms));
  }
  return destination.ask_path_ns;
}

uint64_t ChannelImpl::TurnOf(Destination& destination, uint64_t now_ns) {
  uint64_t due = kNever;
  if (destination.state == Destination::State::kConnecting) {
    if (now_ns >= destination.connect_by_ns) {
      sluice_close(endpoint_.channel(), destination.socket);
      ConnectFailed(destination, now_ns);
    } else {
      due = destination.connect_by_ns;
    }
  }
  Flush(destination, now_ns);
  if (!destination.unsent.empty()) {
    if (destination.state == Destination::State::kDown) Connect(destination, now_ns);
    due = std::min(due, destination.state == Destination::State::kDown
                            ? std::max(destination.connect_again_ns, now_ns + kNsPerMs)
                            : now_ns + kNsPerMs);
  }
  if (destination.listed && destination.health.ProbeDue(now_ns)) Probe(destination, now_ns);
  due = std::min(due, AskPath(destination, now_ns));
  return std::min(due, destination.health.probe_at_ns());
}

// ---- events ---------------------------------------------------------------------------------

void ChannelImpl::OnEvent(const sluice_event& event, uint64_t now_ns) {
  const auto found = by_socket_.find(event.socket);
  if (found != by_socket_.end()) {
    found->second->degraded = (event.flags & SLUICE_EVENT_DEGRADED_TCP) != 0;
  }
  if (event.type == SLUICE_EVENT_SENT) return OnSent(event, now_ns);
  if (event.type == SLUICE_EVENT_REATTACHED) {
    for (const auto& destination : destinations_) {
      destination->connect_again_ns = 0;
      if (destination->state == Destination::State::kDown) Connect(*destination, now_ns);
    }
    return;
  }
  if (found == by_socket_.end()) {  // Of a socket that was given up.
    if (event.type == SLUICE_EVENT_MESSAGE) sluice_free(endpoint_.channel(), event.data);
    return;
  }
  Destination& destination = *found->second;
  switch (event.type) {
    case SLUICE_EVENT_CONNECTED: OnConnected(destination, event, now_ns); break;
    case SLUICE_EVENT_CLOSED: Lost(destination, now_ns); break;
    case SLUICE_EVENT_MESSAGE: OnMessage(destination, event, now_ns); break;
    default: break;
  }
}

void ChannelImpl::OnSent(const sluice_event& event, uint64_t now_ns) {
  CallState* call = Lookup(event.user_data);
  if (event.data != nullptr) {  // A request's buffer is ours again.
    if (call != nullptr && call->request_out) {
      call->request_out = false;
    } else {
      sluice_free(endpoint_.channel(), event.data);
    }
  }
  if (event.outcome == SLUICE_OK || call == nullptr) return;
  Attempt* attempt = call->Find(static_cast<uint8_t>(event.user_data));
  if (attempt == nullptr || attempt->stage != Attempt::Stage::kSent) return;
  AttemptOver(*call, *attempt, event.outcome == SLUICE_FAILED ? Code::kFailed : Code::kUnknown,
              now_ns);
}

void ChannelImpl::OnMessage(Destination& destination, const sluice_event& event, uint64_t now_ns) {
  Payload message(endpoint_.channel(), event.data, 0, event.length);
  const auto parsed = Parse({static_cast<const std::byte*>(event.data), event.length});
  const auto* reply = parsed ? std::get_if<ReplyHeader>(&parsed->header) : nullptr;
  if (reply != nullptr && reply->code < kCodes) {
    Payload payload(endpoint_.channel(), message.Release(), parsed->payload_offset,
                    event.length - parsed->payload_offset);
    return OnReply(destination, *reply, std::move(payload), now_ns);
  }
  if (parsed && parsed->prefix().kind == Kind::kHello) {
    destination.instance = static_cast<uint32_t>(parsed->prefix().call);
    return;
  }
  ++counters_.rubbish;  // Whoever this is, it does not speak our language.
  sluice_close(endpoint_.channel(), destination.socket);
  Lost(destination, now_ns);
}

void ChannelImpl::OnReply(Destination& destination, const ReplyHeader& header, Payload payload,
                          uint64_t now_ns) {
  CallState* call = Lookup(header.prefix.call);
  Attempt* attempt = call == nullptr ? nullptr : call->Find(header.prefix.attempt);
  if (attempt == nullptr || attempt->destination != &destination ||
      attempt->stage != Attempt::Stage::kSent) {
    ++counters_.late_replies;  // Its call is over: it was given up, or this is a second reply.
    return;
  }
  const auto code = static_cast<Code>(header.code);
  if (code != Code::kOk && code != Code::kApplication) {
    return AttemptOver(*call, *attempt, code, now_ns);
  }
  destination.health.OnSuccess();
  if (header.part != 0 || (header.prefix.flags & kMoreFollows) != 0) {
    if (header.part != call->parts ||
        (call->parts > 0 && call->stream_attempt != attempt->number) || !call->on_part) {
      return AttemptOver(*call, *attempt, Code::kUnknown, now_ns);  // A part is missing.
    }
    if ((header.prefix.flags & kMoreFollows) != 0) {
      return OnPart(*call, *attempt, header, std::move(payload), now_ns);
    }
  }
  if (call->parts == 0 && !call->probe) latency_.Add(now_ns - call->begun_ns);
  counters_.hedges_won += attempt->hedge ? 1 : 0;
  attempt->stage = Attempt::Stage::kNone;  // It needs no cancel.
  --destination.outstanding;
  End(*call, code, std::move(payload), static_cast<int>(destination.index));
}

void ChannelImpl::OnPart(CallState& call, Attempt& attempt, const ReplyHeader& header,
                         Payload payload, uint64_t now_ns) {
  call.parts = header.part + 1;
  call.stream_attempt = attempt.number;
  attempt.timeout_ns = now_ns + Ns(map_.tuning.request_timeout_ms);
  const auto on_part = call.on_part;  // A copy: the callback may end the call.
  on_part(std::move(payload));
}

}  // namespace sluice::rpc
