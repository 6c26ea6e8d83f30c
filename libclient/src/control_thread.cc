// SPDX-License-Identifier: Apache-2.0
#include "libclient/src/control_thread.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>

namespace sluice::client {
namespace {

constexpr uint64_t kMaxWaitNs = 60 * kNsPerSecond;

}  // namespace

Result<> ControlThread::Start(Client& client) {
  client_ = &client;
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return FailErrno("cannot make an eventfd");
  // The application's signals are the application's: the new thread inherits a mask that blocks all
  // of them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& failure) {
    error = failure.code().value();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return FailErrno("cannot start a thread", error == EAGAIN ? ENOMEM : error);
  pthread_setname_np(thread_.native_handle(), "sluice-ctl");
  return {};
}

void ControlThread::Stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);  // Pairs with the acquire in Run().
  Wake();
  thread_.join();
}

Result<> ControlThread::Connect() { return socket_.Connect(); }

void ControlThread::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the event is readable anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

bool ControlThread::Await(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                          uint64_t deadline_ns) {
  const uint64_t now_ns = clock_.NowNs();
  if (now_ns >= deadline_ns) return false;
  changed.wait_for(lock, std::chrono::nanoseconds(std::min(deadline_ns - now_ns, kMaxWaitNs)));
  return true;
}

void ControlThread::Run() {
  while (!stopping_.load(std::memory_order_acquire)) {  // Pairs with Stop().
    const uint64_t deadline_ns = client_->Tick(clock_.NowNs());
    const bool all_sent = client_->FlushOutbox();
    WaitFor(deadline_ns, !all_sent);
    if (socket_.fd() >= 0) Receive();
  }
  client_->Stop();
}

void ControlThread::WaitFor(uint64_t deadline_ns, bool writable) {
  const uint64_t now_ns = clock_.NowNs();
  const uint64_t wait_ns = deadline_ns > now_ns ? std::min(deadline_ns - now_ns, kMaxWaitNs) : 0;
  const timespec timeout{static_cast<time_t>(wait_ns / kNsPerSecond),
                         static_cast<long>(wait_ns % kNsPerSecond)};
  pollfd waited[2] = {{wake_.get(), POLLIN, 0},
                      {socket_.fd(), static_cast<short>(writable ? POLLIN | POLLOUT : POLLIN), 0}};
  if (ppoll(waited, 2, &timeout, nullptr) <= 0)
    return;  // A closed socket's -1 is skipped by the kernel.
  uint64_t count;
  if (waited[0].revents != 0) {
    [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
  }
}

void ControlThread::Receive() {
  std::vector<std::byte> packet;
  std::vector<Fd> descriptors;
  for (int i = 0; i < kMaxPacketsPerTurn && socket_.fd() >= 0; ++i) {
    const Result<bool> received = socket_.Receive(packet, descriptors);
    if (!received) return client_->OnHangup(received.error().message);
    if (!*received) return;
    client_->HandleMessage(packet, descriptors);
  }
}

}  // namespace sluice::client
