// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/pause_counters.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "shm_proto/base/fd.h"

namespace sluice::control {
namespace {

constexpr size_t kMaxPauseCounters = 64;  // Two ways of eight priorities, a few figures of each.
constexpr uint32_t kMaxStatistics = 16'384;
// The kernel writes as many values as there are, not as many as were asked for.
constexpr uint32_t kSpareStatistics = 1'024;

class Ethtool final : public InterfaceStatistics {
 public:
  explicit Ethtool(std::string interface) : interface_(std::move(interface)) {}

  Result<std::vector<Named>> Read() override {
    const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket.valid()) return FailErrno("a socket to ask " + interface_ + " for statistics");
    ethtool_drvinfo driver{};
    driver.cmd = ETHTOOL_GDRVINFO;
    if (!Ask(socket.get(), &driver)) return FailErrno("the driver of " + interface_);
    const uint32_t count = driver.n_stats;
    if (count == 0) return {};
    if (count > kMaxStatistics)
      return Fail(ErrorCode::kProtocol,
                  interface_ + " has " + std::to_string(count) + " statistics, too many to read");
    const size_t room = size_t{count} + kSpareStatistics;
    std::vector<char> names(sizeof(ethtool_gstrings) + room * ETH_GSTRING_LEN);
    auto* strings = reinterpret_cast<ethtool_gstrings*>(names.data());
    strings->cmd = ETHTOOL_GSTRINGS;
    strings->string_set = ETH_SS_STATS;
    strings->len = count;
    std::vector<uint64_t> values(sizeof(ethtool_stats) / sizeof(uint64_t) + room);
    auto* statistics = reinterpret_cast<ethtool_stats*>(values.data());
    statistics->cmd = ETHTOOL_GSTATS;
    statistics->n_stats = count;
    if (!Ask(socket.get(), strings) || !Ask(socket.get(), statistics))
      return FailErrno("the statistics of " + interface_);
    if (strings->len != count || statistics->n_stats != count)
      return Fail(ErrorCode::kUnavailable, "the statistics of " + interface_ + " just changed");
    std::vector<Named> out;
    for (uint32_t i = 0; i < count; ++i) {
      const char* name = reinterpret_cast<const char*>(strings->data) + i * ETH_GSTRING_LEN;
      out.emplace_back(std::string(name, strnlen(name, ETH_GSTRING_LEN)), statistics->data[i]);
    }
    return out;
  }

 private:
  bool Ask(int socket, void* what) const {
    ifreq request{};
    interface_.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
    request.ifr_data = static_cast<char*>(what);
    return ioctl(socket, SIOCETHTOOL, &request) == 0;
  }

  const std::string interface_;
};

}  // namespace

std::unique_ptr<InterfaceStatistics> EthtoolStatistics(std::string interface) {
  return std::make_unique<Ethtool>(std::move(interface));
}

bool IsPauseCounter(std::string_view name) {
  for (const std::string_view part : {"pause", "pfc", "xoff"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

Result<std::vector<InterfaceStatistics::Named>> PauseCounters(InterfaceStatistics& statistics) {
  auto all = statistics.Read();
  if (!all) return all;
  std::erase_if(*all, [](const auto& one) { return !IsPauseCounter(one.first); });
  if (all->size() > kMaxPauseCounters) all->resize(kMaxPauseCounters);
  return all;
}

// What else has such a name is no number of frames: microseconds, and changes from one to the
// other.
std::optional<uint64_t> ReceivedPauseFrames(
    const std::vector<InterfaceStatistics::Named>& counters) {
  std::optional<uint64_t> of_priorities, others;
  for (const auto& [name, value] : counters) {
    if (!name.starts_with("rx") || name.find("duration") != std::string::npos ||
        name.find("transition") != std::string::npos)
      continue;
    auto& sum = name.find("pri") != std::string::npos ? of_priorities : others;
    sum = sum.value_or(0) + value;
  }
  return of_priorities ? of_priorities : others;
}

// Reading an entry that is not in use fails.
std::string InterfaceBelow(const std::string& devices, const std::string& device, int port) {
  const std::filesystem::path folder = std::filesystem::path(devices) / device / "ports" /
                                       std::to_string(port) / "gid_attrs" / "ndevs";
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::string interface;
    if (std::ifstream(entry->path()) >> interface && !interface.empty()) return interface;
  }
  return "";
}

}  // namespace sluice::control
