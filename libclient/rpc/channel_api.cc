// SPDX-License-Identifier: Apache-2.0
// What an application sees of a channel: fan-out, futures, metrics, explanations.
#include <algorithm>

#include "libclient/rpc/channel.h"

namespace sluice::rpc {
namespace {

const char* NameOf(Quarantine::State state) {
  switch (state) {
    case Quarantine::State::kGood: return "good";
    case Quarantine::State::kDoubted: return "doubted: others are preferred until a probe succeeds";
    case Quarantine::State::kExcluded: return "in quarantine: nothing but probes";
    case Quarantine::State::kReturning: return "returning from quarantine";
  }
  return "?";
}

const char* NameOf(Destination::State state) {
  switch (state) {
    case Destination::State::kDown: return "not connected";
    case Destination::State::kConnecting: return "connecting";
    case Destination::State::kUp: return "connected";
  }
  return "?";
}

// One fan-out until its end. Every call's callback holds it.
struct Gathering {
  Channel* channel;
  uint32_t need = 0;
  bool wait_for_all = true;
  uint32_t ok = 0;
  uint32_t left = 0;
  std::vector<CallId> calls;
  std::vector<Result> results;
  std::function<void(bool, std::vector<Result>)> done;

  void Take(size_t index, Result result) {
    ok += result.code == Code::kOk ? 1 : 0;
    --left;
    results[index] = std::move(result);
    calls[index] = 0;
    EndIfDecided();
  }
  void EndIfDecided() {
    const bool decided = ok >= need || ok + left < need;
    if (!done || (left > 0 && (wait_for_all || !decided))) return;
    const auto tell = std::exchange(done, nullptr);
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i] == 0) continue;
      channel->Cancel(calls[i]);
      results[i].code = Code::kCancelled;
    }
    tell(ok >= need, std::move(results));
  }
};

}  // namespace

uint32_t ChannelImpl::replicas(uint32_t shard) const {
  return shard < shards_.size() ? static_cast<uint32_t>(shards_[shard].replicas.size()) : 0;
}

bool ChannelImpl::connected(uint32_t shard, uint32_t replica) const {
  return replica < replicas(shard) &&
         shards_[shard].replicas[replica]->state == Destination::State::kUp;
}

std::string ChannelImpl::MetricsText() const {
  const std::string service = "service=\"" + map_.name + "\"";
  std::string text;
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    for (size_t code = 0; code < kCodes; ++code) {
      if (shards_[shard].ended[code] == 0) continue;
      text += "sluice_rpc_calls_total{" + service + ",shard=\"" + std::to_string(shard) +
              "\",code=\"" + CodeName(static_cast<Code>(code)) + "\"} " +
              std::to_string(shards_[shard].ended[code]) + "\n";
    }
  }
  const auto add = [&](const char* name, uint64_t value) {
    text += std::string("sluice_rpc_") + name + "{" + service + "} " + std::to_string(value) + "\n";
  };
  add("outstanding", active_);
  add("attempts_total", counters_.attempts);
  add("retries_total", counters_.retries);
  add("retries_over_budget_total", counters_.over_budget);
  add("hedges_total", counters_.hedges);
  add("hedges_won_total", counters_.hedges_won);
  add("timeouts_total", counters_.timeouts);
  add("connect_failures_total", counters_.connect_failures);
  add("late_replies_total", counters_.late_replies);
  add("rubbish_total", counters_.rubbish);
  add("probes_total", counters_.probes);
  add("reloads_total", counters_.reloads);
  add("bad_reloads_total", counters_.bad_reloads);
  return text;
}

std::string ChannelImpl::Explain() const {
  const uint64_t now = endpoint_.now_ns();
  std::string text = "service " + map_.name + (map_.domain.empty() ? "" : ", in " + map_.domain) +
                     "\n";
  if (!source_error_.empty()) text += "the last map was refused: " + source_error_ + "\n";
  for (const Shard& shard : shards_) {
    for (const Destination* one : shard.replicas) {
      text += "shard " + std::to_string(one->shard) + " replica " + std::to_string(one->index) +
              " " + one->address + ": " + NameOf(one->state) +
              (one->degraded ? " over TCP although RDMA is configured" : "") + ", " +
              NameOf(one->health.state(now, quarantine_)) + ", distance " +
              std::to_string(one->distance) + ", " + std::to_string(one->outstanding) +
              " outstanding, chosen " + std::to_string(one->chosen) + ", failed " +
              std::to_string(one->failures) + "\n";
    }
  }
  return text;
}

// ---- Channel --------------------------------------------------------------------------------

Channel::Channel(Endpoint& endpoint, std::unique_ptr<Source> source)
    : endpoint_(endpoint),
      impl_(std::make_unique<ChannelImpl>(endpoint.impl(), std::move(source))) {}
Channel::~Channel() = default;

CallId Channel::Call(const Method& method, uint32_t shard, Payload request, Done done,
                     const CallOptions& options) {
  return impl_->Call(method, shard, std::move(request), std::move(done), options);
}
bool Channel::Cancel(CallId call) { return impl_->Cancel(call); }
uint32_t Channel::shards() const { return impl_->shards(); }
uint32_t Channel::replicas(uint32_t shard) const { return impl_->replicas(shard); }
bool Channel::connected(uint32_t shard, uint32_t replica) const {
  return impl_->connected(shard, replica);
}
std::string Channel::MetricsText() const { return impl_->MetricsText(); }
std::string Channel::Explain() const { return impl_->Explain(); }

std::future<CopiedResult> Channel::CallFuture(const Method& method, uint32_t shard,
                                              std::string request, CallOptions options) {
  const auto promise = std::make_shared<std::promise<CopiedResult>>();
  const auto task = [this, promise, method, shard, request = std::move(request),
                     options = std::move(options)] {
    const auto done = [promise](const Result& result) {
      promise->set_value({result.code, result.outcome, result.text()});
    };
    Payload payload = endpoint_.Copy(request.data(), request.size());
    if (!payload) return promise->set_value({Code::kOverloaded, SLUICE_FAILED, ""});
    Call(method, shard, std::move(payload), done, options);
  };
  endpoint_.Post(task);
  return promise->get_future();
}

void Channel::FanOut(const Method& method, std::vector<Target> targets, const Gather& gather,
                     std::function<void(bool, std::vector<Result>)> done,
                     const CallOptions& options) {
  const auto gathering = std::make_shared<Gathering>();
  const auto count = static_cast<uint32_t>(targets.size());
  gathering->channel = this;
  gathering->need = gather.need == 0 ? count : gather.need;
  gathering->wait_for_all = gather.wait_for_all;
  gathering->left = count;
  gathering->calls.resize(count);
  gathering->results.resize(count);
  gathering->done = std::move(done);
  if (count == 0) return endpoint_.Post([gathering] { gathering->EndIfDecided(); });
  for (size_t i = 0; i < count; ++i) {
    CallOptions of_this = options;
    of_this.replica = targets[i].replica;
    // A call does not end before Call() returns, so every name is there when the first one ends.
    gathering->calls[i] = Call(
        method, targets[i].shard, std::move(targets[i].request),
        [gathering, i](Result result) { gathering->Take(i, std::move(result)); }, of_this);
  }
}

}  // namespace sluice::rpc
