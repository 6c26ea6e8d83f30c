// SPDX-License-Identifier: Apache-2.0
// Where a channel learns its service from: a fixed map, or a TOML file that is watched.
#include <fcntl.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sluice/rpc.hpp>
#include <sstream>
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace sluice::rpc {
namespace {

constexpr size_t kMaxReplicasInAll = 65'536;

struct NumberKey {
  const char* name;
  double Tuning::*value;
};
struct CountKey {
  const char* name;
  uint32_t Tuning::*value;
};
constexpr std::array<NumberKey, 11> kNumbers = {
    {{"connect_timeout_ms", &Tuning::connect_timeout_ms},
     {"request_timeout_ms", &Tuning::request_timeout_ms},
     {"deadline_ms", &Tuning::deadline_ms},
     {"retry_probability", &Tuning::retry_probability},
     {"retry_share", &Tuning::retry_share},
     {"hedge_percentile", &Tuning::hedge_percentile},
     {"settle_ms", &Tuning::settle_ms},
     {"longest_settle_ms", &Tuning::longest_settle_ms},
     {"quarantine_window_ms", &Tuning::quarantine_window_ms},
     {"return_ms", &Tuning::return_ms},
     {"panic_share", &Tuning::panic_share}}};
constexpr std::array<CountKey, 5> kCounts = {
    {{"max_attempts", &Tuning::max_attempts},
     {"retry_reserve", &Tuning::retry_reserve},
     {"quarantine_connection_failures", &Tuning::quarantine_connection_failures},
     {"quarantine_request_failures", &Tuning::quarantine_request_failures},
     {"max_outstanding", &Tuning::max_outstanding}}};
constexpr double kLongestMs = 86'400'000;

// Empty, or what is wrong.
std::string ReadTuning(const toml::table& table, Tuning& tuning) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    bool known = false;
    for (const NumberKey& number : kNumbers) {
      if (name != number.name) continue;
      const auto value = node.value<double>();
      const bool share = name.ends_with("_share") || name.ends_with("_probability");
      const double most = share ? 1 : name == "hedge_percentile" ? 100 : kLongestMs;
      if (!value || !(*value >= 0 && *value <= most)) return name + " is a number from 0 up";
      tuning.*number.value = *value;
      known = true;
    }
    for (const CountKey& count : kCounts) {
      if (name != count.name) continue;
      const auto value = node.value<int64_t>();
      if (!value || *value < 0 || *value > UINT32_MAX) return name + " is a whole number from 0 up";
      tuning.*count.value = static_cast<uint32_t>(*value);
      known = true;
    }
    if (!known) return "there is no key " + name + " in [tuning]";
  }
  return "";
}

std::string ReadReplica(const toml::node& node, ServiceMap& map) {
  const toml::table* table = node.as_table();
  if (table == nullptr) return "replica is a list of tables";
  const auto shard = (*table)["shard"].value_or<int64_t>(0);
  Replica replica{static_cast<uint32_t>(shard), (*table)["address"].value_or<std::string>(""),
                  (*table)["domain"].value_or<std::string>("")};
  if (shard < 0 || shard >= 65'536) return "a replica's shard is a number from 0 to 65535";
  if (replica.address.empty()) return "a replica needs an address, as \"host:service\"";
  if (map.replicas.size() == kMaxReplicasInAll) return "more than 65536 replicas";
  map.replicas.push_back(std::move(replica));
  return "";
}

class Fixed final : public Source {
 public:
  explicit Fixed(ServiceMap map) : map_(std::move(map)) {}
  bool Next(ServiceMap& map, std::string&) override {
    map = map_;
    return !std::exchange(told_, true);
  }

 private:
  ServiceMap map_;
  bool told_ = false;
};

// Watches the file's folder, for a file is often replaced by renaming another.
// Owns: the inotify descriptor.
class WatchedFile final : public Source {
 public:
  explicit WatchedFile(std::string path) : path_(std::move(path)) {
    const size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    fd_ = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (fd_ >= 0) {
      inotify_add_watch(fd_, folder.c_str(), IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE);
    }
  }
  ~WatchedFile() override {
    if (fd_ >= 0) close(fd_);
  }

  bool Next(ServiceMap& map, std::string& error) override {
    if (!Changed()) return false;
    std::ifstream file(path_);
    std::stringstream text;
    text << file.rdbuf();
    if (!file) {
      error = path_ + ": cannot be read";
      return false;
    }
    if (text.str() == last_) return false;  // Something else in that folder.
    last_ = text.str();
    if (ParseServiceMap(last_, map, error)) return true;
    error = path_ + ": " + error;
    return false;
  }

 private:
  // Without inotify it is read each time.
  bool Changed() {
    bool changed = std::exchange(first_, false) || fd_ < 0;
    std::array<char, 4096> events;
    while (fd_ >= 0 && read(fd_, events.data(), events.size()) > 0) changed = true;
    return changed;
  }

  std::string path_;
  std::string last_;
  int fd_ = -1;
  bool first_ = true;
};

}  // namespace

bool ParseServiceMap(const std::string& text, ServiceMap& map, std::string& error) {
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    error = "line " + std::to_string(parsed.error().source().begin.line) + ": " +
            std::string(parsed.error().description());
    return false;
  }
  const toml::table& table = parsed.table();
  ServiceMap made;
  error.clear();
  for (const auto& [key, node] : table) {
    if (key == "name") {
      made.name = node.value_or<std::string>("");
    } else if (key == "domain") {
      made.domain = node.value_or<std::string>("");
    } else if (key == "tuning" && node.is_table()) {
      error = ReadTuning(*node.as_table(), made.tuning);
    } else if (key == "replica" && node.is_array()) {
      for (const toml::node& replica : *node.as_array()) {
        if (error.empty()) error = ReadReplica(replica, made);
      }
    } else {
      error = "there is no key " + std::string(key.str());
    }
    if (!error.empty()) return false;
  }
  map = std::move(made);
  return true;
}

std::unique_ptr<Source> FixedSource(ServiceMap map) {
  return std::make_unique<Fixed>(std::move(map));
}
std::unique_ptr<Source> FileSource(std::string path) {
  return std::make_unique<WatchedFile>(std::move(path));
}

}  // namespace sluice::rpc
