// SPDX-License-Identifier: Apache-2.0
#include "libclient/src/mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

namespace sluice::client {

Result<> Mailbox::Start() {
  event_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_.valid()) return FailErrno("cannot make an eventfd for a channel");
  return {};
}

// A channel that has not yet heard that the daemon came back need not hear of that life at all.
bool Mailbox::Coalesce(const Notice& notice) {
  const auto find = [this](Notice::Kind kind) {
    return std::find_if(queue_.begin(), queue_.end(),
                        [kind](const Notice& queued) { return queued.kind == kind; });
  };
  if (notice.kind == Notice::Kind::kLeftOut) return find(notice.kind) != queue_.end();
  if (notice.kind != Notice::Kind::kDetached) return false;
  const auto reattached = find(Notice::Kind::kReattached);
  if (reattached == queue_.end()) return false;
  queue_.erase(reattached, queue_.end());
  return true;
}

void Mailbox::Post(Notice notice) {
  {
    std::lock_guard lock(mutex_);
    if (Coalesce(notice)) return;
    queue_.push_back(std::move(notice));
    pending_.store(true, std::memory_order_release);  // Pairs with Pending().
  }
  Kick();
}

void Mailbox::Kick() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the event is readable anyway.
  [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof(one));
}

bool Mailbox::Take(Notice& notice) {
  std::lock_guard lock(mutex_);
  if (queue_.empty()) {
    pending_.store(false, std::memory_order_relaxed);
    return false;
  }
  notice = std::move(queue_.front());
  queue_.pop_front();
  return true;
}

void Mailbox::DrainEvent() {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(event_.get(), &count, sizeof(count));
}

}  // namespace sluice::client
