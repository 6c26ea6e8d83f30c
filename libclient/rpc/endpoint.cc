// SPDX-License-Identifier: Apache-2.0
#include "libclient/rpc/endpoint.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace sluice::rpc {
namespace {

constexpr int kEventsAtOnce = 64;
constexpr int kOwnThreadWaitMs = 100;
constexpr uint64_t kNsPerSecond = 1'000'000'000;

uint64_t MonotonicNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kNsPerSecond + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

EndpointImpl::EndpointImpl(const EndpointOptions& options) : options_(options) {
  if (!options_.now_ns) options_.now_ns = MonotonicNs;
  std::random_device device;
  random_.seed(options_.seed != 0 ? options_.seed : device() | uint64_t{device()} << 32);
}

Maybe<std::unique_ptr<EndpointImpl>> EndpointImpl::Open(const EndpointOptions& options) {
  auto made = std::make_unique<EndpointImpl>(options);
  sluice_options attach{};
  attach.size = sizeof(attach);
  attach.socket_path = options.socket_path.empty() ? nullptr : options.socket_path.c_str();
  attach.name = options.name.c_str();
  int result = sluice_attach(&attach, &made->client_);
  if (result == 0) {
    result = sluice_channel_open(made->client_, options.ring_entries, &made->channel_);
  }
  if (result != 0) return Status(result);
  made->wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (made->wake_fd_ < 0) return Status(-errno);
  return made;
}

EndpointImpl::~EndpointImpl() {
  Stop();
  if (channel_ != nullptr) sluice_channel_close(channel_);
  if (client_ != nullptr) sluice_detach(client_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

void EndpointImpl::Leave(Member& member) {
  std::erase(members_, &member);
  for (const auto& [socket, owner] : owners_) {
    if (owner == &member) sluice_close(channel_, socket);
  }
  for (const auto& [listener, owner] : listeners_) {
    if (owner == &member) sluice_unlisten(channel_, listener);
  }
  std::erase_if(owners_, [&](const auto& entry) { return entry.second == &member; });
  std::erase_if(listeners_, [&](const auto& entry) { return entry.second == &member; });
}

Payload EndpointImpl::Allocate(size_t bytes) {
  void* buffer = sluice_alloc(channel_, Payload::kHeadroom + bytes);
  return buffer == nullptr ? Payload() : Payload(channel_, buffer, Payload::kHeadroom, bytes);
}

Payload EndpointImpl::Copy(const void* data, size_t bytes) {
  Payload copy = Allocate(bytes);
  if (copy && bytes > 0) std::memcpy(copy.data(), data, bytes);
  return copy;
}

int EndpointImpl::Poll(int timeout_ms) {
  RunPosted();
  const uint64_t due_ns = Turn();
  std::array<sluice_event, kEventsAtOnce> events;
  int count = sluice_poll(channel_, events.data(), kEventsAtOnce);
  if (count == 0 && timeout_ms != 0) {
    Sleep(timeout_ms, due_ns);
    RunPosted();
    count = sluice_poll(channel_, events.data(), kEventsAtOnce);
  }
  for (int i = 0; i < count; ++i) Dispatch(events[static_cast<size_t>(i)]);
  return count;
}

uint64_t EndpointImpl::Turn() {
  uint64_t due_ns = kNever;
  const uint64_t now = now_ns();
  // By index: a callback may make or remove members.
  for (size_t i = 0; i < members_.size(); ++i) {
    due_ns = std::min(due_ns, members_[i]->OnTurn(now));
  }
  return due_ns;
}

void EndpointImpl::Sleep(int timeout_ms, uint64_t due_ns) {
  const uint64_t now = now_ns();
  uint64_t wait_ns = due_ns > now ? due_ns - now : 0;
  if (timeout_ms > 0) wait_ns = std::min(wait_ns, static_cast<uint64_t>(timeout_ms) * kNsPerMs);
  if (wait_ns == 0 || any_posted_.load() || sluice_arm(channel_) == 1) return;
  std::array<pollfd, 2> waited = {{{sluice_event_fd(channel_), POLLIN, 0}, {wake_fd_, POLLIN, 0}}};
  const timespec left{static_cast<time_t>(wait_ns / kNsPerSecond),
                      static_cast<long>(wait_ns % kNsPerSecond)};
  ppoll(waited.data(), waited.size(), &left, nullptr);  // A signal is as good a reason to look.
}

void EndpointImpl::Dispatch(const sluice_event& event) {
  const uint64_t now = now_ns();
  if (event.type == SLUICE_EVENT_DETACHED || event.type == SLUICE_EVENT_REATTACHED) {
    const std::vector<Member*> all = members_;
    for (Member* member : all) {
      if (std::ranges::find(members_, member) != members_.end()) member->OnEvent(event, now);
    }
    return;
  }
  if (event.type == SLUICE_EVENT_ACCEPTED) {
    const auto listener = listeners_.find(event.listener);
    if (listener == listeners_.end()) return (void)sluice_close(channel_, event.socket);
    owners_[event.socket] = listener->second;
  }
  const auto found = owners_.find(event.socket);
  if (found == owners_.end()) {  // Of a member that has gone.
    if (event.data != nullptr) sluice_free(channel_, event.data);
    return;
  }
  Member* owner = found->second;
  const bool gone = event.type == SLUICE_EVENT_CLOSED ||
                    (event.type == SLUICE_EVENT_CONNECTED && event.outcome != SLUICE_OK);
  if (gone) owners_.erase(found);
  owner->OnEvent(event, now);
}

void EndpointImpl::Post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
    any_posted_.store(true);
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));  // Full is awake.
}

void EndpointImpl::RunPosted() {
  if (!any_posted_.load()) return;
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(posted_);
    any_posted_.store(false);
  }
  uint64_t count;
  [[maybe_unused]] const ssize_t taken = read(wake_fd_, &count, sizeof(count));
  for (const auto& task : tasks) task();
}

void EndpointImpl::Start() {
  if (thread_.joinable()) return;
  stop_.store(false);
  thread_ = std::thread([this] {
    while (!stop_.load()) Poll(kOwnThreadWaitMs);
  });
}

void EndpointImpl::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  Post([] {});
  thread_.join();
}

Maybe<std::unique_ptr<Endpoint>> Endpoint::Open(const EndpointOptions& options) {
  auto impl = EndpointImpl::Open(options);
  if (!impl) return impl.status();
  return std::make_unique<Endpoint>(std::move(*impl));
}

Endpoint::Endpoint(std::unique_ptr<EndpointImpl> impl) : impl_(std::move(impl)) {}
Endpoint::~Endpoint() = default;
Payload Endpoint::Allocate(size_t bytes) { return impl_->Allocate(bytes); }
Payload Endpoint::Copy(const void* data, size_t bytes) { return impl_->Copy(data, bytes); }
int Endpoint::Poll(int timeout_ms) { return impl_->Poll(timeout_ms); }
void Endpoint::Post(std::function<void()> task) { impl_->Post(std::move(task)); }
void Endpoint::Start() { impl_->Start(); }
void Endpoint::Stop() { impl_->Stop(); }
uint64_t Endpoint::now_ns() const { return impl_->now_ns(); }

const char* CodeName(Code code) {
  constexpr std::array<const char*, kCodes> names = {
      "ok",        "failed",    "unknown",     "deadline",  "cancelled",  "overloaded",
      "no_method", "malformed", "not_serving", "forgotten", "application"};
  const auto index = static_cast<size_t>(code);
  return index < names.size() ? names[index] : "?";
}

}  // namespace sluice::rpc
