// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/sched/shared_receives.h"
#include "shm_proto/base/result.h"

// What the engine sees of a network: reliable connected queue pairs in the sense of verbs' RC
// service. TCP, the in-process loop and the simulated NIC implement the same contract, and one
// conformance suite holds them to it:
//
// - A SEND consumes one posted receive of the peer, in order; its bytes are whole or not there at
//   all.
// - A WRITE lands in memory the peer exposed; the peer's program is not told. A WRITE_WITH_IMM also
//   consumes a posted receive and completes there, after the bytes of every WRITE posted before it
//   are visible.
// - A WRITE to a grant that was withdrawn is no error where the transport can tell; a WRITE beyond
//   the grant is one. A WRITE of no bytes is not checked.
// - Completions of one queue pair's sends come in posting order. An unsignalled request is done
//   once a later signalled one completes.
// - Memory of a request belongs to the transport until its completion was polled or the QueuePair
//   object is destroyed.
// - After an error every outstanding request completes with kFlushed (signalled or not; sends as
//   kSent, receives as kReceived), then comes one kDisconnected and nothing more. Of a completion
//   that is not kOk only id, queue-pair context, kind and status mean anything.
// - A destroyed queue pair completes nothing any more. It is never destroyed inside Poll().
namespace sluice::transport {

constexpr size_t kMaxSegments = 16;  // Pieces of local memory in one send request.
constexpr size_t kMaxSlices = 16;    // Regions that one landing buffer may span.

// A piece of local memory. `local_key` is what a NIC knows its memory region by; other transports
// ignore it.
struct Segment {
  const std::byte* address;
  uint32_t length;
  uint32_t local_key;
};

struct LandingSegment {
  std::byte* address;
  uint64_t length;
  uint32_t remote_key_hint;  // What a NIC knows the region by; other transports ignore it.
};

// A piece of exposed memory as the peer must name it in a WRITE.
struct RemoteSlice {
  uint64_t address;
  uint64_t length;
  uint32_t key;
  uint32_t unused = 0;
};

enum class Opcode : uint8_t { kSend, kWrite, kWriteImmediate };

struct SendRequest {
  uint64_t id;  // Comes back in the completion.
  Opcode opcode;
  bool signalled;           // Wants a completion of its own when it succeeds.
  uint32_t immediate;       // kWriteImmediate.
  uint64_t remote_address;  // kWrite, kWriteImmediate.
  uint32_t remote_key;      // kWrite, kWriteImmediate.
  uint32_t segment_count;   // May be 0: an empty message.
  Segment segments[kMaxSegments];
};

struct ReceiveRequest {
  uint64_t id;
  std::byte* address;
  uint32_t length;
  uint32_t local_key;
};

enum class CompletionKind : uint8_t {
  kSent,      // A send request is done; the bytes of this and all before it no longer count as in
              // flight.
  kReceived,  // A SEND came in: `data`, `bytes`.
  kWritten,   // A WRITE_WITH_IMM came in: `immediate`. Its posted receive `id` is used up.
  kDisconnected,  // The queue pair is dead; the last completion of it.
};

enum class Status : uint8_t { kOk, kFlushed, kError };

struct Completion {
  uint64_t id;
  void* context;  // As given to CreateQueuePair: the engine.
  CompletionKind kind;
  Status status;
  uint32_t immediate;
  uint32_t bytes;
  // kReceived: valid until the next Poll() of this transport, aligned to nothing. Often, not
  // always, the posted memory.
  const std::byte* data;
};

// One end of a connection. Thread: its transport's. Allocates: not after creation, but for
// Expose().
class QueuePair {
 public:
  // Afterwards nothing touches memory given to it, from either side.
  virtual ~QueuePair() = default;

  // Posts in order and rings once. Returns how many were taken; fewer than given only when the
  // queue is full or dead, and the engine counts slots so that full never happens.
  virtual size_t PostSend(std::span<const SendRequest> requests) = 0;

  // Posts receives in order. kUnavailable when dead.
  virtual Result<> PostReceive(std::span<const ReceiveRequest> requests) = 0;

  // Lets the peer WRITE into these pieces, as one buffer in this order, under the engine's name for
  // it. Fills `slices` with what to tell the peer and returns how many.
  virtual Result<size_t> Expose(uint32_t grant, std::span<const LandingSegment> segments,
                                std::span<RemoteSlice, kMaxSlices> slices) = 0;

  // The peer promised not to write any more (or never knew of it). Later WRITEs are discarded where
  // the transport can.
  virtual void Withdraw(uint32_t grant) = 0;

