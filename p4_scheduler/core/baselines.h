// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shm_proto/base/random.h"

// The schedulers that the paper compares Rain with (5.2), as their switch programs decide: worker
// numbers in, worker numbers out. What each costs beside the decision is said with it, and whoever
// drives one has to charge for it: passes through the switch, stale knowledge, pulls, fetches.
namespace sluice::rain {

// R2P2's JBSQ(n): a task looks at a few workers in each pass through the switch and goes round
// (recirculates) until it finds one with fewer tasks than its target. The target starts at 1 and
// rises by 1, up to n, whenever all workers have been looked at in vain.
// Cost: one pass per Step(), each with the pipeline's latency and a share of its bandwidth. Tasks
// that go round are overtaken by new ones.
// Invariant: depth(w) <= n. Thread: one. Allocates: in its constructor.
class BoundedQueues {
 public:
  static constexpr uint32_t kLooksPerPass = 4;  // "A few": each is a stage's register access.

  BoundedQueues(uint32_t workers, uint32_t bound);

  // What a task carries from pass to pass.
  struct Task {
    uint32_t next_worker = 0;
    uint32_t looked_at = 0;
    uint32_t target = 1;
  };
  Task Begin();  // Tasks start at different workers, one after the other.
  // One pass; the worker that takes it, or none: it has to go round.
  std::optional<uint32_t> Step(Task& task);
  // A worker reports that it has finished a task.
  void OnReport(uint32_t worker);

  uint32_t depth(uint32_t worker) const { return depths_[worker]; }

 private:
  const uint32_t bound_;
  uint32_t first_ = 0;
  std::vector<uint32_t> depths_;  // As the switch knows them.
};

// RackSched's power of two: the one of two random workers whose queue was reported to be shorter.
// Queues are not bounded.
// Cost: with `refresh` one more pass per task, which counts it (OnRefresh()) as late as the pass
// takes; without, the switch knows only what the last reports said.
// Thread: one. Allocates: in its constructor.
class PowerOfTwo {
 public:
  PowerOfTwo(uint32_t workers, Random& random);

  uint32_t Choose();
  void OnRefresh(uint32_t worker) { ++depths_[worker]; }
  // A worker reports how many tasks it has.
  void OnReport(uint32_t worker, uint32_t depth) { depths_[worker] = depth; }

  uint32_t depth(uint32_t worker) const { return depths_[worker]; }

 private:
  Random& random_;
  std::vector<uint32_t> depths_;
};

// Draconis' pull: tasks wait in the switch and idle workers ask for them, again and again.
// Cost: a worker without a task learns of one only when its next pull comes by, a trip after it was
// sent; a pull in vain, and a task that finds the queue full, moved a pointer that one more pass
// has to put back (repairs()); a large task's data is fetched by its worker in one more round trip.
// Invariant: at most `capacity` tasks wait, first come first served.
// Thread: one. Allocates: in its constructor.
class PullQueue {
 public:
  explicit PullQueue(uint32_t capacity);

  bool OnTask(uint64_t task);        // False: full.
  std::optional<uint64_t> OnPull();  // The task that has waited longest.

  uint32_t waiting() const { return count_; }
  uint64_t repairs() const { return repairs_; }

 private:
  uint32_t first_ = 0;
  uint32_t count_ = 0;
  uint64_t repairs_ = 0;
  std::vector<uint64_t> tasks_;
};

// Pallas' weighted round robin: each class of tasks has workers of its own, taken in turn in
// proportion to their weights, evenly spread. Queues are not bounded.
// Cost: none beside the decision; it knows nothing of the workers' queues.
// Thread: one. Allocates: in AddWorker().
class WeightedRoundRobin {
 public:
  explicit WeightedRoundRobin(uint32_t classes);

  void AddWorker(uint32_t task_class, uint32_t worker, uint32_t weight);
  std::optional<uint32_t> Choose(uint32_t task_class);  // None: the class has no worker.

 private:
  struct Entry {
    uint32_t worker;
    int64_t weight;
    int64_t credit;
  };
  std::vector<std::vector<Entry>> classes_;
};

}  // namespace sluice::rain
