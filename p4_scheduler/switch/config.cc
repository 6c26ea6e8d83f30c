// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/switch/config.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace sluice::rain {
namespace {

constexpr char
    kExample[] = R"(# sluice-switch: a Rain switch in software. docs/rain-switch.md explains it.

[switch]                      # The switch's own address; clients and agents send to it.
mac = "02:00:00:00:00:fe"
ip = "10.77.0.254"
# udp_port = 17000
# slices = 8
# task_capacity = 16384       # Of each slice, like the following; powers of two.
# token_capacity = 4096
# slots = 2048                # Of a pre-write ring; twice as many as large tasks may wait.
# slot_bytes = 4096
# max_clients = 1024
# max_members = 1024
# max_replicas = 256
# max_queue_pairs = 256
# traffic_class = 0           # DSCP and ECN of all that the switch sends.

[controller]                  # Who may RESET and PROBE everything.
port = 0
mac = "02:00:00:00:00:01"
ip = "10.77.0.1"

[dpdk]
# core = 0
hugepages = false             # False works with af_packet and af_xdp only.
# memory_mb = 256
# idle_sleep_us = 0           # 0: poll all the time.

[metrics]
listen = "127.0.0.1:9464"     # /metrics and /healthz.

[[port]]                      # Port 0.
driver = "af_packet"          # Or af_xdp, or pci (device = "0000:3b:00.0").
device = "eth1"
# frame_bytes = 2048          # A power of two; more for an MTU above 1900, not with af_xdp.

[[port]]                      # Port 1.
driver = "af_packet"
device = "eth2"

[[type]]                      # Tasks of type 1 belong to slice 0.
type = 1
slice = 0

[[slice]]
slice = 0
# task_limit = 16384
# large_limit = 1024
# token_limit = 4096
replicas = [1]                # Who is written to when a large task has to wait.

[[client]]
client = 1
port = 0
mac = "02:00:00:00:00:01"
ip = "10.77.0.1"
udp_port = 17001

[[member]]                    # A worker in a slice, and the agent that registered it.
member = 1
slice = 0
epoch = 1
port = 1
mac = "02:00:00:00:00:02"
ip = "10.77.0.2"

[[replica]]                   # An agent's pre-write ring for one slice.
replica = 1
port = 1
mac = "02:00:00:00:00:02"
ip = "10.77.0.2"
queue_pair = 17
psn_register = 0              # One for each queue pair.
rkey = 1
base = 0                      # A multiple of slots * slot_bytes.
# reliable = false            # RC instead of UC.
)";

// Reads one table of the file. The first thing that is wrong with it is kept; reading goes on with
// defaults, so that there is one place to ask.
class Section {
 public:
  Section(const toml::table* table, std::string name, std::string& error)
      : table_(table), name_(std::move(name)), error_(error) {}

  // A key that nobody asked for is a mistake.
  ~Section() {
    if (table_ == nullptr) return;
    for (const auto& [key, value] : *table_) {
      if (!known_.contains(std::string(key.str()))) Wrong(std::string(key.str()), "is not known");
    }
  }
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

  template <typename T>
  T Number(const char* key, T standard, uint64_t least = 0,
           uint64_t most = std::numeric_limits<T>::max()) {
    const toml::node* node = Find(key);
    if (node == nullptr) return standard;
    const auto value = node->value_exact<int64_t>();
    if (!value || *value < 0 || static_cast<uint64_t>(*value) < least ||
        static_cast<uint64_t>(*value) > most) {
      Wrong(key, "must be a number from " + std::to_string(least) + " to " + std::to_string(most));
      return standard;
    }
    return static_cast<T>(*value);
  }

  template <typename T>
  T Required(const char* key, uint64_t least = 0, uint64_t most = std::numeric_limits<T>::max()) {
    if (Find(key) == nullptr) Wrong(key, "is missing");
    return Number<T>(key, static_cast<T>(least), least, most);
  }

  bool Flag(const char* key, bool standard) {
    const toml::node* node = Find(key);
    if (node == nullptr) return standard;
    const auto value = node->value_exact<bool>();
    if (!value) Wrong(key, "must be true or false");
    return value.value_or(standard);
  }

  std::string Text(const char* key, const std::string& standard) {
    const toml::node* node = Find(key);
    if (node == nullptr) return standard;
    const auto value = node->value_exact<std::string>();
    if (!value) Wrong(key, "must be text");
    return value.value_or(standard);
  }

  Endpoint EndpointHere(uint16_t standard_port) {
    Endpoint end{.port = Number<uint16_t>("udp_port", standard_port, 1)};
    const std::string mac = Text("mac", "");
    auto& m = end.mac;
    char rest = 0;
    if (std::sscanf(mac.c_str(), "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx%c", &m[0], &m[1], &m[2],
                    &m[3], &m[4], &m[5], &rest) != 6) {
      Wrong("mac", "must be like 02:00:00:00:00:01");
    }
    in_addr ip{};
    if (inet_pton(AF_INET, Text("ip", "").c_str(), &ip) != 1) {
      Wrong("ip", "must be an IPv4 address");
    }
    end.ip = ntohl(ip.s_addr);
    return end;
  }

