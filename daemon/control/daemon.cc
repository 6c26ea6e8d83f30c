// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/daemon.h"

#include <pthread.h>
#include <sched.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "daemon/control/admin_verbs.h"
#include "daemon/control/config_check.h"
#include "daemon/control/key_file.h"
#include "daemon/control/log.h"
#include "daemon/control/version.h"

namespace sluice::control {
namespace {

// Anybody may knock; who gets in is decided by what the kernel says of the process (tenants).
constexpr mode_t kRunDirectoryMode = 0755;
constexpr mode_t kControlSocketMode = 0666;
constexpr int kIoMessagesPerTurn = 256;

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::vector<clients::TenantRule> TenantRules(const Config& config) {
  std::vector<clients::TenantRule> rules;
  for (const TenantConfig& tenant : config.tenants) {
    rules.push_back({.name = tenant.name,
                     .uids = tenant.uids,
                     .gids = tenant.gids,
                     .any_user = tenant.any_user,
                     .pool_quota_bytes = tenant.pool_quota_mib * kMiB,
                     .tenant_memory_quota_bytes = tenant.tenant_pool_quota_mib * kMiB,
                     .max_clients = tenant.max_clients,
                     .max_channels = tenant.max_channels,
                     .max_sockets = tenant.max_sockets,
                     .services = tenant.services});
  }
  return rules;
}

clients::NodeLimits Limits(const Config& config) {
  return {.memory_bytes = NodeLimitBytes(config),
          .max_clients = config.clients.max_clients,
          .attach_rate_per_s = config.clients.attach_rate_per_s};
}

PauseSettings PauseSettingsOf(const Config& config) {
  return {config.rdma.pause_storm_per_s, config.rdma.leave_on_pause_storm};
}

LogSettings LogSettingsOf(const Config& config) {
  return {ParseLogLevel(config.log.level), config.log.format == "json", config.log.rate_per_s};
}

// As the configuration has checked it; the port may be missing.
Result<SocketAddress> ListenAddress(const std::string& text, uint16_t default_port) {
  if (const auto split = ParseNumericAddress(text, default_port)) {
    if (auto address = SocketAddress::Parse(split->address, split->port)) return *address;
  }
  return Fail(ErrorCode::kInvalid,
              "peer.listen: \"" + text + "\" is no numeric address and port, like 0.0.0.0:4500");
}

void Name(std::jthread& thread, uint32_t index) {
  pthread_setname_np(thread.native_handle(), ("sluice-io-" + std::to_string(index)).c_str());
}

void Pin(std::jthread& thread, uint32_t cpu) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(cpu, &cpus);
  if (const int error = pthread_setaffinity_np(thread.native_handle(), sizeof(cpus), &cpus)) {
    LogWarning("cannot pin an I/O thread to its CPU", {{"cpu", cpu}, {"errno", error}});
  }
}

}  // namespace

Daemon::Daemon(Config config, std::string config_path, const Clock& clock)
    : at_start_(config),
      name_(config.daemon.name.empty() ? HostName() : config.daemon.name),
      clock_(clock),
      instance_(random_.Next() | 1),
      started_ns_(clock.NowNs()),
      loop_(clock),
      store_(std::move(config), std::move(config_path)) {}

// The operator's surface first, so that nobody looks at what is being taken apart.
Daemon::~Daemon() {
  if (http_) http_->Stop();
  if (admin_) admin_->Stop();
  for (auto& thread : io_) thread->mailbox().Post(io::Stop{0});
  threads_.clear();  // Joins.
}

void Daemon::Publish(const std::shared_ptr<const transport::Regions>& regions) {
  for (auto& thread : io_) thread->mailbox().Post(io::SetRegions{regions});
}

Result<> Daemon::Start(const DaemonParts& parts) {
  // Before any thread is made, so that none of them takes a signal in its stead.
  if (auto started = StartSignals(); !started) return started;
  StartLog(LogSettingsOf(at_start_));
  if (auto made = PrepareRunDirectory(at_start_.daemon.run_dir, kRunDirectoryMode); !made)
    return made;
  auto lock = InstanceLock::Acquire(at_start_.daemon.run_dir);
  if (!lock) return std::unexpected(lock.error());
  lock_.emplace(std::move(*lock));
  if (auto started = StartPeers(); !started) return started;
  if (auto started = StartIoThreads(parts.make_networks); !started) return started;
  if (auto listening = peers_->Listen(); !listening) return listening;
  if (auto started = StartClients(parts.registry); !started) return started;
  if (parts.open_fabric_device) {
    std::vector<io::Mailbox<io::ToIo>*> mailboxes;
    for (auto& thread : io_) mailboxes.push_back(&thread->mailbox());
    fabrics_ = std::make_unique<Fabrics>(loop_, std::move(mailboxes), parts.open_fabric_device);
    fabrics_->Configure(PauseSettingsOf(at_start_));
    fabrics_->Start();
  }
  if (auto started = StartOperatorSurface(); !started) return started;
  ready_ = true;
  LogInfo("ready", {{"version", kVersion},
                    {"instance", instance_},
                    {"run_dir", at_start_.daemon.run_dir},
                    {"peer_port", peers_->listen_port()},
                    {"peer_auth", at_start_.peer.auth},
                    {"io_threads", at_start_.daemon.io_threads}});
  if (at_start_.peer.auth == "none") {
    LogWarning(
        "peers are not authenticated: peer.auth is \"none\", so anybody who reaches the peer "
        "port is believed");
  }
  service_->Ready("Ready.");
  return {};
}

