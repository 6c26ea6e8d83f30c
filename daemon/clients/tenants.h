// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shm_proto/base/result.h"

namespace sluice::clients {

// Who may attach, and how much each may hold. A client belongs to the first rule that names its uid
// or one of its gids.
struct TenantRule {
  std::string name;
  std::vector<uint32_t> uids;
  std::vector<uint32_t> gids;
  bool any_user = false;
  uint64_t pool_quota_bytes = 1ull << 30;   // Of each client.
  uint64_t ring_quota_bytes = 64ull << 20;  // Of each client: its channels' rings.
  uint64_t tenant_memory_quota_bytes = 0;  // Of all its clients, pools and rings; 0: bounded by the
                                           // node's cap alone.
  uint32_t max_clients = 256;
  uint32_t max_channels = 64;      // Of each client.
  uint32_t max_sockets = 16'384;   // Of each client.
  std::vector<uint32_t> services;  // It may listen on these; empty: on any.

  bool MayListen(uint32_t service) const;
};

// What the kernel says about the process that connected. The pid is for display and liveness, never
// an identity.
struct Credentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // Supplementary.
};

// Of the other end of a connected Unix socket, as of its connect().
Result<Credentials> ReadCredentials(int socket);

// One tenant and what its clients hold now. Outlives its rule while a client of it is left.
struct Tenant {
  TenantRule rule;
  uint32_t clients = 0;
  uint64_t memory_bytes = 0;  // Pools and rings, also those that a client or its child keeps mapped
                              // after its time.
  uint64_t attached = 0, attach_refused = 0;
  uint64_t attach_tokens_ns = 0;  // The rate limit's bucket, filled up to one second's worth.
  uint64_t attach_refilled_ns = 0;
};

struct NodeLimits {
  uint64_t memory_bytes = UINT64_MAX;  // Pools and rings of all clients.
  uint32_t max_clients = 1024;
  uint32_t attach_rate_per_s = 1000;  // Of each tenant, so that one cannot lock the others out.
};

// All tenants, and the node's totals.
// Invariant: memory_bytes() is the sum over all tenants and every charge was within both limits
// when made; a limit lowered later takes nothing away. Thread: control. Owns: the tenants, jointly
// with their clients.
class Tenants {
 public:
  Tenants(std::vector<TenantRule> rules, NodeLimits limits);

  // Live. Tenants are told apart by name; one that vanished takes no new clients.
  void Reconfigure(std::vector<TenantRule> rules, NodeLimits limits);

  // The tenant this process belongs to; kPermission if none (deny by default).
  Result<std::shared_ptr<Tenant>> Match(const Credentials& credentials) const;

  // Counts a client, within the tenant's and the node's numbers and the tenant's rate
  // (kWouldBlock).
  Result<> Admit(Tenant& tenant, uint64_t now_ns);
  void Leave(Tenant& tenant);

  // Counts memory before it is made. kNoMemory names the limit in the way.
  Result<> Charge(Tenant& tenant, uint64_t bytes);
  void Refund(Tenant& tenant, uint64_t bytes);

  uint64_t memory_bytes() const { return memory_bytes_; }
  uint32_t clients() const { return clients_; }
  const NodeLimits& limits() const { return limits_; }
  const std::vector<std::shared_ptr<Tenant>>& all() const { return tenants_; }

 private:
  std::vector<std::shared_ptr<Tenant>> tenants_;  // In the order of the rules.
  NodeLimits limits_;
  uint64_t memory_bytes_ = 0;
  uint32_t clients_ = 0;
};

}  // namespace sluice::clients
