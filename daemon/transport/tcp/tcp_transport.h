// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "daemon/transport/completion_queue.h"
#include "daemon/transport/transport.h"
#include "shm_proto/base/fd.h"

namespace sluice::transport {

class TcpQueuePair;

// The work lists that a queue pair can be in.
constexpr uint8_t kReadableBit = 1;
constexpr uint8_t kUnwrittenBit = 2;
constexpr uint8_t kUnacknowledgedBit = 4;
constexpr uint8_t kDyingBit = 8;

// Queue pairs that have something in common to do, in the order in which it will be done.
// Invariant: a queue pair is in here at most once; its bit says whether.
class TcpWorkList {
 public:
  explicit TcpWorkList(uint8_t bit) : bit_(bit) {}
  void Reserve(size_t queue_pairs) { queue_pairs_.reserve(2 * queue_pairs); }
  void Add(TcpQueuePair* queue_pair);
  void Remove(TcpQueuePair* queue_pair);

  // Calls `work` for each that was listed, at most once, while `go_on` holds. Those for which it
  // returns true stay listed, behind those that had no turn.
  template <typename Work, typename GoOn>
  void Run(Work work, GoOn go_on);

  bool empty() const { return queue_pairs_.empty(); }
  auto begin() const { return queue_pairs_.begin(); }
  auto end() const { return queue_pairs_.end(); }

 private:
  const uint8_t bit_;
  std::vector<TcpQueuePair*> queue_pairs_;
};

// Queue pairs over TCP connections (wire.h says how).
//
// A Poll() writes what was posted since the last one, many requests in one sendmsg; asks epoll
// which sockets changed; reads from them, payloads of WRITEs directly into their landing, the rest
// into one staging buffer that all connections share and that is used afresh in each Poll(); and
// looks how much the peers' kernels have acknowledged. Sockets are registered edge-triggered, once.
//
// Invariant: work that no event will announce (bytes left unread, requests not yet written, a death
// not yet told) is in a work list; Arm() looks there.
// Thread: its owner's. Owns: the sockets. Allocates: in Adopt() and Expose() only.
class TcpTransport final : public Transport {
 public:
  static Result<std::unique_ptr<TcpTransport>> Create();
  ~TcpTransport() override;

  // Makes a queue pair of a connected TCP socket whose handshake is over: the next byte in it is
  // the first of the peer's queue pair. Queue pairs must be destroyed before their transport.
  Result<std::unique_ptr<QueuePair>> Adopt(Fd connection, QueuePairLimits local, void* context);

  size_t Poll(std::span<Completion> completions, uint64_t now_ns) override;
  int fd() const override { return epoll_.get(); }
  bool Arm() override;
  uint64_t NextPollNs(uint64_t now_ns) const override;

  uint64_t discarded_writes() const { return discarded_writes_; }  // WRITEs to withdrawn grants.

 private:
  friend class TcpQueuePair;
  static constexpr int kEventsPerPoll = 64;
  static constexpr uint64_t kCollectSpacingNs = 2'000;
  static constexpr size_t kStagingBytes = 256 * 1024;

  explicit TcpTransport(Fd epoll);
  void Forget(TcpQueuePair* queue_pair);
  void WritePosted(uint64_t now_ns);
  void CollectEvents(uint64_t now_ns);
  void Read(uint64_t now_ns);
  void LookForAcknowledgements(uint64_t now_ns);
  void TellDeaths();

  const Fd epoll_;
  CompletionQueue completions_;
  std::vector<TcpQueuePair*> queue_pairs_;
  TcpWorkList readable_;        // May have bytes unread.
  TcpWorkList unwritten_;       // Requests posted that the socket may take.
  TcpWorkList unacknowledged_;  // Bytes written that the peer's kernel may not have.
  TcpWorkList dying_;           // Dead, but not yet flushed.
  std::unique_ptr<std::byte[]> staging_;
  size_t staging_used_ = 0;  // Completions of the Poll() under way point in front of this.
  std::array<epoll_event, kEventsPerPoll> events_;
  uint64_t last_collected_ns_ = 0;
  uint64_t discarded_writes_ = 0;
};

}  // namespace sluice::transport
