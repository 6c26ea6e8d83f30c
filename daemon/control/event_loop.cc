// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/event_loop.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>

#include "shm_proto/base/check.h"

namespace sluice::control {
namespace {

constexpr uint64_t kWakeId = 0;  // No registration has this number.

}  // namespace

EventLoop::EventLoop(const Clock& clock)
    : clock_(clock),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      now_ns_(clock.NowNs()) {
  SLUICE_CHECK(epoll_.valid() && wake_.valid(),
               "the loop is made at start, when descriptors are there");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  SLUICE_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) == 0,
               "a fresh eventfd can be watched");
}

Result<> EventLoop::Add(int fd, uint32_t events, EventCallback callback) {
  if (by_fd_.contains(fd)) {
    return Fail(ErrorCode::kExists,
                "descriptor " + std::to_string(fd) + " is in the event loop already");
  }
  const uint64_t id = next_registration_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return FailErrno("adding descriptor " + std::to_string(fd) + " to the event loop");
  }
  registrations_[id] = std::make_shared<Registration>(fd, std::move(callback));
  by_fd_[fd] = id;
  return {};
}

Result<> EventLoop::Modify(int fd, uint32_t events) {
  const auto found = by_fd_.find(fd);
  if (found == by_fd_.end()) {
    return Fail(ErrorCode::kNotFound,
                "descriptor " + std::to_string(fd) + " is not in the event loop");
  }
  epoll_event event{};
  event.events = events;
  event.data.u64 = found->second;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    return FailErrno("changing descriptor " + std::to_string(fd) + " in the event loop");
  }
  return {};
}

void EventLoop::Remove(int fd) {
  const auto found = by_fd_.find(fd);
  if (found == by_fd_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd,
            nullptr);  // Fails only for one closed too early, which epoll forgot itself.
  registrations_.erase(found->second);
  by_fd_.erase(found);
}

EventLoop::TimerId EventLoop::After(uint64_t delay_ns, Callback callback) {
  return At(clock_.NowNs() + delay_ns, std::move(callback));
}

EventLoop::TimerId EventLoop::At(uint64_t deadline_ns, Callback callback) {
  const TimerId id = next_timer_++;
  timers_.emplace(std::pair{deadline_ns, id}, std::move(callback));
  timer_deadlines_[id] = deadline_ns;
  return id;
}

void EventLoop::Cancel(TimerId timer) {
  const auto found = timer_deadlines_.find(timer);
  if (found == timer_deadlines_.end()) return;
  timers_.erase({found->second, timer});
  timer_deadlines_.erase(found);
}

void EventLoop::Post(Callback callback) {
  {
    std::lock_guard lock(posts_mutex_);
    posts_.push_back(std::move(callback));
  }
  Wake();
}

void EventLoop::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the loop wakes anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

void EventLoop::Stop() {
  stopped_.store(true, std::memory_order_release);  // Pairs with the acquire in Run().
  Wake();
}

void EventLoop::Run() {
  while (!stopped_.load(std::memory_order_acquire))
    RunOnce(UINT64_MAX);  // Pairs with the release in Stop().
}

int EventLoop::WaitMs(uint64_t max_wait_ns) {
  uint64_t wait_ns = max_wait_ns;
  if (!timers_.empty()) {
    const uint64_t now = clock_.NowNs();
    const uint64_t next = timers_.begin()->first.first;
    wait_ns = std::min(wait_ns, next > now ? next - now : 0);
  }
  if (wait_ns == UINT64_MAX) return -1;
  constexpr uint64_t kLongestMs = 3'600'000;
  // Rounded up: waking before the deadline would spin for the rest of the millisecond.
  return static_cast<int>(
      std::min(kLongestMs, wait_ns / kNsPerMs + (wait_ns % kNsPerMs != 0 ? 1 : 0)));
}

int EventLoop::RunOnce(uint64_t max_wait_ns) {
  epoll_event events[kMaxEventsPerTurn];
  const int count = epoll_wait(epoll_.get(), events, kMaxEventsPerTurn, WaitMs(max_wait_ns));
  SLUICE_CHECK(count >= 0 || errno == EINTR, "epoll_wait fails for signals only");
  now_ns_ = clock_.NowNs();
  int ran = 0;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWakeId) continue;  // RunPosts() resets it.
    const auto found = registrations_.find(events[i].data.u64);
    if (found == registrations_.end()) continue;  // Removed by an earlier callback of this turn.
    const std::shared_ptr<Registration> registration = found->second;  // Outlives its own removal.
    registration->callback(events[i].events);
    ++ran;
  }
  ran += RunTimers();
  ran += RunPosts();
  return ran;
}

int EventLoop::RunTimers() {
  const TimerId
      first_new = next_timer_;  // Those set by callbacks of this turn wait for the next one.
  int ran = 0;
  auto next = timers_.begin();
  while (ran < kMaxTimersPerTurn && next != timers_.end() && next->first.first <= now_ns_) {
    const auto key = next->first;
    if (key.second >= first_new) {
      ++next;
      continue;
    }
    Callback callback = std::move(next->second);
    timers_.erase(next);
    timer_deadlines_.erase(key.second);
    callback();
    ++ran;
    next = timers_.upper_bound(key);
  }
  return ran;
}

int EventLoop::RunPosts() {
  std::vector<Callback> batch;
  {
    std::lock_guard lock(posts_mutex_);
    uint64_t count;
    [[maybe_unused]] const ssize_t got = read(wake_.get(), &count,
                                              sizeof(count));  // EAGAIN: nobody called.
    if (posts_.size() <= kMaxPostsPerTurn) {
      batch.swap(posts_);
    } else {
      const auto end = posts_.begin() + static_cast<ptrdiff_t>(kMaxPostsPerTurn);
      batch.assign(std::make_move_iterator(posts_.begin()), std::make_move_iterator(end));
      posts_.erase(posts_.begin(), end);
      Wake();
    }
  }
  for (Callback& callback : batch) callback();
  return static_cast<int>(batch.size());
}

}  // namespace sluice::control