  Destination DestinationHere() {
    return {.port = Required<uint16_t>("port"), .endpoint = EndpointHere(kUdpPort)};
  }

  std::vector<uint16_t> Numbers(const char* key) {
    std::vector<uint16_t> numbers;
    const toml::node* node = Find(key);
    if (node == nullptr) return numbers;
    const toml::array* array = node->as_array();
    for (size_t i = 0; array != nullptr && i < array->size(); ++i) {
      const auto value = array->get(i)->value_exact<int64_t>();
      if (!value || *value < 1 || *value > 65'535) array = nullptr;
      if (array != nullptr) numbers.push_back(static_cast<uint16_t>(*value));
    }
    if (array == nullptr) Wrong(key, "must be a list of numbers from 1 to 65535");
    return numbers;
  }

  void Wrong(const std::string& key, const std::string& what) {
    if (error_.empty()) error_ = (name_.empty() ? "" : name_ + ".") + key + " " + what;
  }

 private:
  const toml::node* Find(const char* key) {
    known_.insert(key);
    return table_ == nullptr ? nullptr : table_->get(key);
  }

  const toml::table* table_;
  std::string name_;
  std::string& error_;
  std::set<std::string> known_;
};

class Parser {
 public:
  Parser(const toml::table& root, ProgramConfig& config) : root_(root), config_(config) {}

  // What is wrong, or nothing.
  std::string Run() {
    for (const auto& [key, value] : root_) {
      static const std::set<std::string> kKnown = {"switch", "controller", "dpdk",  "metrics",
                                                   "port",   "type",       "slice", "client",
                                                   "member", "replica"};
      if (!kKnown.contains(std::string(key.str()))) {
        return std::string(key.str()) + " is not known";
      }
    }
    ReadSwitch();
    ReadProgram();
    ReadPorts();
    ReadTables();
    return error_;
  }

 private:
  void ReadSwitch() {
    SwitchConfig& rain = config_.rain;
    {
      Section own(root_["switch"].as_table(), "switch", error_);
      rain.own = own.EndpointHere(kUdpPort);
      rain.slices = own.Number("slices", rain.slices);
      rain.task_capacity = own.Number("task_capacity", rain.task_capacity);
      rain.token_capacity = own.Number("token_capacity", rain.token_capacity);
      rain.slots = own.Number("slots", rain.slots);
      rain.slot_bytes = own.Number("slot_bytes", rain.slot_bytes);
      rain.max_clients = own.Number("max_clients", rain.max_clients);
      rain.max_members = own.Number("max_members", rain.max_members);
      rain.max_replicas = own.Number("max_replicas", rain.max_replicas);
      rain.max_queue_pairs = own.Number("max_queue_pairs", rain.max_queue_pairs);
      rain.traffic_class = own.Number("traffic_class", rain.traffic_class);
    }
    Section controller(root_["controller"].as_table(), "controller", error_);
    rain.controller = controller.DestinationHere();
  }

