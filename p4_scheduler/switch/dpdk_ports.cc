// SPDX-License-Identifier: Apache-2.0
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <unistd.h>

#include <algorithm>

#include "p4_scheduler/switch/dataplane.h"

namespace sluice::rain {
namespace {

constexpr uint16_t kDescriptors = 1024;
// Each port may hold two rings of packets; the rest is under way in a turn.
constexpr uint32_t kPacketsOfPort = 2 * kDescriptors;
constexpr uint32_t kPacketsUnderWay = 1024;
constexpr uint32_t kCacheOfPool = 256;
constexpr uint32_t kAfPacketBlockBytes = 65'536;

std::unexpected<Error> FailDpdk(const std::string& what, int error) {
  return Fail(ErrorCode::kSystem, what + ": " + rte_strerror(error));
}

// As rte_pktmbuf_pool_create(). AF_XDP takes the pool for a row of equal chunks, but without
// hugepages DPDK leaves gaps, so that no buffer crosses a page; `packed` ones are without.
rte_mempool* MakePool(uint32_t packets, uint16_t buffer_bytes, bool packed) {
  if (!packed) {
    return rte_pktmbuf_pool_create("packets", packets, kCacheOfPool, 0, buffer_bytes,
                                   SOCKET_ID_ANY);
  }
  rte_mempool* pool = rte_mempool_create_empty("packets", packets, sizeof(rte_mbuf) + buffer_bytes,
                                               kCacheOfPool, sizeof(rte_pktmbuf_pool_private),
                                               SOCKET_ID_ANY, RTE_MEMPOOL_F_NO_IOVA_CONTIG);
  if (pool == nullptr) return nullptr;
  rte_pktmbuf_pool_private about{};
  about.mbuf_data_room_size = buffer_bytes;
  if (rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), nullptr) != 0) {
    rte_mempool_free(pool);
    return nullptr;
  }
  rte_pktmbuf_pool_init(pool, &about);
  if (rte_mempool_populate_default(pool) < 0) {
    rte_mempool_free(pool);
    return nullptr;
  }
  rte_mempool_obj_iter(pool, rte_pktmbuf_init, nullptr);
  return pool;
}

struct Device {
  std::string name;
  std::string option;
};

Device DeviceOf(const PortConfig& port, size_t number) {
  const std::string index = std::to_string(number);
  switch (port.driver) {
    case PortConfig::Driver::kAfPacket: {
      const std::string name = "net_af_packet" + index;
      return {name, "--vdev=" + name + ",iface=" + port.device +
                        ",blocksz=" + std::to_string(kAfPacketBlockBytes) +
                        ",framesz=" + std::to_string(port.frame_bytes) + ",framecnt=512,qpairs=1"};
    }
    case PortConfig::Driver::kAfXdp: {
      const std::string name = "net_af_xdp" + index;
      return {name, "--vdev=" + name + ",iface=" + port.device + ",busy_budget=0"};
    }
    case PortConfig::Driver::kPci: break;
  }
  return {port.device, "--allow=" + port.device};
}

}  // namespace

Result<std::unique_ptr<DpdkPorts>> DpdkPorts::Start(const ProgramConfig& config) {
  std::vector<std::string> options = {
      "-l", std::to_string(config.core),     "--no-telemetry", "--log-level=error",
      "-m", std::to_string(config.memory_mb)};
  if (config.hugepages) {
    options.emplace_back("--in-memory");
  } else {
    options.insert(options.end(), {"--no-huge", "--no-shconf",
                                   "--file-prefix=sluice-switch-" + std::to_string(getpid())});
  }
  bool pci = false, xdp = false;
  std::vector<std::string> devices;
  for (size_t i = 0; i < config.ports.size(); ++i) {
    const Device device = DeviceOf(config.ports[i], i);
    pci |= config.ports[i].driver == PortConfig::Driver::kPci;
    xdp |= config.ports[i].driver == PortConfig::Driver::kAfXdp;
    devices.push_back(device.name);
    options.push_back(device.option);
  }
  if (!pci) options.emplace_back("--no-pci");
  if (pci && !config.hugepages) {
    return Fail(ErrorCode::kInvalid, "a pci port needs dpdk.hugepages = true");
  }
  return Start(options, devices, config.FrameBytes() + RTE_PKTMBUF_HEADROOM, xdp);
}

Result<std::unique_ptr<DpdkPorts>> DpdkPorts::Start(const std::vector<std::string>& eal_options,
                                                    const std::vector<std::string>& devices,
                                                    uint32_t buffer_bytes, bool packed) {
  std::vector<std::string> words = {"sluice-switch"};
  words.insert(words.end(), eal_options.begin(), eal_options.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  if (rte_eal_init(static_cast<int>(arguments.size()), arguments.data()) < 0) {
    return FailDpdk(
        "DPDK does not start (are the interfaces there, is this root, are there "
        "hugepages where dpdk.hugepages = true?)",
        rte_errno);
  }
  std::unique_ptr<DpdkPorts> ports(new DpdkPorts());
  const auto packets = static_cast<uint32_t>(kPacketsOfPort * std::max<size_t>(devices.size(), 1) +
                                             kPacketsUnderWay);
  ports->pool_ = MakePool(packets, static_cast<uint16_t>(buffer_bytes), packed);
  if (ports->pool_ == nullptr) {
    return FailDpdk(
        "no room for " + std::to_string(packets) + " packet buffers; raise dpdk.memory_mb",
        rte_errno);
  }
  for (const std::string& device : devices) {
    if (auto opened = ports->Open(device); !opened) return std::unexpected(opened.error());
  }
  return ports;
}

Result<> DpdkPorts::Open(const std::string& device) {
  uint16_t id = 0;
  if (const int error = rte_eth_dev_get_port_by_name(device.c_str(), &id); error != 0) {
    return FailDpdk("DPDK has no port " + device, -error);
  }
  rte_eth_dev_info about{};
  if (const int error = rte_eth_dev_info_get(id, &about); error != 0) {
    return FailDpdk(device + " does not say what it can", -error);
  }
  const rte_eth_conf plain{};
  uint16_t receive = kDescriptors, send = kDescriptors;
  int error = rte_eth_dev_configure(id, 1, 1, &plain);
  if (error == 0) error = rte_eth_dev_adjust_nb_rx_tx_desc(id, &receive, &send);
  if (error == 0) {
    error = rte_eth_rx_queue_setup(id, 0, receive, SOCKET_ID_ANY, nullptr, pool_);
  }
  if (error == 0) error = rte_eth_tx_queue_setup(id, 0, send, SOCKET_ID_ANY, nullptr);
  if (error == 0) error = rte_eth_dev_start(id);
  if (error != 0) return FailDpdk("port " + device + " does not start", -error);
  ids_.push_back(id);
  // A switch takes frames for others. AF_XDP and the measuring devices take all as it is.
  if (error = rte_eth_promiscuous_enable(id); error != 0 && error != -ENOTSUP) {
    return FailDpdk("port " + device + " does not take frames for others", -error);
  }
  return {};
}

DpdkPorts::~DpdkPorts() {
  for (const uint16_t id : ids_) {
    rte_eth_dev_stop(id);
    rte_eth_dev_close(id);
  }
  rte_mempool_free(pool_);
  rte_eal_cleanup();
}

}  // namespace sluice::rain
