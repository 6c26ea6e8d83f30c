// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/verbs/pause_counters.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "shm_proto/base/fd.h"

namespace sluice::transport {
namespace {

constexpr uint32_t
    kMaxStatistics = 16'384;  // Of one interface; real ones have up to some thousand.

bool Contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// One ethtool request whose answer is laid into `memory`; false: the driver does not know it.
bool Ask(int socket, const std::string& interface, std::vector<std::byte>& memory) {
  ifreq request{};
  interface.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
  request.ifr_data = reinterpret_cast<char*>(memory.data());
  return ioctl(socket, SIOCETHTOOL, &request) == 0;
}

uint32_t CountStatistics(int socket, const std::string& interface) {
  std::vector<std::byte> memory(sizeof(ethtool_sset_info) + sizeof(uint32_t));
  auto* info = reinterpret_cast<ethtool_sset_info*>(memory.data());
  info->cmd = ETHTOOL_GSSET_INFO;
  info->sset_mask = 1u << ETH_SS_STATS;
  if (!Ask(socket, interface, memory) || info->sset_mask == 0) return 0;
  uint32_t count = 0;
  std::memcpy(&count, memory.data() + sizeof(ethtool_sset_info), sizeof(count));
  return std::min(count, kMaxStatistics);
}

}  // namespace

bool IsPauseCounter(const std::string& name) {
  const bool pause = Contains(name, "pause") || Contains(name, "pfc") || Contains(name, "xoff");
  return pause && !Contains(name, "duration") && !Contains(name, "transition");
}

NamedCounters ReadPauseCounters(const std::string& interface) {
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return {};
  const uint32_t count = CountStatistics(socket.get(), interface);
  if (count == 0) return {};
  std::vector<std::byte> names(sizeof(ethtool_gstrings) + size_t{count} * ETH_GSTRING_LEN);
  auto* strings = reinterpret_cast<ethtool_gstrings*>(names.data());
  strings->cmd = ETHTOOL_GSTRINGS;
  strings->string_set = ETH_SS_STATS;
  strings->len = count;
  std::vector<std::byte> values(sizeof(ethtool_stats) + size_t{count} * sizeof(uint64_t));
  auto* statistics = reinterpret_cast<ethtool_stats*>(values.data());
  statistics->cmd = ETHTOOL_GSTATS;
  statistics->n_stats = count;
  if (!Ask(socket.get(), interface, names) || !Ask(socket.get(), interface, values)) return {};
  NamedCounters counters;
  for (uint32_t i = 0; i < std::min({count, strings->len, statistics->n_stats}); ++i) {
    const auto* text = reinterpret_cast<const char*>(names.data()) + sizeof(ethtool_gstrings) +
                       size_t{i} * ETH_GSTRING_LEN;
    const std::string name(text, strnlen(text, ETH_GSTRING_LEN));
    uint64_t value = 0;
    std::memcpy(&value, values.data() + sizeof(ethtool_stats) + i * sizeof(value), sizeof(value));
    if (IsPauseCounter(name)) counters.emplace_back(name, value);
  }
  return counters;
}

std::optional<uint64_t> ReceivedPauseFrames(const NamedCounters& counters) {
  std::optional<uint64_t> of_priorities, others;
  for (const auto& [name, value] : counters) {
    if (!name.starts_with("rx")) continue;
    auto& sum = Contains(name, "pri") ? of_priorities : others;
    sum = sum.value_or(0) + value;
  }
  return of_priorities ? of_priorities : others;
}

}  // namespace sluice::transport
