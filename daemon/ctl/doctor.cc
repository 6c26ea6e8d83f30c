// SPDX-License-Identifier: Apache-2.0
#include "daemon/ctl/doctor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include "shm_proto/base/fd.h"
#include "shm_proto/base/units.h"

namespace sluice::ctl {
namespace {

namespace fs = std::filesystem;

// The first line of a small file; empty when it cannot be read.
std::string Line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<fs::path> Children(const fs::path& folder) {
  std::vector<fs::path> children;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    children.push_back(at->path());
  }
  std::ranges::sort(children);
  return children;
}

// A figure of /proc/meminfo, in its own unit.
std::optional<uint64_t> MemoryInfo(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name + ":")) continue;
    std::istringstream rest(line.substr(name.size() + 1));
    uint64_t value = 0;
    if (rest >> value) return value;
  }
  return std::nullopt;
}

std::string LimitText(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : fmt::format("{} KiB", limit / kKiB);
}

// By trying: in a container the limit may read "unlimited" and locking fail all the same.
Finding LockedMemory() {
  constexpr size_t kTrialBytes = 2 * kMiB;
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  void* memory = mmap(nullptr, kTrialBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                      0);
  const bool locked = memory != MAP_FAILED && mlock(memory, kTrialBytes) == 0;
  const int error = errno;
  if (memory != MAP_FAILED) munmap(memory, kTrialBytes);
  const std::string found = fmt::format(
      "limit {}, a trial of 2 MiB {}", LimitText(limit.rlim_cur),
      locked ? "worked" : std::string("failed: ") + std::strerror(error));
  if (!locked) {
    return {"locked memory", Severity::kFix, found,
            "memory cannot be registered with an RDMA device",
            "set LimitMEMLOCK=infinity in the unit, or raise the container's memlock limit"};
  }
  if (limit.rlim_cur != RLIM_INFINITY) {
    return {"locked memory", Severity::kNote, found,
            "with RDMA, pools can grow to this limit only (here, for this shell)",
            "the unit's LimitMEMLOCK decides for the daemon"};
  }
  return {"locked memory", Severity::kGood, found, "", ""};
}

Finding HugePages() {
  const uint64_t total = MemoryInfo("HugePages_Total").value_or(0),
                 unused = MemoryInfo("HugePages_Free").value_or(0);
  const std::string found = fmt::format("{} of {} huge pages are free", unused, total);
  if (total == 0)
    return {"huge pages", Severity::kNote, "none reserved",
            "pools use ordinary pages; they work, with more TLB misses", ""};
  return {"huge pages", Severity::kGood, found, "", ""};
}

// What every pool needs: a sealed, allocated memfd.
Finding SharedMemory() {
  const Fd fd(memfd_create("sluice-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    return {"shared memory", Severity::kFix, std::string("memfd_create: ") + std::strerror(errno),
            "no pool can be made", "allow memfd_create in the container's system call filter"};
  }
  constexpr off_t kTrialBytes = 4 << 20;
  if (const int error = posix_fallocate(fd.get(), 0, kTrialBytes); error != 0) {
    return {"shared memory", Severity::kFix,
            std::string("allocating 4 MiB: ") + std::strerror(error), "no pool can be made",
            "free memory, or raise the memory limit of the container or service"};
  }
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
  if (fcntl(fd.get(), F_ADD_SEALS,
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return {"shared memory", Severity::kFix, std::string("sealing: ") + std::strerror(errno),
            "the kernel cannot protect the daemon from a client that punches holes",
            "use Linux 5.1 or later"};
  }
  return {"shared memory", Severity::kGood, "a memfd of 4 MiB was allocated and sealed", "", ""};
}

Finding Descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::string found = fmt::format("this shell may open {}, at most {}", limit.rlim_cur,
                                        limit.rlim_max);
  if (limit.rlim_max < 4'096) {
    return {"descriptors", Severity::kFix, found,
            "each client takes several; further ones will be refused",
            "raise LimitNOFILE in the unit, or the hard limit"};
  }
  return {"descriptors", Severity::kGood, found, "", ""};
}

Finding Kernel() {
  utsname name{};
  uname(&name);
  int major = 0, minor = 0;
  if (std::sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
      (major < 5 || (major == 5 && minor < 14))) {
    return {"kernel", Severity::kFix, name.release,
            "prefaulting of pools (MADV_POPULATE_WRITE) needs Linux 5.14", "use a newer kernel"};
  }
  const Fd process(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!process.valid()) {
    return {"kernel", Severity::kNote, fmt::format("{}, without pidfd_open", name.release),
            "the end of a client is noticed by its socket alone",
            "allow pidfd_open in the system call filter"};
  }
  return {"kernel", Severity::kGood, name.release, "", ""};
}

