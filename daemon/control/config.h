// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/engine/session.h"
#include "shm_proto/base/result.h"

// Everything an operator can decide, as plain values. What each key means, its range and whether it
// may change while the daemon runs stand in one table, config_keys.cc; defaults stand here.
namespace sluice {

namespace io {
struct Configure;
}

struct DaemonConfig {
  std::string run_dir = "/run/sluice";
  std::string name;  // Empty: the host's name.
  uint32_t io_threads = 1;
  std::vector<uint32_t> io_cpus = {};  // Empty: the kernel places the I/O threads.
  std::string idle = "adaptive";
  uint32_t spin_us = 20;
  uint32_t drain_timeout_ms = 5'000;
  std::string counters_mode = "0640";
};

struct PeerConfig {
  std::vector<std::string> listen = {"0.0.0.0:4500"};
  uint32_t port = 4500;
  std::string auth = "key";
  std::string key_file = "/etc/sluice/cluster.key";
  std::vector<std::string> allow = {"0.0.0.0/0", "::/0"};
  uint32_t lanes = 1;
  uint32_t handshake_timeout_ms = 5'000;
  uint32_t dial_backoff_min_ms = 10;
  uint32_t dial_backoff_max_ms = 1'000;
  uint32_t max_pending_handshakes = 64;
};

struct EngineConfig {
  uint64_t send_window_bytes = Tunables{}.send_window_bytes;
  uint64_t destination_window_bytes = 0;  // 0: unbounded.
  uint64_t node_window_bytes = 0;         // 0: unbounded.
  uint32_t fragment_bytes = Tunables{}.fragment_bytes;
  uint32_t credit_batch = Tunables{}.credit_batch;
  uint32_t ack_delay_us = Tunables{}.ack_delay_ns / 1'000;
  uint32_t keepalive_interval_ms = Tunables{}.keepalive_interval_ns / 1'000'000;
  uint32_t keepalive_timeout_ms = Tunables{}.keepalive_timeout_ns / 1'000'000;
  uint32_t connect_timeout_ms = Tunables{}.connect_timeout_ns / 1'000'000;
  uint32_t landing_ahead = Tunables{}.landing_ahead;
  uint32_t send_queue_depth = LocalLimits{}.send_queue_depth;
  uint32_t receive_depth = LocalLimits{}.receive_depth;
  uint32_t receive_bytes = LocalLimits{}.receive_bytes;
  uint32_t message_window = LocalLimits{}.message_window;
};

struct RdmaConfig {
  std::string mode = "auto";
  std::string device;  // Empty: the first that fits.
  uint32_t port = 1;
  int32_t gid_index = -1;  // Negative: the first that fits.
  uint32_t path_mtu = 0;   // 0: the port's.
  uint32_t traffic_class = 0;
  uint32_t service_level = 0;
  uint32_t timeout = 13;
  uint32_t retries = 6;
  uint32_t settle_ms = Tunables{}.fabric_settle_ns / 1'000'000;
  bool relaxed_ordering = false;
  uint32_t shared_receives = 0;  // Of each I/O thread; 0: each queue pair has its own.
  uint32_t shared_reserve = 8;
  uint32_t pause_storm_per_s = 1'000;  // 0: whatever comes is no storm.
  bool leave_on_pause_storm = false;
};

struct PoolConfig {
  uint32_t extent_mib = 32;
  uint32_t max_message_mib = 256;
  uint64_t node_limit_mib = 0;  // 0: half of the node's memory.
  uint32_t ring_start = 0;
};

struct ClientsConfig {
  uint32_t max_clients = 1'024;
  uint32_t attach_rate_per_s = 1'000;
};

struct HttpConfig {
  std::string listen = "127.0.0.1:9450";  // Empty: no HTTP.
};

struct LogConfig {
  std::string level = "info";
  std::string format = "text";
  uint32_t rate_per_s = 10;
};

// Who may attach, and how much each may hold. A client belongs to the first tenant that names its
// uid or one of its gids.
struct TenantConfig {
  std::string name = {};
  std::vector<uint32_t> uids = {};
  std::vector<uint32_t> gids = {};
  bool any_user = false;
  uint64_t pool_quota_mib = 1'024;
  uint64_t tenant_pool_quota_mib = 0;  // 0: bounded by pool.node_limit_mib alone.
  uint32_t max_clients = 256;
  uint32_t max_channels = 64;
  uint32_t max_sockets = 16'384;
  std::vector<uint32_t> services = {};  // Empty: any.

  bool operator==(const TenantConfig&) const = default;
};

struct Config {
  DaemonConfig daemon;
  PeerConfig peer;
  EngineConfig engine;
  RdmaConfig rdma;
  PoolConfig pool;
  ClientsConfig clients;
  HttpConfig http;
  LogConfig log;
  std::vector<TenantConfig> tenants;  // Never empty once loaded.
};

constexpr const char* kDefaultConfigPath = "/etc/sluice/sluiced.toml";

// What holds where a file says nothing: the defaults above and one tenant for root and the daemon's
// own user.
Config DefaultConfig();

// Reads a TOML file. An error lists every mistake, each as "file:line: key: what is wrong, what is
// allowed".
Result<Config> LoadConfig(const std::string& path);
Result<Config> ParseConfig(const std::string& text, const std::string& file_name);

// Rules that join several keys. ParseConfig applies them; so must whoever changes single keys.
Result<> CheckConfig(const Config& config);

Tunables ToTunables(const Config& config);
LocalLimits ToLocalLimits(const Config& config);
io::Configure ToIoConfigure(const Config& config);
uint64_t NodeLimitBytes(const Config& config);
uint32_t CountersMode(const Config& config);  // As chmod takes it.

}  // namespace sluice
