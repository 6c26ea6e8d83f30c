// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "p4_scheduler/core/histogram.h"
#include "shm_proto/base/result.h"

// Adaptive scheduling, Algorithm 1 of the paper (3.3). Agents do lines 1 to 22 for their own
// workers and report; the controller does lines 24 to 37, because a slice spans hosts. Samples in,
// decisions out; whoever calls owns the clock. "Line" in comments means a line of Algorithm 1.
namespace sluice::rain {

struct AdaptiveSettings {
  uint64_t sampling_interval_ns = 10'000;  // Delta t.
  uint32_t samplings_per_control = 1'000;  // The algorithm's K, which is not the queue's.
  double slowdown_threshold = 10;          // S_th
  double ratio_threshold = 0.3;            // R_th
  uint32_t max_quota = 8;                  // n_max

  uint64_t control_interval_ns() const { return sampling_interval_ns * samplings_per_control; }
};
Result<> Check(const AdaptiveSettings& settings);

// One completed task as its worker saw it (line 4). Durations, each of one clock only.
struct TaskSample {
  uint64_t worker_ns = 0;     // L_w: it waited in the worker's own queue.
  uint64_t switch_ns = 0;     // L_sw: it waited in the switch.
  uint64_t service_ns = 0;    // T_w: it was worked on.
  uint32_t switch_tasks = 0;  // Q_sw,w: tasks waiting in the switch when it was dispatched.
};

// S_w, R_w and Q_w of one worker over one control interval, and its idleness.
// Invariant: each completed task is in it once. Thread: one. Allocates: never.
class WorkerWindow {
 public:
  void Add(const TaskSample& sample);  // Line 5.
  // For so long the worker had no task, whether it polled or slept.
  void AddIdle(uint64_t idle_ns) { idle_ns_ += idle_ns; }
  void Clear();  // Line 23.

  double SlowdownP99() const;                   // Line 10; 1 without samples.
  double MeanRatio() const;                     // Line 11; 0 where no task waited anywhere.
  uint64_t QueueP99() const;                    // Line 12.
  double Idleness(uint64_t interval_ns) const;  // Line 21; 0 to 1.
  uint64_t samples() const { return slowdowns_.count(); }

 private:
  Histogram slowdowns_;  // In 1/1024.
  Histogram queue_;
  double ratio_sum_ = 0;
  uint64_t ratios_ = 0;
  uint64_t idle_ns_ = 0;
};

// What was decided for one worker and why.
enum class QuotaReason : uint8_t {
  kWithinTarget,       // Lines 20-22: nothing to do.
  kWorkerQueueBlocks,  // Lines 14-15: its own queue is where tasks wait; one less.
  kSwitchQueueWaits,   // Lines 16-17: the switch's queue is; one more.
  kOverloaded,         // Lines 18-19: neither helps.
  kFixed,              // It would have been changed, but was set by hand.
};
const char* Name(QuotaReason reason);

struct QuotaDecision {
  QuotaReason reason = QuotaReason::kWithinTarget;
  uint32_t quota_before = 0;
  uint32_t quota = 0;       // n_w
  bool overloaded = false;  // Adds 1 to O_s.
  double idleness = 0;      // Adds itself to I_s; 0 above the target.
  double slowdown_p99 = 1;
  double mean_ratio = 0;
  uint64_t queue_p99 = 0;
  uint64_t samples = 0;
};

// Lines 10 to 22 for one worker. A fixed quota stays as it is.
QuotaDecision DecideQuota(const AdaptiveSettings& settings, const WorkerWindow& window,
                          uint32_t quota, bool fixed = false);

// What an agent says about its workers of one slice after a control interval.
struct SliceReport {
  uint8_t slice = 0;
  uint32_t overloaded = 0;  // Its part of O_s.
  double idleness = 0;      // Its part of I_s.
  struct Worker {
    uint32_t worker = 0;
    uint32_t quota = 0;
    bool fixed = false;
  };
  std::vector<Worker> workers = {};
};

struct AgentReport {
  uint32_t agent = 0;
  uint64_t generation = 0;  // Of the agent's run: a restarted one is another.
  uint64_t interval = 0;    // The control interval's number, the same for all agents.
  std::vector<SliceReport> slices = {};
};

// What all agents together know of a slice.
struct SliceState {
  uint32_t overloaded = 0;                        // O_s
  double idleness = 0;                            // I_s
  std::vector<SliceReport::Worker> workers = {};  // By number, ascending.
};

struct RebalanceDecision {
  enum class Kind : uint8_t { kEqualise, kMove };
  Kind kind = Kind::kEqualise;
  uint32_t worker = 0;
  uint8_t from_slice = 0;
  uint8_t to_slice = 0;
  uint32_t quota = 0;
  uint32_t overloaded = 0;  // Figures behind it: O_s of the slice that gets, I_s of the one that
  double idleness = 0;      // gives.
};

// Lines 24 to 37. Only changes are listed.
std::vector<RebalanceDecision> Rebalance(const std::map<uint8_t, SliceState>& slices);

// Brings the reports of one interval together, so that only complete ones are acted on.
// Invariant: at most one interval is open; it is newer than any that was closed.
// Thread: the controller's. Allocates: per report.
class ReportCollector {
 public:
  enum class Taken : uint8_t { kKept, kUnknownAgent, kOtherGeneration, kLate, kTwice };

  // An agent counts from the next interval on.
  void AddAgent(uint32_t agent, uint64_t generation) { agents_[agent] = generation; }
  void RemoveAgent(uint32_t agent);

  Taken Add(const AgentReport& report);

  // The slices of the open interval once every agent has reported, once.
  std::optional<std::map<uint8_t, SliceState>> TakeComplete();

  uint64_t open_interval() const { return open_; }
  uint64_t late() const { return late_; }            // Reports dropped.
  uint64_t abandoned() const { return abandoned_; }  // Intervals that never became complete.

 private:
  std::map<uint32_t, uint64_t> agents_;      // To generation.
  std::map<uint32_t, AgentReport> reports_;  // Of the open interval, by agent.
  uint64_t open_ = 0;                        // 0: none yet; intervals are numbered from 1.
  bool closed_ = true;                       // The open interval has been taken.
  uint64_t late_ = 0;
  uint64_t abandoned_ = 0;
};

}  // namespace sluice::rain
