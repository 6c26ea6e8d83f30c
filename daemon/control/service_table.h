// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "daemon/io/messages.h"

namespace sluice::control {

// Who listens on which service of this node.
// Invariant: all listeners of one service belong to one client; they take turns.
// Thread: control.
class ServiceTable {
 public:
  struct Listener {
    io::ClientId client;
    uint32_t channel;
    uint64_t token;
  };

  // False: another client has this service.
  bool Add(uint32_t service, Listener listener);
  void Remove(uint32_t service, io::ClientId client, uint64_t token);

  // Offers the service's listeners, the next in turn first, until `take` says true. False: nobody
  // took it.
  bool Offer(uint32_t service, const std::function<bool(const Listener&)>& take);

  bool Has(uint32_t service) const { return services_.contains(service); }

 private:
  struct Service {
    std::vector<Listener> listeners;  // Never empty.
    size_t next = 0;
  };
  std::unordered_map<uint32_t, Service> services_;
};

}  // namespace sluice::control
