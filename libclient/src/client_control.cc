// SPDX-License-Identifier: Apache-2.0
// The control thread's half of a client: attaching, and what the daemon says.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "libclient/src/client.h"
#include "libclient/src/client_messages.h"

namespace sluice::client {
namespace {

constexpr uint64_t kMaintenanceNs = kNsPerSecond;

std::string Versions(uint16_t low, uint16_t high) {
  return low == high ? std::to_string(low) : std::to_string(low) + " to " + std::to_string(high);
}

// Before a memfd is mapped: a shorter one would end in a bus error.
Result<> CheckSize(int memfd, uint64_t bytes) {
  struct stat status;
  if (fstat(memfd, &status) != 0) return FailErrno("cannot look at the daemon's memory");
  if (bytes == 0 || status.st_size < 0 || static_cast<uint64_t>(status.st_size) < bytes) {
    return Fail(ErrorCode::kProtocol, "the daemon's memory is smaller than it says");
  }
  return {};
}

}  // namespace

uint64_t Client::Tick(uint64_t now_ns) {
  Maintain(now_ns);
  std::unique_lock lock(mutex_);
  if (link_ == Link::kStopped) return now_ns + kMaintenanceNs;
  if (!broken_reason_.empty()) Down(std::exchange(broken_reason_, ""));
  if (link_ == Link::kDown && now_ns >= retry_at_ns_) TryConnect();
  if ((link_ == Link::kAttaching || link_ == Link::kRestoring) && now_ns >= deadline_ns_) {
    const char* late = "the daemon did not answer in time";
    if (attached_once_) {
      Down(late);
    } else {
      FirstAttachFailed(ETIMEDOUT, late);
    }
  }
  if (now_ns >= maintenance_at_ns_) {
    maintenance_at_ns_ = now_ns + kMaintenanceNs;
    if (link_ == Link::kUp) RetryListeners();
    DropDrainedPools();
  }
  uint64_t next_ns = maintenance_at_ns_;
  if (link_ == Link::kDown) next_ns = std::min(next_ns, retry_at_ns_);
  if (link_ == Link::kAttaching || link_ == Link::kRestoring)
    next_ns = std::min(next_ns, deadline_ns_);
  return next_ns;
}

// Without the lock: giving blocks back takes it.
void Client::Maintain(uint64_t now_ns) {
  std::shared_ptr<Pool> pool;
  {
    std::lock_guard lock(mutex_);
    if (now_ns < maintenance_at_ns_) return;
    pool = pool_;
  }
  if (pool != nullptr) pool->Maintain(now_ns);
}

void Client::TryConnect() {
  attach_request_ = NextRequest();
  last_words_.reset();
  if (const Result<> connected = port_.Connect(); !connected) {
    if (!attached_once_)
      return FirstAttachFailed(ToErrno(connected.error().code), connected.error().message);
    return Down(connected.error().message);
  }
  link_ = Link::kAttaching;
  deadline_ns_ = clock_.NowNs() + options_.attach_timeout_ns;
  control::Attach message{};
  message.version_min = control::kVersionMin;
  message.version_max = control::kVersionMax;
  std::memcpy(message.name, options_.name.data(),
              std::min(options_.name.size(), sizeof(message.name) - 1));
  Queue(message, control::Type::kAttach, attach_request_);
}

bool Client::FlushOutbox() {
  std::lock_guard lock(mutex_);
  while (!outbox_.empty() && link_ != Link::kDown && link_ != Link::kStopped) {
    const Result<bool> sent = port_.Send(outbox_.front());
    if (!sent) {
      outbox_.clear();  // It hung up. What it said before that is still to be read, and then the
                        // hang-up itself.
      return true;
    }
    if (!*sent) return false;
    outbox_.pop_front();
  }
  return true;
}

uint64_t Client::NextBackoff() {
  backoff_ns_ = std::clamp(backoff_ns_ * 2, options_.retry_min_ns, options_.retry_max_ns);
  // Between half of it and all of it, so that the clients of a restarted daemon do not come back as
  // one.
  return backoff_ns_ / 2 + random_.Next() % (backoff_ns_ / 2 + 1);
}

void Client::OnHangup(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (link_ == Link::kDown || link_ == Link::kStopped) return;
  // The daemon's last words explain more than the hang-up that follows them.
  if (!last_words_) return Down(reason);
  if (link_ == Link::kAttaching && !attached_once_) {
    return FirstAttachFailed(last_words_->error, last_words_->text);
  }
  Down(last_words_->text);
}

void Client::Down(const std::string& reason) {
  port_.Close();
  outbox_.clear();
  broken_reason_.clear();
  if (link_ == Link::kAttaching && !attached_once_) return FirstAttachFailed(ECONNRESET, reason);
  const bool was_attached = link_ == Link::kUp || link_ == Link::kRestoring;
  link_ = Link::kDown;
  ++life_;
  last_reason_ = reason;
  retry_at_ns_ = clock_.NowNs() + NextBackoff();
  FailRequests("the daemon went away: " + reason);
  if (!was_attached) return;
  restoring_.clear();
  ring_regions_.clear();
  for (auto& [token, listener] : listeners_) listener.up = false;
  if (pool_ != nullptr) {
    pool_->Retire();
    retired_.push_back(std::exchange(pool_, nullptr));
  }
  DetachChannels(reason);
}

void Client::FirstAttachFailed(int error, const std::string& text) {
  port_.Close();
  link_ = Link::kStopped;
  attach_error_ = Refusal{error, text};
  changed_.notify_all();
}

void Client::FailRequests(const std::string& reason) {
  for (auto& [number, request] : requests_) {
    if (!request.done) request = {true, ENOTCONN, reason};
  }
  changed_.notify_all();
}

void Client::DetachChannels(const std::string& reason) {
  for (auto& channel : channels_) {
    if (channel == nullptr || channel->state == Channel::State::kOpening) continue;
    if (channel->state == Channel::State::kClosing) {
      for (auto& port : channel->remains) port->Abandon();
      channel.reset();
      continue;
    }
    channel->rings = 0;
    channel->restored = false;
    channel->deferred.clear();
    if (channel->away) continue;
    channel->away = true;
    Notice notice;
    notice.kind = Notice::Kind::kDetached;
    notice.error = ENOTCONN;
    notice.text = reason;
    channel->mailbox->Post(std::move(notice));
  }
}

void Client::RestoreAll() {
  for (uint32_t number = 0; number < channels_.size(); ++number) {
    Channel* channel = channels_[number].get();
    if (channel == nullptr || channel->state != Channel::State::kOpen) continue;
    control::OpenChannel message{};
    message.channel = number;
    message.ring_capacity = channel->ring_entries;
    const uint32_t request = NextRequest();
    restoring_[request] = Restore{false, number};
    Queue(message, control::Type::kOpenChannel, request);
  }
  for (auto& [token, listener] : listeners_) RestoreListener(token, listener);
}

void Client::RestoreListener(uint64_t token, Listener& listener) {
  control::Listen message{};
  message.token = token;
  message.channel = listener.channel;
  message.service = listener.service;
  const uint32_t request = NextRequest();
  restoring_[request] = Restore{true, token};
  Queue(message, control::Type::kListen, request);
}

void Client::RetryListeners() {
  if (!restoring_.empty()) return;  // The last round is not over yet.
  for (auto& [token, listener] : listeners_) {
    const Channel* channel = Find(listener.channel);
    if (!listener.up && channel != nullptr && !channel->away) RestoreListener(token, listener);
  }
}

void Client::OnRestored(uint32_t request, int32_t error, const std::string& text) {
  const auto found = restoring_.find(request);
  if (found == restoring_.end()) return;
  const Restore restore = found->second;
  restoring_.erase(found);
  if (restore.is_listener) {
    if (const auto listener = listeners_.find(restore.id); listener != listeners_.end()) {
      listener->second.up = error == 0;
      listener->second.error = error;
      listener->second.text = text;
    }
  } else if (Channel* channel = Find(static_cast<uint32_t>(restore.id)); channel != nullptr) {
    channel->restored = error == 0;
    channel->refusal = {error, text};
  }
  MaybeUp();
}

void Client::MaybeUp() {
  if (link_ != Link::kRestoring || !restoring_.empty()) return;
  link_ = Link::kUp;
  backoff_ns_ = 0;
  attached_once_ = true;
  changed_.notify_all();
  for (uint32_t number = 0; number < channels_.size(); ++number) {
    Channel* channel = channels_[number].get();
    if (channel == nullptr || channel->state != Channel::State::kOpen) continue;
    if (!channel->restored) {
      LeaveOut(*channel);
      continue;
    }
    channel->away = false;
    channel->left_out = false;
    Notice notice;
    notice.kind = Notice::Kind::kReattached;
    notice.pool = pool_;
    for (const auto& [token, listener] : listeners_) {
      if (listener.channel != number || listener.up) continue;
      notice.error = listener.error;
      notice.text = "the listener on service " + std::to_string(listener.service) +
                    " is not back yet: " + listener.text;
    }
    channel->mailbox->Post(std::move(notice));
    for (Notice& deferred : channel->deferred) channel->mailbox->Post(std::move(deferred));
    channel->deferred.clear();
  }
}

// The daemon of now may allow fewer channels. Said once, and the channel stays away until a later
// daemon takes it.
void Client::LeaveOut(Channel& channel) {
  if (std::exchange(channel.left_out, true)) return;
  Notice notice;
  notice.kind = Notice::Kind::kLeftOut;
  notice.error = channel.refusal.error;
  notice.text = "the daemon is back but does not take this channel: " + channel.refusal.text;
  channel.mailbox->Post(std::move(notice));
}

void Client::DropDrainedPools() {
  // A pool that only this list knows is one that no channel can put a buffer into any more.
  std::erase_if(retired_,
                [](const auto& pool) { return pool.use_count() == 1 && pool->Drained(); });
}

template <typename Message>
bool Client::Read(std::span<const std::byte> packet, Message& message) {
  if (packet.size() != sizeof(message)) {
    Down("the daemon sent a control message of " + std::to_string(packet.size()) + " bytes where " +
         std::to_string(sizeof(message)) + " belong");
    return false;
  }
  std::memcpy(&message, packet.data(), sizeof(message));
  return true;
}

void Client::HandleMessage(std::span<const std::byte> packet, std::vector<Fd>& descriptors) {
  std::lock_guard lock(mutex_);
  if (link_ == Link::kDown || link_ == Link::kStopped) return;
  control::Header header;
  if (packet.size() < sizeof(header)) return Down("the daemon sent a truncated control message");
  std::memcpy(&header, packet.data(), sizeof(header));
  if (header.magic != control::kMagic || header.bytes != packet.size()) {
    return Down("what answers on the control socket does not speak this protocol");
  }
  const bool may_come_now = link_ != Link::kAttaching || header.type == control::Type::kAttached ||
                            header.type == control::Type::kError ||
                            header.type == control::Type::kDetached;
  if (!may_come_now) return Down("the daemon sent a message before it accepted the attachment");
  Dispatch(header.type, packet, descriptors);
}

void Client::Dispatch(control::Type type, std::span<const std::byte> packet,
                      std::vector<Fd>& descriptors) {
  const auto handle = [&]<typename Message>(Message message, auto handler) {
    if (Read(packet, message)) handler(message);
  };
  switch (type) {
    case control::Type::kAttached:
      return handle(control::Attached{}, [&](const auto& m) { OnAttached(m); });
    case control::Type::kError:
      return handle(control::ErrorReply{}, [&](const auto& m) { OnError(m); });
    case control::Type::kChannelOpened:
      return handle(control::ChannelOpened{}, [&](const auto& m) { OnChannelOpened(m); });
    case control::Type::kChannelClosed:
      return handle(control::ChannelClosed{}, [&](const auto& m) { OnChannelClosed(m); });
    case control::Type::kRegion:
      return handle(control::Region{}, [&](const auto& m) { OnRegion(m, descriptors); });
    case control::Type::kBlocks:
      return handle(control::Blocks{}, [&](const auto& m) { OnBlocks(m); });
    case control::Type::kUnmap: return handle(control::Unmap{}, [&](const auto& m) { OnUnmap(m); });
    case control::Type::kListening:
      return handle(control::Listening{}, [&](const auto& m) { OnListening(m); });
    case control::Type::kConnectFailed:
      return handle(control::ConnectFailed{}, [&](const auto& m) { OnConnectFailed(m); });
    case control::Type::kDetached:
      return handle(control::Detached{}, [&](const auto& m) {
        Down("the daemon detached this client: " + Text(m.text));
      });
    default:
      return Down("the daemon sent an unknown control message of type " +
                  std::to_string(static_cast<unsigned>(type)));
  }
}

void Client::OnAttached(const control::Attached& message) {
  if (link_ != Link::kAttaching || message.header.request != attach_request_) {
    return Down("the daemon accepted an attachment that nobody asked for");
  }
  if (message.version < control::kVersionMin || message.version > control::kVersionMax ||
      message.io_threads == 0 || message.io_threads > control::kMaxIoThreads ||
      message.max_message_bytes == 0) {
    return Down("the daemon accepted the attachment with impossible limits");
  }
  auto pool = Pool::Reserve(*this, message.pool_reserve_bytes, message.io_threads,
                            message.max_message_bytes);
  if (!pool) return Down(pool.error().message);
  pool_ = std::move(*pool);
  limits_ = {message.io_threads, message.pool_reserve_bytes,
             std::min(message.max_message_bytes, Granules::kMaxBufferBytes), message.max_channels,
             message.max_sockets};
  link_ = Link::kRestoring;
  deadline_ns_ = clock_.NowNs() + options_.attach_timeout_ns;
  RestoreAll();
  MaybeUp();
}

void Client::OnError(const control::ErrorReply& message) {
  const uint32_t request = message.header.request;
  const int32_t error = message.error > 0 ? message.error : EPROTO;
  std::string text = Text(message.text);
  if (link_ == Link::kAttaching && request == attach_request_) {
    if (error == EPROTONOSUPPORT) {
      text += " (this library speaks protocol " +
              Versions(control::kVersionMin, control::kVersionMax) + ", the daemon " +
              Versions(message.version_min, message.version_max) + ": update the older of the two)";
    }
    if (!attached_once_) return FirstAttachFailed(error, text);
    return Down("the daemon refused the attachment: " + text);
  }
  if (request == 0) {
    last_words_ = Refusal{error, text};
    return;
  }
  for (auto& channel : channels_) {
    if (channel != nullptr && channel->close_request == request) {
      for (auto& port : channel->remains) port->Abandon();
      channel.reset();  // The daemon does not know it: nothing to wait for.
      return;
    }
  }
  if (requests_.contains(request)) return Complete(request, error, text);
  if (restoring_.contains(request)) return OnRestored(request, error, text);
  // What is left are connects; each channel knows its own.
  for (auto& channel : channels_) {
    if (channel == nullptr || channel->state != Channel::State::kOpen) continue;
    Notice notice;
    notice.kind = Notice::Kind::kConnectFailed;
    notice.request = request;
    notice.error = error;
    notice.text = text;
    channel->mailbox->Post(std::move(notice));
  }
}

void Client::Complete(uint32_t request, int32_t error, const std::string& text) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return;  // Whoever asked has given up.
  found->second = {true, error, text};
  changed_.notify_all();
}

