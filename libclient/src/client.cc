// SPDX-License-Identifier: Apache-2.0
// What channels and applications ask of a client. What the daemon says to it is in
// client_control.cc.
#include "libclient/src/client.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "libclient/src/client_messages.h"
#include "shm_proto/base/units.h"

namespace sluice::client {
namespace {

constexpr size_t kMaxOutboxPackets = 4096;

// For refusals that must travel as an ErrorCode.
ErrorCode CodeOf(int error_number) {
  switch (error_number) {
    case ENOMEM: return ErrorCode::kNoMemory;
    case EAGAIN: return ErrorCode::kWouldBlock;
    case EINVAL: return ErrorCode::kInvalid;
    case ENOTCONN: return ErrorCode::kUnavailable;
    case ETIMEDOUT: return ErrorCode::kTimeout;
    default: return ErrorCode::kSystem;
  }
}

}  // namespace

Client::Client(Options options, ControlPort& port, const Clock& clock, Random& random)
    : options_(std::move(options)), port_(port), clock_(clock), random_(random) {}

Client::~Client() = default;

Result<> Client::Start() {
  if (Result<> started = guard_.Start(); !started) return started;
  if (Result<> reserved = slab_.Reserve(); !reserved) return reserved;
  std::lock_guard lock(mutex_);
  retry_at_ns_ = 0;
  return {};
}

Answer<void> Client::AwaitAttached() {
  const uint64_t deadline_ns = clock_.NowNs() + options_.attach_timeout_ns;
  std::unique_lock lock(mutex_);
  while (!attached_once_ && !attach_error_) {
    if (!port_.Await(lock, changed_, deadline_ns) && !attached_once_ && !attach_error_) {
      return Deny(ETIMEDOUT, "the daemon did not answer in time: " + last_reason_);
    }
  }
  if (attach_error_) return std::unexpected(*attach_error_);
  return {};
}

void Client::Stop() {
  std::lock_guard lock(mutex_);
  link_ = Link::kStopped;
  FailRequests("this client is being detached");
  port_.Close();
}

uint32_t Client::NextRequest() {
  if (next_request_ == 0) next_request_ = 1;
  return next_request_++;
}

// Under the lock. The request was queued under the number; waits for its end and forgets it.
Answer<void> Client::Await(std::unique_lock<std::mutex>& lock, uint32_t request, const char* what) {
  const uint64_t deadline_ns = clock_.NowNs() + options_.request_timeout_ns;
  requests_[request] = Request{};
  bool in_time = true;
  while (!requests_[request].done && in_time) in_time = port_.Await(lock, changed_, deadline_ns);
  const Request ended = requests_[request];
  requests_.erase(request);
  if (!ended.done)
    return Deny(ETIMEDOUT, std::string("the daemon did not answer in time: ") + what);
  if (ended.error != 0) return Deny(ended.error, ended.text);
  return {};
}

Client::Channel* Client::Find(uint32_t number) {
  return number < channels_.size() ? channels_[number].get() : nullptr;
}

Answer<Client::OpenedChannel> Client::OpenChannel(uint32_t ring_entries) {
  auto mailbox = std::make_shared<Mailbox>();
  if (Result<> started = mailbox->Start(); !started) return Deny(started.error());
  std::unique_lock lock(mutex_);
  if (link_ != Link::kUp) return Deny(ENOTCONN, "the daemon is away: " + last_reason_);
  uint32_t number = 0;
  while (number < channels_.size() && channels_[number] != nullptr) ++number;
  if (number >= limits_.max_channels) {
    return Deny(ENOMEM, "all " + std::to_string(limits_.max_channels) +
                            " channels that the daemon allows are open: close one");
  }
  if (number == channels_.size()) channels_.emplace_back();
  channels_[number] = std::make_unique<Channel>();
  channels_[number]->mailbox = mailbox;
  channels_[number]->ring_entries = ring_entries;

  control::OpenChannel message{};
  message.channel = number;
  message.ring_capacity = ring_entries;
  const uint32_t request = NextRequest();
  Queue(message, control::Type::kOpenChannel, request);
  const Answer<void> answer = Await(lock, request, "opening a channel");
  if (answer && pool_ != nullptr) return OpenedChannel{number, mailbox, pool_, limits_};
  lock.unlock();
  CloseChannel(number, {});
  if (answer) return Deny(ENOTCONN, "the daemon went away while a channel was opened");
  return std::unexpected(answer.error());
}

void Client::CloseChannel(uint32_t number, std::vector<std::unique_ptr<RingPort>> ports) {
  std::lock_guard lock(mutex_);
  Channel* channel = Find(number);
  if (channel == nullptr) return;
  for (auto listener = listeners_.begin(); listener != listeners_.end();) {
    listener = listener->second.channel == number ? listeners_.erase(listener)
                                                  : std::next(listener);
  }
  const bool attached = link_ == Link::kUp || link_ == Link::kRestoring;
  if (!attached || (link_ == Link::kUp && channel->away)) {
    for (auto& port : ports) port->Abandon();
    channels_[number].reset();
    return;
  }
  channel->state = Channel::State::kClosing;
  channel->deferred.clear();
  channel->remains = std::move(ports);
  channel->close_request = NextRequest();
  control::CloseChannel message{};
  message.channel = number;
  Queue(message, control::Type::kCloseChannel, channel->close_request);
}

size_t Client::open_channels() {
  std::lock_guard lock(mutex_);
  return static_cast<size_t>(
      std::count_if(channels_.begin(), channels_.end(), [](const auto& channel) {
        return channel != nullptr && channel->state != Channel::State::kClosing;
      }));
}

Answer<uint64_t> Client::Listen(uint32_t channel, uint16_t service) {
  std::unique_lock lock(mutex_);
  if (link_ != Link::kUp) return Deny(ENOTCONN, "the daemon is away: " + last_reason_);
  const uint64_t token = next_listener_++;
  control::Listen message{};
  message.token = token;
  message.channel = channel;
  message.service = service;
  const uint32_t request = NextRequest();
  Queue(message, control::Type::kListen, request);
  const uint64_t life = life_;
  const Answer<void> answer = Await(lock, request, "listening");
  if (!answer) {
    if (answer.error().error == ETIMEDOUT) {  // Should it agree later on.
      control::Unlisten undo{};
      undo.token = token;
      Queue(undo, control::Type::kUnlisten, NextRequest());
    }
    return std::unexpected(answer.error());
  }
  // The daemon may have died after it agreed: then this one returns with the others.
  listeners_[token] = Listener{channel, service, life == life_, 0, ""};
  return token;
}

void Client::Unlisten(uint64_t token) {
  std::lock_guard lock(mutex_);
  if (listeners_.erase(token) == 0 || (link_ != Link::kUp && link_ != Link::kRestoring)) return;
  control::Unlisten message{};
  message.token = token;
  Queue(message, control::Type::kUnlisten, NextRequest());
}

Answer<uint32_t> Client::Connect(uint32_t channel, uint64_t token, const std::string& host,
                                 uint16_t service) {
  std::lock_guard lock(mutex_);
  const Channel* entry = Find(channel);
  if (link_ != Link::kUp || entry == nullptr || entry->state != Channel::State::kOpen ||
      entry->away) {
    return Deny(ENOTCONN, "the daemon is away: " + last_reason_);
  }
  if (outbox_.size() >= kMaxOutboxPackets) {
    return Deny(EAGAIN,
                "the daemon has not taken the requests before this one: poll and try again");
  }
  control::Connect message{};
  message.token = token;
  message.channel = channel;
  message.service = service;
  std::memcpy(message.host, host.data(), std::min(host.size(), sizeof(message.host) - 1));
  const uint32_t request = NextRequest();
  Queue(message, control::Type::kConnect, request);
  return request;
}

Result<> Client::Grow(Pool& pool, uint64_t needed_bytes, uint64_t wished_bytes) {
  for (const uint64_t bytes : {wished_bytes, needed_bytes}) {
    std::unique_lock lock(mutex_);
    if (link_ != Link::kUp || pool_.get() != &pool) {
      return Fail(ErrorCode::kUnavailable,
                  "the daemon is away and the pool is full: " + last_reason_);
    }
    control::Grow message{};
    message.bytes = bytes;
    const uint32_t request = NextRequest();
    Queue(message, control::Type::kGrow, request);
    const Answer<void> answer = Await(lock, request, "growing the pool");
    if (answer) return {};
    const bool content_with_less = answer.error().error == ENOMEM && bytes > needed_bytes;
    if (!content_with_less) return Fail(CodeOf(answer.error().error), answer.error().text);
  }
  return Fail(ErrorCode::kNoMemory, "the pool cannot grow");
}

// A daemon that is gone has taken all blocks with it.
void Client::Shrink(Pool& pool, uint64_t pool_offset, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (pool_.get() != &pool) return;
  control::Shrink message{};
  message.pool_offset = pool_offset;
  message.bytes = bytes;
  Queue(message, control::Type::kShrink, NextRequest());
}

Pool::Freed Client::Free(void* buffer) {
  std::unique_lock lock(mutex_);
  std::shared_ptr<Pool> owner = pool_ != nullptr && pool_->Contains(buffer) ? pool_ : nullptr;
  for (const auto& pool : retired_) {
    if (pool->Contains(buffer)) owner = pool;
  }
  lock.unlock();
  if (owner == nullptr) return Pool::Freed::kNotABuffer;
  uint32_t io_thread = 0;
  const uint64_t offset = owner->OffsetOf(buffer);
  const Pool::Freed freed = owner->Free(offset, &io_thread);
  if (freed != Pool::Freed::kToDaemon) return freed;
  ReturnToDaemon(*owner, io_thread, offset);
  return Pool::Freed::kDone;
}

bool Client::InRetiredPool(const void* pointer) {
  std::lock_guard lock(mutex_);
  return std::any_of(retired_.begin(), retired_.end(),
                     [pointer](const auto& pool) { return pool->Contains(pointer); });
}

void Client::ReturnToDaemon(Pool& pool, uint32_t io_thread, uint64_t offset) {
  if (!pool.LeaveReturn(io_thread, offset)) return;
  // The first of its list: the channels that could take it along may all be asleep.
  std::lock_guard lock(mutex_);
  for (const auto& channel : channels_) {
    if (channel != nullptr && (channel->rings >> io_thread & 1) != 0) channel->mailbox->Kick();
  }
}

void Client::ReportBroken(const Pool& pool, const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (pool_.get() != &pool) return;  // That daemon is gone already.
  broken_reason_ = "the daemon broke the rules: " + reason;
  port_.Wake();
}

Limits Client::limits() {
  std::lock_guard lock(mutex_);
  return limits_;
}

}  // namespace sluice::client
