// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>

namespace sluice::bemalloc {

// A mutex for work that is shorter than waking a sleeping thread: a waiter looks for some time
// before it sleeps. Thread: any.
class SpinningMutex {
 public:
  void lock() {
    for (int look = 0; look < kLooks; ++look) {
      if (mutex_.try_lock()) return;
      for (int i = 0; i < kPausesBetween; ++i) Pause();
    }
    mutex_.lock();
  }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  static constexpr int kLooks = 50;
  static constexpr int kPausesBetween = 10;
  std::mutex mutex_;
};

}  // namespace sluice::bemalloc