// Signals arrive as events of the loop; every thread made later inherits the mask.
Result<> Daemon::StartSignals() {
  sigset_t mask;
  sigemptyset(&mask);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&mask, signal);
  pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  signals_.Reset(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return FailErrno("signalfd");
  return loop_.Add(signals_.get(), EPOLLIN, [this](uint32_t) { OnSignal(); });
}

Result<> Daemon::StartIoThreads(const MakeNetworks& make_networks) {
  if (auto added = loop_.Add(from_io_.fd(), EPOLLIN, [this](uint32_t) { OnIoMessages(); });
      !added) {
    return added;
  }
  for (uint32_t index = 0; index < at_start_.daemon.io_threads; ++index) {
    auto made = make_networks();
    if (!made) return std::unexpected(made.error());
    io_.push_back(std::make_unique<io::IoThread>(
        io::IoThread::Options{index, ToLocalLimits(at_start_), ToIoConfigure(at_start_)}, clock_,
        std::move(*made), from_io_));
  }
  for (uint32_t index = 0; index < io_.size(); ++index) {
    threads_.emplace_back([thread = io_[index].get()] { thread->Run(); });
    Name(threads_.back(), index);
    const auto& cpus = at_start_.daemon.io_cpus;
    if (!cpus.empty()) Pin(threads_.back(), cpus[index % cpus.size()]);
  }
  return {};
}

Result<> Daemon::StartPeers() {
  PeersSettings settings;
  if (at_start_.peer.auth == "key") {
    auto key = ReadKeyFile(at_start_.peer.key_file);
    if (!key) return std::unexpected(key.error());
    key_ = std::move(*key);
  }
  settings.handshake.instance = instance_;
  settings.handshake.key = key_.get();
  settings.handshake.name = name_;
  settings.handshake.limits = ToLocalLimits(at_start_);
  settings.handshake.features_offered = kFeatureFabric;
  for (const std::string& text : at_start_.peer.listen) {
    auto address = ListenAddress(text, static_cast<uint16_t>(at_start_.peer.port));
    if (!address) return std::unexpected(address.error());
    settings.listen.push_back(*address);
  }
  for (const std::string& text : at_start_.peer.allow) {
    auto network = Network::Parse(text);
    if (!network) return Fail(ErrorCode::kInvalid, "peer.allow: \"" + text + "\" is no network");
    settings.allow.push_back(*network);
  }
  settings.default_port = static_cast<uint16_t>(at_start_.peer.port);
  settings.lanes = static_cast<uint16_t>(at_start_.peer.lanes);
  settings.io_threads = at_start_.daemon.io_threads;
  settings.handshake_timeout_ns = at_start_.peer.handshake_timeout_ms * kNsPerMs;
  settings.backoff_first_ns = at_start_.peer.dial_backoff_min_ms * kNsPerMs;
  settings.backoff_cap_ns = at_start_.peer.dial_backoff_max_ms * kNsPerMs;
  settings.max_pending_handshakes = at_start_.peer.max_pending_handshakes;
  settings.resolve_timeout_ns = at_start_.engine.connect_timeout_ms * kNsPerMs;
  peers_ = std::make_unique<Peers>(
      loop_, random_, std::move(settings),
      [this](uint32_t index, io::ToIo message) { io_[index]->mailbox().Post(std::move(message)); });
  return {};
}