void Client::OnChannelOpened(const control::ChannelOpened& message) {
  Channel* channel = Find(message.channel);
  if (channel == nullptr) return Down("the daemon opened a channel that nobody asked for");
  if (requests_.contains(message.header.request)) {
    channel->state = Channel::State::kOpen;
    channel->restored = true;
    return Complete(message.header.request, 0, "");
  }
  OnRestored(message.header.request, 0, "");
}

void Client::OnChannelClosed(const control::ChannelClosed& message) {
  Channel* channel = Find(message.channel);
  if (channel == nullptr || channel->state != Channel::State::kClosing) {
    return Down("the daemon closed a channel that is not closing");
  }
  for (auto& port : channel->remains) port->Abandon();
  channels_[message.channel].reset();
}

void Client::OnRegion(const control::Region& message, std::vector<Fd>& descriptors) {
  const Result<> mapped = MapRegion(message, descriptors);
  if (!mapped && mapped.error().code == ErrorCode::kProtocol) return Down(mapped.error().message);
  control::Mapped answer{};
  answer.region = message.region;
  answer.error = mapped ? 0 : ToErrno(mapped.error().code);
  Queue(answer, control::Type::kMapped, message.header.request);
}

Result<> Client::MapRegion(const control::Region& message, std::vector<Fd>& descriptors) {
  const bool is_rings = message.kind == control::RegionKind::kRingPair;
  if (!is_rings && message.kind != control::RegionKind::kExtent) {
    return Fail(ErrorCode::kProtocol, "the daemon sent memory of an unknown kind");
  }
  if (descriptors.size() != (is_rings ? 2u : 1u)) {
    return Fail(ErrorCode::kProtocol, "the daemon sent memory with " +
                                          std::to_string(descriptors.size()) + " descriptors");
  }
  if (Result<> fits = CheckSize(descriptors[0].get(), message.bytes); !fits) return fits;
  if (is_rings) return MapRings(message, descriptors);
  return pool_->MapExtent(message.region, descriptors[0].get(), message.pool_offset, message.bytes);
}

