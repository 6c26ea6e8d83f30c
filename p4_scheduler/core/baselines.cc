// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/core/baselines.h"

#include "shm_proto/base/check.h"

namespace sluice::rain {

BoundedQueues::BoundedQueues(uint32_t workers, uint32_t bound) : bound_(bound), depths_(workers) {
  SLUICE_CHECK(workers > 0 && bound > 0, "there are workers that may have tasks");
}

BoundedQueues::Task BoundedQueues::Begin() {
  const Task task{.next_worker = first_};
  first_ = (first_ + 1) % static_cast<uint32_t>(depths_.size());
  return task;
}

std::optional<uint32_t> BoundedQueues::Step(Task& task) {
  const auto workers = static_cast<uint32_t>(depths_.size());
  for (uint32_t look = 0; look < kLooksPerPass && look < workers; ++look) {
    if (task.looked_at == workers) {
      task.looked_at = 0;
      if (task.target < bound_) ++task.target;
    }
    const uint32_t worker = task.next_worker;
    task.next_worker = (worker + 1) % workers;
    ++task.looked_at;
    if (depths_[worker] < task.target) {
      ++depths_[worker];
      return worker;
    }
  }
  return std::nullopt;
}

void BoundedQueues::OnReport(uint32_t worker) {
  if (depths_[worker] > 0) --depths_[worker];  // A report may come twice.
}

PowerOfTwo::PowerOfTwo(uint32_t workers, Random& random) : random_(random), depths_(workers) {
  SLUICE_CHECK(workers > 0, "there are workers");
}

uint32_t PowerOfTwo::Choose() {
  const uint64_t workers = depths_.size();
  const auto first = static_cast<uint32_t>(random_.Next() % workers);
  if (workers == 1) return first;
  // Another one: somewhere in the others, counted from the first.
  const auto second = static_cast<uint32_t>((first + 1 + random_.Next() % (workers - 1)) % workers);
  return depths_[second] < depths_[first] ? second : first;
}

PullQueue::PullQueue(uint32_t capacity) : tasks_(capacity) {
  SLUICE_CHECK(capacity > 0, "a queue has room");
}

bool PullQueue::OnTask(uint64_t task) {
  if (count_ == tasks_.size()) {
    ++repairs_;
    return false;
  }
  tasks_[(first_ + count_) % tasks_.size()] = task;
  ++count_;
  return true;
}

std::optional<uint64_t> PullQueue::OnPull() {
  if (count_ == 0) {
    ++repairs_;
    return std::nullopt;
  }
  const uint64_t task = tasks_[first_];
  first_ = (first_ + 1) % static_cast<uint32_t>(tasks_.size());
  --count_;
  return task;
}

WeightedRoundRobin::WeightedRoundRobin(uint32_t classes) : classes_(classes) {}

void WeightedRoundRobin::AddWorker(uint32_t task_class, uint32_t worker, uint32_t weight) {
  SLUICE_CHECK(task_class < classes_.size() && weight > 0, "a worker has a class and a weight");
  classes_[task_class].push_back({.worker = worker, .weight = weight, .credit = 0});
}

std::optional<uint32_t> WeightedRoundRobin::Choose(uint32_t task_class) {
  if (task_class >= classes_.size() || classes_[task_class].empty()) return std::nullopt;
  // Everybody earns its weight; the richest, the first of equals, pays for all.
  std::vector<Entry>& entries = classes_[task_class];
  int64_t sum = 0;
  Entry* best = nullptr;
  for (Entry& entry : entries) {
    entry.credit += entry.weight;
    sum += entry.weight;
    if (best == nullptr || entry.credit > best->credit) best = &entry;
  }
  best->credit -= sum;
  return best->worker;
}

}  // namespace sluice::rain
