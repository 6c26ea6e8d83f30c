// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/acceptor.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace sluice::control {
namespace {

Fd OpenReserve() { return Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

Acceptor::Acceptor(EventLoop& loop, Fd listener, AcceptCallback accept, RefuseCallback refuse)
    : loop_(loop),
      listener_(std::move(listener)),
      reserve_(OpenReserve()),
      accept_(std::move(accept)),
      refuse_(std::move(refuse)) {}

Acceptor::~Acceptor() { Stop(); }

Result<> Acceptor::Start() {
  if (!reserve_.valid())
    return FailErrno("opening /dev/null as the reserve for the descriptor limit");
  return loop_.Add(listener_.get(), EPOLLIN, [this](uint32_t) { OnReadable(); });
}

void Acceptor::Stop() {
  loop_.Cancel(std::exchange(resume_, 0));
  if (listener_.valid()) loop_.Remove(listener_.get());
  listener_.Reset();
  reserve_.Reset();
}

void Acceptor::OnReadable() {
  for (int i = 0; i < kMaxAcceptsPerTurn && listener_.valid(); ++i) {
    Fd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.valid()) {
      ++accepted_;
      accept_(std::move(connection));  // May stop us.
      continue;
    }
    switch (errno) {
      case EAGAIN: return;
      case EMFILE:
      case ENFILE:
        for (int n = 0; n < kMaxRefusalsPerTurn && RefuseOne(); ++n) {
        }
        Pause();
        return;
      case ENOBUFS:
      case ENOMEM: Pause(); return;
      default:
        break;  // The connection died in the queue (ECONNABORTED, network errors): the next one.
    }
  }
}

// Spends the reserve on one connection. False when there was none, or the reserve could not be had
// back.
bool Acceptor::RefuseOne() {
  reserve_.Reset();
  Fd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const bool got = connection.valid();
  if (got) {
    ++refused_;
    refuse_(connection.get());
  }
  connection.Reset();
  reserve_ = OpenReserve();
  return got && reserve_.valid();
}

void Acceptor::Pause() {
  // Cannot fail for a descriptor in the loop; were it to, the loop would only be busier.
  (void)loop_.Modify(listener_.get(), 0);
  resume_ = loop_.After(kPauseNs, [this] {
    resume_ = 0;
    if (!reserve_.valid()) reserve_ = OpenReserve();
    (void)loop_.Modify(listener_.get(), EPOLLIN);
  });
}

}  // namespace sluice::control
