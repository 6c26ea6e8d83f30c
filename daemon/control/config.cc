// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/config.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <fstream>
#include <set>
#include <sstream>

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include "daemon/control/config_keys.h"
#include "daemon/io/messages.h"
#include "daemon/sched/send_budget.h"
#include "shm_proto/base/clock.h"
#include "shm_proto/base/units.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxFileBytes = 1 * kMiB;
constexpr size_t kMaxReportedErrors = 20;
constexpr size_t kMaxTenants = 256;

// Gathers all mistakes of one file, each with its line.
class Mistakes {
 public:
  explicit Mistakes(const std::string& file_name) : file_name_(file_name) {}

  void Add(const toml::source_region& where, const std::string& what) {
    if (++count_ > kMaxReportedErrors) return;
    text_ += fmt::format("{}{}:{}: {}", text_.empty() ? "" : "\n", file_name_, where.begin.line,
                         what);
  }
  bool empty() const { return count_ == 0; }
  Error ToError() const {
    const size_t hidden = count_ > kMaxReportedErrors ? count_ - kMaxReportedErrors : 0;
    return {ErrorCode::kInvalid, text_ + (hidden == 0 ? "" : fmt::format("\nand {} more", hidden))};
  }

 private:
  std::string file_name_;
  std::string text_;
  size_t count_ = 0;
};

// What a TOML node holds, if it is of a type that any key has.
std::optional<ConfigValue> ToConfigValue(const toml::node& node) {
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* number = node.as_integer()) return number->get();
  if (const auto* text = node.as_string()) return text->get();
  const auto* array = node.as_array();
  if (array == nullptr) return std::nullopt;
  // An empty list is of either type; the caller decides.
  if (array->empty() || array->is_homogeneous<std::string>()) {
    std::vector<std::string> texts;
    for (const auto& item : *array) texts.push_back(item.as_string()->get());
    return texts;
  }
  if (!array->is_homogeneous<int64_t>()) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const auto& item : *array) numbers.push_back(item.as_integer()->get());
  return numbers;
}

template <typename Target>
void Assign(const Key<Target>& key, const toml::node& node, Target& target, Mistakes& mistakes) {
  auto value = ToConfigValue(node);
  if (value && key.type == KeyType::kIntegerList && node.as_array() != nullptr &&
      node.as_array()->empty()) {
    value = std::vector<int64_t>();
  }
  if (!value) {
    mistakes.Add(node.source(), fmt::format("{}: the value has the wrong type; allowed is {}",
                                            key.name, Allowed(key)));
    return;
  }
  if (auto checked = CheckValue(key, *value); !checked) {
    mistakes.Add(node.source(), checked.error().message);
    return;
  }
  key.set(target, *value);
}

