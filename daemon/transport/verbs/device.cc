// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/verbs/device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "daemon/transport/transport.h"
#include "daemon/transport/verbs/call.h"
#include "daemon/transport/verbs/event_flag.h"
#include "shm_proto/base/units.h"

namespace sluice::transport {
namespace {

constexpr size_t kMaxCounters = 128;
constexpr uint64_t kTrialBytes = 4 * kMiB;

std::string Text(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  const bool mapped = std::all_of(gid.begin(), gid.begin() + 10,
                                  [](uint8_t b) { return b == 0; }) &&
                      gid[10] == 0xff && gid[11] == 0xff;
  inet_ntop(mapped ? AF_INET : AF_INET6, gid.data() + (mapped ? 12 : 0), text, sizeof(text));
  return text;
}

// How well an address of a port serves: 0 not at all, then link-local, IPv6, IPv4, and best one
// that peers are told of anyway.
int Rank(const Gid& gid, const std::vector<std::string>& wanted) {
  const std::string text = Text(gid);
  if (std::ranges::find(wanted, text) != wanted.end()) return 4;
  if (text == "::" || text == "0.0.0.0") return 0;
  if (text.starts_with("fe80") || text.starts_with("169.254.")) return 1;
  return text.find(':') != std::string::npos ? 2 : 3;
}

uint32_t Bytes(ibv_mtu mtu) { return 128u << mtu; }

}  // namespace

Result<std::unique_ptr<VerbsDevice>> VerbsDevice::Open(const VerbsSettings& settings) {
  std::unique_ptr<VerbsDevice> chosen;
  std::vector<std::string> refused;
  // Before any memory is registered. The daemon does not fork, so that it cannot is only noted.
  std::string fork_note;
  if (ibv_is_fork_initialized() == IBV_FORK_DISABLED) {
    if (auto done = Verbs(ibv_fork_init(), "ibv_fork_init"); !done)
      fork_note = "forking would break its memory: " + done.error().message;
  }
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  for (int i = 0; devices != nullptr && i < count; ++i) {
    const std::string name = ibv_get_device_name(devices[i]);
    if (!settings.device.empty() && name != settings.device) continue;
    std::unique_ptr<VerbsDevice> device(new VerbsDevice);
    device->settings_ = settings;
    if (auto opened = device->OpenOn(devices[i]); !opened) {
      refused.push_back(name + ": " + opened.error().message);
    } else {
      if (chosen == nullptr || device->gid_rank_ > chosen->gid_rank_) std::swap(chosen, device);
      if (device != nullptr) {
        refused.push_back(device->name() + ": " + chosen->name() +
                          " serves as well or better than its " + Text(device->gid_));
      }
    }
  }
  if (devices != nullptr) ibv_free_device_list(devices);
  if (chosen != nullptr) {
    for (std::string& why : refused) chosen->notes_.push_back("not used: " + std::move(why));
    if (!fork_note.empty()) chosen->notes_.push_back(std::move(fork_note));
    return chosen;
  }
  std::string text = settings.device.empty()
                         ? "no RDMA device can be used"
                         : "rdma.device: \"" + settings.device + "\" cannot be used";
  if (refused.empty()) text += ": there is none; `rdma link` lists them";
  for (const std::string& why : refused) text += "; " + why;
  return Fail(ErrorCode::kUnavailable, text);
}

Result<> VerbsDevice::OpenOn(ibv_device* device) {
  context_ = ibv_open_device(device);
  if (context_ == nullptr) return FailErrno("opening it (may the daemon use /dev/infiniband?)");
  if (auto done = Verbs(ibv_query_device(context_, &attributes_), "ibv_query_device"); !done)
    return done;
  if (attributes_.max_sge < static_cast<int>(kMaxSegments))
    return Fail(ErrorCode::kUnavailable, "its requests have at most " +
                                             std::to_string(attributes_.max_sge) + " pieces, not " +
                                             std::to_string(kMaxSegments));
  ibv_port_attr port{};
  if (auto done = Verbs(ibv_query_port(context_, settings_.port, &port),
                        "port " + std::to_string(settings_.port));
      !done)
    return done;
  if (port.state != IBV_PORT_ACTIVE)
    return Fail(ErrorCode::kUnavailable, "port " + std::to_string(settings_.port) + " is " +
                                             ibv_port_state_str(port.state) + ", not active");
  link_layer_ = port.link_layer;
  lid_ = port.lid;
  path_mtu_ = Bytes(port.active_mtu);
  if (settings_.path_mtu != 0) path_mtu_ = std::min(path_mtu_, settings_.path_mtu);
  if (auto chosen = ChooseGid(); !chosen) return chosen;
  pd_ = ibv_alloc_pd(context_);
  if (pd_ == nullptr) return FailErrno("ibv_alloc_pd");
  if (auto tried = TryMemory(); !tried) return tried;
  const int flags = fcntl(context_->async_fd, F_GETFL);
  if (fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return FailErrno("making its event descriptor non-blocking");
  notes_.push_back("port " + std::to_string(settings_.port) + ", address " + Text(gid_) +
                   ", packets of " + std::to_string(path_mtu_) + " bytes");
  return {};
}

Result<> VerbsDevice::ChooseGid() {
  const bool ethernet = link_layer_ == IBV_LINK_LAYER_ETHERNET;
  const int last = 255;
  for (int index = 0; index <= last; ++index) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context_, settings_.port, static_cast<uint32_t>(index), &entry, 0) != 0)
      continue;
    if (settings_.gid_index >= 0 && index != settings_.gid_index) continue;
    if (ethernet && entry.gid_type != IBV_GID_TYPE_ROCE_V2 && settings_.gid_index < 0) continue;
    Gid gid;
    std::memcpy(gid.data(), entry.gid.raw, gid.size());
    const int rank = settings_.gid_index >= 0 ? 4 : Rank(gid, settings_.addresses);
    if (rank <= gid_rank_) continue;
    gid_rank_ = rank;
    gid_ = gid;
  }
  if (gid_rank_ > 0) return {};
  if (settings_.gid_index >= 0)
    return Fail(ErrorCode::kUnavailable, "rdma.gid_index: port " + std::to_string(settings_.port) +
                                             " has no address " +
                                             std::to_string(settings_.gid_index));
  return Fail(ErrorCode::kUnavailable,
              "its port has no RoCE v2 address; give its network interface an IP address");
}