Result<> Daemon::StartClients(transport::MemoryRegistry* registry) {
  std::vector<io::Mailbox<io::ToIo>*> mailboxes;
  for (auto& thread : io_) mailboxes.push_back(&thread->mailbox());
  ClientServerOptions options;
  options.tenants = TenantRules(at_start_);
  options.limits = Limits(at_start_);
  options.instance = instance_;
  options.max_message_bytes = at_start_.pool.max_message_mib * kMiB;
  options.extent_bytes = at_start_.pool.extent_mib * kMiB;
  options.registry = registry;
  options.ring_start = at_start_.pool.ring_start;
  clients_ = std::make_unique<ClientServer>(
      loop_, std::move(mailboxes), *peers_, std::move(options),
      [this](uint64_t bytes) { return headroom_.Check(bytes); });
  auto listener = ListenUnix(at_start_.daemon.run_dir + "/sluiced.sock", SOCK_SEQPACKET,
                             kControlSocketMode, *lock_);
  if (!listener) return std::unexpected(listener.error());
  return clients_->Start(std::move(*listener));
}

Result<> Daemon::StartOperatorSurface() {
  status_ = std::make_unique<StatusCollector>(loop_, MakeStatusParts());
  service_ = std::make_unique<ServiceManager>(loop_, *status_);
  auto recorder = FlightRecorder::Start(loop_, *status_, at_start_.daemon.run_dir + "/counters",
                                        CountersMode(at_start_), instance_);
  if (!recorder) return std::unexpected(recorder.error());
  recorder_ = *std::move(recorder);
  store_.SetApplier([this](const Config&, const Config& after) { return Apply(after); });
  admin_ = std::make_unique<AdminServer>(loop_, at_start_.daemon.run_dir + "/admin.sock");
  RegisterAdminVerbs(*admin_, {loop_, *status_, store_, [this] { Drain("asked by sluicectl"); }});
  if (auto started = admin_->Start(*lock_); !started) return started;
  if (at_start_.http.listen.empty()) return {};
  http_ = std::make_unique<HttpServer>(loop_, *status_, at_start_.http.listen);
  return http_->Start();
}

int Daemon::Run() {
  loop_.Run();
  threads_.clear();
  clients_->Shutdown("the daemon stops");
  // What the I/O threads said last, and clients' farewells.
  for (int turn = 0; turn < 16 && loop_.RunOnce(0) > 0; ++turn) {
  }
  LogInfo("stopped");
  StopLog();
  return 0;
}

void Daemon::OnSignal() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    if (info.ssi_signo == SIGHUP) {
      Reload();
    } else {
      Drain("signal");
    }
  }
}

void Daemon::OnIoMessages() {
  io::FromIo message = io::Stopped{};
  for (int i = 0; i < kIoMessagesPerTurn && from_io_.Take(message); ++i) {
    if (const auto* lost = std::get_if<io::PathLost>(&message)) {
      peers_->OnPathLost(*lost);
    } else if (std::holds_alternative<io::FabricSet>(message)) {
      fabrics_->OnFabricSet();
    } else if (const auto* path = std::get_if<io::FabricPath>(&message)) {
      OnFabricPath(*path);
    } else if (std::holds_alternative<io::Stopped>(message)) {
      OnThreadStopped();
    } else {
      clients_->OnIoMessage(message);
    }
  }
}

void Daemon::OnFabricPath(const io::FabricPath& path) {
  if (path.on_fabric) {
    LogInfo("messages to a peer take RDMA", {{"peer", path.peer}});
  } else {
    LogWarning("messages to a peer take TCP", {{"peer", path.peer}, {"reason", path.reason}});
  }
}

void Daemon::Reload() {
  service_->Reloading();
  auto report = store_.Reload({.how = "signal", .process_id = getpid()});
  if (!report) {
    LogError("configuration not reloaded, nothing changed", {{"error", report.error().message}});
  } else {
    LogInfo("configuration reloaded",
            {{"changed", report->applied.size()}, {"needs_restart", report->needs_restart.size()}});
  }
  service_->Ready("Ready.");
}

Result<> Daemon::Apply(const Config& after) {
  clients_->Reconfigure(TenantRules(after), Limits(after));
  peers_->SetResolveTimeout(after.engine.connect_timeout_ms * kNsPerMs);
  for (auto& thread : io_) thread->mailbox().Post(ToIoConfigure(after));
  if (fabrics_) fabrics_->Configure(PauseSettingsOf(after));
  SetLog(LogSettingsOf(after));
  return {};
}

void Daemon::Drain(const std::string& why) {
  if (draining_) return;
  draining_ = true;
  LogInfo("draining", {{"why", why}, {"timeout_ms", at_start_.daemon.drain_timeout_ms}});
  service_->Stopping("Draining.");
  peers_->Stop();
  const uint64_t deadline_ns = clock_.NowNs() + store_.config().daemon.drain_timeout_ms * kNsPerMs;
  for (auto& thread : io_) thread->mailbox().Post(io::Stop{deadline_ns});
}

void Daemon::OnThreadStopped() {
  if (++stopped_threads_ == io_.size()) loop_.Stop();
}

}  // namespace sluice::control
