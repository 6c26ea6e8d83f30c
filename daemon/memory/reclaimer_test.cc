// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/reclaimer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "shm_proto/base/units.h"

namespace sluice::memory {
namespace {

// Waits for the worker's completions and runs them.
class MemoryWorkerTest : public ::testing::Test {
 protected:
  void RunUntil(const std::function<bool()>& done) {
    std::unique_lock lock(mutex_);
    while (!done()) {
      ASSERT_TRUE(wake_.wait_for(lock, std::chrono::seconds(10), [this] { return notified_; }));
      notified_ = false;
      lock.unlock();
      worker_.RunCompletions();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool notified_ = false;
  MemoryWorker worker_{[this] {
    std::lock_guard lock(mutex_);
    notified_ = true;
    wake_.notify_one();
  }};
};

TEST_F(MemoryWorkerTest, CompletionsRunHereInOrderAfterTheirJobs) {
  std::atomic<int> jobs = 0;
  std::vector<int> completed;
  for (int i = 0; i < 50; ++i) {
    worker_.Run([&, i]() -> MemoryWorker::Completion {
      ++jobs;
      return [&, i] { completed.push_back(i); };
    });
  }
  RunUntil([&] { return completed.size() == 50; });
  EXPECT_EQ(jobs, 50);
  EXPECT_TRUE(std::ranges::is_sorted(completed));
}

TEST_F(MemoryWorkerTest, StoppingRunsTheJobsAndDropsTheCompletions) {
  std::atomic<int> jobs = 0;
  int completed = 0;
  for (int i = 0; i < 50; ++i) {
    worker_.Run([&]() -> MemoryWorker::Completion {
      ++jobs;
      return [&] { ++completed; };
    });
  }
  worker_.Stop();
  worker_.RunCompletions();
  EXPECT_EQ(jobs, 50);
  EXPECT_EQ(completed, 0);
}

TEST_F(MemoryWorkerTest, RetiredMemoryIsGoneWhenNobodyHoldsIt) {
  int told = 0;
  Reclaimer reclaimer(worker_, [&] { ++told; });
  auto memory = SharedMemory::Create("test", 64 * kKiB, nullptr);
  ASSERT_TRUE(memory);
  bool gone = false;
  reclaimer.Retire(std::move(*memory), [&] { gone = true; });
  RunUntil([&] { return gone; });
  EXPECT_EQ(reclaimer.pending_count(), 0u);
  EXPECT_EQ(told, 0);
}

TEST_F(MemoryWorkerTest, RetiredMemoryStaysCountedWhileAClientStillMapsIt) {
  int told = 0;
  Reclaimer reclaimer(worker_, [&] { ++told; });
  auto memory = SharedMemory::Create("test", 64 * kKiB, nullptr);
  ASSERT_TRUE(memory);
  Fd client_fd = memory->TakeClientFd();
  void* client = mmap(nullptr, 64 * kKiB, PROT_READ | PROT_WRITE, MAP_SHARED, client_fd.get(), 0);
  ASSERT_NE(client, MAP_FAILED);
  bool gone = false;
  reclaimer.Retire(std::move(*memory), [&] { gone = true; });
  RunUntil([&] { return reclaimer.lingering_count() == 1; });
  EXPECT_EQ(reclaimer.lingering_bytes(), 64 * kKiB);
  EXPECT_EQ(told, 1);
  reclaimer.Poll();
  EXPECT_FALSE(gone);
  munmap(client, 64 * kKiB);
  reclaimer.Poll();
  EXPECT_EQ(reclaimer.lingering_count(), 1u) << "the descriptor alone holds it too";
  client_fd.Reset();
  reclaimer.Poll();
  RunUntil([&] { return gone; });
  EXPECT_EQ(reclaimer.lingering_bytes(), 0u);
}

}  // namespace
}  // namespace sluice::memory
