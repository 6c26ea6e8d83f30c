// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/tcp/queue_pair.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "shm_proto/base/clock.h"
#include "shm_proto/base/units.h"

namespace sluice::transport {
namespace {

// What one connection may read or write in one Poll(), so that all get their turn.
constexpr uint64_t kReadBytesPerPoll = 1 * kMiB;
constexpr uint64_t kWriteBytesPerPoll = 1 * kMiB;

// How much is read into staging at a time: little behind a payload that has its own place, since
// what follows is likely another such payload, of which every byte staged is a byte copied.
constexpr size_t kStagedSmallBytes = 128 * kKiB;
constexpr size_t kStagedBehindLargeBytes = 2 * kKiB;

// No event tells that the peer's kernel acknowledged something, and each look is a system call and
// may be a wake-up. Whatever the peer sends is a good moment: it mostly comes because of what we
// sent. Else the first look comes after the first backoff, then ever more rarely while nothing
// changes; but where the sender is likely to wait for it, sooner, and a busy loop looks again after
// the spacing.
constexpr uint64_t kUrgentBackoffNs = 50 * kNsPerUs;
constexpr uint64_t kFirstBackoffNs = 1 * kNsPerMs;
constexpr uint64_t kLastBackoffNs = 4 * kNsPerMs;
constexpr uint64_t kLookSpacingNs = 10 * kNsPerUs;
constexpr uint64_t kUrgentBytes = 128 * kKiB;

}  // namespace

TcpQueuePair::TcpQueuePair(TcpTransport& transport, Fd connection, const QueuePairLimits& limits,
                           void* context)
    : transport_(transport),
      connection_(std::move(connection)),
      limits_(limits),
      context_(context),
      sends_(limits.send_queue_depth),
      receives_(limits),
      writer_(sends_),
      reader_({.owner = this,
               .context = context,
               .receive_bytes = limits.receive_bytes,
               .receives = receives_,
               .grants = grants_,
               .completions = transport.completions_}) {}

TcpQueuePair::~TcpQueuePair() { transport_.Forget(this); }

size_t TcpQueuePair::PostSend(std::span<const SendRequest> requests) {
  if (dead()) return 0;
  const size_t taken = writer_.Post(requests);
  if (!write_blocked_ && write_failure_.empty()) transport_.unwritten_.Add(this);
  return taken;
}

Result<> TcpQueuePair::PostReceive(std::span<const ReceiveRequest> requests) {
  if (dead()) return Fail(ErrorCode::kUnavailable, "the queue pair is dead: " + reason_);
  return receives_.Post(requests);
}

Result<size_t> TcpQueuePair::Expose(uint32_t grant, std::span<const LandingSegment> segments,
                                    std::span<RemoteSlice, kMaxSlices> slices) {
  if (dead()) return Fail(ErrorCode::kUnavailable, "the queue pair is dead: " + reason_);
  return grants_.Expose(grant, segments, slices);
}

void TcpQueuePair::Withdraw(uint32_t grant) {
  reader_.Withdraw(grant);
  grants_.Withdraw(grant);
}

void TcpQueuePair::Shutdown() {
  if (dead()) return;
  // What was posted since the last Poll() still goes out, as far as the socket takes it.
  if (!write_blocked_ && write_failure_.empty()) {
    writer_.Write(connection_.get(), kWriteBytesPerPoll);
  }
  Die("shut down on this side");
}

void TcpQueuePair::OnEvents(uint32_t events) {
  if (dead()) return;
  const bool ended = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  hung_up_ |= ended;
  if (ended || (events & EPOLLIN) != 0) transport_.readable_.Add(this);
  if ((events & EPOLLOUT) != 0 && write_blocked_) {
    write_blocked_ = false;
    transport_.unwritten_.Add(this);
  }
}

bool TcpQueuePair::WriteSome(uint64_t now_ns) {
  if (dead()) return false;
  const WriteOutcome outcome = writer_.Write(connection_.get(), kWriteBytesPerPoll);
  if (outcome == WriteOutcome::kFailed) {
    // The peer's last words may still be in the socket: read them before dying.
    write_failure_ = std::string("sendmsg: ") + std::strerror(errno);
    transport_.readable_.Add(this);
    return false;
  }
  write_blocked_ = outcome == WriteOutcome::kBlocked;
  if (writer_.has_unacknowledged()) {
    const bool first = (listed_in & kUnacknowledgedBit) == 0;
    const uint64_t backoff_ns = IsUrgent() ? kUrgentBackoffNs : kFirstBackoffNs;
    if (first || now_ns + backoff_ns < next_look_ns_) {
      look_backoff_ns_ = backoff_ns;
      next_look_ns_ = now_ns + backoff_ns;
    }
    transport_.unacknowledged_.Add(this);
  }
  return outcome == WriteOutcome::kMore;
}

bool TcpQueuePair::ReadSome(std::span<std::byte> staging, uint64_t now_ns) {
  uint64_t budget_bytes = kReadBytesPerPoll;
  bool more = !dead();
  while (more && budget_bytes > 0) {
    const std::span<std::byte> left = staging.subspan(transport_.staging_used_);
    if (left.size() < kStagedBehindLargeBytes) break;
    more = ReadOnce(left, now_ns, budget_bytes);
  }
  transport_.discarded_writes_ += reader_.discarded_writes() - discarded_seen_;
  discarded_seen_ = reader_.discarded_writes();
  return more;
}

// One system call.
bool TcpQueuePair::ReadOnce(std::span<std::byte> staging, uint64_t now_ns, uint64_t& budget_bytes) {
  std::array<iovec, TcpReader::kLandingPieces + 1> pieces;
  const auto landing = reader_.Landing(budget_bytes,
                                       std::span(pieces).first<TcpReader::kLandingPieces>());
  size_t count = landing.pieces;
  size_t staged_bytes = 0;
  if (landing.complete) {
    const bool large = reader_.expects_large() && !reader_.throws_away();
    staged_bytes = std::min(large ? kStagedBehindLargeBytes : kStagedSmallBytes, staging.size());
    pieces[count++] = {staging.data(), staged_bytes};
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  const ssize_t result = recvmsg(connection_.get(), &message, MSG_DONTWAIT);
  if (result <= 0) return OnReadFailed(result);

  const auto bytes = static_cast<uint64_t>(result);
  last_heard_ns_ = now_ns;
  next_look_ns_ = std::min(next_look_ns_, last_look_ns_ + kLookSpacingNs);
  budget_bytes -= std::min(bytes, budget_bytes);
  if (auto read = OnBytes(bytes, std::min(bytes, landing.bytes), staging); !read) {
    Die(read.error().message);
    return false;
  }
  // A short read emptied the socket, and a later byte is a new event. The end of the stream is not.
  return bytes == landing.bytes + staged_bytes || hung_up_ || !write_failure_.empty();
}

// The first `landed` of the bytes are where they belong, the others in staging.
Result<> TcpQueuePair::OnBytes(uint64_t bytes, uint64_t landed, std::span<std::byte> staging) {
  if (auto placed = reader_.Landed(landed); !placed) return placed;
  if (bytes == landed) return {};
  bool referenced = false;
  auto consumed = reader_.Consume(staging.first(bytes - landed), referenced);
  if (referenced) transport_.staging_used_ += RoundUp(bytes - landed, 64);
  return consumed;
}

bool TcpQueuePair::OnReadFailed(ssize_t result) {
  const int error_number = errno;
  if (result < 0 && error_number == EINTR) return true;
  const bool empty = result < 0 && (error_number == EAGAIN || error_number == EWOULDBLOCK);
  if (empty && write_failure_.empty()) return false;
  if (!write_failure_.empty()) {
    Die("the connection broke: " + write_failure_);
  } else if (result < 0) {
    Die(std::string("the connection broke: recvmsg: ") + std::strerror(error_number));
  } else if (reader_.in_batch()) {
    Die("the peer closed the connection in the middle of a message");
  } else {
    Die("the peer closed the connection");
  }
  return false;
}

bool TcpQueuePair::IsUrgent() const {
  return writer_.unacknowledged_bytes() >= kUrgentBytes ||
         sends_.end() - sends_.first() >= sends_.depth() / 2;
}

bool TcpQueuePair::LookForAcknowledgement(uint64_t now_ns) {
  if (dead() || !writer_.has_unacknowledged()) return false;
  const bool urgent = IsUrgent();
  if (now_ns < (urgent ? last_look_ns_ + kLookSpacingNs : next_look_ns_)) return true;
  last_look_ns_ = now_ns;
  int unacknowledged = 0;
  if (ioctl(connection_.get(), SIOCOUTQ, &unacknowledged) < 0) {
    Die(std::string("the connection broke: ioctl SIOCOUTQ: ") + std::strerror(errno));
    return false;
  }
  const uint64_t before = writer_.acknowledged_bytes();
  writer_.Acknowledge(static_cast<uint64_t>(unacknowledged), this, context_,
                      transport_.completions_);
  look_backoff_ns_ = writer_.acknowledged_bytes() != before
                         ? (urgent ? kUrgentBackoffNs : kFirstBackoffNs)
                         : std::min(2 * look_backoff_ns_, kLastBackoffNs);
  next_look_ns_ = now_ns + look_backoff_ns_;
  return writer_.has_unacknowledged();
}

void TcpQueuePair::Die(std::string reason) {
  if (dead()) return;
  reason_ = std::move(reason);
  // Bytes that the kernel has taken still go out, then a FIN. The descriptor stays until the owner
  // destroys us, so that nothing else can get its number.
  epoll_ctl(transport_.epoll_.get(), EPOLL_CTL_DEL, connection_.get(), nullptr);
  shutdown(connection_.get(), SHUT_RDWR);
  transport_.dying_.Add(this);
}

void TcpQueuePair::Flush() {
  FlushQueues(this, context_, sends_, receives_, transport_.completions_);
}

}  // namespace sluice::transport