  // Goes to the error state: everything outstanding is flushed, then kDisconnected follows.
  // Idempotent.
  virtual void Shutdown() = 0;

  virtual const char* kind() const = 0;  // "tcp", "rc", "local", "simulated".

  // Why it is dead, in one sentence for people; empty while it lives.
  virtual std::string reason() const = 0;

  // The `now_ns` of the Poll() that last saw bytes of the peer arrive, whether or not they
  // completed anything; 0 where the transport cannot know.
  virtual uint64_t last_heard_ns() const { return 0; }
};

struct QueuePairLimits {
  uint32_t send_queue_depth;     // Requests posted and not completed, at most.
  uint32_t receive_queue_depth;  // Receives posted and not completed, at most.
  uint32_t receive_bytes;        // Size of each posted receive: no SEND is larger.
};

// All queue pairs of one I/O thread and their common completion queue. Thread: that I/O thread.
class Transport {
 public:
  virtual ~Transport() = default;

  // Moves bytes and fills in completions of all its queue pairs; returns how many. Bounded work;
  // never blocks.
  virtual size_t Poll(std::span<Completion> completions, uint64_t now_ns) = 0;

  // A descriptor that becomes readable when Poll() has something to do, once Arm() returned true.
  // Arm() returning false means there is work already: do not sleep.
  virtual int fd() const = 0;
  virtual bool Arm() = 0;

  // Poll again no later than this even if fd() stays silent (TCP learns of acknowledged bytes by
  // looking only). ~0: no need.
  virtual uint64_t NextPollNs(uint64_t now_ns) const {
    (void)now_ns;
    return ~uint64_t{0};
  }
};

// What a queue pair of a fabric is called by its peer. The bytes mean something to the fabric that
// made them only; they travel over another connection.
struct Endpoint {
  uint8_t size = 0;
  std::array<std::byte, 63> bytes{};
};

// A queue pair that another connection joins to its peer: each end is told the other's endpoint.
class FabricQueuePair : public QueuePair {
 public:
  virtual Endpoint local_endpoint() const = 0;

  // Once. Receives should be posted before, since the peer may send at once. Fails when the peer's
  // endpoint makes no sense here or cannot be reached; the queue pair is then to be destroyed.
  virtual Result<> Connect(const Endpoint& peer) = 0;
};

// Memory that a NIC has been told of, with what it knows it by.
struct Region {
  std::byte* address;
  uint64_t bytes;
  uint32_t local_key;   // To send from.
  uint32_t remote_key;  // For the peer, to write into.
};

// By address; no two overlap.
using Regions = std::vector<Region>;

// How much of what a fabric has its queue pairs use.
struct FabricUse {
  uint32_t queue_pairs = 0;
  uint64_t completions = 0;           // Room in the completion queue.
  uint64_t completions_reserved = 0;  // Of it, for what can be outstanding.
  uint32_t shared_receives = 0;       // 0: queue pairs have their own.
  uint32_t shared_lent = 0;           // Of these, promised to peers.
  uint64_t shared_low = 0;            // Times few of them were left posted.
};

// A network beside the connection that carried the handshake, as RDMA is beside TCP. A queue pair
// here may name memory that stands in the regions or that it was made with, and no other. A
// kReceived completion points to the posted memory, whose bytes stay until it is posted again.
class Fabric : public Transport {
 public:
  // `own_memory` is what frames are written into and receives are posted from; it stays put until
  // the queue pair is destroyed.
  virtual Result<std::unique_ptr<FabricQueuePair>> Create(const QueuePairLimits& limits,
                                                          std::span<std::byte> own_memory,
                                                          void* context) = 0;

  // Not null: queue pairs take from receives that all of them share, in memory of the fabric. Each
  // is still told the receives that are posted, whose address and key are ignored; what it posts
  // after its first `receive_queue_depth` gives back the memory of those that completed, in order.
  virtual SharedReceives* shared_receives() { return nullptr; }

  virtual FabricUse use() const { return {}; }

  // Replaces all regions. Those left out are named by nothing in flight.
  virtual void SetRegions(std::shared_ptr<const Regions> regions) = 0;
};

// Tells the NIC of memory and publishes the regions to every fabric. Takes milliseconds: never
// called on an I/O thread. Thread: any, one at a time.
class MemoryRegistry {
 public:
  virtual ~MemoryRegistry() = default;
  // Fails when the NIC or the limit on locked memory refuses; says which and what to do.
  virtual Result<> Register(std::byte* address, uint64_t bytes) = 0;
  // Idempotent. No queue pair names the memory any more.
  virtual void Deregister(std::byte* address) = 0;
};

}  // namespace sluice::transport
