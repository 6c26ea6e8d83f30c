// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/connector.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace sluice::control {

std::vector<SocketAddress> InterleaveFamilies(const std::vector<SocketAddress>& addresses) {
  std::vector<SocketAddress> first, second, all;
  for (const SocketAddress& address : addresses) {
    (address.family() == addresses.front().family() ? first : second).push_back(address);
  }
  for (size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    if (i < first.size()) all.push_back(first[i]);
    if (i < second.size()) all.push_back(second[i]);
  }
  return all;
}

Connector::Connector(EventLoop& loop, std::vector<SocketAddress> addresses, uint64_t timeout_ns,
                     Callback done)
    : loop_(loop),
      addresses_(InterleaveFamilies(addresses)),
      last_error_{ErrorCode::kInvalid, "there is no address to connect to"},
      done_(std::move(done)) {
  step_ = loop_.After(0, [this] { Next(); });
  deadline_ = loop_.After(timeout_ns, [this] { OnTimeout(); });
}

Connector::~Connector() { Clear(); }

void Connector::Clear() {
  for (const Attempt& attempt : attempts_) loop_.Remove(attempt.socket.get());
  attempts_.clear();
  loop_.Cancel(std::exchange(step_, 0));
  loop_.Cancel(std::exchange(deadline_, 0));
}

void Connector::Next() {
  loop_.Cancel(std::exchange(step_, 0));
  while (next_ < addresses_.size()) {
    const SocketAddress address = addresses_[next_++];
    auto begun = Begin(address);
    if (!begun) {
      last_error_ = std::move(begun.error());
      continue;
    }
    attempts_.push_back({std::move(*begun), address});
    if (next_ < addresses_.size()) step_ = loop_.After(kStaggerNs, [this] { Next(); });
    return;
  }
  if (attempts_.empty()) Finish(std::unexpected(last_error_));
}

// A socket on its way to `address` and in the loop.
Result<Fd> Connector::Begin(const SocketAddress& address) {
  const std::string what = "connecting to " + address.Text();
  Fd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!fd.valid()) return FailErrno(what);
  const int on = 1;
  // Only costs latency where it fails.
  (void)setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  sockaddr_storage storage;
  const socklen_t length = address.ToSockaddr(storage);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&storage), length) != 0 &&
      errno != EINPROGRESS) {
    const int reason = errno;
    return Fail(ErrorCode::kUnavailable, FailErrno(what, reason).error().message);
  }
  if (auto added = loop_.Add(fd.get(), EPOLLOUT,
                             [this, raw = fd.get()](uint32_t) { OnReady(raw); });
      !added) {
    return std::unexpected(added.error());
  }
  return fd;
}

void Connector::OnReady(int fd) {
  const auto found = std::ranges::find_if(attempts_,
                                          [fd](const Attempt& a) { return a.socket.get() == fd; });
  if (found == attempts_.end()) return;
  int reason = 0;
  socklen_t length = sizeof(reason);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &length) != 0) reason = errno;
  loop_.Remove(fd);
  Attempt attempt = std::move(*found);
  attempts_.erase(found);
  if (reason == 0) return Finish(Connected{std::move(attempt.socket), attempt.address});
  last_error_ = {ErrorCode::kUnavailable,
                 FailErrno("connecting to " + attempt.address.Text(), reason).error().message};
  Next();
}

void Connector::OnTimeout() {
  deadline_ = 0;
  Finish(
      Fail(ErrorCode::kTimeout, "connecting to " + addresses_.front().Text() + " took too long"));
}

void Connector::Finish(Result<Connected> result) {
  Clear();
  const Callback done = std::move(done_);
  done(std::move(result));  // May destroy *this.
}

}  // namespace sluice::control
