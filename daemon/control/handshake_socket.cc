// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/handshake_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "shm_proto/base/check.h"

namespace sluice::control {

using handshake::Phase;
using handshake::RefuseReason;

HandshakeSocket::HandshakeSocket(EventLoop& loop, Fd socket, handshake::Handshake handshake,
                                 uint64_t deadline_ns, Callbacks callbacks)
    : loop_(loop),
      socket_(std::move(socket)),
      handshake_(std::move(handshake)),
      deadline_ns_(deadline_ns),
      callbacks_(std::move(callbacks)) {
  const auto added = loop_.Add(socket_.get(), EPOLLIN | EPOLLOUT, [this](uint32_t) { Pump(); });
  if (added) return;
  broken_ = true;
  timer_ = loop_.After(0, [this, message = added.error().message] {
    Broken(message);
    End();
  });
}

HandshakeSocket::~HandshakeSocket() {
  loop_.Cancel(timer_);
  if (socket_.valid()) loop_.Remove(socket_.get());
}

void HandshakeSocket::Reject(RefuseReason reason, const std::string& text) {
  handshake_.Reject(reason, text);
  SayLastWord();
}

Fd HandshakeSocket::Take() {
  loop_.Remove(socket_.get());
  return std::move(socket_);
}

// Moves as far as it goes. The last thing it does is call back.
void HandshakeSocket::Pump() {
  for (;;) {
    Write();
    if (handshake_.phase() == Phase::kDeciding) {
      callbacks_.decide();  // Destroys nothing.
      SLUICE_CHECK(handshake_.phase() != Phase::kDeciding,
                   "the owner settles a handshake when asked");
      continue;
    }
    if (handshake_.phase() != Phase::kExchanging) break;
    if (!Read()) break;
  }
  if (handshake_.phase() == Phase::kFailed) return End();
  if (handshake_.phase() == Phase::kDone && handshake_.Output().empty()) return End();
  Rest();
}

// Waits for the socket and the clock.
void HandshakeSocket::Rest() {
  (void)loop_.Modify(socket_.get(), handshake_.Output().empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
  loop_.Cancel(timer_);
  timer_ = loop_.At(std::min(deadline_ns_, handshake_.deadline_ns()), [this] {
    timer_ = 0;
    handshake_.OnTime(UINT64_MAX);
    if (handshake_.phase() == Phase::kFailed) return End();
    Broken("the handshake's last word could not be sent in time");
    End();
  });
}

bool HandshakeSocket::Read() {
  std::byte bytes[handshake::kMaxMessageBytes];
  const size_t wanted = std::min(handshake_.WantedBytes(), sizeof(bytes));
  const ssize_t got = recv(socket_.get(), bytes, wanted, 0);
  if (got > 0) {
    handshake_.OnBytes(std::span(bytes).first(static_cast<size_t>(got)), loop_.now_ns());
    return true;
  }
  if (got == 0) {
    Broken("the peer closed the connection during the handshake");
  } else if (errno != EAGAIN && errno != EINTR) {
    Broken(std::string("the connection failed during the handshake: ") + std::strerror(errno));
  }
  return false;
}

void HandshakeSocket::Write() {
  while (!broken_ && !handshake_.Output().empty()) {
    const auto out = handshake_.Output();
    const ssize_t put = send(socket_.get(), out.data(), out.size(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      // While more is to come, a dead connection shows when read, behind what the peer said before
      // it died.
      if (errno != EAGAIN && handshake_.phase() == Phase::kDone)
        Broken("the peer closed before it was accepted");
      return;
    }
    handshake_.OnWritten(static_cast<size_t>(put));
  }
}

void HandshakeSocket::Broken(const std::string& what) {
  broken_ = true;
  handshake_.Abandon(what);
}

// A refusal goes out as far as it goes at once. Bytes of the peer that nobody read would turn the
// close into a reset, which may overtake it, so they are taken first.
void HandshakeSocket::SayLastWord() {
  if (broken_) return;
  Write();
  std::byte rest[2 * handshake::kMaxMessageBytes];
  (void)recv(socket_.get(), rest, sizeof(rest), MSG_DONTWAIT);
  (void)shutdown(socket_.get(), SHUT_WR);
}

void HandshakeSocket::End() {
  loop_.Cancel(std::exchange(timer_, 0));
  if (handshake_.phase() == Phase::kFailed) {
    SayLastWord();
    loop_.Remove(socket_.get());
  }
  const auto ended = std::move(callbacks_.ended);
  ended();  // May destroy *this.
}

}  // namespace sluice::control
