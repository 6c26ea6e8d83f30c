// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <atomic>

#include "shm_proto/base/result.h"

namespace sluice::client {

// Tells a forked child from the process that attached: one load of a page that the kernel wipes in
// the child. Invariant: *page_ is 1 in the process that made the guard, 0 in its children. Thread:
// any. Owns: the page.
class ForkGuard {
 public:
  ForkGuard() = default;
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  ~ForkGuard();

  Result<> Start();
  // Relaxed: written before the guard is shared, and by the kernel at fork.
  bool InChild() const { return page_->load(std::memory_order_relaxed) == 0 || SlowInChild(); }

 private:
  bool SlowInChild() const { return owner_ != 0 && getpid() != owner_; }

  std::atomic<int>* page_ = nullptr;
  pid_t owner_ = 0;  // Set only where the kernel cannot wipe pages.
};

}  // namespace sluice::client