Result<> Client::MapRings(const control::Region& message, std::vector<Fd>& descriptors) {
  Channel* channel = Find(message.channel);
  if (channel == nullptr || message.io_thread >= limits_.io_threads ||
      (channel->rings >> message.io_thread & 1) != 0 || ring_regions_.contains(message.region)) {
    return Fail(ErrorCode::kProtocol, "the daemon sent a ring pair for channel " +
                                          std::to_string(message.channel) + " and I/O thread " +
                                          std::to_string(message.io_thread) + ", which cannot be");
  }
  if (channel->state == Channel::State::kClosing) {
    return Fail(ErrorCode::kClosed, "the channel is closing");
  }
  auto port = RingPort::Map(descriptors[0].get(), std::move(descriptors[1]), message.bytes,
                            message.capacity, message.io_thread, pool_);
  if (!port) return std::unexpected(port.error());
  channel->rings |= uint64_t{1} << message.io_thread;
  ring_regions_.insert(message.region);
  Notice notice;
  notice.kind = Notice::Kind::kRing;
  notice.port = std::move(*port);
  if (link_ == Link::kUp && !channel->away) {
    channel->mailbox->Post(std::move(notice));
  } else {
    channel->deferred.push_back(std::move(notice));
  }
  return {};
}

void Client::OnBlocks(const control::Blocks& message) {
  if (Result<> added = pool_->AddSendBlocks(message.pool_offset, message.bytes); !added) {
    return Down(added.error().message);
  }
  Complete(message.header.request, 0, "");
}

void Client::OnUnmap(const control::Unmap& message) {
  if (ring_regions_.erase(message.region) == 0) {
    if (Result<> unmapped = pool_->UnmapExtent(message.region); !unmapped) {
      return Down(unmapped.error().message);
    }
  }
  control::Unmapped answer{};
  answer.region = message.region;
  Queue(answer, control::Type::kUnmapped, message.header.request);
}

void Client::OnListening(const control::Listening& message) {
  if (requests_.contains(message.header.request)) return Complete(message.header.request, 0, "");
  OnRestored(message.header.request, 0, "");
}

void Client::OnConnectFailed(const control::ConnectFailed& message) {
  Channel* channel = Find(message.channel);
  if (channel == nullptr || channel->state != Channel::State::kOpen) return;  // Closed since.
  Notice notice;
  notice.kind = Notice::Kind::kConnectFailed;
  notice.token = message.token;
  notice.error = message.error > 0 ? message.error : EPROTO;
  notice.text = Text(message.text);
  channel->mailbox->Post(std::move(notice));
}

}  // namespace sluice::client