Finding ClockSource() {
  const std::string source = Line(
      "/sys/devices/system/clocksource/clocksource0/current_clocksource");
  if (source.empty() || source == "tsc" || source == "kvm-clock" || source == "arch_sys_counter" ||
      source == "hyperv_clocksource_tsc_page") {
    return {"clock", Severity::kGood, source.empty() ? "not readable" : source, "", ""};
  }
  return {
      "clock", Severity::kNote, source,
      "reading the time is a slow system call with this source, and the daemon does it once a loop",
      "find out why the kernel gave up tsc (dmesg | grep -i clocksource)"};
}

void NetworkDevices(std::vector<Finding>& findings) {
  for (const fs::path& device : Children("/sys/class/net")) {
    const std::string name = device.filename();
    if (name == "lo" || Line(device / "operstate") != "up") continue;
    const std::string speed = Line(device / "speed");
    findings.push_back(
        {"network " + name, Severity::kGood,
         fmt::format("up, MTU {}{}", Line(device / "mtu"),
                     speed.empty() || speed[0] == '-' ? "" : ", " + speed + " Mbit/s"),
         "", ""});
  }
}

// The addresses by which an RDMA port is reached, with their type.
std::string Gids(const fs::path& port) {
  std::string gids;
  for (const fs::path& gid : Children(port / "gids")) {
    const std::string address = Line(gid);
    const std::string type = Line(port / "gid_attrs/types" / gid.filename());
    if (type.empty() || address.find_first_not_of("0:") == std::string::npos) continue;
    gids += fmt::format("{}{} ({} {})", gids.empty() ? "" : ", ", address, gid.filename().string(),
                        type);
  }
  return gids;
}

// Priorities with PFC, as drivers of one vendor show them; most show nothing.
std::string FlowControl(const fs::path& device) {
  std::string out;
  for (const fs::path& net : Children(device / "device/net")) {
    for (const char* file : {"qos/pfc", "qos/trust"}) {
      if (const std::string value = Line(net / file); !value.empty())
        out += fmt::format(", {} {}", file, value);
    }
    for (const fs::path& ecn : Children(net / "ecn/roce_rp/enable")) {
      out += fmt::format(", ECN {}={}", ecn.filename().string(), Line(ecn));
    }
  }
  return out;
}

void RdmaDevices(std::vector<Finding>& findings) {
  const auto devices = Children("/sys/class/infiniband");
  if (devices.empty()) {
    findings.push_back({"RDMA", Severity::kNote, "no RDMA device", "messages go over TCP", ""});
  }
  for (const fs::path& device : devices) {
    for (const fs::path& port : Children(device / "ports")) {
      const std::string check = fmt::format("RDMA {} port {}", device.filename().string(),
                                            port.filename().string());
      const std::string state = Line(port / "state");
      const std::string gids = Gids(port);
      if (state.find("ACTIVE") == std::string::npos) {
        findings.push_back({check, Severity::kFix, state,
                            "the port carries nothing; engines stay on TCP",
                            "check the cable and `ip link set DEVICE up`"});
      } else if (gids.find("RoCE v2") == std::string::npos &&
                 Line(port / "link_layer") == "Ethernet") {
        findings.push_back({check, Severity::kFix, "no RoCE v2 address: " + gids,
                            "peers cannot reach this port",
                            "give its network device an IP address"});
      } else {
        findings.push_back({check, Severity::kGood,
                            fmt::format("{}; {}{}", state, gids, FlowControl(device)), "", ""});
      }
    }
  }
}

std::string OutputOf(const char* command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command, "r"), pclose);
  if (!pipe) return "";
  constexpr size_t kMaxBytes = 1 << 20;
  std::string out;
  char buffer[4096];
  for (size_t got;
       out.size() < kMaxBytes && (got = fread(buffer, 1, sizeof(buffer), pipe.get())) > 0;) {
    out.append(buffer, got);
  }
  return out;
}

Finding Firewall(uint16_t peer_port) {
  const std::string rules = OutputOf("nft list ruleset 2>/dev/null");
  const std::string port = std::to_string(peer_port);
  if (rules.empty()) {
    return {"firewall", Severity::kGood, "no nftables rules (or they cannot be read)", "", ""};
  }
  const bool drops = rules.find("hook input") != std::string::npos &&
                     rules.find("policy drop") != std::string::npos;
  if (drops && rules.find(port) == std::string::npos) {
    return {"firewall", Severity::kFix,
            "an input chain drops by default and no rule names port " + port,
            "peer daemons cannot connect to this node",
            "add: nft add rule inet filter input tcp dport " + port + " accept"};
  }
  return {"firewall", Severity::kGood,
          drops ? "port " + port + " is named in the rules" : "nothing is dropped by default", "",
          ""};
}

}  // namespace

std::vector<Finding> ExamineHost(uint16_t peer_port) {
  std::vector<Finding> findings = {LockedMemory(), HugePages(), SharedMemory(),
                                   Descriptors(),  Kernel(),    ClockSource()};
  NetworkDevices(findings);
  RdmaDevices(findings);
  findings.push_back(Firewall(peer_port));
  return findings;
}

}  // namespace sluice::ctl
