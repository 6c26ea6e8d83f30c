// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/client_wiring.h"

#include <string>
#include <utility>

#include "shm_proto/base/units.h"

namespace sluice::control {

std::vector<clients::TenantRule> ToTenantRules(const Config& config) {
  std::vector<clients::TenantRule> rules;
  for (const TenantConfig& tenant : config.tenants) {
    clients::TenantRule rule;
    rule.name = tenant.name;
    rule.uids = tenant.uids;
    rule.gids = tenant.gids;
    rule.any_user = tenant.any_user;
    rule.pool_quota_bytes = tenant.pool_quota_mib * kMiB;
    rule.tenant_memory_quota_bytes = tenant.tenant_pool_quota_mib * kMiB;
    rule.max_clients = tenant.max_clients;
    rule.max_channels = tenant.max_channels;
    rule.max_sockets = tenant.max_sockets;
    rule.services = tenant.services;
    rules.push_back(std::move(rule));
  }
  return rules;
}

clients::NodeLimits ToNodeLimits(const Config& config) {
  return {.memory_bytes = NodeLimitBytes(config),
          .max_clients = config.clients.max_clients,
          .attach_rate_per_s = config.clients.attach_rate_per_s};
}

ClientServerOptions ToClientServerOptions(const Config& config, uint64_t instance) {
  ClientServerOptions options;
  options.tenants = ToTenantRules(config);
  options.limits = ToNodeLimits(config);
  options.instance = instance;
  options.extent_bytes = config.pool.extent_mib * kMiB;
  options.ring_start = config.pool.ring_start;
  return options;
}

std::vector<ClientStatus> ToClientStatus(const ClientServerSnapshot& snapshot) {
  std::vector<ClientStatus> statuses;
  for (const ClientSnapshot& client : snapshot.clients) {
    if (client.state != "attached") continue;
    ClientStatus status;
    status.client = client.client;
    status.name = client.name;
    status.tenant = client.tenant;
    status.uid = client.uid;
    status.gid = client.gid;
    status.process_id = client.pid;
    status.attached_ns = client.attached_ns_ago;
    status.channels = client.channels;
    status.sockets = client.sockets;
    status.listeners = client.listeners;
    status.pool_bytes = client.pool_bytes;
    status.pool_quota_bytes = client.quota_bytes;
    status.send_block_bytes = client.send_bytes;
    status.receive_block_bytes = client.receive_bytes;
    statuses.push_back(std::move(status));
  }
  return statuses;
}

std::vector<NamedNumber> ToNumbers(const ClientServerSnapshot& snapshot) {
  const ClientServerCounters& counters = snapshot.counters;
  std::vector<NamedNumber> numbers;
  const auto counter = [&](const char* name, const char* help, uint64_t value) {
    numbers.push_back({name, help, {}, static_cast<double>(value), true});
  };
  const auto gauge = [&](const char* name, const char* help, uint64_t value) {
    numbers.push_back({name, help, {}, static_cast<double>(value), false});
  };
  counter("attaches_total", "Clients that attached.", counters.attached);
  counter("attaches_refused_total",
          "Clients refused: not allowed, over a quota, wrong version, too late.",
          counters.attach_refused);
  counter("clients_detached_total", "Clients given up for breaking the rules or not reading.",
          counters.detached);
  counter("client_requests_rejected_total",
          "Malformed, out-of-order or out-of-range requests of clients.",
          counters.rejected_requests);
  counter("client_memory_refused_total",
          "Requests for pool memory refused for want of quota or memory.", counters.memory_refused);
  counter("pool_extents_made_total", "Extents made for clients' pools.", counters.extents_made);
  counter("pool_extents_released_total", "Extents that went back while their client lived.",
          counters.extents_released);
  counter("incoming_sockets_refused_total",
          "Connections refused for want of a listener or of room at it.",
          counters.incoming_refused);
  gauge("client_memory_bytes", "Pools and rings of all clients.", snapshot.memory_bytes);
  gauge("client_memory_limit_bytes",
        "What pools and rings of all clients may reach (pool.node_limit_mib).",
        snapshot.memory_limit_bytes);
  gauge("client_memory_lingering_bytes",
        "Of it: kept by clients or their children after their time.", snapshot.lingering_bytes);

  for (const TenantSnapshot& tenant : snapshot.tenants) {
    const auto of_tenant = [&](const char* name, const char* help, uint64_t value, bool counts) {
      numbers.push_back(
          {name, help, {{"tenant", tenant.name}}, static_cast<double>(value), counts});
    };
    of_tenant("tenant_clients", "Attached clients of the tenant.", tenant.clients, false);
    of_tenant("tenant_memory_bytes", "Pools and rings of the tenant's clients.",
              tenant.memory_bytes, false);
    of_tenant("tenant_attaches_total", "Clients of the tenant that attached.", tenant.attached,
              true);
    of_tenant("tenant_attaches_refused_total", "Clients of the tenant refused for quota or rate.",
              tenant.attach_refused, true);
  }
  return numbers;
}

}  // namespace sluice::control
