// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/status_collector.h"

#include <algorithm>
#include <utility>

namespace sluice::control {

StatusCollector::StatusCollector(EventLoop& loop, StatusParts parts)
    : loop_(loop),
      parts_(std::move(parts)),
      threads_(parts_.io_threads.size()),
      self_(std::make_shared<StatusCollector*>(this)) {
  for (Thread& thread : threads_) thread.last_answer_ns = loop_.clock().NowNs();
}

StatusCollector::~StatusCollector() {
  *self_ = nullptr;
  loop_.Cancel(deadline_);
}

void StatusCollector::Collect(Callback done) {
  waiting_.push_back(std::move(done));
  if (waiting_.size() > 1) return;
  if (threads_.empty()) {
    Finish();
    return;
  }
  for (Thread& thread : threads_) thread.fresh = false;
  deadline_ = loop_.After(kDeadlineNs, [this] {
    deadline_ = 0;
    Finish();
  });
  for (size_t i = 0; i < threads_.size(); ++i) Ask(i);
}

void StatusCollector::Ask(size_t index) {
  if (threads_[index].asked) return;  // Its answer, when it comes, serves this picture too.
  threads_[index].asked = true;
  io::Query query;
  query.done = [loop = &loop_, self = self_, index](io::ThreadSnapshot snapshot) {
    loop->Post([self, index, snapshot = std::move(snapshot)]() mutable {
      if (*self != nullptr) (*self)->OnAnswer(index, std::move(snapshot));
    });
  };
  parts_.io_threads[index](std::move(query));
}

void StatusCollector::OnAnswer(size_t index, io::ThreadSnapshot snapshot) {
  Thread& thread = threads_[index];
  thread.asked = false;
  thread.fresh = true;
  thread.last_answer_ns = loop_.clock().NowNs();
  thread.snapshot = std::move(snapshot);
  if (!waiting_.empty() && std::ranges::all_of(threads_, &Thread::fresh)) {
    loop_.Cancel(std::exchange(deadline_, 0));
    Finish();
  }
}

NodeStatus StatusCollector::Picture() const {
  NodeStatus status;
  if (parts_.daemon) status.daemon = parts_.daemon();
  if (parts_.clients) status.clients = parts_.clients();
  if (parts_.peers) status.peers = parts_.peers();
  if (parts_.device) status.device = parts_.device();
  if (parts_.numbers) status.numbers = parts_.numbers();
  const uint64_t now_ns = loop_.clock().NowNs();
  for (size_t i = 0; i < threads_.size(); ++i) {
    status.threads.push_back({.io_thread = static_cast<uint32_t>(i),
                              .answered = threads_[i].fresh,
                              .silent_ns = now_ns - threads_[i].last_answer_ns,
                              .snapshot = threads_[i].snapshot});
  }
  return status;
}

void StatusCollector::Finish() {
  const NodeStatus status = Picture();
  const std::vector<Callback> waiting = std::exchange(waiting_, {});
  for (const Callback& done : waiting) done(status);  // May ask again.
}

}  // namespace sluice::control
