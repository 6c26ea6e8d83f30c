// SPDX-License-Identifier: Apache-2.0
// The attempts of a call: where they go, how they are sent, and what follows when one fails.
#include <algorithm>

#include "libclient/rpc/channel.h"
#include "libclient/rpc/replica_choice.h"

namespace sluice::rpc {
namespace {

constexpr size_t kCopiedBytes = 1024;  // Up to here a copy costs less than a buffer in flight.
constexpr uint64_t kNsPerUs = 1000;
constexpr uint64_t kRetryBackoffNs = 2 * kNsPerMs;  // Before the first retry; then it doubles.
constexpr uint32_t kMaxBackoffDoublings = 5;
constexpr uint64_t kBudgetWaitNs = 10 * kNsPerMs;
constexpr uint8_t kMaxAttempts = 250;  // A byte of the message.

}  // namespace

Destination* ChannelImpl::ChooseDestination(const CallState& call, uint64_t now_ns) {
  if (call.only != nullptr) return call.only;
  if (call.shard >= shards_.size()) return nullptr;  // A new map has fewer.
  const auto& replicas = shards_[call.shard].replicas;
  std::array<Candidate, kMaxReplicas> candidates;
  const size_t count = std::min(replicas.size(), candidates.size());
  for (size_t i = 0; i < count; ++i) {
    const Destination& one = *replicas[i];
    candidates[i] = {
        .distance = one.distance,
        .outstanding = one.outstanding,
        .load_share = one.health.LoadShare(now_ns, quarantine_),
        .doubted = one.health.state(now_ns, quarantine_) == Quarantine::State::kDoubted,
        .degraded = one.degraded,
        .tried = (call.tried_replicas >> i & 1) != 0,
        .usable = true};
  }
  const auto choice = Choose(std::span(candidates).first(count), map_.tuning.panic_share,
                             endpoint_.Random());
  return choice ? replicas[*choice] : nullptr;
}

void ChannelImpl::Launch(CallState& call, bool hedge, bool budgeted, uint64_t now_ns) {
  Destination* destination = ChooseDestination(call, now_ns);
  if (destination == nullptr) return EndSoon(call, Code::kFailed, now_ns);
  auto free = std::ranges::find(call.attempts, Attempt::Stage::kNone, &Attempt::stage);
  if (free == call.attempts.end()) {  // The oldest is listened to no longer.
    free = std::ranges::min_element(call.attempts, {}, &Attempt::number);
    call.may_have_run |= free->stage == Attempt::Stage::kSent;
    Forget(call, *free, true);
  }
  *free = {.stage = Attempt::Stage::kUnsent,
           .number = call.attempts_made++,
           .hedge = hedge,
           .budgeted = budgeted,
           .destination = destination,
           .timeout_ns = now_ns + Ns(map_.tuning.request_timeout_ms)};
  call.tried_replicas |= uint64_t{1} << std::min(destination->index, kMaxReplicas - 1);
  ++counters_.attempts;
  ++destination->chosen;
  ++destination->outstanding;
  const bool ready = destination->state == Destination::State::kUp && destination->unsent.empty();
  if (ready && SendAttempt(call, *free, now_ns)) return;
  destination->unsent.push_back(IdOf(call) | free->number);
  if (destination->state == Destination::State::kDown) Connect(*destination, now_ns);
}

// False: not sent, and it is not over either: there is no room.
bool ChannelImpl::SendAttempt(CallState& call, Attempt& attempt, uint64_t now_ns) {
  const int result = SendMessage(call, attempt, now_ns);
  if (result == -EAGAIN || result == -ENOMEM) return false;
  if (result != 0) {
    AttemptOver(call, attempt, result == -EMSGSIZE ? Code::kMalformed : Code::kFailed, now_ns);
    return true;
  }
  if (!call.may_have_run && !call.AnySent()) call.first_instance = attempt.destination->instance;
  attempt.stage = Attempt::Stage::kSent;
  attempt.timeout_ns = now_ns + Ns(map_.tuning.request_timeout_ms);
  ++call.attempts_sent;
  return true;
}

int ChannelImpl::SendMessage(CallState& call, const Attempt& attempt, uint64_t now_ns) {
  RequestHeader header;
  header.prefix.call = IdOf(call);
  header.prefix.attempt = attempt.number;
  header.method = call.method.id;
  const uint64_t left_us = call.deadline_ns > now_ns ? (call.deadline_ns - now_ns) / kNsPerUs : 0;
  header.remaining_us = static_cast<uint32_t>(std::clamp<uint64_t>(left_us, 1, UINT32_MAX));
  if (call.sequence != 0) {
    header.client = client_id_;
    header.sequence = call.sequence;
    header.incomplete_span = static_cast<uint32_t>(
        std::min<uint64_t>(call.sequence - *tokens_.begin(), UINT32_MAX));
    if (call.may_have_run || call.AnySent()) {
      header.prefix.flags = kMayHaveRun;
      header.instance = call.first_instance;
    }
  }
  sluice_channel* channel = endpoint_.channel();
  const sluice_socket socket = attempt.destination->socket;
  const size_t bytes = sizeof(header) + call.request.size();
  const uint64_t name = IdOf(call) | attempt.number;
  if (!call.request) {
    std::array<std::byte, sizeof(header)> room;
    Write(header, room);
    return sluice_send_copy(channel, socket, room.data(), bytes, SLUICE_SEND_SILENT, name,
                            call.trace_id);
  }
  void* start;
  if (call.request_out) {  // The first attempt's buffer is still on its way: another one.
    Payload copy = endpoint_.Copy(call.request.data(), call.request.size());
    if (!copy) return -ENOMEM;
    Prepend(endpoint_, header, copy, start);
    const int result = sluice_send(channel, socket, start, bytes, SLUICE_SEND_SILENT, name,
                                   call.trace_id);
    if (result == 0) copy.Release();
    return result;
  }
  if (!Prepend(endpoint_, header, call.request, start)) return -ENOMEM;
  if (bytes <= kCopiedBytes) {
    return sluice_send_copy(channel, socket, start, bytes, SLUICE_SEND_SILENT, name, call.trace_id);
  }
  const int result = sluice_send(channel, socket, start, bytes, SLUICE_SEND_KEEP, name,
                                 call.trace_id);
  call.request_out = result == 0;
  return result;
}

void ChannelImpl::AttemptTimedOut(CallState& call, Attempt& attempt, uint64_t now_ns) {
  if (attempt.stage == Attempt::Stage::kUnsent) {
    return AttemptOver(call, attempt, Code::kFailed, now_ns);
  }
  attempt.timed_out = true;  // Yet a late reply is still a reply.
  ++counters_.timeouts;
  if (call.probe) return;
  ++attempt.destination->failures;
  attempt.destination->health.OnRequestFailure(now_ns, quarantine_);
  if (!call.method.idempotent) call.only = attempt.destination;  // Only that server can tell.
  if (endpoint_.Random() < map_.tuning.retry_probability) {
    RetryOrWait(call, Code::kUnknown, now_ns);
  }
}

// An attempt has come to an end that is not the call's.
void ChannelImpl::AttemptOver(CallState& call, Attempt& attempt, Code code, uint64_t now_ns) {
  Destination& destination = *attempt.destination;
  if (code == Code::kUnknown || code == Code::kForgotten) {
    call.may_have_run = true;
    if (!call.method.idempotent) call.only = &destination;
  }
  const bool sick = code == Code::kFailed || code == Code::kUnknown || code == Code::kNotServing;
  if (attempt.stage == Attempt::Stage::kSent && sick && !attempt.timed_out && !call.probe) {
    ++destination.failures;
    destination.health.OnRequestFailure(now_ns, quarantine_);
  }
  Forget(call, attempt, false);
  RetryOrWait(call, code, now_ns);
}

bool ChannelImpl::RetryIsSafe(const CallState& call, Code code) const {
  if (code == Code::kNoMethod || code == Code::kMalformed || code == Code::kForgotten) return false;
  if (call.probe || call.parts > 0 || call.end_code != Code::kOk) return false;
  if (call.attempts_made >= kMaxAttempts || call.attempts_sent >= map_.tuning.max_attempts) {
    return false;
  }
  const bool may_have_run = call.may_have_run || call.AnySent();
  return !may_have_run || call.method.idempotent || call.sequence != 0;
}

// After an attempt failed, or took too long.
void ChannelImpl::RetryOrWait(CallState& call, Code code, uint64_t now_ns) {
  // What may have been done is worth telling before what certainly was not.
  const auto told = [](Code one) { return one == Code::kUnknown || one == Code::kForgotten; };
  if (told(code) || !told(call.last_code)) call.last_code = code;
  if (call.retry_ns == 0 && RetryIsSafe(call, code)) {
    // Another replica is tried at once, the same one not.
    const bool elsewhere = call.only == nullptr && call.attempts_made < replicas(call.shard);
    call.retry_ns = elsewhere ? now_ns + 1 : now_ns + BackoffNs(call);
    SetTimer(call);
  }
  if (call.retry_ns == 0 && !call.AnyLive()) EndSoon(call, call.last_code, now_ns);
}

uint64_t ChannelImpl::BackoffNs(const CallState& call) {
  const uint32_t doublings = std::min<uint32_t>(call.attempts_made - 1u, kMaxBackoffDoublings);
  const double jitter = 0.5 + endpoint_.Random();
  return static_cast<uint64_t>(static_cast<double>(kRetryBackoffNs << doublings) * jitter);
}

// A retry is due. While the budget has nothing for it, it waits; what was never sent needs no
// budget.
void ChannelImpl::Retry(CallState& call, uint64_t now_ns) {
  const bool budgeted = call.attempts_sent > 0;
  if (budgeted && !budget_.Take()) {
    ++counters_.over_budget;
    call.retry_ns = now_ns + kBudgetWaitNs;
    return;
  }
  call.retry_ns = 0;
  ++counters_.retries;
  Launch(call, false, budgeted, now_ns);
}

// The attempt is not listened to any longer.
void ChannelImpl::Forget(CallState& call, Attempt& attempt, bool cancel) {
  Destination& destination = *attempt.destination;
  if (cancel && attempt.stage == Attempt::Stage::kSent &&
      destination.state == Destination::State::kUp) {
    ShortHeader header;
    header.prefix.kind = Kind::kCancel;
    header.prefix.call = IdOf(call);
    header.prefix.attempt = attempt.number;
    std::array<std::byte, sizeof(header)> bytes;
    Write(header, bytes);
    // A courtesy: where there is no room the server works in vain until the deadline.
    (void)sluice_send_copy(endpoint_.channel(), destination.socket, bytes.data(), bytes.size(),
                           SLUICE_SEND_SILENT, 0, call.trace_id);
  }
  if (attempt.budgeted && attempt.stage == Attempt::Stage::kUnsent) budget_.Return();
  --destination.outstanding;
  attempt.stage = Attempt::Stage::kNone;
}

}  // namespace sluice::rpc
