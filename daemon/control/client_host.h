// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/clients/tenants.h"
#include "daemon/control/control_connection.h"
#include "daemon/control/event_loop.h"
#include "daemon/control/peer_directory.h"
#include "daemon/control/service_table.h"
#include "daemon/io/mailbox.h"
#include "daemon/io/messages.h"
#include "daemon/memory/memory_worker.h"
#include "daemon/memory/reclaimer.h"
#include "daemon/memory/shared_memory.h"
#include "shm_proto/base/clock.h"
#include "shm_proto/base/units.h"

// What the parts of one client's frame in the control thread have in common.
namespace sluice::control {

struct ClientServerOptions {
  std::vector<clients::TenantRule> tenants;
  clients::NodeLimits limits;
  uint64_t instance = 0;                    // Of this run of the daemon; never 0.
  uint64_t max_message_bytes = 256 * kMiB;  // And no more than a quarter of the pool's quota.
  uint64_t extent_bytes = 32 * kMiB;
  uint32_t ring_start = 0;  // Where ring counters begin; tests begin just below 2^32.
  uint64_t attach_deadline_ns = 5 * kNsPerSecond;  // To say kAttach after connecting.
  uint64_t
      mapping_deadline_ns = 10 *
                            kNsPerSecond;  // What waits for the client to map something fails then.
  transport::MemoryRegistry* registry = nullptr;  // Told of all extents; null: no fabric.
  uint64_t extent_idle_ns = 10 * kNsPerSecond;    // Unused extents but one go back after that.
};

struct ClientServerCounters {
  uint64_t attached = 0;
  uint64_t attach_refused = 0;  // Denied, out of quota, wrong version, too late, at the descriptor
                                // limit.
  uint64_t detached = 0;        // By us, for breaking the rules or not reading.
  uint64_t rejected_requests = 0;  // Malformed, out of order, out of range.
  uint64_t memory_refused = 0;     // For want of quota or memory.
  uint64_t extents_made = 0, extents_released = 0;
  uint64_t incoming_refused = 0;  // No listener, or one without room.
};

// What all clients share. Outlives them.
struct ClientServices {
  EventLoop& loop;
  std::span<io::Mailbox<io::ToIo>* const> io;
  PeerDirectory& peers;
  clients::Tenants& tenants;
  memory::MemoryWorker& worker;
  memory::Reclaimer& reclaimer;
  ServiceTable& services;
  const ClientServerOptions& options;
  ClientServerCounters& counters;
  // Refuses memory that the machine or a cgroup could not give without killing somebody. Called on
  // the worker's thread.
  const std::function<Result<>(uint64_t bytes)>& headroom;
};

// What a client's memory and ports need of the client they belong to. Thread: control.
class ClientHost {
 public:
  using MadeCallback = std::move_only_function<void(Result<memory::SharedMemory>)>;

  virtual io::ClientId id() const = 0;
  virtual ClientServices& services() = 0;
  virtual clients::Tenant& tenant() = 0;
  virtual ControlConnection& connection() = 0;

  virtual uint32_t NextRegion() = 0;

  // The I/O threads that know this client.
  virtual const std::vector<uint32_t>& known_threads() const = 0;
  // Makes the client known to the thread before its first message. Nothing is said once the client
  // is leaving.
  virtual void Tell(uint32_t io_thread, io::ToIo message) = 0;

  // Makes shared memory on the worker's thread: counted at the tenant first, headroom looked at.
  // `done` runs while the client exists, if it is leaving too: then it only gets rid of the memory.
  virtual void MakeMemory(std::string name, uint64_t bytes, std::byte* address,
                          MadeCallback done) = 0;
  // Gives memory back to the tenant once nobody holds it any more; then calls `gone` if the client
  // still exists.
  virtual void RetireMemory(memory::SharedMemory memory, std::move_only_function<void()> gone) = 0;

  // Gives the client up: tells it, closes the connection, takes everything back.
  virtual void Detach(int error, const std::string& reason) = 0;

  void SendError(uint32_t request, int error, const std::string& text);

 protected:
  ~ClientHost() = default;
};

}  // namespace sluice::control
