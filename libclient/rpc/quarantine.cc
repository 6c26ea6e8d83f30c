// SPDX-License-Identifier: Apache-2.0
#include "libclient/rpc/quarantine.h"

#include <algorithm>

namespace sluice::rpc {
namespace {

// While returning it takes little to be sent back: the service has just been unwell.
constexpr uint32_t kReturningDivisor = 10;

}  // namespace

void FailureWindow::Add(uint64_t now_ns, uint64_t window_ns) {
  const uint64_t epoch = now_ns / std::max<uint64_t>(window_ns / kSlots, 1) + 1;
  Slot& slot = slots_[epoch % slots_.size()];
  if (slot.epoch != epoch) slot = {epoch, 0};
  ++slot.failures;
}

uint32_t FailureWindow::Count(uint64_t now_ns, uint64_t window_ns) const {
  const uint64_t epoch = now_ns / std::max<uint64_t>(window_ns / kSlots, 1) + 1;
  uint32_t sum = 0;
  for (const Slot& slot : slots_) {
    if (slot.epoch <= epoch && epoch - slot.epoch < kSlots) sum += slot.failures;
  }
  return sum;
}

void Quarantine::OnConnectionFailure(uint64_t now_ns, const QuarantineSettings& settings) {
  Fail(connections_, settings.connection_failures, 1, now_ns, settings);
}

void Quarantine::OnRequestFailure(uint64_t now_ns, const QuarantineSettings& settings) {
  Fail(requests_, settings.request_failures, settings.doubt_after, now_ns, settings);
}

void Quarantine::Fail(FailureWindow& window, uint32_t limit, uint32_t doubt_after, uint64_t now_ns,
                      const QuarantineSettings& settings) {
  window.Add(now_ns, settings.window_ns);
  ++failures_in_a_row_;
  state_ = state(now_ns, settings);
  const uint32_t allowed = state_ == State::kReturning ? limit / kReturningDivisor : limit;
  if (state_ == State::kExcluded) return;  // Late news of requests from before.
  if (window.Count(now_ns, settings.window_ns) > allowed) {
    Enter(State::kExcluded, settings.first_probe_ns, now_ns);
  } else if (state_ == State::kGood && failures_in_a_row_ >= doubt_after) {
    Enter(State::kDoubted, settings.settle_ns, now_ns);
  }
}

void Quarantine::Enter(State state, uint64_t probe_wait_ns, uint64_t now_ns) {
  state_ = state;
  probe_wait_ns_ = probe_wait_ns;
  probe_at_ns_ = now_ns + probe_wait_ns;
  good_probes_ = 0;
  probing_ = false;
}

void Quarantine::OnProbe(bool good, uint64_t now_ns, const QuarantineSettings& settings) {
  if (!WantsProbes() || !probing_) return;
  probing_ = false;
  if (!good) {
    good_probes_ = 0;
    probe_wait_ns_ = std::min(probe_wait_ns_ * 2, settings.longest_probe_ns);
    probe_at_ns_ = now_ns + probe_wait_ns_;
    return;
  }
  failures_in_a_row_ = 0;
  if (state_ == State::kDoubted) {
    state_ = State::kGood;
  } else if (++good_probes_ < settings.probes_to_return) {
    probe_wait_ns_ = settings.first_probe_ns;
    probe_at_ns_ = now_ns + probe_wait_ns_;
  } else {
    state_ = State::kReturning;
    returning_since_ns_ = now_ns;
    connections_.Clear();
    requests_.Clear();
  }
}

Quarantine::State Quarantine::state(uint64_t now_ns, const QuarantineSettings& settings) const {
  const bool back = state_ == State::kReturning &&
                    now_ns - returning_since_ns_ >= settings.return_ns;
  return back ? State::kGood : state_;
}

double Quarantine::LoadShare(uint64_t now_ns, const QuarantineSettings& settings) const {
  switch (state(now_ns, settings)) {
    case State::kGood:
    case State::kDoubted: return 1;
    case State::kExcluded: return 0;
    case State::kReturning: break;
  }
  // The first requests must be able to come through, so it begins above nothing.
  constexpr double kFirstShare = 0.01;
  const double grown = static_cast<double>(now_ns - returning_since_ns_) /
                       static_cast<double>(settings.return_ns);
  return std::max(grown, kFirstShare);
}

}  // namespace sluice::rpc
