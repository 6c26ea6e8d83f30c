// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/tcp/writer.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "shm_proto/base/check.h"

namespace sluice::transport {
namespace {

WireOperation OperationOf(Opcode opcode) {
  switch (opcode) {
    case Opcode::kSend: return WireOperation::kSend;
    case Opcode::kWrite: return WireOperation::kWrite;
    case Opcode::kWriteImmediate: return WireOperation::kWriteImmediate;
  }
  SLUICE_CHECK(false, "an opcode is one of three");
  return WireOperation::kSend;
}

WireHeader HeaderOf(const SendRequest& request) {
  const uint64_t bytes = TotalBytes(request);
  SLUICE_CHECK(bytes <= UINT32_MAX, "a request is shorter than 4 GiB");
  const bool write = request.opcode != Opcode::kSend;
  return {.magic = kWireMagic,
          .operation = static_cast<uint8_t>(OperationOf(request.opcode)),
          .following = 0,
          .length = static_cast<uint32_t>(bytes),
          .immediate = request.opcode == Opcode::kWriteImmediate ? request.immediate : 0,
          .key = write ? request.remote_key : 0,
          .address = write ? request.remote_address : 0};
}

}  // namespace

TcpWriter::TcpWriter(SendQueue& sends)
    : sends_(sends), headers_(sends.depth()), frame_ends_(sends.depth()) {}

size_t TcpWriter::Post(std::span<const SendRequest> requests) {
  uint64_t position = sends_.end();
  const size_t taken = sends_.Post(requests);
  for (; position != sends_.end(); ++position) {
    headers_[sends_.SlotOf(position)] = HeaderOf(sends_.at(position));
  }
  return taken;
}

WriteOutcome TcpWriter::Write(int socket, uint64_t limit_bytes) {
  uint64_t written_here = 0;
  while (has_unwritten()) {
    if (written_here >= limit_bytes) return WriteOutcome::kMore;
    if (written_ == batch_end_) StartBatch();
    uint64_t gathered_bytes = 0;
    msghdr message{};
    message.msg_iov = gathered_.data();
    message.msg_iovlen = Gather(gathered_bytes);
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK ? WriteOutcome::kBlocked
                                                     : WriteOutcome::kFailed;
    }
    Advance(static_cast<uint64_t>(sent));
    written_here += static_cast<uint64_t>(sent);
    // A call cut short has marked the socket as out of room, as EAGAIN would.
    if (static_cast<uint64_t>(sent) < gathered_bytes) return WriteOutcome::kBlocked;
  }
  return WriteOutcome::kDrained;
}

// Makes a batch of what is posted and not yet written.
void TcpWriter::StartBatch() {
  batch_first_ = written_;
  batch_end_ = written_;
  batch_offset_ = written_bytes_;
  size_t pieces = 2;  // The headers: two where they wrap around the end of the queue.
  uint64_t bytes = 0;
  while (batch_end_ != sends_.end() && batch_end_ - batch_first_ < kMaxBatch &&
         bytes < kBatchBytes) {
    pieces += sends_.at(batch_end_).segment_count;
    if (pieces > kGatherPieces) break;
    bytes += headers_[sends_.SlotOf(batch_end_)].length;
    ++batch_end_;
  }
  uint64_t end = batch_offset_ + (batch_end_ - batch_first_) * sizeof(WireHeader);
  for (uint64_t position = batch_first_; position != batch_end_; ++position) {
    const size_t slot = sends_.SlotOf(position);
    headers_[slot].following = static_cast<uint16_t>(batch_end_ - position - 1);
    end += headers_[slot].length;
    frame_ends_[slot] = end;
  }
}

// Fills gathered_ with what is not yet written of the batch. Looks at nothing in front of written_:
// those slots may hold later requests by now.
size_t TcpWriter::Gather(uint64_t& bytes) {
  size_t count = 0;
  bytes = 0;
  const size_t headers = static_cast<size_t>(batch_end_ - batch_first_);
  const uint64_t payload_offset = batch_offset_ + headers * sizeof(WireHeader);
  const bool in_headers = written_bytes_ < payload_offset;
  uint64_t skip = written_bytes_ - (in_headers ? batch_offset_ : PayloadOffset(written_));
  const auto add = [&](const void* address, uint64_t length) {
    if (skip >= length) {
      skip -= length;
      return;
    }
    // sendmsg only reads; iovec has no const.
    gathered_[count++] = {static_cast<std::byte*>(const_cast<void*>(address)) + skip,
                          length - skip};
    bytes += length - skip;
    skip = 0;
  };
  if (in_headers) {
    const size_t first_slot = sends_.SlotOf(batch_first_);
    const size_t unwrapped = std::min(headers, headers_.size() - first_slot);
    add(&headers_[first_slot], unwrapped * sizeof(WireHeader));
    add(headers_.data(), (headers - unwrapped) * sizeof(WireHeader));
  }
  for (uint64_t position = written_; position != batch_end_; ++position) {
    const SendRequest& request = sends_.at(position);
    for (uint32_t i = 0; i < request.segment_count; ++i) {
      add(request.segments[i].address, request.segments[i].length);
    }
  }
  return count;
}

// Where the payload of a request of the current batch begins in the stream.
uint64_t TcpWriter::PayloadOffset(uint64_t position) const {
  const size_t slot = sends_.SlotOf(position);
  return frame_ends_[slot] - headers_[slot].length;
}

void TcpWriter::Advance(uint64_t bytes) {
  written_bytes_ += bytes;
  while (written_ != batch_end_ && frame_ends_[sends_.SlotOf(written_)] <= written_bytes_) {
    ++written_;
  }
}

void TcpWriter::Acknowledge(uint64_t unacknowledged, const QueuePair* owner, void* context,
                            CompletionQueue& completions) {
  if (unacknowledged > written_bytes_) return;  // The kernel also counts a FIN or SYN.
  acknowledged_bytes_ = written_bytes_ - unacknowledged;
  while (acknowledged_ != written_ &&
         frame_ends_[sends_.SlotOf(acknowledged_)] <= acknowledged_bytes_) {
    const SendRequest& request = sends_.at(acknowledged_);
    if (request.signalled) {
      completions.Push(owner, {.id = request.id,
                               .context = context,
                               .kind = CompletionKind::kSent,
                               .status = Status::kOk,
                               .immediate = 0,
                               .bytes = 0,
                               .data = nullptr});
      sends_.Release(acknowledged_);
    }
    ++acknowledged_;
  }
}

}  // namespace sluice::transport
