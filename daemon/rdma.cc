// SPDX-License-Identifier: Apache-2.0
#include "daemon/rdma.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/control/config_check.h"
#include "daemon/control/pause_counters.h"
#include "daemon/transport/verbs/device.h"
#include "daemon/transport/verbs/verbs_fabric.h"

namespace sluice {
namespace {

using transport::VerbsDevice;

transport::VerbsSettings SettingsOf(const Config& config) {
  const RdmaConfig& rdma = config.rdma;
  transport::VerbsSettings settings{.device = rdma.device,
                                    .port = static_cast<uint8_t>(rdma.port),
                                    .gid_index = rdma.gid_index,
                                    .path_mtu = rdma.path_mtu,
                                    .traffic_class = static_cast<uint8_t>(rdma.traffic_class),
                                    .service_level = static_cast<uint8_t>(rdma.service_level),
                                    .timeout = static_cast<uint8_t>(rdma.timeout),
                                    .retries = static_cast<uint8_t>(rdma.retries),
                                    .relaxed_ordering = rdma.relaxed_ordering,
                                    .shared_receives = rdma.shared_receives,
                                    .shared_reserve = rdma.shared_reserve,
                                    .shared_bytes = config.engine.receive_bytes,
                                    .addresses = {}};
  for (const std::string& listen : config.peer.listen) {
    if (auto numeric = ParseNumericAddress(listen, 1))
      settings.addresses.push_back(numeric->address);
  }
  return settings;
}

class RdmaDevice final : public control::FabricDevice {
 public:
  RdmaDevice(std::unique_ptr<VerbsDevice> device, transport::VerbsRegistry& registry,
             Random& random)
      : device_(std::move(device)), registry_(registry), random_(random) {}
  ~RdmaDevice() override { registry_.Detach(); }

  Result<> Attach() { return registry_.Attach(*device_); }

  Result<std::unique_ptr<transport::Fabric>> MakeFabric() override {
    auto made = transport::VerbsFabric::Create(*device_, random_);
    if (!made) return std::unexpected(made.error());
    has_thread_domain_ = (*made)->has_thread_domain();
    return std::move(*made);
  }
  int events_fd() const override { return device_->events_fd(); }
  std::string OnEvents() override { return device_->TakeEvents(); }
  bool Present() const override { return device_->Present(); }
  std::optional<uint64_t> PauseFrames() const override {
    const auto counters = ReadPauseCounters();
    return counters ? control::ReceivedPauseFrames(*counters) : std::nullopt;
  }

  control::FabricDeviceInfo Info() const override {
    control::FabricDeviceInfo info{device_->name(), device_->notes(), device_->PortCounters()};
    if (!has_thread_domain_) {
      info.notes.push_back("its provider has no thread domains: each posting takes a lock");
    }
    AddPauseCounters(info);
    const auto registered = registry_.counters();
    info.counters.emplace_back("memory_regions", registered.regions);
    info.counters.emplace_back("memory_region_bytes", registered.bytes);
    info.counters.emplace_back("registrations", registered.registered);
    info.counters.emplace_back("deregistrations", registered.deregistered);
    info.counters.emplace_back("registrations_failed", registered.failed);
    return info;
  }

 private:
  using NamedCounters = std::vector<control::InterfaceStatistics::Named>;

  std::string Interface() const {
    return control::InterfaceBelow("/sys/class/infiniband", device_->name(),
                                   device_->settings().port);
  }
  // Below the device, which does not count them itself.
  Result<NamedCounters> ReadPauseCounters() const {
    const std::string interface = Interface();
    if (interface.empty()) return NamedCounters{};
    return control::PauseCounters(*control::EthtoolStatistics(interface));
  }
  void AddPauseCounters(control::FabricDeviceInfo& info) const {
    const std::string interface = Interface();
    if (interface.empty()) return;
    auto pauses = ReadPauseCounters();
    if (!pauses) {
      info.notes.push_back("pause frames cannot be told: " + pauses.error().message);
    } else if (pauses->empty()) {
      info.notes.push_back("pause frames cannot be told: the driver of " + interface +
                           " does not count them");
    } else {
      std::ranges::move(*pauses, std::back_inserter(info.counters));
    }
  }

  std::unique_ptr<VerbsDevice> device_;
  transport::VerbsRegistry& registry_;
  Random& random_;
  bool has_thread_domain_ = false;
};

}  // namespace

Result<std::unique_ptr<control::FabricDevice>> OpenRdmaDevice(const Config& config,
                                                              transport::VerbsRegistry& registry,
                                                              Random& random) {
  auto device = VerbsDevice::Open(SettingsOf(config));
  if (!device) return std::unexpected(device.error());
  auto rdma = std::make_unique<RdmaDevice>(std::move(*device), registry, random);
  if (auto attached = rdma->Attach(); !attached) return std::unexpected(attached.error());
  return rdma;
}

}  // namespace sluice
