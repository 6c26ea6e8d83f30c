// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/control/event_loop.h"
#include "daemon/control/socket_address.h"
#include "shm_proto/base/result.h"

namespace sluice::control {

// Turns host names into addresses without ever blocking the control thread: a few threads, started
// with the first name, ask the system; what takes too long is given up, though its thread stays
// busy until the system answers. Invariant: every Lookup() is answered exactly once, on the loop,
// unless the resolver was destroyed before. Thread: control. Owns: its threads (one that is stuck
// in the system when the resolver goes ends by itself later).
class Resolver {
 public:
  using Addresses = std::vector<SocketAddress>;  // In the system's order of preference; never
                                                 // empty; port as asked.
  using Callback = std::function<void(Result<Addresses>)>;
  // Blocks; called on the resolver's threads. kNotFound: no such name.
  using SystemLookup = std::function<Result<Addresses>(const std::string& host)>;

  static constexpr size_t kThreads = 2;
  static constexpr size_t kMaxPending = 256;
  static constexpr size_t kMaxAddresses = 16;  // Of one name; the rest is ignored.

  Resolver(EventLoop& loop, uint64_t deadline_ns, SystemLookup lookup = AskSystem);
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // Never calls back inside. Errors: kNotFound, kTimeout, kNoMemory (too many pending),
  // kUnavailable (the name service does not answer now).
  void Lookup(const std::string& host, uint16_t port, Callback done);
  size_t pending() const;

  static Result<Addresses> AskSystem(const std::string& host);

 private:
  struct Shared;
  static void Work(const std::shared_ptr<Shared>& shared);
  void Finish(uint64_t id, Result<Addresses> result);

  EventLoop& loop_;
  const uint64_t deadline_ns_;
  std::shared_ptr<Shared> shared_;
  struct Request {
    Callback done;
    uint16_t port;
    EventLoop::TimerId timer;
  };
  std::unordered_map<uint64_t, Request> requests_;
  uint64_t next_id_ = 1;
  bool started_ = false;
};

}  // namespace sluice::control
