// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace sluice::rpc {

// When a destination is left alone, as ByteExpress section 7.3 has it: more than M connection
// failures or N request failures within five minutes.
struct QuarantineSettings {
  uint32_t connection_failures = 30;           // M
  uint32_t request_failures = 50;              // N
  uint64_t window_ns = 300'000'000'000;        // In which they are counted.
  uint64_t first_probe_ns = 1'000'000'000;     // After the beginning of the quarantine.
  uint64_t longest_probe_ns = 30'000'000'000;  // Between two probes; each wait doubles.
  uint32_t probes_to_return = 3;               // Good ones in a row that end the quarantine.
  uint64_t return_ns = 10'000'000'000;         // From no load to all of its load again.
  double panic_share = 0.5;  // Of a shard's replicas; where more are in quarantine, none is.
  uint32_t doubt_after = 3;  // Request failures without a success between; connections: 1.
  uint64_t settle_ns = 500'000'000;  // From the first doubt to its probe; doubles as above.
};

// Failures within a sliding window, to a tenth of it. Bounded memory, no timer.
class FailureWindow {
 public:
  void Add(uint64_t now_ns, uint64_t window_ns);
  uint32_t Count(uint64_t now_ns, uint64_t window_ns) const;
  void Clear() { slots_ = {}; }

 private:
  static constexpr uint32_t kSlots = 10;
  struct Slot {
    uint64_t epoch = 0;  // Which tenth of a window, from 1.
    uint32_t failures = 0;
  };
  std::array<Slot, kSlots + 1> slots_;
};

// The health of one destination. A few failures in a row make it doubted: others are preferred
// until a probe is answered. Many put it in quarantine, with a probe now and then; a few good
// probes later it returns with a growing share of its load. Nothing is for ever: probes go on.
// Invariant: LoadShare() is 0 exactly in quarantine, grows while returning, and is 1 otherwise.
// Thread: its channel's. Time is an argument. Allocates: never.
class Quarantine {
 public:
  enum class State { kGood, kDoubted, kExcluded, kReturning };

  void OnConnectionFailure(uint64_t now_ns, const QuarantineSettings& settings);
  void OnRequestFailure(uint64_t now_ns, const QuarantineSettings& settings);

  void OnSuccess() { failures_in_a_row_ = 0; }

  bool WantsProbes() const { return state_ == State::kDoubted || state_ == State::kExcluded; }
  uint64_t probe_at_ns() const {  // UINT64_MAX: none is wanted.
    return WantsProbes() && !probing_ ? probe_at_ns_ : UINT64_MAX;
  }
  bool ProbeDue(uint64_t now_ns) const { return now_ns >= probe_at_ns(); }
  void OnProbeSent() { probing_ = true; }
  void OnProbe(bool good, uint64_t now_ns, const QuarantineSettings& settings);

  // The share of its usual load that it may get.
  double LoadShare(uint64_t now_ns, const QuarantineSettings& settings) const;

  State state(uint64_t now_ns, const QuarantineSettings& settings) const;

 private:
  void Fail(FailureWindow& window, uint32_t limit, uint32_t doubt_after, uint64_t now_ns,
            const QuarantineSettings& settings);
  void Enter(State state, uint64_t probe_wait_ns, uint64_t now_ns);

  State state_ = State::kGood;
  FailureWindow connections_;
  FailureWindow requests_;
  uint64_t probe_at_ns_ = 0;
  uint64_t probe_wait_ns_ = 0;
  uint64_t returning_since_ns_ = 0;
  uint32_t good_probes_ = 0;
  uint32_t failures_in_a_row_ = 0;
  bool probing_ = false;
};

}  // namespace sluice::rpc
