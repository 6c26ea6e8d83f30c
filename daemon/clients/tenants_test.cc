// SPDX-License-Identifier: Apache-2.0
#include "daemon/clients/tenants.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm_proto/base/clock.h"
#include "shm_proto/base/fd.h"

namespace sluice::clients {
namespace {

TenantRule Rule(std::string name, std::vector<uint32_t> uids, std::vector<uint32_t> gids = {}) {
  TenantRule rule;
  rule.name = std::move(name);
  rule.uids = std::move(uids);
  rule.gids = std::move(gids);
  return rule;
}

Credentials Who(uid_t uid, gid_t gid, std::vector<gid_t> groups = {}) {
  return {1, uid, gid, std::move(groups)};
}

TEST(Tenants, WhomNoRuleNamesIsDenied) {
  const Tenants nobody({}, {});
  EXPECT_EQ(nobody.Match(Who(0, 0)).error().code, ErrorCode::kPermission) << "root too";
  const Tenants tenants({Rule("a", {100})}, {});
  EXPECT_TRUE(tenants.Match(Who(100, 5)));
  EXPECT_FALSE(tenants.Match(Who(101, 100))) << "a gid is no uid";
}

TEST(Tenants, TheFirstRuleThatNamesAUserOrAGroupWins) {
  TenantRule rest = Rule("rest", {});
  rest.any_user = true;
  const Tenants tenants({Rule("users", {100}), Rule("groups", {}, {7}), rest}, {});
  EXPECT_EQ((*tenants.Match(Who(100, 7)))->rule.name, "users");
  EXPECT_EQ((*tenants.Match(Who(101, 7)))->rule.name, "groups");
  EXPECT_EQ((*tenants.Match(Who(101, 1, {6, 7})))->rule.name, "groups")
      << "by a supplementary group";
  EXPECT_EQ((*tenants.Match(Who(101, 1)))->rule.name, "rest");
}

TEST(Tenants, ClientsAreCountedPerTenantAndPerNode) {
  TenantRule rule = Rule("a", {1});
  rule.max_clients = 2;
  Tenants tenants({rule, Rule("b", {2})}, {.max_clients = 3});
  const auto a = *tenants.Match(Who(1, 0));
  const auto b = *tenants.Match(Who(2, 0));
  EXPECT_TRUE(tenants.Admit(*a, 1));
  EXPECT_TRUE(tenants.Admit(*a, 1));
  EXPECT_EQ(tenants.Admit(*a, 1).error().code, ErrorCode::kNoMemory);
  EXPECT_TRUE(tenants.Admit(*b, 1));
  EXPECT_EQ(tenants.Admit(*b, 1).error().code, ErrorCode::kNoMemory);
  tenants.Leave(*a);
  EXPECT_TRUE(tenants.Admit(*b, 1));
}

TEST(Tenants, AttachingTooOftenWaitsWithoutLockingOthersOut) {
  Tenants tenants({Rule("a", {1}), Rule("b", {2})}, {.attach_rate_per_s = 10});
  const auto a = *tenants.Match(Who(1, 0));
  uint64_t now_ns = 5 * kNsPerSecond;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(tenants.Admit(*a, now_ns));
  EXPECT_EQ(tenants.Admit(*a, now_ns).error().code, ErrorCode::kWouldBlock);
  EXPECT_TRUE(tenants.Admit(**tenants.Match(Who(2, 0)), now_ns));
  now_ns += kNsPerSecond / 10;
  EXPECT_TRUE(tenants.Admit(*a, now_ns));
  EXPECT_FALSE(tenants.Admit(*a, now_ns));
  EXPECT_EQ(a->attach_refused, 2u);
}

TEST(Tenants, MemoryIsBoundedPerTenantAndPerNode) {
  TenantRule rule = Rule("a", {1});
  rule.tenant_memory_quota_bytes = 100;
  Tenants tenants({rule, Rule("b", {2})}, {.memory_bytes = 150});
  const auto a = *tenants.Match(Who(1, 0));
  const auto b = *tenants.Match(Who(2, 0));
  EXPECT_TRUE(tenants.Charge(*a, 100));
  EXPECT_EQ(tenants.Charge(*a, 1).error().code, ErrorCode::kNoMemory);
  EXPECT_FALSE(tenants.Charge(*b, 51));
  EXPECT_FALSE(tenants.Charge(*b, UINT64_MAX));
  EXPECT_TRUE(tenants.Charge(*b, 50));
  tenants.Refund(*a, 100);
  EXPECT_EQ(tenants.memory_bytes(), 50u);
}

TEST(Tenants, ReconfiguringKeepsWhatATenantHolds) {
  Tenants tenants({Rule("a", {1}), Rule("gone", {2})}, {});
  const auto a = *tenants.Match(Who(1, 0));
  const auto gone = *tenants.Match(Who(2, 0));
  ASSERT_TRUE(tenants.Charge(*a, 100));
  ASSERT_TRUE(tenants.Charge(*gone, 10));
  TenantRule rule = Rule("a", {3});
  rule.tenant_memory_quota_bytes = 50;
  tenants.Reconfigure({rule}, {.memory_bytes = 1000});
  EXPECT_EQ(*tenants.Match(Who(3, 0)), a);
  EXPECT_FALSE(tenants.Match(Who(1, 0)));
  EXPECT_FALSE(tenants.Match(Who(2, 0)));
  EXPECT_FALSE(tenants.Charge(*a, 1)) << "above the lowered limit";
  tenants.Refund(*gone, 10);
  EXPECT_EQ(tenants.memory_bytes(), 100u);
}

TEST(Tenants, AServiceListRestrictsListening) {
  TenantRule rule = Rule("a", {1});
  EXPECT_TRUE(rule.MayListen(80));
  rule.services = {7, 9};
  EXPECT_TRUE(rule.MayListen(9));
  EXPECT_FALSE(rule.MayListen(80));
}

TEST(Credentials, AreTheKernelsWordAboutTheOtherEnd) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  const Fd near(fds[0]), far(fds[1]);
  const auto who = ReadCredentials(near.get());
  ASSERT_TRUE(who);
  EXPECT_EQ(who->pid, getpid());
  EXPECT_EQ(who->uid, getuid());
  EXPECT_EQ(who->gid, getgid());
  EXPECT_EQ(who->groups.size(), static_cast<size_t>(getgroups(0, nullptr)));
}

}  // namespace
}  // namespace sluice::clients
