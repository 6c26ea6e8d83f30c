// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/resolver.h"

#include <netdb.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

namespace sluice::control {

// What the threads and the control thread share. Outlives the resolver for as long as a thread is
// stuck in the system.
struct Resolver::Shared {
  std::mutex mutex;
  std::condition_variable wake;
  Resolver* resolver;  // Null once it is gone: then nothing is posted any more. This and the rest:
                       // under `mutex`.
  EventLoop* loop;
  SystemLookup lookup;
  std::deque<std::pair<uint64_t, std::string>> queue;
};

Resolver::Resolver(EventLoop& loop, uint64_t deadline_ns, SystemLookup lookup)
    : loop_(loop), deadline_ns_(deadline_ns), shared_(std::make_shared<Shared>()) {
  shared_->resolver = this;
  shared_->loop = &loop;
  shared_->lookup = std::move(lookup);
}

Resolver::~Resolver() {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->resolver = nullptr;
    shared_->queue.clear();
  }
  shared_->wake.notify_all();
  for (const auto& [id, request] : requests_) loop_.Cancel(request.timer);
}

size_t Resolver::pending() const { return requests_.size(); }

void Resolver::Lookup(const std::string& host, uint16_t port, Callback done) {
  const uint64_t id = next_id_++;
  if (requests_.size() >= kMaxPending) {
    loop_.After(0, [done = std::move(done)] {
      done(Fail(ErrorCode::kNoMemory, "too many names are being looked up; try again later"));
    });
    return;
  }
  const auto timer = loop_.After(deadline_ns_, [this, id, host] {
    {  // Not begun is never begun: the queue holds pending requests only.
      std::lock_guard lock(shared_->mutex);
      std::erase_if(shared_->queue, [id](const auto& waiting) { return waiting.first == id; });
    }
    Finish(id, Fail(ErrorCode::kTimeout,
                    "looking up \"" + host + "\" took too long; see the host's name service"));
  });
  requests_.emplace(id, Request{std::move(done), port, timer});
  {
    std::lock_guard lock(shared_->mutex);
    shared_->queue.emplace_back(id, host);
  }
  shared_->wake.notify_one();
  if (started_) return;
  started_ = true;
  for (size_t i = 0; i < kThreads; ++i) {
    // Nobody can end a thread that the system's resolver holds, so nobody waits for one.
    try {
      std::thread([shared = shared_] { Work(shared); }).detach();
    } catch (const std::system_error&) {
      started_ = i > 0;  // Without any thread the request times out, and the next one tries again.
      break;
    }
  }
}

void Resolver::Work(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  while (shared->resolver != nullptr) {
    if (shared->queue.empty()) {
      shared->wake.wait(lock);
      continue;
    }
    const auto [id, host] = std::move(shared->queue.front());
    shared->queue.pop_front();
    lock.unlock();
    auto result = shared->lookup(host);
    lock.lock();
    if (shared->resolver == nullptr) return;
    shared->loop->Post([shared, id = id, result = std::move(result)]() mutable {
      // On the control thread, which alone ends the resolver.
      if (shared->resolver != nullptr) shared->resolver->Finish(id, std::move(result));
    });
  }
}

void Resolver::Finish(uint64_t id, Result<Addresses> result) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;  // Its time was up before.
  Request request = std::move(found->second);
  requests_.erase(found);
  loop_.Cancel(request.timer);
  if (result) {
    for (SocketAddress& address : *result) address.port = request.port;
  }
  request.done(std::move(result));
}

Result<Resolver::Addresses> Resolver::AskSystem(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (error == EAI_NONAME || error == EAI_NODATA) {
    return Fail(ErrorCode::kNotFound, "there is no host named \"" + host + "\"");
  }
  if (error != 0) {
    return Fail(ErrorCode::kUnavailable, "looking up \"" + host + "\": " + gai_strerror(error));
  }
  Addresses addresses;
  for (const addrinfo* entry = list; entry != nullptr && addresses.size() < kMaxAddresses;
       entry = entry->ai_next) {
    sockaddr_storage storage{};
    if (entry->ai_addrlen > sizeof(storage)) continue;
    std::memcpy(&storage, entry->ai_addr, entry->ai_addrlen);
    const auto address = SocketAddress::FromSockaddr(storage);
    if (address && std::ranges::find(addresses, *address) == addresses.end())
      addresses.push_back(*address);
  }
  freeaddrinfo(list);
  if (addresses.empty())
    return Fail(ErrorCode::kNotFound, "\"" + host + "\" has no IPv4 or IPv6 address");
  return addresses;
}

}  // namespace sluice::control
