// SPDX-License-Identifier: Apache-2.0
#include "libclient/src/ring_port.h"

#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>

namespace sluice::client {
namespace {

constexpr uint32_t kMinCapacity = 16;
constexpr uint32_t kMaxCapacity = 65536;
constexpr int
    kMaxDrains = 64;  // Bounds one look at a doorbell that a broken daemon never stops ringing.

}  // namespace

Result<std::unique_ptr<RingPort>> RingPort::Map(int memfd, Fd doorbell, uint64_t bytes,
                                                uint32_t capacity, uint32_t io_thread,
                                                std::shared_ptr<Pool> pool) {
  if (!std::has_single_bit(capacity) || capacity < kMinCapacity || capacity > kMaxCapacity ||
      bytes < 2 * RingBytes(capacity)) {
    return Fail(ErrorCode::kProtocol, "the daemon offers a ring pair of " +
                                          std::to_string(capacity) + " entries in " +
                                          std::to_string(bytes) + " bytes, which cannot be");
  }
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  if (base == MAP_FAILED) return FailErrno("cannot map a ring pair");
  return std::unique_ptr<RingPort>(new RingPort(static_cast<std::byte*>(base), bytes, capacity,
                                                io_thread, std::move(doorbell), std::move(pool)));
}

RingPort::RingPort(std::byte* base, uint64_t bytes, uint32_t capacity, uint32_t io_thread,
                   Fd doorbell, std::shared_ptr<Pool> pool)
    : base_(base),
      bytes_(bytes),
      capacity_(capacity),
      io_thread_(io_thread),
      doorbell_(std::move(doorbell)),
      pool_(std::move(pool)),
      submissions_(RingMemory{base, capacity}),
      completions_(RingMemory{base + RingBytes(capacity), capacity}),
      operations_(capacity / 2) {}

RingPort::~RingPort() { munmap(base_, bytes_); }

void RingPort::Flush() {
  if (pool_->HasReturns(io_thread_)) pool_->TakeReturns(io_thread_, frees_);
  if (!frees_.empty()) StageFrees();
  if (!closes_.empty()) StageCloses();
  Publish();
}

void RingPort::Publish() {
  if (submissions_.Publish()) RingDoorbell();
}

void RingPort::ReleaseCompletions() {
  if (completions_.Release()) RingDoorbell();
}

// A full doorbell has been rung already, and one without a daemon is the control thread's to
// notice.
void RingPort::RingDoorbell() {
  [[maybe_unused]] const ssize_t sent = send(doorbell_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void RingPort::StageFrees() {
  while (!frees_.empty()) {
    Descriptor descriptor{};
    const size_t count = std::min(frees_.size(), kFreesPerDescriptor);
    descriptor.op = static_cast<uint8_t>(SubmitOp::kFree);
    descriptor.inline_bytes = static_cast<uint8_t>(count * sizeof(uint64_t));
    std::copy(frees_.end() - static_cast<ptrdiff_t>(count), frees_.end(), descriptor.free_offsets);
    if (!submissions_.Stage(descriptor)) return;
    frees_.resize(frees_.size() - count);
  }
}

void RingPort::StageCloses() {
  while (!closes_.empty()) {
    Descriptor descriptor{};
    descriptor.op = static_cast<uint8_t>(SubmitOp::kClose);
    descriptor.socket = closes_.back();
    if (!submissions_.Stage(descriptor)) return;
    closes_.pop_back();
  }
}

bool RingPort::DrainDoorbell() {
  char bytes[64];
  for (int i = 0; i < kMaxDrains; ++i) {
    const ssize_t got = recv(doorbell_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EINTR;
  }
  return true;
}

void RingPort::Abandon() {
  uint32_t io_thread = 0;
  Operation operation;
  while (operations_.EndAny(operation)) {
    if (operation.buffer == nullptr || !pool_->Contains(operation.buffer)) continue;
    const uint64_t start = pool_->OffsetOf(operation.buffer);
    if (pool_->EndSendFreeing(start, &io_thread) == Pool::Freed::kToDaemon) {
      pool_->LeaveReturn(io_thread, start);
    }
  }
  for (const uint64_t offset : frees_) pool_->LeaveReturn(io_thread_, offset);
  frees_.clear();
  Descriptor descriptor;
  while (!broken_ && completions_.Pop(descriptor)) {
    if (descriptor.op != static_cast<uint8_t>(CompletionOp::kMessage)) continue;
    if ((descriptor.flags & kFlagInline) != 0) continue;
    if (!pool_->AcceptReceived(descriptor.region.offset, descriptor.region.length, io_thread_))
      return;
    if (pool_->Free(descriptor.region.offset, &io_thread) == Pool::Freed::kToDaemon) {
      pool_->LeaveReturn(io_thread, descriptor.region.offset);
    }
  }
}

}  // namespace sluice::client
