// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/control_connection.h"

#include <sys/socket.h>

#include <utility>

namespace sluice::control {

ControlConnection::ControlConnection(EventLoop& loop, Fd socket, Handler& handler)
    : loop_(loop), socket_(std::move(socket)), handler_(handler) {}

ControlConnection::~ControlConnection() { Close(); }

Result<> ControlConnection::Start() {
  return loop_.Add(socket_.get(), EPOLLIN, [this](uint32_t events) { OnEvents(events); });
}

void ControlConnection::Close() {
  loop_.Cancel(std::exchange(failure_, 0));
  queue_.clear();
  if (!socket_.valid()) return;
  loop_.Remove(socket_.get());
  // A Unix socket closed with unread packets resets the other end, which would lose it our last
  // words.
  Packet packet;
  for (size_t i = 0;
       i < kMaxQueued && ReceivePacket(socket_.get(), packet) == ReceiveStatus::kPacket; ++i) {
  }
  socket_.Reset();
}

SendStatus ControlConnection::TrySend(std::span<const std::byte> bytes,
                                      const std::vector<Fd>& fds) {
  int numbers[kMaxPacketFds];
  for (size_t i = 0; i < fds.size() && i < kMaxPacketFds; ++i) numbers[i] = fds[i].get();
  return SendPacket(socket_.get(), bytes, std::span(numbers, fds.size()));
}

void ControlConnection::SendBytes(std::span<const std::byte> bytes, std::vector<Fd> fds) {
  if (!socket_.valid() || failure_ != 0) return;  // The handler knows, or is about to.
  if (queue_.empty()) {
    const SendStatus status = TrySend(bytes, fds);
    if (status == SendStatus::kSent) return;
    if (status == SendStatus::kBroken) return Fail(false);
    (void)loop_.Modify(socket_.get(),
                       EPOLLIN | EPOLLOUT);  // Cannot fail for a descriptor in the loop.
  }
  if (queue_.size() == kMaxQueued) return Fail(true);
  queue_.push_back({std::vector(bytes.begin(), bytes.end()), std::move(fds)});
}

void ControlConnection::FlushQueue() {
  while (!queue_.empty()) {
    const SendStatus status = TrySend(queue_.front().bytes, queue_.front().fds);
    if (status == SendStatus::kFull) return;
    if (status == SendStatus::kBroken) return Fail(false);
    queue_.pop_front();
  }
  (void)loop_.Modify(socket_.get(), EPOLLIN);
}

// Said later and from the loop: callers of Send() stand in the middle of something.
void ControlConnection::Fail(bool too_slow) {
  if (failure_ != 0) return;
  queue_.clear();
  failure_ = loop_.After(0, [this, too_slow] {
    failure_ = 0;
    handler_.OnConnectionLost(too_slow);
  });
}

void ControlConnection::OnEvents(uint32_t events) {
  if ((events & EPOLLOUT) != 0) FlushQueue();
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  Packet packet;
  for (int i = 0; i < kMaxPacketsPerTurn && socket_.valid() && failure_ == 0; ++i) {
    switch (ReceivePacket(socket_.get(), packet)) {
      case ReceiveStatus::kPacket: handler_.OnPacket(packet); break;
      case ReceiveStatus::kNothing: return;
      case ReceiveStatus::kHangUp: return handler_.OnConnectionLost(false);
    }
  }
}

}  // namespace sluice::control
