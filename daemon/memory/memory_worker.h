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
// the control loop responsive. Invariant: jobs run one at a time, in order. The destructor runs
// what is queued to its end. Thread: any may Run(). Its callers bound the queue: each client has
// few jobs under way.
class MemoryWorker {
 public:
  MemoryWorker();
  ~MemoryWorker();
  MemoryWorker(const MemoryWorker&) = delete;
  MemoryWorker& operator=(const MemoryWorker&) = delete;

  void Run(std::move_only_function<void()> job);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::move_only_function<void()>> jobs_;  // Guarded by mutex_.
  bool stopping_ = false;                             // Guarded by mutex_.
  std::thread thread_;
};

}  // namespace sluice::memory
