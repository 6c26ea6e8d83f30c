// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace sluice::memory {

// A thread for what takes milliseconds: making, prefaulting, registering and freeing memory. Keeps
// the control loop responsive. Each job returns what is to be done with its result on the control
// thread. Invariant: jobs run one at a time, in order, and their completions in the same order.
// Stop() runs the jobs that are queued to their end and drops the completions, with whatever memory
// they hold. Thread: control, but for `notify`. Its callers bound the queue: each client has few
// jobs under way.
class MemoryWorker {
 public:
  using Completion = std::move_only_function<void()>;
  using Job = std::move_only_function<Completion()>;

  // `notify` runs on the worker's thread whenever RunCompletions() has something to do.
  explicit MemoryWorker(std::function<void()> notify);
  ~MemoryWorker();
  MemoryWorker(const MemoryWorker&) = delete;
  MemoryWorker& operator=(const MemoryWorker&) = delete;

  void Run(Job job);
  void RunCompletions();
  void Stop();  // Idempotent.

 private:
  void Loop();

  const std::function<void()> notify_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;                // Guarded by mutex_.
  std::deque<Completion> completions_;  // Guarded by mutex_.
  bool stopping_ = false;               // Guarded by mutex_.
  std::thread thread_;
};

}  // namespace sluice::memory
