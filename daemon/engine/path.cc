// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/path.h"

#include <algorithm>
#include <utility>

#include "shm_proto/base/check.h"

namespace sluice {

Path::Path(const LocalLimits& limits)
    : chain(limits.send_queue_depth),
      limits_(limits),
      memory_bytes_(chain.HeaderMemoryBytes() +
                    size_t{limits.receive_depth} * limits.receive_bytes) {
  consumed_.reserve(limits.receive_depth);
}

void Path::Prepare(uint32_t peer_receive_depth) {
  SLUICE_CHECK(!queue_pair, "a path is prepared before it has a queue pair");
  if (!memory_) memory_ = std::make_unique_for_overwrite<std::byte[]>(memory_bytes_);
  chain.UseMemory(memory_.get());
  credits = SendCredits(peer_receive_depth);
  returns = CreditReturns(limits_.receive_depth);
  peer_keepalive = 0;
  keepalive_sequence = 0;
  consumed_.clear();
  for (uint32_t i = 0; i < limits_.receive_depth; ++i) consumed_.push_back(ReceiveSlot(i));
}

transport::ReceiveRequest Path::ReceiveSlot(uint32_t index) const {
  SLUICE_CHECK(index < limits_.receive_depth, "a receive completes under its own id");
  std::byte* slots = memory_.get() + chain.HeaderMemoryBytes();
  return {index, slots + size_t{index} * limits_.receive_bytes, limits_.receive_bytes, 0};
}

Result<> Path::PostReceives() {
  if (consumed_.empty()) return {};
  auto posted = queue_pair->PostReceive(consumed_);
  consumed_.clear();
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
