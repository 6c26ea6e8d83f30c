// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/transport/completion_queue.h"
#include "daemon/transport/tcp/wire.h"
#include "daemon/transport/transport.h"
#include "daemon/transport/work_queue.h"

namespace sluice::transport {

enum class WriteOutcome : uint8_t {
  kDrained,  // Everything posted is with the kernel.
  kMore,     // There is more to write, and the socket may take it.
  kBlocked,  // The socket takes no more; EPOLLOUT will tell.
  kFailed,   // errno says why.
};

// The sending half of one connection: frames posted requests and gathers many of them into one
// system call, straight from their memory. A request is done when the peer's kernel has
// acknowledged its last byte; until then its memory may have to be read again.
// Invariant: sends.first() <= acknowledged_ <= written_ <= batch_end_ <= sends.end(). Headers are
// in private memory, never beside a client's bytes. Thread: its transport's. Allocates: at creation
// only.
class TcpWriter {
 public:
  explicit TcpWriter(SendQueue& sends);

  size_t Post(std::span<const SendRequest> requests);

  // Writes until drained, blocked or `limit_bytes` are written (it may go over by one gathering).
  WriteOutcome Write(int socket, uint64_t limit_bytes);

  // The peer's kernel has everything but the last `unacknowledged` bytes written. Completes what is
  // done by that.
  void Acknowledge(uint64_t unacknowledged, const QueuePair* owner, void* context,
                   CompletionQueue& completions);

  bool has_unwritten() const { return written_ != sends_.end(); }
  bool has_unacknowledged() const { return acknowledged_bytes_ < written_bytes_; }
  uint64_t unacknowledged_bytes() const { return written_bytes_ - acknowledged_bytes_; }
  uint64_t acknowledged_bytes() const { return acknowledged_bytes_; }

 private:
  static constexpr size_t kGatherPieces = 192;
  // A batch ends with the request that takes it beyond this.
  static constexpr uint64_t kBatchBytes = 1024 * 1024;

  void StartBatch();
  uint64_t PayloadOffset(uint64_t position) const;
  size_t Gather(uint64_t& bytes);
  void Advance(uint64_t bytes);

  SendQueue& sends_;
  std::vector<WireHeader> headers_;   // By slot.
  std::vector<uint64_t> frame_ends_;  // By slot: offset in the stream right behind the payload.
  std::array<iovec, kGatherPieces> gathered_;
  uint64_t written_ = 0;       // Position of the request that is written next, or in part.
  uint64_t acknowledged_ = 0;  // Position of the oldest request not yet acknowledged.
  uint64_t batch_first_ = 0;   // Positions of the batch that is being written.
  uint64_t batch_end_ = 0;
  uint64_t batch_offset_ = 0;  // Where it begins in the stream.
  uint64_t written_bytes_ = 0;
  uint64_t acknowledged_bytes_ = 0;
};

}  // namespace sluice::transport