// Reads a table whose keys are, with `prefix` before them, in `keys`.
template <typename Target>
void ReadTable(const toml::table& table, const std::string& prefix,
               std::span<const Key<Target>> keys, Target& target, Mistakes& mistakes) {
  for (const auto& [name, node] : table) {
    const std::string full_name = prefix + std::string(name.str());
    const auto key = std::ranges::find(keys, std::string_view(full_name), &Key<Target>::name);
    if (key != keys.end()) {
      Assign(*key, node, target, mistakes);
      continue;
    }
    std::vector<std::string_view> known;
    for (const auto& candidate : keys) known.push_back(candidate.name);
    const std::string_view nearest = NearestName(full_name, known);
    mistakes.Add(name.source(),
                 fmt::format("{}: unknown key{}", full_name,
                             nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
  }
}

void ReadTenants(const toml::node& node, Config& config, Mistakes& mistakes) {
  const toml::array* array = node.as_array();
  if (array == nullptr || !array->is_homogeneous<toml::table>()) {
    mistakes.Add(node.source(),
                 "tenant: write each tenant as a table of its own that starts with [[tenant]]");
    return;
  }
  config.tenants.clear();
  std::set<std::string> names;
  for (const auto& item : *array) {
    TenantConfig tenant;
    ReadTable(*item.as_table(), "", TenantKeys(), tenant, mistakes);
    if (!item.as_table()->contains("name")) {
      mistakes.Add(item.source(), "tenant: a tenant needs a name");
    } else if (!names.insert(tenant.name).second) {
      mistakes.Add(item.source(), fmt::format("tenant: there are two tenants \"{}\"", tenant.name));
    }
    config.tenants.push_back(std::move(tenant));
  }
  if (config.tenants.size() > kMaxTenants) {
    mistakes.Add(node.source(), fmt::format("tenant: at most {} tenants are allowed", kMaxTenants));
  }
}

std::vector<std::string> SectionNames() {
  std::vector<std::string> sections;
  for (const auto& key : ConfigKeys()) {
    const std::string section(key.name.substr(0, key.name.find('.')));
    if (sections.empty() || sections.back() != section) sections.push_back(section);
  }
  sections.push_back("tenant");
  return sections;
}

void ReadRoot(const toml::table& root, Config& config, Mistakes& mistakes) {
  const std::vector<std::string> sections = SectionNames();
  for (const auto& [name, node] : root) {
    const std::string section(name.str());
    if (section == "tenant") {
      ReadTenants(node, config, mistakes);
    } else if (std::ranges::find(sections, section) == sections.end()) {
      const std::vector<std::string_view> known(sections.begin(), sections.end());
      const std::string_view nearest = NearestName(section, known);
      mistakes.Add(name.source(),
                   fmt::format("{}: unknown {}{}", section, node.is_table() ? "section" : "key",
                               nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
    } else if (const toml::table* table = node.as_table()) {
      ReadTable(*table, section + ".", ConfigKeys(), config, mistakes);
    } else {
      mistakes.Add(node.source(),
                   fmt::format("{0}: this is a section; write it as [{0}]", section));
    }
  }
}

// The TOML parser takes for granted what a key begins with; a control character, or one beyond
// ASCII outside a quoted text or a comment, would mislead it. No key of ours has any.
Result<> CheckCharacters(const std::string& text, const std::string& file_name) {
  size_t line = 1;
  char quote = 0;  // The quoted text we are in, 0: none, '#': a comment.
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool control = (byte < ' ' && byte != '\t' && byte != '\n' && byte != '\r') ||
                         byte == 0x7f;
    if (control || (byte >= 0x80 && quote == 0)) {
      return Fail(
          ErrorCode::kInvalid,
          fmt::format("{}:{}: this is not TOML: byte 0x{:02x} may stand {}", file_name, line, byte,
                      control ? "nowhere" : "in a quoted text or a comment only"));
    }
    if (byte == '\n') {
      ++line;
      quote = 0;
    } else if (quote == 0 && (byte == '"' || byte == '\'' || byte == '#')) {
      quote = static_cast<char>(byte);
    } else if (quote == '"' && byte == '\\') {
      if (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if (byte == quote && quote != '#') {
      quote = 0;
    }
  }
  return {};
}

}  // namespace

Config DefaultConfig() {
  Config config;
  TenantConfig tenant{.name = "default"};
  tenant.uids = {0};
  if (geteuid() != 0) tenant.uids.push_back(geteuid());
  config.tenants.push_back(std::move(tenant));
  return config;
}

Result<Config> ParseConfig(const std::string& text, const std::string& file_name) {
  if (auto checked = CheckCharacters(text, file_name); !checked)
    return std::unexpected(checked.error());
  const toml::parse_result parsed = toml::parse(std::string_view(text), file_name);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return Fail(ErrorCode::kInvalid,
                fmt::format("{}:{}: this is not TOML: {}", file_name, error.source().begin.line,
                            std::string_view(error.description())));
  }
  Config config = DefaultConfig();
  Mistakes mistakes(file_name);
  ReadRoot(parsed.table(), config, mistakes);
  if (!mistakes.empty()) return std::unexpected(mistakes.ToError());
  if (auto checked = CheckConfig(config); !checked) {
    return Fail(checked.error().code, fmt::format("{}: {}", file_name, checked.error().message));
  }
  return config;
}

Result<Config> LoadConfig(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0)
    return FailErrno("cannot read the configuration file " + path);
  if (!S_ISREG(status.st_mode))
    return Fail(ErrorCode::kInvalid, path + ": the configuration must be a regular file");
  if (static_cast<uint64_t>(status.st_size) > kMaxFileBytes) {
    return Fail(ErrorCode::kInvalid,
                fmt::format("{}: a configuration file has at most {} bytes", path, kMaxFileBytes));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file && status.st_size > 0) text << file.rdbuf();
  if (!file || !text)
    return FailErrno("cannot read the configuration file " + path, errno == 0 ? EIO : errno);
  return ParseConfig(text.str(), path);
}

Result<> CheckConfig(const Config& config) {
  const EngineConfig& engine = config.engine;
  if (engine.keepalive_timeout_ms / 3 < engine.keepalive_interval_ms) {
    return Fail(ErrorCode::kInvalid,
                fmt::format("engine.keepalive_timeout_ms: {} is too short; allowed is three times "
                            "engine.keepalive_interval_ms ({}) or more",
                            engine.keepalive_timeout_ms, engine.keepalive_interval_ms));
  }
  if (engine.credit_batch > engine.receive_depth) {
    return Fail(ErrorCode::kInvalid,
                fmt::format("engine.credit_batch: {} is too large; allowed is up to "
                            "engine.receive_depth ({})",
                            engine.credit_batch, engine.receive_depth));
  }
  if (config.peer.dial_backoff_min_ms > config.peer.dial_backoff_max_ms) {
    return Fail(ErrorCode::kInvalid,
                fmt::format("peer.dial_backoff_min_ms: {} is above peer.dial_backoff_max_ms ({})",
                            config.peer.dial_backoff_min_ms, config.peer.dial_backoff_max_ms));
  }
  const uint32_t mtu = config.rdma.path_mtu;
  if (mtu != 0 && (mtu < 256 || !std::has_single_bit(mtu))) {
    return Fail(ErrorCode::kInvalid,
                fmt::format("rdma.path_mtu: {} is no size of an RDMA packet; allowed is 0, 256, "
                            "512, 1024, 2048 or 4096",
                            mtu));
  }
  const RdmaConfig& rdma = config.rdma;
  if (rdma.shared_receives != 0 && rdma.shared_receives < rdma.shared_reserve) {
    return Fail(ErrorCode::kInvalid,
                fmt::format("rdma.shared_receives: {} do not serve one peer; allowed is 0, or "
                            "rdma.shared_reserve ({}) and more",
                            rdma.shared_receives, rdma.shared_reserve));
  }
  if (config.pool.extent_mib % 4 != 0) {
    return Fail(ErrorCode::kInvalid,
                fmt::format("pool.extent_mib: {} is not a multiple of 4", config.pool.extent_mib));
  }
  for (const TenantConfig& tenant : config.tenants) {
    if (!tenant.any_user && tenant.uids.empty() && tenant.gids.empty()) {
      return Fail(
          ErrorCode::kInvalid,
          fmt::format("tenant.{}: nobody belongs to it; give it uids, gids or any_user = true",
                      tenant.name));
    }
    if (tenant.pool_quota_mib < config.pool.extent_mib) {
      return Fail(ErrorCode::kInvalid,
                  fmt::format("tenant.{}.pool_quota_mib: {} is less than one extent; allowed is "
                              "pool.extent_mib ({}) or more",
                              tenant.name, tenant.pool_quota_mib, config.pool.extent_mib));
    }
  }
  return {};
}

Tunables ToTunables(const Config& config) {
  const EngineConfig& engine = config.engine;
  const uint64_t of_lane = engine.destination_window_bytes / config.peer.lanes;
  const uint64_t of_thread = engine.node_window_bytes / config.daemon.io_threads;
  return {.send_window_bytes = of_lane != 0 ? std::min(of_lane, engine.send_window_bytes)
                                            : engine.send_window_bytes,
          .thread_window_bytes = of_thread != 0 ? of_thread : SendBudget::kUnbounded,
          .fragment_bytes = engine.fragment_bytes,
          .credit_batch = engine.credit_batch,
          .ack_delay_ns = engine.ack_delay_us * kNsPerUs,
          .keepalive_interval_ns = engine.keepalive_interval_ms * kNsPerMs,
          .keepalive_timeout_ns = engine.keepalive_timeout_ms * kNsPerMs,
          .connect_timeout_ns = engine.connect_timeout_ms * kNsPerMs,
          .fabric_settle_ns = config.rdma.settle_ms * kNsPerMs,
          .landing_ahead = engine.landing_ahead};
}

LocalLimits ToLocalLimits(const Config& config) {
  const EngineConfig& engine = config.engine;
  return {.send_queue_depth = engine.send_queue_depth,
          .receive_depth = engine.receive_depth,
          .receive_bytes = engine.receive_bytes,
          .message_window = engine.message_window};
}

io::Configure ToIoConfigure(const Config& config) {
  const auto idle = config.daemon.idle == "spin"    ? io::IdlePolicy::kSpin
                    : config.daemon.idle == "event" ? io::IdlePolicy::kEvent
                                                    : io::IdlePolicy::kAdaptive;
  return {
      .tunables = ToTunables(config), .idle = idle, .spin_ns = config.daemon.spin_us * kNsPerUs};
}

uint64_t NodeLimitBytes(const Config& config) {
  if (config.pool.node_limit_mib != 0) return config.pool.node_limit_mib * kMiB;
  struct sysinfo info;
  if (sysinfo(&info) != 0)
    return kGiB;  // Cannot fail with a good address; a cautious value if it does.
  return static_cast<uint64_t>(info.totalram) * info.mem_unit / 2;
}

uint32_t CountersMode(const Config& config) {
  // One of three texts, as the table of keys says.
  return config.daemon.counters_mode == "0600"   ? 0600
         : config.daemon.counters_mode == "0644" ? 0644
                                                 : 0640;
}

}  // namespace sluice
