// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "daemon/transport/transport.h"
#include "daemon/transport/verbs/device.h"

namespace sluice::transport {

// All memory that queue pairs may name, known to the NIC twice so that each use has the least
// access: to send from it (nobody may write), and to land in it (the peer may write). It outlives
// devices: a new one is told of everything.
// Invariant: with a device, every piece has both regions. Thread: any; a mutex guards it, nothing
// here is on a data path.
class VerbsRegistry final : public MemoryRegistry {
 public:
  using Publish = std::function<void(std::shared_ptr<const Regions>)>;

  // `publish` gets all regions whenever they changed, under the lock.
  explicit VerbsRegistry(Publish publish) : publish_(std::move(publish)) {}
  ~VerbsRegistry() override { Detach(); }

  // From now on all memory is registered with this device, which must stay until Detach().
  Result<> Attach(VerbsDevice& device);
  void Detach();

  Result<> Register(std::byte* address, uint64_t bytes) override;
  void Deregister(std::byte* address) override;

  struct Counters {
    uint64_t regions = 0, bytes = 0, registered = 0, deregistered = 0, failed = 0;
  };
  Counters counters() const;

 private:
  struct Piece {
    uint64_t bytes = 0;
    ibv_mr* send = nullptr;
    ibv_mr* landing = nullptr;
  };
  Result<> Add(std::byte* address, Piece& piece);
  void Remove(Piece& piece);
  void PublishAll();

  const Publish publish_;
  mutable std::mutex mutex_;
  VerbsDevice* device_ = nullptr;
  std::map<std::byte*, Piece> pieces_;
  Counters counters_;
};

}  // namespace sluice::transport
