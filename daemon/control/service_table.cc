// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/service_table.h"

#include <algorithm>

namespace sluice::control {

bool ServiceTable::Add(uint32_t service, Listener listener) {
  Service& entry = services_[service];
  if (!entry.listeners.empty() && entry.listeners.front().client != listener.client) return false;
  entry.listeners.push_back(listener);
  return true;
}

void ServiceTable::Remove(uint32_t service, io::ClientId client, uint64_t token) {
  const auto found = services_.find(service);
  if (found == services_.end()) return;
  std::erase_if(found->second.listeners, [&](const Listener& listener) {
    return listener.client == client && listener.token == token;
  });
  if (found->second.listeners.empty()) services_.erase(found);
}

bool ServiceTable::Offer(uint32_t service, const std::function<bool(const Listener&)>& take) {
  const auto found = services_.find(service);
  if (found == services_.end()) return false;
  const size_t count = found->second.listeners.size();
  const size_t first = found->second.next % count;
  found->second.next = first + 1;
  for (size_t i = 0; i < count; ++i) {
    const Listener listener = found->second.listeners[(first + i) % count];  // A copy: `take` may
                                                                             // change the table...
    if (take(listener)) return true;
    if (services_.find(service) != found || found->second.listeners.size() != count)
      return false;  // ...and did.
  }
  return false;
}

}  // namespace sluice::control
