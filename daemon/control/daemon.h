// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "daemon/control/admin.h"
#include "daemon/control/client_server.h"
#include "daemon/control/config.h"
#include "daemon/control/config_store.h"
#include "daemon/control/event_loop.h"
#include "daemon/control/fabrics.h"
#include "daemon/control/flight_recorder.h"
#include "daemon/control/http.h"
#include "daemon/control/peers.h"
#include "daemon/control/run_directory.h"
#include "daemon/control/service_manager.h"
#include "daemon/control/status_collector.h"
#include "daemon/engine/handshake_mac.h"
#include "daemon/io/io_thread.h"
#include "daemon/memory/headroom.h"
#include "shm_proto/base/random.h"

namespace sluice::control {

// Makes the networks of one I/O thread.
using MakeNetworks = std::function<Result<io::Networks>()>;

// What main.cc builds the daemon of.
struct DaemonParts {
  MakeNetworks make_networks;
  OpenFabricDevice open_fabric_device = nullptr;  // Null: TCP only.
  transport::MemoryRegistry* registry = nullptr;  // Outlives the daemon.
};

// The whole daemon: makes its parts in the order in which a message meets them, runs the control
// thread's loop, and takes the parts down again in the opposite order.
// Thread: control, which is the one that calls Run(). Owns: everything.
class Daemon {
 public:
  Daemon(Config config, std::string config_path, const Clock& clock);
  ~Daemon();

  // Errors say what is in the way and what to do. Nothing runs then.
  Result<> Start(const DaemonParts& parts);
  // For the registry, which may call it from any thread once Start() has begun.
  void Publish(const std::shared_ptr<const transport::Regions>& regions);
  // Until SIGTERM, SIGINT or the drain verb, and then until everything in flight is over or
  // daemon.drain_timeout_ms has passed. The process's exit code.
  int Run();

 private:
  // daemon.cc
  Result<> StartSignals();
  Result<> StartIoThreads(const MakeNetworks& make_networks);
  Result<> StartPeers();
  Result<> StartClients(transport::MemoryRegistry* registry);
  Result<> StartOperatorSurface();
  void OnSignal();
  void OnIoMessages();
  void OnFabricPath(const io::FabricPath& path);
  void Reload();
  Result<> Apply(const Config& after);
  void Drain(const std::string& why);
  void OnThreadStopped();

  // daemon_status.cc
  StatusParts MakeStatusParts();
  DaemonStatus Describe() const;
  std::vector<ClientStatus> DescribeClients() const;
  std::vector<PeerStatus> DescribePeers() const;
  DeviceStatus DescribeDevice() const;
  std::vector<NamedNumber> DescribeNumbers() const;

  const Config at_start_;
  const std::string name_;  // Towards peers and in displays.
  const Clock& clock_;
  SystemRandom random_;
  const uint64_t instance_;
  const uint64_t started_ns_;
  EventLoop loop_;
  ConfigStore store_;
  std::optional<InstanceLock> lock_;
  std::unique_ptr<handshake::MacKey> key_;
  Fd signals_;
  memory::Headroom headroom_;
  io::Mailbox<io::FromIo> from_io_;
  std::unique_ptr<Fabrics> fabrics_;  // The device outlives the threads' fabrics.
  std::vector<std::unique_ptr<io::IoThread>> io_;
  std::vector<std::jthread> threads_;
  std::unique_ptr<Peers> peers_;
  std::unique_ptr<ClientServer> clients_;
  std::unique_ptr<StatusCollector> status_;
  std::unique_ptr<FlightRecorder> recorder_;
  std::unique_ptr<AdminServer> admin_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<ServiceManager> service_;
  bool ready_ = false;
  bool draining_ = false;
  size_t stopped_threads_ = 0;
};

}  // namespace sluice::control