// Whether memory may be pinned at all, found out by pinning some.
Result<> VerbsDevice::TryMemory() const {
  void* memory = mmap(nullptr, kTrialBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                      0);
  if (memory == MAP_FAILED) return FailErrno("mmap for a trial registration");
  Result<> tried;
  const int locked = mlock(memory, kTrialBytes);
  ibv_mr* region = locked == 0 ? ibv_reg_mr(pd_, memory, kTrialBytes, IBV_ACCESS_LOCAL_WRITE)
                               : nullptr;
  if (region == nullptr) {
    const int error = errno;
    rlimit limit{};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    tried = Fail(
        ErrorCode::kNoMemory,
        std::string(locked == 0 ? "registering" : "locking") +
            " 4 MiB of memory: " + std::strerror(error) + "; the limit on locked memory is " +
            (limit.rlim_cur == RLIM_INFINITY ? "none" : std::to_string(limit.rlim_cur) + " bytes") +
            ", set LimitMEMLOCK=infinity for the daemon");
  } else {
    ibv_dereg_mr(region);
  }
  munmap(memory, kTrialBytes);
  return tried;
}

VerbsDevice::~VerbsDevice() {
  if (pd_ != nullptr) ibv_dealloc_pd(pd_);
  if (context_ != nullptr) ibv_close_device(context_);
}

Result<uint8_t> VerbsDevice::GidIndex() const {
  for (uint32_t index = 0; index < 256; ++index) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context_, settings_.port, index, &entry, 0) != 0) continue;
    if (link_layer_ == IBV_LINK_LAYER_ETHERNET && settings_.gid_index < 0 &&
        entry.gid_type != IBV_GID_TYPE_ROCE_V2)
      continue;
    if (std::memcmp(entry.gid.raw, gid_.data(), gid_.size()) == 0)
      return static_cast<uint8_t>(index);
  }
  return Fail(ErrorCode::kUnavailable, "the port's address " + Text(gid_) + " is gone");
}

std::string VerbsDevice::TakeEvents() {
  std::string reason;
  ibv_async_event event;
  for (int i = 0; i < 64 && ibv_get_async_event(context_, &event) == 0; ++i) {
    switch (event.event_type) {
      case IBV_EVENT_PORT_ERR: reason = "the port went down"; break;
      case IBV_EVENT_DEVICE_FATAL: reason = "the device failed"; break;
      case IBV_EVENT_LID_CHANGE: reason = "the port's LID changed"; break;
      case IBV_EVENT_CQ_ERR: reason = "a completion queue overran"; break;
      case IBV_EVENT_GID_CHANGE:
        if (auto index = GidIndex(); !index) reason = index.error().message;
        break;
      case IBV_EVENT_QP_LAST_WQE_REACHED:
        static_cast<EventFlag*>(event.element.qp->qp_context)->Raise();
        break;
      case IBV_EVENT_SRQ_LIMIT_REACHED:
        static_cast<EventFlag*>(event.element.srq->srq_context)->Raise();
        break;
      case IBV_EVENT_SRQ_ERR: reason = "a shared receive queue failed"; break;
      default: break;  // What concerns a queue pair shows in its completions.
    }
    ibv_ack_async_event(&event);
  }
  return reason;
}

bool VerbsDevice::Present() const {
  struct stat status;
  return stat(context_->device->dev_path, &status) == 0;
}

std::vector<std::pair<std::string, uint64_t>> VerbsDevice::PortCounters() const {
  std::vector<std::pair<std::string, uint64_t>> counters;
  const std::filesystem::path folder = std::filesystem::path(context_->device->ibdev_path) /
                                       "ports" / std::to_string(settings_.port) / "hw_counters";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    uint64_t value = 0;
    if (std::ifstream(entry.path()) >> value && entry.path().filename() != "lifespan")
      counters.emplace_back(entry.path().filename().string(), value);
    if (counters.size() == kMaxCounters) break;
  }
  std::ranges::sort(counters);
  return counters;
}

}  // namespace sluice::transport
