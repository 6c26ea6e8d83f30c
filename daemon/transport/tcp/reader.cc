// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/tcp/reader.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "shm_proto/base/units.h"

namespace sluice::transport {

size_t TcpReader::Landing(uint64_t limit, std::span<iovec, kMaxSlices> pieces,
                          uint64_t& bytes) const {
  bytes = std::min(limit, frame_bytes_left());
  if (bytes > 0) {
    if (header_.operation == static_cast<uint8_t>(WireOperation::kSend)) {
      pieces[0] = {target_.receives.front().address + done_, bytes};
      return 1;
    }
    if (grant_ != nullptr) return grant_->Pieces(header_.address + done_, bytes, pieces);
  }
  bytes = 0;
  return 0;
}

void TcpReader::Landed(uint64_t bytes) {
  done_ += static_cast<uint32_t>(bytes);
  if (in_frame_ && done_ == header_.length) FinishFrame();
}

Result<> TcpReader::Consume(std::span<const std::byte> bytes, bool& referenced) {
  referenced = false;
  while (!bytes.empty()) {
    if (in_frame_) {
      bytes = bytes.subspan(Place(bytes));
      continue;
    }
    if (header_bytes_ == 0 && bytes.size() >= sizeof header_) {
      std::memcpy(&header_, bytes.data(), sizeof header_);
      bytes = bytes.subspan(sizeof header_);
    } else {
      const size_t taken = std::min(bytes.size(), sizeof header_ - header_bytes_);
      std::memcpy(header_memory_.data() + header_bytes_, bytes.data(), taken);
      header_bytes_ += taken;
      bytes = bytes.subspan(taken);
      if (header_bytes_ < sizeof header_) return {};
      std::memcpy(&header_, header_memory_.data(), sizeof header_);
      header_bytes_ = 0;
    }
    if (auto started = StartFrame(); !started) return started;
    if (HandOut(bytes)) {
      referenced |= header_.length > 0;
      bytes = bytes.subspan(header_.length);
    }
  }
  return {};
}

void TcpReader::Withdraw(uint32_t grant) {
  if (grant_ != nullptr && header_.key == grant) {
    grant_ = nullptr;
    ++discarded_writes_;
  }
}

Result<> TcpReader::StartFrame() {
  const auto operation = static_cast<WireOperation>(header_.operation);
  if (header_.magic != kWireMagic || header_.reserved != 0 || operation < WireOperation::kSend ||
      operation > WireOperation::kWriteImmediate) {
    return Fail(ErrorCode::kProtocol, "the peer's stream holds something that is no frame (magic " +
                                          std::to_string(header_.magic) + ", operation " +
                                          std::to_string(header_.operation) + ")");
  }
  if (operation != WireOperation::kWrite && target_.receives.empty()) {
    return Fail(ErrorCode::kProtocol, "the peer sent more messages than receives were posted");
  }
  done_ = 0;
  grant_ = nullptr;
  last_length_ = header_.length;
  auto started = operation == WireOperation::kSend ? StartSend() : StartWrite();
  if (!started) return started;
  in_frame_ = true;
  if (header_.length == 0 && operation != WireOperation::kSend) FinishFrame();
  return {};
}

Result<> TcpReader::StartSend() {
  if (header_.length <= target_.receive_bytes) return {};
  return Fail(ErrorCode::kProtocol, "the peer's SEND of " + std::to_string(header_.length) +
                                        " bytes is longer than the posted receives of " +
                                        std::to_string(target_.receive_bytes));
}

Result<> TcpReader::StartWrite() {
  if (header_.length == 0) return {};
  grant_ = target_.grants.Find(header_.key);
  if (grant_ == nullptr) {
    ++discarded_writes_;
  } else if (!InRange(header_.address, header_.length, grant_->bytes)) {
    return Fail(ErrorCode::kProtocol, "the peer's WRITE of " + std::to_string(header_.length) +
                                          " bytes at " + std::to_string(header_.address) +
                                          " leaves grant " + std::to_string(header_.key) + " of " +
                                          std::to_string(grant_->bytes) + " bytes");
  }
  return {};
}

// A SEND that is here as a whole stays where it is. Also finishes empty ones.
bool TcpReader::HandOut(std::span<const std::byte> bytes) {
  if (!in_frame_ || header_.operation != static_cast<uint8_t>(WireOperation::kSend) ||
      bytes.size() < header_.length) {
    return false;
  }
  in_frame_ = false;
  Complete(CompletionKind::kReceived, bytes.data());
  return true;
}

size_t TcpReader::Place(std::span<const std::byte> bytes) {
  std::array<iovec, kMaxSlices> pieces;
  uint64_t landing_bytes = 0;
  const size_t count = Landing(bytes.size(), pieces, landing_bytes);
  const std::byte* from = bytes.data();
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(pieces[i].iov_base, from, pieces[i].iov_len);
    from += pieces[i].iov_len;
  }
  const size_t placed = std::min<uint64_t>(bytes.size(), frame_bytes_left());
  Landed(placed);
  return placed;
}

void TcpReader::FinishFrame() {
  in_frame_ = false;
  grant_ = nullptr;
  const auto operation = static_cast<WireOperation>(header_.operation);
  if (operation == WireOperation::kSend) {
    Complete(CompletionKind::kReceived, target_.receives.front().address);
  } else if (operation == WireOperation::kWriteImmediate) {
    Complete(CompletionKind::kWritten, nullptr);
  }
}

void TcpReader::Complete(CompletionKind kind, const std::byte* data) {
  const uint64_t id = target_.receives.front().id;
  target_.receives.Pop();
  target_.completions.Push(target_.owner, {.id = id,
                                           .context = target_.context,
                                           .kind = kind,
                                           .status = Status::kOk,
                                           .immediate = header_.immediate,
                                           .bytes = header_.length,
                                           .data = data});
}

}  // namespace sluice::transport
