// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <sluice/rpc.hpp>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

// What servers and channels see of their endpoint.
namespace sluice::rpc {

constexpr uint64_t kNever = UINT64_MAX;
constexpr uint64_t kNsPerMs = 1'000'000;

inline uint64_t Ns(double ms) { return ms <= 0 ? 0 : static_cast<uint64_t>(ms * kNsPerMs); }

// A server or a channel.
class Member {
 public:
  virtual ~Member() = default;
  virtual void OnEvent(const sluice_event& event, uint64_t now_ns) = 0;

  // Does what is due, and tries again what found no room. Returns when it has to be called next:
  // a time, or kNever.
  virtual uint64_t OnTurn(uint64_t now_ns) = 0;
};

// The attachment, its channel, and who gets which event.
// Invariant: a socket has an owner from its connect or accept to its CLOSED or failed CONNECTED.
// Thread: its user's, or its own; post_ alone is for any. Owns: client, channel, thread.
class EndpointImpl {
 public:
  static Maybe<std::unique_ptr<EndpointImpl>> Open(const EndpointOptions& options);
  explicit EndpointImpl(const EndpointOptions& options);
  ~EndpointImpl();

  int Poll(int timeout_ms);
  void Post(std::function<void()> task);
  void Start();
  void Stop();

  uint64_t now_ns() const { return options_.now_ns(); }
  double Random() { return std::uniform_real_distribution<>(0, 1)(random_); }
  uint64_t RandomNumber() { return random_(); }
  sluice_channel* channel() const { return channel_; }

  void Join(Member& member) { members_.push_back(&member); }
  void Leave(Member& member);
  void Own(sluice_socket socket, Member& member) { owners_[socket] = &member; }
  void OwnListener(sluice_listener listener, Member& member) { listeners_[listener] = &member; }

  Payload Allocate(size_t bytes);
  Payload Copy(const void* data, size_t bytes);

 private:
  uint64_t Turn();
  void Dispatch(const sluice_event& event);
  void RunPosted();
  void Sleep(int timeout_ms, uint64_t due_ns);

  EndpointOptions options_;
  std::mt19937_64 random_;
  sluice_client* client_ = nullptr;
  sluice_channel* channel_ = nullptr;
  int wake_fd_ = -1;
  std::vector<Member*> members_;
  std::unordered_map<sluice_socket, Member*> owners_;
  std::unordered_map<sluice_listener, Member*> listeners_;

  std::mutex mutex_;  // posted_
  std::vector<std::function<void()>> posted_;
  std::atomic<bool> any_posted_ = false;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// Puts `header` before the payload's bytes: in its headroom, or else in a new buffer. False: no
// memory. `start` is where the message begins.
template <typename Header>
bool Prepend(EndpointImpl& endpoint, const Header& header, Payload& payload, void*& start) {
  if (payload.headroom() < sizeof(header)) {
    Payload moved = endpoint.Copy(payload.data(), payload.size());
    if (!moved) return false;
    payload = std::move(moved);
  }
  start = payload.data() - sizeof(header);
  Write(header, std::span(static_cast<std::byte*>(start), sizeof(header)));
  return true;
}

}  // namespace sluice::rpc
