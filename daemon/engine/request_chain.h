// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/engine/wire.h"
#include "daemon/transport/transport.h"

namespace sluice {

struct SendOperation;

// One request of the chain with what its completion must release.
struct ChainSlot {
  static constexpr size_t kMaxOperations = 12;
  std::array<SendOperation*, kMaxOperations> operations;  // Whose memory it names.
  uint32_t operation_count = 0;
  uint32_t window_bytes = 0;  // What it counts in the send window.
  uint32_t total_bytes = 0;
  uint32_t header_used = 0;
};

// The engine's send requests as a ring of in flight | pending | free, as long as the transport's
// send queue (ByteExpress figure 7). Pending ones are posted together, the last of them signalled.
// Invariant: in flight + pending <= depth, so posting never finds the queue full.
// Thread: its engine's. Allocates: never after construction.
class RequestChain {
 public:
  static constexpr uint32_t kHeaderBytes = 2048;  // Of private memory per request.
  static constexpr uint32_t
      kControlReserve = 2;  // Free requests that data leaves to control frames.

  explicit RequestChain(uint32_t depth);

  // Where headers are written from now on: HeaderMemoryBytes() of them, the caller's.
  void UseMemory(std::byte* headers) { headers_ = headers; }
  size_t HeaderMemoryBytes() const { return requests_.size() * kHeaderBytes; }

  uint32_t Free() const { return depth_ - static_cast<uint32_t>(free_ - in_flight_); }
  uint32_t InFlight() const { return static_cast<uint32_t>(pending_ - in_flight_); }
  uint32_t Pending() const { return static_cast<uint32_t>(free_ - pending_); }

  // A new request at the end of the pending ones. Requires Free() > 0.
  transport::SendRequest& Append(transport::Opcode opcode, ChainSlot*& slot);

  // Room for one more frame in a SEND of at most send_bytes?
  static bool Fits(const ChainSlot& slot, const transport::SendRequest& request,
                   uint32_t header_bytes, uint64_t payload_bytes, uint32_t send_bytes);

  // Copies into the request's private memory.
  void AppendCopy(transport::SendRequest& request, ChainSlot& slot,
                  std::span<const std::byte> bytes);
  // Refers to memory that stays put until the completion.
  static void AppendReference(transport::SendRequest& request, ChainSlot& slot,
                              const std::byte* data, uint32_t length);

  // Hands the pending requests to the queue pair. False: it did not take them all; it is dead.
  bool Post(transport::QueuePair& queue_pair);

  // Everything up to and including request `id` is done, or (id-less) everything at all: calls
  // release(slot) for each.
  template <typename Release>
  bool Complete(uint64_t id, Release release) {
    if (id - in_flight_ >= pending_ - in_flight_) return false;  // Not in flight: not ours.
    while (in_flight_ <= id) release(slots_[in_flight_++ & mask_]);
    return true;
  }
  template <typename Release>
  void Clear(Release release) {
    while (in_flight_ != free_) release(slots_[in_flight_++ & mask_]);
    pending_ = free_;
  }

 private:
  uint32_t depth_;
  uint64_t mask_;
  uint64_t in_flight_ = 0;  // First in flight; requests are numbered for ever.
  uint64_t pending_ = 0;    // First pending.
  uint64_t free_ = 0;       // First free.
  std::vector<transport::SendRequest> requests_;
  std::vector<ChainSlot> slots_;
  std::byte* headers_ = nullptr;
};

}  // namespace sluice
