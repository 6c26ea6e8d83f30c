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
// Thread: its transport's. Allocates: never, but for the sentence of an error.
class TcpReader {
 public:
  explicit TcpReader(const ReaderTarget& target) : target_(target) {}

  // Memory that the next bytes of the stream belong in, at most `limit` of them; fills in `bytes`
  // and returns how many pieces. 0 pieces: only Consume() can tell. Valid until the next call.
  size_t Landing(uint64_t limit, std::span<iovec, kMaxSlices> pieces, uint64_t& bytes) const;

  // The next `bytes` of the stream have been put where Landing() said.
  void Landed(uint64_t bytes);

  // Looks through the next bytes of the stream. The error is the peer's breach of the protocol, and
  // the last thing this reader says. `referenced`: completions point into `bytes`.
  Result<> Consume(std::span<const std::byte> bytes, bool& referenced);

  // The grant is about to go: what still comes for it is thrown away.
  void Withdraw(uint32_t grant);

  bool in_frame() const { return in_frame_ || header_bytes_ > 0; }
  uint64_t frame_bytes_left() const { return in_frame_ ? header_.length - done_ : 0; }

  // Whether the stream is likely to go on with payloads better put where they belong than copied.
  bool expects_large() const { return last_length_ >= kLargeBytes; }

  uint64_t discarded_writes() const { return discarded_writes_; }

 private:
  // From here on a system call of its own is cheaper than the copy it saves.
  static constexpr uint32_t kLargeBytes = 8 * 1024;

  Result<> StartFrame();
  Result<> StartSend();
  Result<> StartWrite();
  size_t Place(std::span<const std::byte> bytes);
  bool HandOut(std::span<const std::byte> bytes);
  void FinishFrame();
  void Complete(CompletionKind kind, const std::byte* data);

  const ReaderTarget target_;
  std::array<std::byte, sizeof(WireHeader)> header_memory_;  // A header that came in pieces.
  size_t header_bytes_ = 0;
  bool in_frame_ = false;
  WireHeader header_{};           // While in_frame_.
  const Grant* grant_ = nullptr;  // Of a WRITE under way; nullptr: its bytes are thrown away.
  uint32_t done_ = 0;             // Payload bytes of this frame that are placed.
  uint32_t last_length_ = 0;
  uint64_t discarded_writes_ = 0;
};

}  // namespace sluice::transport
