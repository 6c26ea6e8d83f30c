// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/engine/containers.h"
#include "daemon/engine/request_chain.h"
#include "daemon/engine/session.h"
#include "daemon/engine/wire.h"
#include "daemon/sched/credits.h"
#include "daemon/transport/transport.h"

namespace sluice {

// A frame about the paths themselves. It goes out on its own path, before anything else and
// whichever path carries the messages.
struct PathFrame {
  wire::FrameHeader header{};
  std::array<std::byte, sizeof(transport::Endpoint)> payload{};
};

// One queue pair of an engine with the flow control and the requests that belong to it.
// Invariant: nothing names `memory` while there is no queue pair. Thread: its engine's. Owns the
// queue pair and the memory that frames are written into and receives are posted from. Allocates:
// in Prepare() only.
class Path {
 public:
  explicit Path(const LocalLimits& limits);

  // For a new queue pair, before it is there: fresh credits, all receives to be posted. Fails when
  // the receives are `shared` with other peers, and all are promised to them.
  Result<> Prepare(uint32_t peer_receive_depth, SharedReceives* shared = nullptr);
  std::span<std::byte> memory() { return {memory_.get(), memory_bytes_}; }

  // Those consumed, again. Fails when the queue pair is dead.
  Result<> PostReceives();
  transport::ReceiveRequest ReceiveSlot(uint32_t index) const;
  void OnConsumed(uint64_t id) { consumed_.push_back(ReceiveSlot(static_cast<uint32_t>(id))); }

  // At most kMaxSaid wait: more are answers to a peer that takes none, and break the path.
  static constexpr size_t kMaxSaid = 32;
  void Say(wire::FrameType type, uint64_t sequence, uint32_t argument,
           std::span<const std::byte> payload = {});
  // Writes what was said, as far as requests and credits reach.
  void WriteSaid();

  // To be taken down outside the completion loop; the first reason counts.
  void Break(std::string why);
  bool usable() const { return queue_pair != nullptr && !broken; }

  // Destroys the queue pair: the fence after which no memory of ours is touched. `release` is
  // called with each request that was not done.
  template <typename Release>
  void TakeDown(Release release) {
    returns.End();  // The lender may go with the queue pair.
    queue_pair.reset();
    broken = false;
    bundle = nullptr;
    bundle_slot = nullptr;
    said_.clear();
    chain.Clear(release);
  }
  void FreeMemory() {
    memory_.reset();
    memory_bytes_ = 0;
  }

  RequestChain chain;
  SendCredits credits;
  CreditReturns returns;
  transport::SendRequest* bundle = nullptr;  // The SEND that still takes frames.
  ChainSlot* bundle_slot = nullptr;
  bool broken = false;
  std::string reason;  // Why it is broken or was last taken down.
  uint64_t last_heard_ns = 0;
  uint64_t next_keepalive_ns = 0;
  uint64_t keepalive_sequence = 0;
  uint64_t peer_keepalive = 0;

 private:
  const LocalLimits limits_;
  size_t memory_bytes_ = 0;
  // Headers of the chain, then receive slots where they are not shared.
  std::unique_ptr<std::byte[]> memory_;
  bool own_receives_ = true;
  std::vector<transport::ReceiveRequest> consumed_;  // To be posted again, as one list.
  Fifo<PathFrame> said_;

 public:
  std::unique_ptr<transport::QueuePair> queue_pair;  // Goes before the memory it names.
};

}  // namespace sluice
