// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/headroom.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

namespace sluice::memory {
namespace {

// The first number in a file; nullopt when there is no such file or it says "max".
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The number after `key` in a file of "key value" lines.
std::optional<uint64_t> ReadKey(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

struct Mount {
  bool v2;
  std::string root;   // Which directory of the hierarchy is mounted.
  std::string point;  // Where.
};

// The memory controller's mounts (v1) and the unified hierarchy (v2) as this process sees them.
std::vector<Mount> ReadMounts(const std::string& path) {
  std::vector<Mount> mounts;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const size_t separator = line.find(" - ");
    if (separator == std::string::npos) continue;
    std::istringstream before(line.substr(0, separator));
    std::istringstream after(line.substr(separator + 3));
    std::string id, parent, device, root, point, type, source, options;
    before >> id >> parent >> device >> root >> point;
    after >> type >> source >> options;
    const bool v1_memory = type == "cgroup" &&
                           ("," + options + ",").find(",memory,") != std::string::npos;
    if (type == "cgroup2" || v1_memory) mounts.push_back({type == "cgroup2", root, point});
  }
  return mounts;
}

// Our path in each hierarchy, from /proc/self/cgroup: "0::/a/b" (v2), "4:memory:/a/b" (v1).
std::optional<std::string> ReadPath(const std::string& path, bool v2) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool match = v2 ? line.starts_with("0:") && controllers.empty()
                          : ("," + controllers + ",").find(",memory,") != std::string::npos;
    if (match) return line.substr(second + 1);
  }
  return std::nullopt;
}

// What is left below `limit`; cache that can be dropped is not in the way.
uint64_t Left(uint64_t limit, uint64_t used, uint64_t reclaimable) {
  const uint64_t busy = used - std::min(used, reclaimable);
  return limit - std::min(limit, busy);
}

}  // namespace

Headroom::Headroom(std::string root, uint64_t keep_free_bytes)
    : root_(std::move(root)), keep_free_bytes_(keep_free_bytes) {
  FindHierarchies();
}

void Headroom::FindHierarchies() {
  for (const Mount& mount : ReadMounts(root_ + "/proc/self/mountinfo")) {
    std::string path = ReadPath(root_ + "/proc/self/cgroup", mount.v2).value_or("/");
    // In a container the mount may show our own part of the hierarchy only.
    if (mount.root != "/") {
      path = path.starts_with(mount.root) ? path.substr(mount.root.size()) : "";
    }
    if (path.find("/..") != std::string::npos) path.clear();  // Above our cgroup namespace's root.
    while (!path.empty() && path.back() == '/') path.pop_back();

    Hierarchy hierarchy{mount.v2, {}};
    const std::string base = root_ + mount.point;
    for (;;) {
      hierarchy.directories.push_back(base + path);
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
    hierarchies_.push_back(std::move(hierarchy));
  }
}

Headroom::Limit Headroom::Tightest() const {
  Limit tightest{UINT64_MAX, ""};
  const auto consider = [&](uint64_t available, const std::string& where) {
    if (available < tightest.available_bytes) tightest = {available, where};
  };
  if (const auto available_kib = ReadKey(root_ + "/proc/meminfo", "MemAvailable:")) {
    consider(*available_kib * 1024, "this machine");
  }
  for (const Hierarchy& hierarchy : hierarchies_) {
    for (const std::string& directory : hierarchy.directories) {
      const std::string used_file = hierarchy.v2 ? "/memory.current" : "/memory.usage_in_bytes";
      const auto used = ReadNumber(directory + used_file);
      if (!used) continue;  // The root, or a level without the memory controller.
      const char* cache_key = hierarchy.v2 ? "inactive_file" : "total_inactive_file";
      const uint64_t cache = ReadKey(directory + "/memory.stat", cache_key).value_or(0);
      for (const char* limit_file : {"/memory.max", "/memory.high", "/memory.limit_in_bytes"}) {
        const auto limit = ReadNumber(directory + limit_file);
        if (limit) consider(Left(*limit, *used, cache), directory + limit_file);
      }
    }
  }
  tightest.available_bytes -= std::min(tightest.available_bytes, keep_free_bytes_);
  return tightest;
}

uint64_t Headroom::AvailableBytes() const { return Tightest().available_bytes; }

Result<> Headroom::Check(uint64_t bytes) const {
  const Limit limit = Tightest();
  if (bytes <= limit.available_bytes) return {};
  return Fail(ErrorCode::kNoMemory, "out of memory: " + std::to_string(bytes) + " bytes wanted, " +
                                        std::to_string(limit.available_bytes) + " left under " +
                                        limit.where);
}

}  // namespace sluice::memory
