// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/tcp/tcp_transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <utility>

#include "daemon/transport/tcp/queue_pair.h"
#include "shm_proto/base/check.h"

namespace sluice::transport {
namespace {

// Bytes that the kernel holds without having sent them. Enough to keep a fast link busy between two
// Poll()s; what is above it waits with us, where it can still be flushed.
constexpr int kUnsentBytes = 256 * 1024;

Result<> SetOption(int socket, int option, int value, const char* name) {
  if (setsockopt(socket, IPPROTO_TCP, option, &value, sizeof value) == 0) return {};
  return FailErrno(std::string("cannot use the connection: setsockopt ") + name);
}

}  // namespace

void TcpWorkList::Add(TcpQueuePair* queue_pair) {
  if ((queue_pair->listed_in & bit_) != 0) return;
  queue_pair->listed_in = static_cast<uint8_t>(queue_pair->listed_in | bit_);
  queue_pairs_.push_back(queue_pair);
}

void TcpWorkList::Remove(TcpQueuePair* queue_pair) {
  if ((queue_pair->listed_in & bit_) != 0) std::erase(queue_pairs_, queue_pair);
  queue_pair->listed_in = static_cast<uint8_t>(queue_pair->listed_in & ~bit_);
}

template <typename Work, typename GoOn>
void TcpWorkList::Run(Work work, GoOn go_on) {
  const size_t listed = queue_pairs_.size();
  size_t next = 0;
  for (; next < listed && go_on(); ++next) {
    TcpQueuePair* queue_pair = queue_pairs_[next];
    queue_pair->listed_in = static_cast<uint8_t>(queue_pair->listed_in & ~bit_);
    if (work(queue_pair)) Add(queue_pair);
  }
  queue_pairs_.erase(queue_pairs_.begin(), queue_pairs_.begin() + static_cast<ptrdiff_t>(next));
}

TcpTransport::TcpTransport(Fd epoll)
    : epoll_(std::move(epoll)),
      readable_(kReadableBit),
      unwritten_(kUnwrittenBit),
      unacknowledged_(kUnacknowledgedBit),
      dying_(kDyingBit),
      staging_(std::make_unique_for_overwrite<std::byte[]>(kStagingBytes)) {}

Result<std::unique_ptr<TcpTransport>> TcpTransport::Create() {
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return FailErrno("cannot create the TCP transport: epoll_create1");
  return std::unique_ptr<TcpTransport>(new TcpTransport(std::move(epoll)));
}

TcpTransport::~TcpTransport() {
  SLUICE_CHECK(queue_pairs_.empty(), "queue pairs are destroyed before their transport");
}

Result<std::unique_ptr<QueuePair>> TcpTransport::Adopt(Fd connection, QueuePairLimits local,
                                                       void* context) {
  const int socket = connection.get();
  if (auto set = SetOption(socket, TCP_NODELAY, 1, "TCP_NODELAY"); !set) {
    return std::unexpected(set.error());
  }
  if (auto set = SetOption(socket, TCP_NOTSENT_LOWAT, kUnsentBytes, "TCP_NOTSENT_LOWAT"); !set) {
    return std::unexpected(set.error());
  }
  auto queue_pair = std::make_unique<TcpQueuePair>(*this, std::move(connection), local, context);
  queue_pairs_.push_back(queue_pair.get());
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = queue_pair.get();
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) < 0) {
    return FailErrno("cannot use the connection: epoll_ctl");
  }
  size_t completions = 0;
  for (const TcpQueuePair* each : queue_pairs_) completions += MostCompletions(each->limits());
  completions_.Reserve(completions);
  for (TcpWorkList* list : {&readable_, &unwritten_, &unacknowledged_, &dying_}) {
    list->Reserve(queue_pairs_.size());
  }
  return queue_pair;
}

void TcpTransport::Forget(TcpQueuePair* queue_pair) {
  for (TcpWorkList* list : {&readable_, &unwritten_, &unacknowledged_, &dying_}) {
    list->Remove(queue_pair);
  }
  completions_.Drop(queue_pair);
  std::erase(queue_pairs_, queue_pair);
  // Fails where the queue pair had died or was never registered; all that matters is that no event
  // names it any more.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, queue_pair->socket(), nullptr);
}

size_t TcpTransport::Poll(std::span<Completion> completions, uint64_t now_ns) {
  // Data of completions that had to wait for this Poll() is in staging: it must not be used afresh.
  const bool staging_is_free = !completions_.backlogged();
  completions_.Begin(completions);
  if (staging_is_free) {
    staging_used_ = 0;
    WritePosted(now_ns);
    CollectEvents(now_ns);
    Read(now_ns);
    LookForAcknowledgements(now_ns);
    TellDeaths();
  }
  return completions_.End();
}

void TcpTransport::WritePosted(uint64_t now_ns) {
  unwritten_.Run([now_ns](TcpQueuePair* queue_pair) { return queue_pair->WriteSome(now_ns); },
                 [] { return true; });
}

// A busy loop turns faster than packets come, and each look is a system call. A clock that stands
// still, as one turned by hand may, is no busy loop.
void TcpTransport::CollectEvents(uint64_t now_ns) {
  const uint64_t since_ns = now_ns - last_collected_ns_;
  if (since_ns > 0 && since_ns < kCollectSpacingNs) return;
  last_collected_ns_ = now_ns;
  const int count = epoll_wait(epoll_.get(), events_.data(), kEventsPerPoll, 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events_[static_cast<size_t>(i)];
    static_cast<TcpQueuePair*>(event.data.ptr)->OnEvents(event.events);
  }
}

void TcpTransport::Read(uint64_t now_ns) {
  const std::span<std::byte> staging(staging_.get(), kStagingBytes);
  readable_.Run([=](TcpQueuePair* queue_pair) { return queue_pair->ReadSome(staging, now_ns); },
                [this] { return !completions_.full(); });
}

void TcpTransport::LookForAcknowledgements(uint64_t now_ns) {
  unacknowledged_.Run(
      [now_ns](TcpQueuePair* queue_pair) { return queue_pair->LookForAcknowledgement(now_ns); },
      [this] { return !completions_.full(); });
}

void TcpTransport::TellDeaths() {
  dying_.Run(
      [](TcpQueuePair* queue_pair) {
        queue_pair->Flush();
        return false;
      },
      [] { return true; });
}

bool TcpTransport::Arm() {
  return !completions_.backlogged() && readable_.empty() && unwritten_.empty() && dying_.empty();
}

uint64_t TcpTransport::NextPollNs(uint64_t now_ns) const {
  (void)now_ns;
  uint64_t next_ns = ~uint64_t{0};
  for (const TcpQueuePair* queue_pair : unacknowledged_) {
    next_ns = std::min(next_ns, queue_pair->next_look_ns());
  }
  return next_ns;
}

}  // namespace sluice::transport
