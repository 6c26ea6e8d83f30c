// SPDX-License-Identifier: Apache-2.0
#include "libclient/rpc/channel.h"

#include <algorithm>

namespace sluice::rpc {
namespace {

constexpr uint32_t kMaxSlots = 1 << 24;
}  // namespace

CallId ChannelImpl::IdOf(const CallState& call) const {
  return CallName{call.generation, call.slot}.id();
}

CallState* ChannelImpl::Lookup(CallId id) {
  const CallName name = CallName::Of(id);
  if (name.slot >= calls_.size()) return nullptr;
  CallState& call = calls_[name.slot];
  return call.active && call.generation == name.generation ? &call : nullptr;
}

CallState& ChannelImpl::NewCall(CallId& id) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(calls_.size()));
    calls_.emplace_back().slot = free_.back();
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  CallState& call = calls_[slot];
  const uint32_t generation = call.generation + 1;
  call = CallState();
  call.slot = slot;
  call.generation = generation;
  call.active = true;
  ++active_;
  id = IdOf(call);
  return call;
}

CallId ChannelImpl::Call(const Method& method, uint32_t shard, Payload request, Done done,
                         const CallOptions& options) {
  Destination* only = nullptr;
  if (options.replica >= 0) {
    const auto replica = static_cast<uint32_t>(options.replica);
    // One that does not exist: as a shard that does not.
    if (replica >= replicas(shard)) shard = UINT32_MAX;
    if (shard != UINT32_MAX) only = shards_[shard].replicas[replica];
  }
  return Begin(method, shard, only, std::move(request), std::move(done), options, false);
}

CallId ChannelImpl::Begin(const Method& method, uint32_t shard, Destination* only, Payload request,
                          Done done, const CallOptions& options, bool probe) {
  const uint64_t now = endpoint_.now_ns();
  const bool full = active_ >= std::min(map_.tuning.max_outstanding, kMaxSlots - 1) && !probe;
  CallId id;
  CallState& call = NewCall(id);
  call.method = method;
  call.shard = shard;
  call.only = only;
  call.probe = probe;
  call.request = std::move(request);
  call.done = std::move(done);
  call.on_part = options.on_part;
  call.begun_ns = now;
  call.deadline_ns = options.deadline_ns != 0 ? options.deadline_ns
                                              : now + Ns(map_.tuning.deadline_ms);
  call.trace_id = options.trace_id != 0 ? options.trace_id : endpoint_.RandomNumber();
  if (full) return EndSoon(call, Code::kOverloaded, now), id;
  if (now >= call.deadline_ns) return EndSoon(call, Code::kDeadline, now), id;
  if (shard >= shards_.size()) return EndSoon(call, Code::kFailed, now), id;
  if (method.token) {
    call.sequence = next_sequence_++;
    tokens_.insert(tokens_.end(), call.sequence);
  }
  if (method.idempotent && !call.on_part && map_.tuning.hedge_percentile > 0) {
    const uint64_t slow_ns = latency_.PercentileNs(map_.tuning.hedge_percentile);
    if (slow_ns != 0) call.hedge_ns = now + slow_ns;
  }
  if (!probe) budget_.OnRequest();
  Launch(call, false, false, now);
  SetTimer(call);
  return id;
}

bool ChannelImpl::Cancel(CallId id) {
  CallState* call = Lookup(id);
  if (call == nullptr || call->end_code != Code::kOk) return false;
  EndSoon(*call, Code::kCancelled, endpoint_.now_ns());
  return true;
}

// ---- the end --------------------------------------------------------------------------------

// With the next turn, so that whoever is at work on the call may finish; a reply may still change
// it.
void ChannelImpl::EndSoon(CallState& call, Code code, uint64_t now_ns) {
  if (call.end_code != Code::kOk) return;
  call.end_code = code;
  timers_.emplace(now_ns, IdOf(call));
}

void ChannelImpl::End(CallState& call, Code code, Payload payload, int replica) {
  const bool carried_out = code == Code::kOk || code == Code::kApplication;
  const bool may_have = call.may_have_run || call.AnySent();
  Result result;
  result.code = code;
  result.outcome = carried_out ? SLUICE_OK : may_have ? SLUICE_UNKNOWN : SLUICE_FAILED;
  result.payload = std::move(payload);
  result.attempts = call.attempts_made;
  result.replica = replica;
  for (Attempt& attempt : call.attempts) {
    if (attempt.stage != Attempt::Stage::kNone) Forget(call, attempt, true);
  }
  if (call.request_out) call.request.Release();  // Freed with its SENT.
  call.request.Reset();
  if (call.sequence != 0) tokens_.erase(call.sequence);
  if (!call.probe && call.shard < shards_.size()) {
    ++shards_[call.shard].ended[static_cast<size_t>(code)];
  }
  const Done done = std::move(call.done);
  call.on_part = nullptr;
  call.active = false;
  --active_;
  free_.push_back(call.slot);
  if (done) done(std::move(result));  // Last: it may do anything, to this channel too.
}

// ---- time -----------------------------------------------------------------------------------

uint64_t ChannelImpl::NextDue(const CallState& call) const {
  uint64_t due = call.deadline_ns;
  if (call.retry_ns != 0) due = std::min(due, call.retry_ns);
  if (call.hedge_ns != 0) due = std::min(due, call.hedge_ns);
  for (const Attempt& attempt : call.attempts) {
    if (attempt.stage != Attempt::Stage::kNone && !attempt.timed_out) {
      due = std::min(due, attempt.timeout_ns);
    }
  }
  return due;
}

void ChannelImpl::SetTimer(const CallState& call) {
  if (call.active) timers_.emplace(NextDue(call), IdOf(call));
}

void ChannelImpl::HandleDue(CallState& call, uint64_t now_ns) {
  if (call.end_code != Code::kOk) return End(call, call.end_code, {}, -1);
  if (now_ns >= call.deadline_ns) return End(call, Code::kDeadline, {}, -1);
  for (Attempt& attempt : call.attempts) {
    if (attempt.stage == Attempt::Stage::kNone || attempt.timed_out ||
        now_ns < attempt.timeout_ns) {
      continue;
    }
    AttemptTimedOut(call, attempt, now_ns);
  }
  if (call.hedge_ns != 0 && now_ns >= call.hedge_ns) {
    call.hedge_ns = 0;
    const bool single = call.attempts_made == 1 && replicas(call.shard) > 1 && call.only == nullptr;
    if (single && budget_.Take()) {
      ++counters_.hedges;
      Launch(call, true, true, now_ns);
    }
  }
  if (call.retry_ns != 0 && now_ns >= call.retry_ns) Retry(call, now_ns);
  SetTimer(call);
}

uint64_t ChannelImpl::OnTurn(uint64_t now_ns) {
  AskSource(now_ns);
  uint64_t due = ask_source_ns_;
  // Replies to a busy channel leave timers behind: they go when they come due, or when they are
  // many.
  for (size_t budget = timers_.size(); budget > 0 && !timers_.empty(); --budget) {
    const auto [at, id] = timers_.top();
    CallState* call = Lookup(id);
    if (call != nullptr && at > now_ns) break;
    timers_.pop();
    if (call != nullptr) HandleDue(*call, now_ns);
  }
  if (!timers_.empty()) due = std::min(due, timers_.top().first);
  for (size_t i = 0; i < destinations_.size(); ++i) {
    due = std::min(due, TurnOf(*destinations_[i], now_ns));
  }
  return due;
}

}  // namespace sluice::rpc
