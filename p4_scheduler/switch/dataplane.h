// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "p4_scheduler/switch/config.h"
#include "p4_scheduler/switch/layer2.h"
#include "p4_scheduler/switch/snapshot.h"

struct rte_mbuf;
struct rte_mempool;

namespace sluice::rain {

// DPDK's ports as one process has them. Owns: devices and packet buffers.
class DpdkPorts {
 public:
  // Starts DPDK with these ports. Once in a process: DPDK cannot be started again.
  static Result<std::unique_ptr<DpdkPorts>> Start(const ProgramConfig& config);
  // The same with options and device names as DPDK knows them, and the room of a packet buffer,
  // DPDK's headroom included;
  // `packed` as AF_XDP needs it.
  static Result<std::unique_ptr<DpdkPorts>> Start(const std::vector<std::string>& eal_options,
                                                  const std::vector<std::string>& devices,
                                                  uint32_t buffer_bytes, bool packed = false);
  ~DpdkPorts();
  DpdkPorts(const DpdkPorts&) = delete;
  DpdkPorts& operator=(const DpdkPorts&) = delete;

  std::span<const uint16_t> ids() const { return ids_; }
  rte_mempool* pool() const { return pool_; }

 private:
  DpdkPorts() = default;
  Result<> Open(const std::string& device);

  std::vector<uint16_t> ids_;
  rte_mempool* pool_ = nullptr;
};

// Moves packets between DPDK's ports and the scheduler: one thread, one loop, a burst from each
// port per turn. Thread: one. Allocates: in its constructor; packet buffers come from the ports'
// pool.
class Dataplane {
 public:
  static constexpr uint16_t kBurst = 32;

  Dataplane(Switch rain, const DpdkPorts& ports);
  ~Dataplane();
  Dataplane(const Dataplane&) = delete;
  Dataplane& operator=(const Dataplane&) = delete;

  // One turn; how many packets came.
  size_t PollOnce(uint64_t now_ns);

  void Read(uint64_t now_ns, Snapshot& snapshot) const;
  Switch& rain() { return rain_; }

 private:
  struct Port {
    uint16_t id = 0;
    std::vector<rte_mbuf*> out = {};  // To be sent at the end of this turn.
    PortCounts counts = {};
  };

  void Handle(uint64_t now_ns, uint16_t port, rte_mbuf* packet);
  void Forward(uint16_t port, rte_mbuf* packet);
  void Flood(uint16_t from, rte_mbuf* packet);
  void Replicate(const Decision& decision, rte_mbuf* packet);
  void Enqueue(uint16_t port, rte_mbuf* packet);
  void Flush(Port& port);

  Switch rain_;
  MacTable addresses_;
  rte_mempool* pool_;
  std::vector<Port> ports_;
  uint64_t flooded_ = 0;
  uint64_t no_buffer_drops_ = 0;
  uint64_t no_port_drops_ = 0;
};

}  // namespace sluice::rain