  void ReadProgram() {
    Section dpdk(root_["dpdk"].as_table(), "dpdk", error_);
    config_.core = dpdk.Number("core", config_.core, 0, 1023);
    config_.hugepages = dpdk.Flag("hugepages", config_.hugepages);
    config_.memory_mb = dpdk.Number("memory_mb", config_.memory_mb, 64, 65'536);
    config_.idle_sleep_us = dpdk.Number("idle_sleep_us", config_.idle_sleep_us, 0, 10'000);
    Section metrics(root_["metrics"].as_table(), "metrics", error_);
    config_.metrics_listen = metrics.Text("listen", "");
  }

  void ReadPorts() {
    ForEach("port", [&](Section& row) {
      PortConfig port;
      const std::string driver = row.Text("driver", "af_packet");
      if (driver == "af_xdp") {
        port.driver = PortConfig::Driver::kAfXdp;
      } else if (driver == "pci") {
        port.driver = PortConfig::Driver::kPci;
      } else if (driver != "af_packet") {
        row.Wrong("driver", "must be af_packet, af_xdp or pci");
      }
      port.device = row.Text("device", "");
      if (port.device.empty() || port.device.find_first_of(", =") != std::string::npos) {
        row.Wrong("device", "must be an interface's name or a PCI address");
      }
      port.frame_bytes = row.Number("frame_bytes", port.frame_bytes, kMinPortFrameBytes,
                                    kMaxPortFrameBytes);
      if (!std::has_single_bit(port.frame_bytes)) {
        row.Wrong("frame_bytes", "must be a power of two");
      }
      config_.ports.push_back(port);
    });
    if (config_.ports.empty() && error_.empty()) error_ = "there is no [[port]]";
    // All ports share the packet buffers, and AF_XDP's have to fit a page of memory.
    const auto is_xdp = [](const PortConfig& port) {
      return port.driver == PortConfig::Driver::kAfXdp;
    };
    if (std::ranges::any_of(config_.ports, is_xdp) && config_.FrameBytes() > kMinPortFrameBytes &&
        error_.empty()) {
      error_ = "beside an af_xdp port, frame_bytes must be 2048 at every port";
    }
  }

  void ReadTables() {
    ForEach("type", [&](Section& row) {
      config_.types.emplace_back(row.Required<uint8_t>("type"),
                                 TypeEntry{.slice = row.Required<uint8_t>("slice")});
    });
    ForEach("slice", [&](Section& row) {
      const SwitchConfig& rain = config_.rain;
      config_.slices.emplace_back(
          row.Required<uint8_t>("slice"),
          SliceEntry{.task_limit = row.Number("task_limit", rain.task_capacity),
                     .large_limit = row.Number("large_limit", rain.slots / 2),
                     .token_limit = row.Number("token_limit", rain.token_capacity),
                     .replicas = row.Numbers("replicas")});
    });
    ForEach("client", [&](Section& row) {
      config_.clients.emplace_back(row.Required<uint16_t>("client", 1),
                                   ClientEntry{.destination = row.DestinationHere()});
    });
    ForEach("member", [&](Section& row) {
      const auto number = row.Required<uint16_t>("member", 1);
      const Destination agent = row.DestinationHere();
      config_.members.emplace_back(number, MemberEntry{.slice = row.Required<uint8_t>("slice"),
                                                       .epoch = row.Number<uint16_t>("epoch", 0),
                                                       .owner = agent,
                                                       .target = agent});
    });
    ForEach("replica", [&](Section& row) {
      const auto number = row.Required<uint16_t>("replica", 1);
      ReplicaEntry entry{.destination = row.DestinationHere()};
      if (row.Flag("reliable", false)) entry.opcode = WriteOpcode::kRcWriteOnly;
      entry.queue_pair = row.Required<uint32_t>("queue_pair", 0, kPsnMask);
      entry.psn_register = row.Required<uint16_t>("psn_register");
      entry.rkey = row.Required<uint32_t>("rkey");
      entry.base = row.Required<uint64_t>("base", 0, INT64_MAX);
      config_.replicas.emplace_back(number, entry);
    });
  }

  template <typename Read>
  void ForEach(const char* name, Read read) {
    const toml::node* node = root_.get(name);
    if (node == nullptr) return;
    const toml::array* rows = node->as_array();
    for (size_t i = 0; rows != nullptr && i < rows->size(); ++i) {
      const toml::table* table = rows->get(i)->as_table();
      if (table == nullptr) {
        rows = nullptr;
        break;
      }
      Section row(table, std::string(name) + "[" + std::to_string(i) + "]", error_);
      read(row);
    }
    if (rows == nullptr && error_.empty()) {
      error_ = std::string(name) + " must be a list of tables: [[" + name + "]]";
    }
  }

  const toml::table& root_;
  ProgramConfig& config_;
  std::string error_;
};

template <typename Entry>
Result<> Fill(Table<Entry>& table, const ProgramConfig::Rows<Entry>& rows) {
  for (const auto& [key, entry] : rows) {
    if (auto inserted = table.Insert(key, entry); !inserted) return inserted;
  }
  return {};
}

}  // namespace

uint32_t ProgramConfig::FrameBytes() const {
  uint32_t bytes = kMinPortFrameBytes;
  for (const PortConfig& port : ports) bytes = std::max(bytes, port.frame_bytes);
  return bytes;
}

Result<ProgramConfig> ParseProgramConfig(const std::string& text, const std::string& name) {
  const toml::parse_result parsed = toml::parse(text, name);
  if (!parsed) {
    std::ostringstream where;
    where << name << ", line " << parsed.error().source().begin.line << ": "
          << parsed.error().description();
    return Fail(ErrorCode::kInvalid, where.str());
  }
  ProgramConfig config;
  if (const std::string wrong = Parser(parsed.table(), config).Run(); !wrong.empty()) {
    return Fail(ErrorCode::kInvalid, name + ": " + wrong);
  }
  if (auto made = MakeSwitch(config); !made) {
    return Fail(ErrorCode::kInvalid, name + ": " + made.error().message);
  }
  return config;
}

Result<ProgramConfig> LoadProgramConfig(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return Fail(ErrorCode::kNotFound,
                "cannot read " + path + "; see sluice-switch --print-example");
  }
  return ParseProgramConfig(text.str(), path);
}

Result<Switch> MakeSwitch(const ProgramConfig& config) {
  Result<Switch> made = Switch::Create(config.rain);
  if (!made) return made;
  for (const Result<>& filled :
       {Fill(made->types(), config.types), Fill(made->slice_table(), config.slices),
        Fill(made->clients(), config.clients), Fill(made->members(), config.members),
        Fill(made->replicas(), config.replicas)}) {
    if (!filled) return std::unexpected(filled.error());
  }
  return made;
}

const char* ExampleConfig() { return kExample; }

}  // namespace sluice::rain
