// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/core/adaptive.h"

#include <algorithm>
#include <string>

namespace sluice::rain {
namespace {

constexpr uint64_t kSlowdownUnit = 1024;
constexpr uint32_t kPercentile = 99;

}  // namespace

Result<> Check(const AdaptiveSettings& settings) {
  if (settings.sampling_interval_ns == 0 || settings.samplings_per_control == 0) {
    return Fail(ErrorCode::kInvalid, "adaptive scheduling: intervals must be more than 0");
  }
  if (!(settings.slowdown_threshold >= 1)) {
    return Fail(ErrorCode::kInvalid,
                "adaptive scheduling: the slowdown threshold must be at least 1, the slowdown of a "
                "task that never waits");
  }
  if (!(settings.ratio_threshold > 0 && settings.ratio_threshold < 1)) {
    return Fail(ErrorCode::kInvalid,
                "adaptive scheduling: the ratio threshold must be between 0 "
                "and 1");
  }
  if (settings.max_quota == 0) {
    return Fail(ErrorCode::kInvalid, "adaptive scheduling: the largest quota must be at least 1");
  }
  return {};
}

void WorkerWindow::Add(const TaskSample& sample) {
  const uint64_t waited = sample.worker_ns + sample.switch_ns;
  const uint64_t service = std::max<uint64_t>(sample.service_ns, 1);
  // As (L_w + L_sw + T_w) / T_w, but 1 exactly when nothing waited, also below the clock's grain.
  slowdowns_.Add(kSlowdownUnit + static_cast<uint64_t>(static_cast<double>(waited) *
                                                       static_cast<double>(kSlowdownUnit) /
                                                       static_cast<double>(service)));
  if (waited > 0) {  // 0/0 is no sample.
    ratio_sum_ += static_cast<double>(sample.worker_ns) / static_cast<double>(waited);
    ++ratios_;
  }
  queue_.Add(sample.switch_tasks);
}

void WorkerWindow::Clear() {
  slowdowns_.Clear();
  queue_.Clear();
  ratio_sum_ = 0;
  ratios_ = 0;
  idle_ns_ = 0;
}

double WorkerWindow::SlowdownP99() const {
  if (slowdowns_.count() == 0) return 1;
  return static_cast<double>(slowdowns_.Percentile(kPercentile)) /
         static_cast<double>(kSlowdownUnit);
}

double WorkerWindow::MeanRatio() const {
  return ratios_ == 0 ? 0 : ratio_sum_ / static_cast<double>(ratios_);
}

uint64_t WorkerWindow::QueueP99() const { return queue_.Percentile(kPercentile); }

double WorkerWindow::Idleness(uint64_t interval_ns) const {
  if (interval_ns == 0) return 0;
  return std::min(1.0, static_cast<double>(idle_ns_) / static_cast<double>(interval_ns));
}

const char* Name(QuotaReason reason) {
  switch (reason) {
    case QuotaReason::kWithinTarget: return "within_target";
    case QuotaReason::kWorkerQueueBlocks: return "worker_queue_blocks";
    case QuotaReason::kSwitchQueueWaits: return "switch_queue_waits";
    case QuotaReason::kOverloaded: return "overloaded";
    case QuotaReason::kFixed: return "fixed";
  }
  return "unknown";
}

QuotaDecision DecideQuota(const AdaptiveSettings& settings, const WorkerWindow& window,
                          uint32_t quota, bool fixed) {
  QuotaDecision decision{.quota_before = quota,
                         .quota = quota,
                         .slowdown_p99 = window.SlowdownP99(),  // Line 10.
                         .mean_ratio = window.MeanRatio(),      // Line 11.
                         .queue_p99 = window.QueueP99(),        // Line 12.
                         .samples = window.samples()};
  if (decision.slowdown_p99 > settings.slowdown_threshold) {  // Line 13.
    if (quota > 1 && decision.mean_ratio > settings.ratio_threshold &&
        decision.queue_p99 == 0) {  // Line 14.
      decision.quota = quota - 1;   // Line 15.
      decision.reason = QuotaReason::kWorkerQueueBlocks;
    } else if (quota < settings.max_quota &&
               decision.mean_ratio < settings.ratio_threshold) {  // Line 16.
      decision.quota = quota + 1;                                 // Line 17.
      decision.reason = QuotaReason::kSwitchQueueWaits;
    } else {                       // Line 18.
      decision.overloaded = true;  // Line 19.
      decision.reason = QuotaReason::kOverloaded;
    }
  } else {                                                                // Line 20.
    decision.idleness = window.Idleness(settings.control_interval_ns());  // Lines 21 and 22.
  }
  if (fixed && decision.quota != quota) {
    decision.quota = quota;
    decision.reason = QuotaReason::kFixed;
  }
  return decision;
}

void ReportCollector::RemoveAgent(uint32_t agent) {
  agents_.erase(agent);
  reports_.erase(agent);
}

ReportCollector::Taken ReportCollector::Add(const AgentReport& report) {
  const auto agent = agents_.find(report.agent);
  if (agent == agents_.end()) return Taken::kUnknownAgent;
  if (agent->second != report.generation) return Taken::kOtherGeneration;
  if (report.interval < open_ || (report.interval == open_ && closed_)) {
    ++late_;
    return Taken::kLate;
  }
  if (report.interval > open_) {
    if (!closed_) ++abandoned_;
    reports_.clear();
    open_ = report.interval;
    closed_ = false;
  }
  return reports_.emplace(report.agent, report).second ? Taken::kKept : Taken::kTwice;
}

std::optional<std::map<uint8_t, SliceState>> ReportCollector::TakeComplete() {
  if (closed_ || reports_.empty() || reports_.size() < agents_.size()) return std::nullopt;
  closed_ = true;
  std::map<uint8_t, SliceState> slices;
  for (const auto& [agent, report] : reports_) {
    for (const SliceReport& part : report.slices) {
      SliceState& slice = slices[part.slice];
      slice.overloaded += part.overloaded;
      slice.idleness += part.idleness;
      slice.workers.insert(slice.workers.end(), part.workers.begin(), part.workers.end());
    }
  }
  for (auto& [id, slice] : slices) {
    std::ranges::sort(slice.workers, {}, &SliceReport::Worker::worker);
  }
  reports_.clear();
  return slices;
}

}  // namespace sluice::rain
