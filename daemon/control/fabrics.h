// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control/event_loop.h"
#include "daemon/control/pause_watch.h"
#include "daemon/io/mailbox.h"
#include "daemon/io/messages.h"
#include "daemon/memory/memory_worker.h"
#include "daemon/transport/transport.h"

namespace sluice::control {

// What people want to know of a device.
struct FabricDeviceInfo {
  std::string name = {};                // "mlx5_0".
  std::vector<std::string> notes = {};  // What was chosen and why, what is missing; sentences.
  std::vector<std::pair<std::string, uint64_t>> counters = {};  // Its own and its port's; bounded.
};

// An open device that fabrics run on. Closed by destroying it, after its fabrics. Thread: made and
// destroyed on a worker's thread, used on the control thread.
class FabricDevice {
 public:
  virtual ~FabricDevice() = default;
  // One for each I/O thread. On the worker's thread too.
  virtual Result<std::unique_ptr<transport::Fabric>> MakeFabric() = 0;
  virtual int events_fd() const = 0;
  // Takes what events_fd() announced. Not empty: why the device has to be left.
  virtual std::string OnEvents() = 0;
  // False: somebody is removing it, and waits for us to close it.
  virtual bool Present() const = 0;
  virtual FabricDeviceInfo Info() const = 0;
  // Pause frames that its port received; nothing where the driver counts none.
  virtual std::optional<uint64_t> PauseFrames() const { return std::nullopt; }
};

// When pause frames are a storm, and whether RDMA is then left.
struct PauseSettings {
  uint64_t storm_per_s = 0;  // 0: never.
  bool leave = false;
};

// Opens the device that the configuration names, or the best there is, and registers all memory
// with it. Takes as long as that takes: on the worker's thread.
using OpenFabricDevice = std::function<Result<std::unique_ptr<FabricDevice>>()>;

// The device beside TCP as it comes and goes: opened, given to every I/O thread, watched, taken
// away from all of them when it fails or is being removed, closed, and looked for again.
// Invariant: the device outlives every fabric that was made of it. Thread: control; opening and
// closing on a worker's. Owns: the device.
class Fabrics {
 public:
  Fabrics(EventLoop& loop, std::vector<io::Mailbox<io::ToIo>*> io, OpenFabricDevice open);
  // The I/O threads are gone, and their fabrics with them.
  ~Fabrics();

  void Start();
  void Configure(const PauseSettings& settings);
  void OnFabricSet();  // An I/O thread has answered SetFabric.

  enum class State { kClosed, kOpening, kUp, kLeaving, kClosing };
  State state() const { return state_; }
  const std::string& reason() const { return reason_; }  // Why there is none; empty while up.
  FabricDeviceInfo Info() const { return device_ ? device_->Info() : FabricDeviceInfo{}; }
  uint64_t opened() const { return opened_; }
  const PauseWatch& pauses() const { return pauses_; }

 private:
  struct Opened {
    std::unique_ptr<FabricDevice> device;
    std::vector<std::unique_ptr<transport::Fabric>> fabrics;
  };
  static Result<Opened> Open(const OpenFabricDevice& open, size_t io_threads);
  void StartOpening();
  void OnOpened(Result<Opened> opened);
  void Watch();
  void WatchPauses();
  void Leave(const std::string& reason);
  void Close();
  void RetryLater();

  static constexpr uint64_t kWatchNs = 200 * kNsPerMs;
  static constexpr uint64_t kFirstRetryNs = kNsPerSecond;
  static constexpr uint64_t kLastRetryNs = 30 * kNsPerSecond;

  EventLoop& loop_;
  const std::vector<io::Mailbox<io::ToIo>*> io_;
  const OpenFabricDevice open_;
  State state_ = State::kClosed;
  std::string reason_;
  std::unique_ptr<FabricDevice> device_;
  size_t unanswered_ = 0;  // SetFabric messages.
  uint64_t retry_ns_ = kFirstRetryNs;
  uint64_t opened_ = 0;
  PauseSettings pause_settings_;
  PauseWatch pauses_;
  EventLoop::TimerId timer_ = 0;
  std::shared_ptr<void> alive_;  // Expires first: what was posted to the loop looks.
  memory::MemoryWorker worker_;  // Ends first.
};

}  // namespace sluice::control
