// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shm_proto/base/result.h"

namespace sluice::transport {

struct VerbsSettings {
  std::string device;  // Empty: the first that fits.
  uint8_t port = 1;
  int gid_index = -1;     // Negative: the first that fits.
  uint32_t path_mtu = 0;  // Bytes; 0: the port's.
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
  uint8_t timeout = 13;  // 4.096 us times two to this power.
  uint8_t retries = 6;
  bool relaxed_ordering = false;
  uint32_t shared_receives = 0;  // By all queue pairs of an I/O thread; 0: each has its own.
  uint32_t shared_reserve = 0;   // Of these, for each queue pair.
  uint32_t shared_bytes = 0;     // Size of each.
  // Addresses of this host that peers are to use, as text; a port that has one of them is
  // preferred.
  std::vector<std::string> addresses;
};

using Gid = std::array<uint8_t, 16>;

// An open RDMA device with its protection domain, and the port and address chosen on it.
// Thread: immutable once open, but for the events, which are the control thread's. Owns: the
// device's context. What was made on it is destroyed before it.
class VerbsDevice {
 public:
  // Fails with what stands in the way and what to do: no device, no port that is up, no address, no
  // memory that may be locked.
  static Result<std::unique_ptr<VerbsDevice>> Open(const VerbsSettings& settings);
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  ibv_context* context() const { return context_; }
  ibv_pd* pd() const { return pd_; }
  const VerbsSettings& settings() const { return settings_; }
  const Gid& gid() const { return gid_; }
  const ibv_device_attr& attributes() const { return attributes_; }
  uint8_t link_layer() const { return link_layer_; }
  uint16_t lid() const { return lid_; }
  uint32_t path_mtu() const { return path_mtu_; }  // Bytes.
  std::string name() const { return ibv_get_device_name(context_->device); }
  const std::vector<std::string>& notes() const { return notes_; }

  // The index that the address has now; indexes move when addresses come and go.
  Result<uint8_t> GidIndex() const;

  int events_fd() const { return context_->async_fd; }
  // Takes the events. Not empty: why the device can be used no longer.
  std::string TakeEvents();
  // False: its node is gone, since it is being removed and that waits for us to close it.
  bool Present() const;
  // The port's own counters, as its driver has them.
  std::vector<std::pair<std::string, uint64_t>> PortCounters() const;

 private:
  VerbsDevice() = default;
  Result<> OpenOn(ibv_device* device);
  Result<> ChooseGid();
  Result<> TryMemory() const;

  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  VerbsSettings settings_;
  ibv_device_attr attributes_{};
  Gid gid_{};
  int gid_rank_ = 0;  // How well the address fits; 0: badly.
  uint8_t link_layer_ = 0;
  uint16_t lid_ = 0;
  uint32_t path_mtu_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace sluice::transport
