// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/memory_worker.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace sluice::memory {

MemoryWorker::MemoryWorker(std::function<void()> notify) : notify_(std::move(notify)) {
  // Signals are the control thread's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Loop(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "sluice-memory");
}

MemoryWorker::~MemoryWorker() { Stop(); }

void MemoryWorker::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
  completions_.clear();
}

void MemoryWorker::Run(Job job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
}

void MemoryWorker::RunCompletions() {
  std::deque<Completion> ready;
  {
    std::lock_guard lock(mutex_);
    ready.swap(completions_);
  }
  for (Completion& completion : ready) completion();
}

void MemoryWorker::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Completion completion;
    {
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      completion = job();
    }  // What the job held is freed outside the lock too.
    lock.lock();
    completions_.push_back(std::move(completion));
    lock.unlock();
    notify_();
    lock.lock();
  }
}

}  // namespace sluice::memory
