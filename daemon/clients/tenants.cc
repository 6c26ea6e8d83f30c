// SPDX-License-Identifier: Apache-2.0
#include "daemon/clients/tenants.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "shm_proto/base/check.h"
#include "shm_proto/base/clock.h"
#include "shm_proto/base/units.h"

namespace sluice::clients {
namespace {

bool Contains(const std::vector<uint32_t>& numbers, uint32_t number) {
  return std::ranges::find(numbers, number) != numbers.end();
}

bool Names(const TenantRule& rule, const Credentials& who) {
  return rule.any_user || Contains(rule.uids, who.uid) || Contains(rule.gids, who.gid) ||
         std::ranges::any_of(who.groups, [&](gid_t gid) { return Contains(rule.gids, gid); });
}

}  // namespace

bool TenantRule::MayListen(uint32_t service) const {
  return services.empty() || Contains(services, service);
}

Result<Credentials> ReadCredentials(int socket) {
  ucred basic{};
  socklen_t length = sizeof(basic);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &basic, &length) != 0) {
    return FailErrno("reading a client's credentials");
  }
  Credentials who{basic.pid, basic.uid, basic.gid, {}};
  // 64 covers all but odd users; the kernel says how many there are if that is too few.
  who.groups.resize(64);
  length = static_cast<socklen_t>(who.groups.size() * sizeof(gid_t));
  int done = getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, who.groups.data(), &length);
  if (done != 0 && errno == ERANGE) {
    who.groups.resize(length / sizeof(gid_t));
    done = getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, who.groups.data(), &length);
  }
  who.groups.resize(done == 0 ? length / sizeof(gid_t) : 0);
  return who;
}

Tenants::Tenants(std::vector<TenantRule> rules, NodeLimits limits) {
  Reconfigure(std::move(rules), limits);
}

void Tenants::Reconfigure(std::vector<TenantRule> rules, NodeLimits limits) {
  std::vector<std::shared_ptr<Tenant>> next;
  for (TenantRule& rule : rules) {
    const auto same = [&](const auto& tenant) { return tenant->rule.name == rule.name; };
    const auto known = std::ranges::find_if(tenants_, same);
    next.push_back(known != tenants_.end() ? *known : std::make_shared<Tenant>());
    next.back()->rule = std::move(rule);
  }
  tenants_ = std::move(next);
  limits_ = limits;
}

Result<std::shared_ptr<Tenant>> Tenants::Match(const Credentials& who) const {
  for (const auto& tenant : tenants_) {
    if (Names(tenant->rule, who)) return tenant;
  }
  return Fail(ErrorCode::kPermission, "no tenant in sluiced's configuration names uid " +
                                          std::to_string(who.uid) +
                                          " or a group of it; add one to attach");
}

Result<> Tenants::Admit(Tenant& tenant, uint64_t now_ns) {
  const uint64_t rate = std::max<uint32_t>(limits_.attach_rate_per_s, 1);
  const uint64_t elapsed_ns = tenant.attach_refilled_ns == 0 ? kNsPerSecond
                                                             : now_ns - tenant.attach_refilled_ns;
  tenant.attach_tokens_ns = std::min(kNsPerSecond,
                                     tenant.attach_tokens_ns + std::min(elapsed_ns, kNsPerSecond));
  tenant.attach_refilled_ns = now_ns;

  const auto refuse = [&](ErrorCode code, std::string message) {
    ++tenant.attach_refused;
    return Fail(code, std::move(message));
  };
  if (tenant.attach_tokens_ns < kNsPerSecond / rate) {
    return refuse(ErrorCode::kWouldBlock, "tenant " + tenant.rule.name +
                                              " attaches more often than " + std::to_string(rate) +
                                              " times a second; try again later");
  }
  if (tenant.clients >= tenant.rule.max_clients) {
    return refuse(ErrorCode::kNoMemory, "tenant " + tenant.rule.name + " has all of its " +
                                            std::to_string(tenant.rule.max_clients) + " clients");
  }
  if (clients_ >= limits_.max_clients) {
    return refuse(ErrorCode::kNoMemory,
                  "the node has all of its " + std::to_string(limits_.max_clients) + " clients");
  }
  tenant.attach_tokens_ns -= kNsPerSecond / rate;
  ++tenant.clients;
  ++tenant.attached;
  ++clients_;
  return {};
}

void Tenants::Leave(Tenant& tenant) {
  SLUICE_CHECK(tenant.clients > 0 && clients_ > 0, "a client leaves once");
  --tenant.clients;
  --clients_;
}

Result<> Tenants::Charge(Tenant& tenant, uint64_t bytes) {
  const auto fits = [&](uint64_t used, uint64_t limit) { return InRange(used, bytes, limit); };
  const uint64_t tenant_limit = tenant.rule.tenant_memory_quota_bytes;
  if (tenant_limit != 0 && !fits(tenant.memory_bytes, tenant_limit)) {
    return Fail(ErrorCode::kNoMemory, "tenant " + tenant.rule.name + " may hold " +
                                          std::to_string(tenant_limit) + " bytes and holds " +
                                          std::to_string(tenant.memory_bytes) + " of them");
  }
  if (!fits(memory_bytes_, limits_.memory_bytes)) {
    return Fail(ErrorCode::kNoMemory,
                "the node's clients may hold " + std::to_string(limits_.memory_bytes) +
                    " bytes and hold " + std::to_string(memory_bytes_) + " of them");
  }
  tenant.memory_bytes += bytes;
  memory_bytes_ += bytes;
  return {};
}

void Tenants::Refund(Tenant& tenant, uint64_t bytes) {
  SLUICE_CHECK(bytes <= tenant.memory_bytes && bytes <= memory_bytes_, "memory is refunded once");
  tenant.memory_bytes -= bytes;
  memory_bytes_ -= bytes;
}

}  // namespace sluice::clients
