// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/config_keys.h"

#include <type_traits>

#include "daemon/control/config_check.h"
#include "daemon/sched/shared_receives.h"
#include "shm_proto/base/units.h"

namespace sluice {
namespace {

constexpr bool kLive = true;
constexpr bool kRestart = false;
constexpr int64_t kMaxUint32 = UINT32_MAX;
constexpr int64_t kMaxMib = 1 << 24;  // 16 TiB.

template <typename Field>
ConfigValue ToValue(const Field& field) {
  if constexpr (std::is_same_v<Field, bool>) {
    return field;
  } else if constexpr (std::is_integral_v<Field>) {
    return static_cast<int64_t>(field);
  } else if constexpr (std::is_same_v<Field, std::vector<uint32_t>>) {
    return std::vector<int64_t>(field.begin(), field.end());
  } else {
    return field;
  }
}

template <typename Field>
void FromValue(Field& field, const ConfigValue& value) {
  if constexpr (std::is_same_v<Field, bool>) {
    field = std::get<bool>(value);
  } else if constexpr (std::is_integral_v<Field>) {
    field = static_cast<Field>(std::get<int64_t>(value));
  } else if constexpr (std::is_same_v<Field, std::vector<uint32_t>>) {
    field.clear();
    for (int64_t item : std::get<std::vector<int64_t>>(value)) {
      field.push_back(static_cast<uint32_t>(item));
    }
  } else {
    field = std::get<Field>(value);
  }
}

template <typename Field>
constexpr KeyType TypeOf() {
  if (std::is_same_v<Field, bool>) return KeyType::kBoolean;
  if (std::is_integral_v<Field>) return KeyType::kInteger;
  if (std::is_same_v<Field, std::string>) return KeyType::kString;
  if (std::is_same_v<Field, std::vector<std::string>>) return KeyType::kStringList;
  return KeyType::kIntegerList;
}

template <typename Pointer>
struct PointedTo;
template <typename Field, typename Owner>
struct PointedTo<Field Owner::*> {
  using Type = Field;
};
template <typename Pointer>
using FieldType = typename PointedTo<Pointer>::Type;

// A key that is field `Field` of section `Section` of the config.
template <auto Section, auto Field>
Key<Config> In(std::string_view name, bool live, int64_t min, int64_t max, std::string_view doc,
               std::vector<std::string_view> choices = {},
               Result<> (*check)(const std::string&) = nullptr) {
  using Type = FieldType<decltype(Field)>;
  return {
      {name, TypeOf<Type>(), live, min, max, std::move(choices), check, doc},
      [](const Config& config) { return ToValue((config.*Section).*Field); },
      [](Config& config, const ConfigValue& value) { FromValue((config.*Section).*Field, value); }};
}

template <auto Field>
Key<TenantConfig> Of(std::string_view name, bool live, int64_t min, int64_t max,
                     std::string_view doc, Result<> (*check)(const std::string&) = nullptr) {
  using Type = FieldType<decltype(Field)>;
  return {{name, TypeOf<Type>(), live, min, max, {}, check, doc},
          [](const TenantConfig& tenant) { return ToValue(tenant.*Field); },
          [](TenantConfig& tenant, const ConfigValue& value) { FromValue(tenant.*Field, value); }};
}

using D = DaemonConfig;
using P = PeerConfig;
using E = EngineConfig;
using R = RdmaConfig;

// clang-format off
std::vector<Key<Config>> MakeConfigKeys() {
  constexpr auto daemon = &Config::daemon;
  constexpr auto peer = &Config::peer;
  constexpr auto engine = &Config::engine;
  constexpr auto rdma = &Config::rdma;
  return {
    In<daemon, &D::run_dir>("daemon.run_dir", kRestart, 1, 80,
      "Directory of the control and admin sockets; the daemon makes it and keeps its mode.", {}, CheckAbsolutePath),
    In<daemon, &D::name>("daemon.name", kRestart, 0, 64,
      "How this daemon calls itself towards peers and in displays. Empty: the host's name."),
    In<daemon, &D::io_threads>("daemon.io_threads", kRestart, 1, 64,
      "Threads that move messages. Each engine lives on one of them."),
    In<daemon, &D::io_cpus>("daemon.io_cpus", kRestart, 0, 4095,
      "CPUs to pin the I/O threads to, in turn. Empty: no pinning."),
    In<daemon, &D::idle>("daemon.idle", kLive, 0, 16,
      "What an I/O thread does without work: spin for ever, spin for `spin_us` and then sleep, or sleep at once.",
      {"spin", "adaptive", "event"}),
    In<daemon, &D::spin_us>("daemon.spin_us", kLive, 0, 1'000'000,
      "How long an idle I/O thread looks for work before it sleeps, with idle = \"adaptive\"."),
    In<daemon, &D::drain_timeout_ms>("daemon.drain_timeout_ms", kLive, 0, 600'000,
      "How long a shutdown waits for operations in flight; what is left then ends as UNKNOWN."),
    In<daemon, &D::counters_mode>("daemon.counters_mode", kRestart, 0, 4,
      "Mode of the counters file in `run_dir`, which `sluicectl errors` reads when the daemon hangs or is dead.",
      {"0600", "0640", "0644"}),

    In<peer, &P::listen>("peer.listen", kRestart, 0, 16,
      "Addresses to take peers' connections on, as \"ADDRESS[:PORT]\" or \"[IPV6]:PORT\". Empty: dial only.",
      {}, CheckListenAddress),
    In<peer, &P::port>("peer.port", kRestart, 1, 65'535,
      "Port of a peer daemon, and of a listen address, that names none."),
    In<peer, &P::auth>("peer.auth", kRestart, 0, 16,
      "How peers prove themselves: \"key\" is the shared cluster key; \"none\" lets in whoever passes `allow`.",
      {"key", "none"}),
    In<peer, &P::key_file>("peer.key_file", kRestart, 1, 4'095,
      "File with the cluster key, readable by the daemon alone.", {}, CheckAbsolutePath),
    In<peer, &P::allow>("peer.allow", kRestart, 0, 256,
      "Networks peers may connect from and be dialled in, as \"ADDRESS/BITS\".", {}, CheckNetwork),
    In<peer, &P::lanes>("peer.lanes", kRestart, 1, 16,
      "Engines, and so connections, for each peer daemon."),
    In<peer, &P::handshake_timeout_ms>("peer.handshake_timeout_ms", kRestart, 100, 60'000,
      "A peer that has not finished its handshake by then is dropped."),
    In<peer, &P::dial_backoff_min_ms>("peer.dial_backoff_min_ms", kRestart, 1, 60'000,
      "Pause before the second attempt to reach a peer; it doubles up to the next key, with jitter, and never gives up."),
    In<peer, &P::dial_backoff_max_ms>("peer.dial_backoff_max_ms", kRestart, 1, 3'600'000,
      "Longest pause between two attempts to reach a peer."),
    In<peer, &P::max_pending_handshakes>("peer.max_pending_handshakes", kRestart, 1, 4'096,
      "Connections that may be in their handshake at once; a further one takes the place of the oldest."),

    In<engine, &E::send_window_bytes>("engine.send_window_bytes", kLive, 1'024, static_cast<int64_t>(kGiB),
      "Bytes an engine may have posted and not yet done. Any value makes progress: fragments shrink to it."),
    In<engine, &E::destination_window_bytes>("engine.destination_window_bytes", kLive, 0, 64 * static_cast<int64_t>(kGiB),
      "Bytes that all lanes to one peer daemon may have posted together; each lane has an equal part. 0: as many as their windows."),
    In<engine, &E::node_window_bytes>("engine.node_window_bytes", kLive, 0, 64 * static_cast<int64_t>(kGiB),
      "Bytes that all engines may have posted together: an equal part for each I/O thread, shared fairly by its engines that have something to send. 0: unbounded."),
    In<engine, &E::fragment_bytes>("engine.fragment_bytes", kLive, 1'024, 64 * static_cast<int64_t>(kMiB),
      "Most bytes a socket sends in one turn."),
    In<engine, &E::credit_batch>("engine.credit_batch", kLive, 0, 4'096,
      "Receives consumed before credits go back to the peer. 0: half of the receive depth."),
    In<engine, &E::ack_delay_us>("engine.ack_delay_us", kLive, 0, 1'000'000,
      "Longest time a message's acknowledgement waits for other traffic to ride on."),
    In<engine, &E::keepalive_interval_ms>("engine.keepalive_interval_ms", kLive, 1, 600'000,
      "A keepalive is sent to every peer once in this time, whether there is other traffic or not."),
    In<engine, &E::keepalive_timeout_ms>("engine.keepalive_timeout_ms", kLive, 3, 3'600'000,
      "A peer that was silent for so long is given up. At least three intervals."),
    In<engine, &E::connect_timeout_ms>("engine.connect_timeout_ms", kLive, 1, 600'000,
      "How long an application's connect waits for the peer."),
    In<engine, &E::landing_ahead>("engine.landing_ahead", kLive, 0, 1'024,
      "Landing buffers granted ahead to a socket that receives large messages, which saves them a round trip. 0: none."),
    In<engine, &E::send_queue_depth>("engine.send_queue_depth", kRestart, 8, 4'096,
      "Requests an engine may have posted to its transport."),
    In<engine, &E::receive_depth>("engine.receive_depth", kRestart, 8, 4'096,
      "Receives an engine keeps posted: the peer's credits."),
    In<engine, &E::receive_bytes>("engine.receive_bytes", kRestart, 1'024, static_cast<int64_t>(kMiB),
      "Size of each of them: the longest message that needs no landing buffer."),
    In<engine, &E::message_window>("engine.message_window", kRestart, 1, 65'536,
      "Messages a socket may have under way to this node before one must have been delivered."),

    In<rdma, &R::mode>("rdma.mode", kRestart, 0, 16,
      "Whether messages take RDMA where both ends have it: \"auto\" or \"off\". TCP carries them everywhere else.",
      {"auto", "off"}),
    In<rdma, &R::device>("rdma.device", kRestart, 0, 63,
      "The RDMA device, as `rdma link` names it. Empty: the first that fits."),
    In<rdma, &R::port>("rdma.port", kRestart, 1, 255, "The device's port."),
    In<rdma, &R::gid_index>("rdma.gid_index", kRestart, -1, 255,
      "The port's address. -1: the first RoCE v2 address that can be routed."),
    In<rdma, &R::path_mtu>("rdma.path_mtu", kRestart, 0, 4'096,
      "Largest RDMA packet in bytes: 256, 512, 1024, 2048 or 4096. 0: what the port has. The smaller of both ends is used."),
    In<rdma, &R::traffic_class>("rdma.traffic_class", kRestart, 0, 255,
      "Traffic class (DSCP and ECN bits) of RDMA packets: decides whether the switches treat them as lossless."),
    In<rdma, &R::service_level>("rdma.service_level", kRestart, 0, 15, "Service level of RDMA packets."),
    In<rdma, &R::timeout>("rdma.timeout", kRestart, 1, 31,
      "How long a queue pair waits for an answer before it sends again: 4.096 us times two to this power."),
    In<rdma, &R::retries>("rdma.retries", kRestart, 0, 7,
      "How often it sends again before RDMA is given up for that peer and TCP goes on. Soft-RoCE takes 7 for ever."),
    In<rdma, &R::settle_ms>("rdma.settle_ms", kLive, 1, 600'000,
      "How long a peer stays on TCP after RDMA failed; doubled up to 30 s while RDMA does not last 10 s."),
    In<rdma, &R::relaxed_ordering>("rdma.relaxed_ordering", kRestart, 0, 1,
      "Let the NIC order its writes to memory freely, where it can: faster on some machines."),
    In<rdma, &R::shared_receives>("rdma.shared_receives", kRestart, 0, 65'536,
      "Receives of engine.receive_bytes that all RDMA peers of an I/O thread share: less memory where peers are many. 0: each peer has engine.receive_depth of its own."),
    In<rdma, &R::shared_reserve>("rdma.shared_reserve", kRestart, SharedReceives::kSmallestReserve, 4'096,
      "How many of the shared receives are each peer's for as long as it is there. A busy peer borrows more, up to engine.receive_depth."),
    In<rdma, &R::pause_storm_per_s>("rdma.pause_storm_per_s", kLive, 0, 100'000'000,
      "Pause frames a second that the port may receive; more for three seconds are a storm, which is logged and counted. A link of 25 Gbit/s stands still from 750 a second, one of 100 Gbit/s from 3000. 0: never."),
    In<rdma, &R::leave_on_pause_storm>("rdma.leave_on_pause_storm", kLive, 0, 1,
      "Leave RDMA for TCP in such a storm; it is tried again every 30 s."),

    In<&Config::pool, &PoolConfig::extent_mib>("pool.extent_mib", kRestart, 4, 1'024,
      "Size of the pieces in which a client's pool grows and shrinks. A multiple of 4."),
    In<&Config::pool, &PoolConfig::node_limit_mib>("pool.node_limit_mib", kRestart, 0, kMaxMib,
      "All pools of this node together. 0: half of the node's memory."),
    In<&Config::pool, &PoolConfig::max_message_mib>("pool.max_message_mib", kRestart, 1, 65'536,
      "The longest message an application may send; at most a quarter of its pool's quota, whichever is less."),
    In<&Config::pool, &PoolConfig::ring_start>("pool.ring_start", kRestart, 0, kMaxUint32,
      "Where new rings start counting; for tests of the wrap-around."),

    In<&Config::clients, &ClientsConfig::max_clients>("clients.max_clients", kLive, 1, 65'536,
      "Clients attached at once, all tenants together."),
    In<&Config::clients, &ClientsConfig::attach_rate_per_s>("clients.attach_rate_per_s", kLive, 1, 1'000'000,
      "Attaches a second of one tenant before further ones are refused."),

    In<&Config::http, &HttpConfig::listen>("http.listen", kRestart, 0, 128,
      "Address of /metrics, /healthz, /readyz and the status page, as \"ADDRESS:PORT\". Empty: none. It has no password.",
      {}, CheckHttpAddress),

    In<&Config::log, &LogConfig::level>("log.level", kLive, 0, 16,
      "The least severe events that are logged.", {"trace", "debug", "info", "warning", "error"}),
    In<&Config::log, &LogConfig::format>("log.format", kLive, 0, 16,
      "On standard error: \"text\" for the journal and for people, \"json\" for programs.", {"text", "json"}),
    In<&Config::log, &LogConfig::rate_per_s>("log.rate_per_s", kLive, 0, 1'000'000,
      "Events a second from one place in the program; the rest is counted and summed up. 0: no limit."),
  };
}

using T = TenantConfig;

std::vector<Key<TenantConfig>> MakeTenantKeys() {
  return {
    Of<&T::name>("name", kRestart, 1, 64, "The tenant's name, unique.", CheckTenantName),
    Of<&T::uids>("uids", kLive, 0, kMaxUint32, "User ids that belong to this tenant."),
    Of<&T::gids>("gids", kLive, 0, kMaxUint32, "Group ids that belong to this tenant."),
    Of<&T::any_user>("any_user", kLive, 0, 1, "Whether every user who is in no tenant before belongs to this one."),
    Of<&T::pool_quota_mib>("pool_quota_mib", kLive, 4, kMaxMib, "Pool memory of one client."),
    Of<&T::tenant_pool_quota_mib>("tenant_pool_quota_mib", kLive, 0, kMaxMib,
      "Pool memory of all its clients together. 0: bounded by `pool.node_limit_mib` alone."),
    Of<&T::max_clients>("max_clients", kLive, 1, 65'536, "Clients attached at once."),
    Of<&T::max_channels>("max_channels", kLive, 1, 4'096, "Channels of one client."),
    Of<&T::max_sockets>("max_sockets", kLive, 1, 1'048'576, "Sockets of one client."),
    Of<&T::services>("services", kLive, 1, 65'535, "Services its clients may listen on. Empty: any."),
  };
}
// clang-format on

}  // namespace

std::span<const Key<Config>> ConfigKeys() {
  static const std::vector<Key<Config>> keys = MakeConfigKeys();
  return keys;
}

std::span<const Key<TenantConfig>> TenantKeys() {
  static const std::vector<Key<TenantConfig>> keys = MakeTenantKeys();
  return keys;
}

}  // namespace sluice
