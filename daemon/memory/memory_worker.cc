// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/memory_worker.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace sluice::memory {

MemoryWorker::MemoryWorker() {
  // Signals are the control thread's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Loop(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "sluice-memory");
}

MemoryWorker::~MemoryWorker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void MemoryWorker::Run(std::move_only_function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
}

void MemoryWorker::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    {
      std::move_only_function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
    }  // What the job held is freed outside the lock too.
    lock.lock();
  }
}

}  // namespace sluice::memory
