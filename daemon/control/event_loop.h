// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shm_proto/base/clock.h"
#include "shm_proto/base/fd.h"
#include "shm_proto/base/result.h"

namespace sluice::control {

// The control thread's loop: descriptors (level-triggered), timers, and calls posted by other
// threads. Invariant: a callback never runs after Remove() or Cancel() of it returned, and a
// callback may remove anything, itself included. Work per turn is bounded (kMaxEventsPerTurn,
// kMaxTimersPerTurn, kMaxPostsPerTurn); the rest waits its turn. Thread: one, but for Stop() and
// Post(). Owns: the epoll descriptor and its wake-up; never the descriptors added to it.
class EventLoop {
 public:
  using EventCallback = std::function<void(uint32_t events)>;  // EPOLLIN, EPOLLOUT, EPOLLERR,
                                                               // EPOLLHUP, ...
  using Callback = std::move_only_function<void()>;
  using TimerId = uint64_t;  // 0 is never a timer. Never reused.

  static constexpr int kMaxEventsPerTurn = 64;
  static constexpr int kMaxTimersPerTurn = 256;
  static constexpr size_t kMaxPostsPerTurn = 256;

  explicit EventLoop(const Clock& clock);
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls back whenever one of `events` (EPOLLERR and EPOLLHUP always) holds on `fd`. Remove() it
  // before closing it.
  Result<> Add(int fd, uint32_t events, EventCallback callback);
  // Changes what is waited for. 0 leaves errors and hang-ups only.
  Result<> Modify(int fd, uint32_t events);
  void Remove(int fd);  // Nothing happens for a descriptor that is not in the loop.

  // Calls back once, not before the deadline; never inside After() or At().
  TimerId After(uint64_t delay_ns, Callback callback);
  TimerId At(uint64_t deadline_ns, Callback callback);
  void Cancel(TimerId timer);  // Nothing happens for one that has fired, or 0.

  // Runs `callback` on the loop's thread at its next turn. Thread: any.
  void Post(Callback callback);

  // One turn: waits at most `max_wait_ns` (and no longer than to the next timer), then calls back.
  // Returns how many callbacks ran.
  int RunOnce(uint64_t max_wait_ns);
  // Turns until Stop().
  void Run();
  // Thread: any; async-signal-safe.
  void Stop();

  // The time as read after the last wait; one reading serves a whole turn.
  uint64_t now_ns() const { return now_ns_; }
  const Clock& clock() const { return clock_; }
  size_t fd_count() const { return registrations_.size(); }
  size_t timer_count() const { return timer_deadlines_.size(); }

 private:
  struct Registration {
    int fd;
    EventCallback callback;
  };

  int WaitMs(uint64_t max_wait_ns);
  int RunTimers();
  int RunPosts();
  void Wake();

  const Clock& clock_;
  Fd epoll_;
  Fd wake_;
  std::atomic<bool> stopped_{false};
  uint64_t now_ns_;
  // By a number that is never reused, so that an event fetched before its descriptor was removed
  // (and its number perhaps reused) finds nobody.
  std::unordered_map<uint64_t, std::shared_ptr<Registration>> registrations_;
  std::unordered_map<int, uint64_t> by_fd_;
  uint64_t next_registration_ = 1;
  std::map<std::pair<uint64_t, TimerId>, Callback> timers_;
  std::unordered_map<TimerId, uint64_t> timer_deadlines_;
  TimerId next_timer_ = 1;
  std::mutex posts_mutex_;
  std::vector<Callback> posts_;  // Guarded by posts_mutex_.
};

}  // namespace sluice::control
