// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/transport/completion_queue.h"
#include "daemon/transport/grant_table.h"
#include "daemon/transport/tcp/wire.h"
#include "daemon/transport/transport.h"
#include "daemon/transport/work_queue.h"

namespace sluice::transport {

// Whose stream is read: where its bytes may go and who hears of it.
struct ReaderTarget {
  const QueuePair* owner;
  void* context;
  uint32_t receive_bytes;
  ReceiveQueue& receives;
  GrantTable& grants;
  CompletionQueue& completions;
};

// Makes landed bytes and completions out of the byte stream of one peer, which it trusts in
// nothing. It does no I/O itself. Of each read the first bytes may be put where they belong at once
// (Landing, then Landed); the others are looked through in passing memory (Consume). A SEND that
// lies whole in passing memory is handed out from there, without a copy.
// Invariant: no byte goes anywhere but into a posted receive's or a live grant's memory, in bounds.
// While in_payload() the current frame is checked, and payload bytes of it are missing.
// Thread: its transport's. Allocates: never, but for the sentence of an error.
class TcpReader {
 public:
  static constexpr size_t kLandingPieces = 96;

  explicit TcpReader(const ReaderTarget& target) : target_(target) {}

  // Memory that the next bytes of the stream belong in, at most `limit` of them.
  struct LandingPlan {
    size_t pieces = 0;
    uint64_t bytes = 0;
    bool complete = true;  // What follows these bytes has no known place: Consume() it.
  };
  LandingPlan Landing(uint64_t limit, std::span<iovec, kLandingPieces> pieces) const;

  // The next `bytes` of the stream have been put where Landing() said, or are the next of
  // Consume(). An error is the peer's breach of the protocol, and the last thing this reader says.
  Result<> Landed(uint64_t bytes);
  // Looks through the next bytes of the stream. `referenced`: completions point into `bytes`.
  Result<> Consume(std::span<const std::byte> bytes, bool& referenced);

  // The grant is about to go: what still comes for it is thrown away.
  void Withdraw(uint32_t grant);

  bool in_payload() const { return frame_ < frame_count_; }
  bool in_batch() const { return in_payload() || headers_seen_ > 0 || header_bytes_ > 0; }
  bool throws_away() const { return in_payload() && !is_send() && grant_ == nullptr; }

  // Whether the stream is likely to go on with payloads better put where they belong than copied.
  bool expects_large() const { return last_batch_bytes_ >= kLargeBytes; }

  uint64_t discarded_writes() const { return discarded_writes_; }

 private:
  // From here on a system call of its own is cheaper than the copy it saves.
  static constexpr uint64_t kLargeBytes = 16 * 1024;

  const WireHeader& header() const { return headers_[frame_]; }
  bool is_send() const { return header().operation == static_cast<uint8_t>(WireOperation::kSend); }
  size_t TakeHeaderBytes(std::span<const std::byte> bytes);
  Result<> OnHeader();
  Result<> StartFrame();
  Result<> FinishFrames();
  void FinishFrame(const std::byte* data);
  size_t LandingOf(const WireHeader& header, uint32_t done, size_t receive, uint64_t limit,
                   std::span<iovec, kMaxSlices> pieces, uint64_t& bytes) const;
  size_t Place(std::span<const std::byte> bytes);

  const ReaderTarget target_;
  std::array<WireHeader, kMaxBatch> headers_;
  size_t header_bytes_ = 0;       // Of the header that is coming in.
  size_t headers_seen_ = 0;       // Of a batch whose headers are coming in.
  size_t frame_count_ = 0;        // Frames of the batch whose payloads are coming in.
  size_t frame_ = 0;              // The current one.
  uint32_t done_ = 0;             // Payload bytes of the current frame that are placed.
  const Grant* grant_ = nullptr;  // Of the current WRITE; nullptr: its bytes are thrown away.
  uint64_t last_batch_bytes_ = 0;
  uint64_t discarded_writes_ = 0;
};

}  // namespace sluice::transport
