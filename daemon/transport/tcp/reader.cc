// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/tcp/reader.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "shm_proto/base/units.h"

namespace sluice::transport {
namespace {

std::unexpected<Error> Breach(std::string what) {
  return Fail(ErrorCode::kProtocol, std::move(what));
}

}  // namespace

// Looks ahead over the frames of the batch as far as all is well with them. What is not is found
// again, and judged, when its turn comes.
TcpReader::LandingPlan TcpReader::Landing(uint64_t limit,
                                          std::span<iovec, kLandingPieces> pieces) const {
  LandingPlan plan;
  size_t receive = 0;
  for (size_t frame = frame_; frame < frame_count_; ++frame) {
    const WireHeader& header = headers_[frame];
    const uint32_t done = frame == frame_ ? done_ : 0;
    if (pieces.size() - plan.pieces < kMaxSlices || plan.bytes == limit) {
      plan.complete = false;
      break;
    }
    uint64_t bytes = 0;
    const auto here = pieces.subspan(plan.pieces).first<kMaxSlices>();
    plan.pieces += LandingOf(header, done, receive, limit - plan.bytes, here, bytes);
    plan.bytes += bytes;
    if (bytes < header.length - done) {
      plan.complete = plan.bytes < limit;  // Thrown away or wrong: for Consume().
      break;
    }
    if (header.operation != static_cast<uint8_t>(WireOperation::kWrite)) ++receive;
  }
  return plan;
}

// Where the bytes of one frame go whose completion will use up the receive that is `receive`th in
// line. 0 pieces: nowhere, or it breaks the rules.
size_t TcpReader::LandingOf(const WireHeader& header, uint32_t done, size_t receive, uint64_t limit,
                            std::span<iovec, kMaxSlices> pieces, uint64_t& bytes) const {
  bytes = 0;
  const uint64_t left = std::min<uint64_t>(limit, header.length - done);
  const auto operation = static_cast<WireOperation>(header.operation);
  if (left == 0) return 0;
  if (operation == WireOperation::kSend) {
    if (receive >= target_.receives.size() || header.length > target_.receive_bytes) return 0;
    bytes = left;
    pieces[0] = {target_.receives.at(receive).address + done, left};
    return 1;
  }
  const Grant* grant = &header == &headers_[frame_] ? grant_ : target_.grants.Find(header.key);
  if (grant == nullptr || !InRange(header.address, header.length, grant->bytes)) return 0;
  bytes = left;
  return grant->Pieces(header.address + done, left, pieces);
}

Result<> TcpReader::Landed(uint64_t bytes) {
  while (bytes > 0 && in_payload()) {
    const uint64_t here = std::min<uint64_t>(bytes, header().length - done_);
    done_ += static_cast<uint32_t>(here);
    bytes -= here;
    if (auto finished = FinishFrames(); !finished) return finished;
  }
  return {};
}

Result<> TcpReader::Consume(std::span<const std::byte> bytes, bool& referenced) {
  referenced = false;
  while (!bytes.empty()) {
    size_t taken = 0;
    if (!in_payload()) {
      taken = TakeHeaderBytes(bytes);
      if (header_bytes_ == sizeof(WireHeader)) {
        if (auto seen = OnHeader(); !seen) return seen;
      }
    } else if (is_send() && done_ == 0 && bytes.size() >= header().length) {
      taken = header().length;
      referenced = true;
      FinishFrame(bytes.data());
      if (auto started = StartFrame(); !started) return started;
    } else {
      taken = Place(bytes);
    }
    if (auto finished = FinishFrames(); !finished) return finished;
    bytes = bytes.subspan(taken);
  }
  return {};
}

void TcpReader::Withdraw(uint32_t grant) {
  if (in_payload() && grant_ != nullptr && header().key == grant) {
    grant_ = nullptr;
    ++discarded_writes_;
  }
}

size_t TcpReader::TakeHeaderBytes(std::span<const std::byte> bytes) {
  const size_t taken = std::min(bytes.size(), sizeof(WireHeader) - header_bytes_);
  auto* into = reinterpret_cast<std::byte*>(&headers_[headers_seen_]);
  std::memcpy(into + header_bytes_, bytes.data(), taken);
  header_bytes_ += taken;
  return taken;
}

Result<> TcpReader::OnHeader() {
  header_bytes_ = 0;
  const WireHeader& header = headers_[headers_seen_];
  const bool known = header.operation >= static_cast<uint8_t>(WireOperation::kSend) &&
                     header.operation <= static_cast<uint8_t>(WireOperation::kWriteImmediate);
  const bool in_sequence = headers_seen_ == 0
                               ? header.following < kMaxBatch
                               : header.following + 1 == headers_[headers_seen_ - 1].following;
  if (header.magic != kWireMagic || !known || !in_sequence) {
    return Breach("the peer's stream holds something that is no header (magic " +
                  std::to_string(header.magic) + ", operation " + std::to_string(header.operation) +
                  ", following " + std::to_string(header.following) + ")");
  }
  ++headers_seen_;
  if (header.following > 0) return {};
  frame_count_ = headers_seen_;
  headers_seen_ = 0;
  frame_ = 0;
  last_batch_bytes_ = 0;
  for (size_t i = 0; i < frame_count_; ++i) last_batch_bytes_ += headers_[i].length;
  return StartFrame();
}

// Judges the frame that is now the current one, if any.
Result<> TcpReader::StartFrame() {
  done_ = 0;
  grant_ = nullptr;
  if (!in_payload()) return {};
  const WireHeader& frame = header();
  const auto operation = static_cast<WireOperation>(frame.operation);
  if (operation != WireOperation::kWrite && target_.receives.empty()) {
    return Breach("the peer sent more messages than receives were posted");
  }
  if (operation == WireOperation::kSend) {
    if (frame.length <= target_.receive_bytes) return {};
    return Breach("the peer's SEND of " + std::to_string(frame.length) +
                  " bytes is longer than the posted receives of " +
                  std::to_string(target_.receive_bytes));
  }
  if (frame.length == 0) return {};
  grant_ = target_.grants.Find(frame.key);
  if (grant_ == nullptr) {
    ++discarded_writes_;
  } else if (!InRange(frame.address, frame.length, grant_->bytes)) {
    return Breach("the peer's WRITE of " + std::to_string(frame.length) + " bytes at " +
                  std::to_string(frame.address) + " leaves grant " + std::to_string(frame.key) +
                  " of " + std::to_string(grant_->bytes) + " bytes");
  }
  return {};
}

// Goes on to the next frame that misses bytes.
Result<> TcpReader::FinishFrames() {
  while (in_payload() && done_ == header().length) {
    FinishFrame(is_send() ? target_.receives.front().address : nullptr);
    if (auto started = StartFrame(); !started) return started;
  }
  return {};
}

void TcpReader::FinishFrame(const std::byte* data) {
  const WireHeader& frame = headers_[frame_++];
  const auto operation = static_cast<WireOperation>(frame.operation);
  if (operation == WireOperation::kWrite) return;
  const bool send = operation == WireOperation::kSend;
  const uint64_t id = target_.receives.front().id;
  target_.receives.Pop();
  target_.completions.Push(target_.owner,
                           {.id = id,
                            .context = target_.context,
                            .kind = send ? CompletionKind::kReceived : CompletionKind::kWritten,
                            .status = Status::kOk,
                            .immediate = frame.immediate,
                            .bytes = frame.length,
                            .data = data});
}

// Puts payload bytes of the current frame where they belong, or nowhere; returns how many.
size_t TcpReader::Place(std::span<const std::byte> bytes) {
  const size_t here = std::min<size_t>(bytes.size(), header().length - done_);
  std::array<iovec, kMaxSlices> pieces;
  uint64_t landing_bytes = 0;
  const size_t count = LandingOf(header(), done_, 0, here, pieces, landing_bytes);
  const std::byte* from = bytes.data();
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(pieces[i].iov_base, from, pieces[i].iov_len);
    from += pieces[i].iov_len;
  }
  done_ += static_cast<uint32_t>(here);
  return here;
}

}  // namespace sluice::transport
