// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/path.h"

#include <algorithm>
#include <utility>

#include "shm_proto/base/check.h"

namespace sluice {

Path::Path(const LocalLimits& limits) : chain(limits.send_queue_depth), limits_(limits) {
  consumed_.reserve(limits.receive_depth);
}

Result<> Path::Prepare(uint32_t peer_receive_depth, SharedReceives* shared) {
  SLUICE_CHECK(!queue_pair, "a path is prepared before it has a queue pair");
  returns.End();
  returns = CreditReturns(limits_.receive_depth);
  if (shared != nullptr) {
    const uint32_t lent = shared->Join(limits_.receive_depth);
    if (lent == 0) {
      return Fail(ErrorCode::kUnavailable,
                  "all receives that the peers of this thread share are promised; raise "
                  "rdma.shared_receives or daemon.io_threads");
    }
    returns = CreditReturns(limits_.receive_depth, *shared, lent);
  }
  const size_t bytes = chain.HeaderMemoryBytes() +
                       (shared == nullptr ? size_t{limits_.receive_depth} * limits_.receive_bytes
                                          : 0);
  if (bytes != memory_bytes_) {
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    memory_bytes_ = bytes;
  }
  chain.UseMemory(memory_.get());
  credits = SendCredits(peer_receive_depth);
  peer_keepalive = 0;
  keepalive_sequence = 0;
  consumed_.clear();
  own_receives_ = shared == nullptr;
  for (uint32_t i = 0; i < limits_.receive_depth; ++i) consumed_.push_back(ReceiveSlot(i));
  return {};
}

transport::ReceiveRequest Path::ReceiveSlot(uint32_t index) const {
  SLUICE_CHECK(index < limits_.receive_depth, "a receive completes under its own id");
  if (!own_receives_) return {index, nullptr, limits_.receive_bytes, 0};
  std::byte* slots = memory_.get() + chain.HeaderMemoryBytes();
  return {index, slots + size_t{index} * limits_.receive_bytes, limits_.receive_bytes, 0};
}

Result<> Path::PostReceives() {
  if (consumed_.empty()) return {};
  auto posted = queue_pair->PostReceive(consumed_);
  consumed_.clear();
  returns.OnPosted();
  return posted;
}

void Path::Say(wire::FrameType type, uint64_t sequence, uint32_t argument,
               std::span<const std::byte> payload) {
  if (said_.size() >= kMaxSaid) return Break("the peer asks for more than it takes answers to");
  PathFrame frame;
  frame.header.type = type;
  frame.header.sequence = sequence;
  frame.header.argument = argument;
  frame.header.bytes = static_cast<uint32_t>(payload.size());
  std::copy(payload.begin(), payload.end(), frame.payload.begin());
  said_.push(frame);
}

void Path::WriteSaid() {
  while (!said_.empty() && chain.Free() > 0) {
    const CreditUse use = returns.owed() > 0 ? CreditUse::kControlReturning : CreditUse::kControl;
    if (!credits.May(use)) return;
    credits.Take();
    ChainSlot* slot;
    transport::SendRequest& send = chain.Append(transport::Opcode::kSend, slot);
    if (returns.owed() > 0) {
      wire::FrameHeader credit{};
      credit.type = wire::FrameType::kCredit;
      credit.argument = returns.TakeAll();
      chain.AppendCopy(send, *slot, std::as_bytes(std::span(&credit, 1)));
    }
    const PathFrame& frame = said_.front();
    chain.AppendCopy(send, *slot, std::as_bytes(std::span(&frame.header, 1)));
    chain.AppendCopy(send, *slot, std::span(frame.payload).first(frame.header.bytes));
    said_.pop();
  }
}

void Path::Break(std::string why) {
  if (broken || !queue_pair) return;
  broken = true;
  reason = std::move(why);
}

}  // namespace sluice
