// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/transport/transport.h"
#include "daemon/transport/verbs/endpoint.h"
#include "daemon/transport/verbs/event_flag.h"
#include "daemon/transport/verbs/verbs_fabric.h"

namespace sluice::transport {

// The engine's names of requests that are posted and not done, oldest first.
// Invariant: first <= end <= first + capacity. Allocates: at creation.
class PostedIds {
 public:
  explicit PostedIds(uint32_t capacity) : ids_(capacity) {}
  size_t room() const { return ids_.size() - static_cast<size_t>(end_ - first_); }
  bool empty() const { return first_ == end_; }
  uint64_t first() const { return first_; }
  uint64_t end() const { return end_; }
  uint64_t Push(uint64_t id) {
    ids_[end_ % ids_.size()] = id;
    return end_++;
  }
  uint64_t at(uint64_t position) const { return ids_[position % ids_.size()]; }
  void ReleaseUpTo(uint64_t position) { first_ = position + 1; }
  // Takes back the newest ones from `position` on: they were not posted after all.
  void Truncate(uint64_t position) { end_ = position; }

 private:
  std::vector<uint64_t> ids_;
  uint64_t first_ = 0;
  uint64_t end_ = 0;
};

// One RC queue pair.
//
// It dies by an error completion, or by Shutdown(): then it goes to the error state, a beacon is
// posted to each of its queues, and when both have come back (or after a deadline, with the queue
// pair destroyed) everything outstanding is flushed. So what had been done before is told as done.
// The peer is not told by the network; it finds out by sending.
// Invariant: once reason_ is set nothing is posted any more but the beacons. Thread: its fabric's.
// Owns: the queue pair and the registration of the memory it was made with.
class VerbsQueuePair final : public FabricQueuePair {
 public:
  static Result<std::unique_ptr<FabricQueuePair>> Create(VerbsFabric& fabric,
                                                         const QueuePairLimits& limits,
                                                         std::span<std::byte> own_memory,
                                                         void* context);
  ~VerbsQueuePair() override;

  Endpoint local_endpoint() const override;
  Result<> Connect(const Endpoint& peer) override;
  size_t PostSend(std::span<const SendRequest> requests) override;
  Result<> PostReceive(std::span<const ReceiveRequest> requests) override;
  Result<size_t> Expose(uint32_t grant, std::span<const LandingSegment> segments,
                        std::span<RemoteSlice, kMaxSlices> slices) override;
  // The NIC knows regions, not grants: a late WRITE still lands.
  void Withdraw(uint32_t) override {}
  void Shutdown() override { Die("shut down on this side"); }
  const char* kind() const override { return "rc"; }
  std::string reason() const override { return reason_; }
  uint64_t last_heard_ns() const override { return last_heard_ns_; }

  // The rest is for the fabric.
  void OnCompletion(const ibv_wc& completion, uint64_t now_ns);
  // Whether all that was outstanding has been told. Called at the end of a Poll().
  bool FinishDying(uint64_t now_ns);
  size_t reserved_completions() const { return reserved_completions_; }

 private:
  VerbsQueuePair(VerbsFabric& fabric, const QueuePairLimits& limits,
                 std::span<std::byte> own_memory, void* context);
  Result<> Make();
  Result<> CreateInDevice();
  Result<> ToReadyToReceive(const VerbsEndpoint& peer);
  Result<> ToReadyToSend();
  const Region* Find(const std::byte* address, uint64_t bytes);
  bool Fill(const SendRequest& request, ibv_send_wr& work, ibv_sge*& piece);
  void TakeSlot(uint32_t slot);
  void OnReceived(const ibv_wc& completion);
  Result<> PostOwn(std::span<const ReceiveRequest> requests);
  void PostShared(std::span<const ReceiveRequest> requests);
  void Die(std::string reason);
  void PostBeacons();
  bool ReceivesDrained();
  void OnSent(uint64_t position);
  void Destroy();

  static constexpr uint32_t kInlineBytes = 128;
  static constexpr uint64_t kReceiveBit = SharedQueue::kReceiveBit;
  static constexpr uint64_t kBeaconBit = uint64_t{1} << 62;

  VerbsFabric& fabric_;
  const QueuePairLimits limits_;
  const std::span<std::byte> own_memory_;
  void* const context_;
  ibv_mr* own_region_ = nullptr;
  Region own_{};
  ibv_qp* queue_pair_ = nullptr;
  uint32_t number_ = 0;
  size_t reserved_completions_ = 0;  // Of the fabric's queue.
  uint32_t inline_bytes_ = 0;
  uint32_t first_psn_ = 0;
  PostedIds sends_;
  PostedIds receives_;
  std::vector<const std::byte*> receive_addresses_;  // By position.
  // Receives may come from a queue that others share, else null; the engine's names of them stay in
  // receives_. Slots it was given and has not posted again, oldest first; at most as many as names.
  std::shared_ptr<SharedQueue> shared_;
  PostedIds slots_;
  std::vector<uint32_t> slots_to_post_;  // Scratch for one posting.
  EventFlag last_receive_;               // The device takes no more of the shared receives.
  bool connected_ = false;
  bool last_receive_seen_ = false;
  std::vector<ibv_send_wr> send_work_;  // Scratch for one posting.
  std::vector<ibv_sge> send_pieces_;
  std::vector<ibv_recv_wr> receive_work_;
  std::vector<ibv_sge> receive_pieces_;
  std::string reason_;
  bool sends_drained_ = false;
  bool receives_drained_ = false;
  uint64_t drain_deadline_ns_ = 0;  // 0: not set yet.
  uint64_t last_heard_ns_ = 0;
};

}  // namespace sluice::transport
