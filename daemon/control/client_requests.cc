// SPDX-License-Identifier: Apache-2.0
// The requests of a client: what comes on its control connection, checked and answered.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/control/client_session.h"
#include "daemon/control/host_address.h"
#include "daemon/control/log.h"
#include "daemon/control/packet.h"

namespace sluice::control {
namespace {

constexpr uint32_t kMaxService = 65'535;

bool SpeaksOurVersion(const Attach& message) {
  return message.version_min <= kVersionMax && message.version_max >= kVersionMin;
}

std::string Range(uint32_t low, uint32_t high) {
  return std::to_string(low) + " to " + std::to_string(high);
}

}  // namespace

// --- packets ---

void ClientSession::Reject(uint32_t request, int error, const std::string& text) {
  ++services_.counters.rejected_requests;
  if (++rejected_requests_ > kMaxRejectedRequests) {
    return Detach(EPROTO, "it made " + std::to_string(rejected_requests_) +
                              " bad requests; the last: " + text);
  }
  SendError(request, error, text);
}

void ClientSession::Answer(uint32_t request, const Result<>& result) {
  if (!result) Reject(request, ToErrno(result.error().code), result.error().message);
}

// A packet that is no message leaves no doubt that the other end speaks something else: it is told,
// and the connection ends. One whose header is sound can be answered and passed over, because
// packets keep their boundaries.
bool ClientSession::CheckPacket(const Packet& packet) {
  Header header{};
  std::memcpy(&header, packet.bytes.data(), std::min(packet.size, sizeof(header)));
  std::string fault;
  if (packet.truncated) {
    fault = "a message longer than " + std::to_string(kMaxMessageBytes) + " bytes";
  } else if (packet.size < sizeof(header)) {
    fault = "a message of " + std::to_string(packet.size) + " bytes, shorter than its header";
  } else if (header.magic != kMagic) {
    fault = "not a message of Sluice's control protocol";
  } else if (header.bytes != packet.size) {
    fault = "a message of " + std::to_string(packet.size) + " bytes that claims " +
            std::to_string(header.bytes);
  }
  if (!fault.empty()) {
    ++services_.counters.rejected_requests;
    ++rejected_requests_;
    if (state_ == State::kAttached) SendError(0, EPROTO, fault);
    Detach(EPROTO, fault);  // Before kAttach that is an error reply itself.
    return false;
  }
  if (packet.fds_truncated || !packet.fds.empty()) {
    Reject(header.request, EPROTO,
           "a message with descriptors; no request carries any, they were closed");
    return false;
  }
  return true;
}

void ClientSession::OnPacket(Packet& packet) {
  if (!CheckPacket(packet)) return;
  Dispatch(packet);
}

template <typename T>
void ClientSession::Handle(const Packet& packet, void (ClientSession::*handler)(const T&)) {
  T message;
  if (packet.size != sizeof(message)) {
    Header header;
    std::memcpy(&header, packet.bytes.data(), sizeof(header));
    return Reject(header.request, EPROTO,
                  "a request of type " + std::to_string(static_cast<uint16_t>(header.type)) +
                      " with " + std::to_string(packet.size) + " bytes; it has " +
                      std::to_string(sizeof(message)));
  }
  std::memcpy(&message, packet.bytes.data(), sizeof(message));
  (this->*handler)(message);
}

void ClientSession::Dispatch(const Packet& packet) {
  Header header;
  std::memcpy(&header, packet.bytes.data(), sizeof(header));
  if ((header.type == Type::kAttach) != (state_ == State::kGreeting)) {
    const std::string fault = state_ == State::kGreeting ? "a request before kAttach"
                                                         : "a second kAttach";
    Reject(header.request, EPROTO, fault);
    if (state_ == State::kGreeting) Leave();
    return;
  }
  switch (header.type) {
    case Type::kAttach: return HandleAttach(packet);
    case Type::kOpenChannel: return Handle(packet, &ClientSession::OnOpenChannel);
    case Type::kCloseChannel: return Handle(packet, &ClientSession::OnCloseChannel);
    case Type::kMapped: return Handle(packet, &ClientSession::OnMapped);
    case Type::kGrow: return Handle(packet, &ClientSession::OnGrow);
    case Type::kShrink: return Handle(packet, &ClientSession::OnShrink);
    case Type::kUnmapped: return Handle(packet, &ClientSession::OnUnmapped);
    case Type::kListen: return Handle(packet, &ClientSession::OnListen);
    case Type::kUnlisten: return Handle(packet, &ClientSession::OnUnlisten);
    case Type::kConnect: return Handle(packet, &ClientSession::OnConnect);
    default: break;
  }
  Reject(header.request, EOPNOTSUPP,
         "a request of unknown type " + std::to_string(static_cast<uint16_t>(header.type)));
}

// --- attach ---

// Another version's kAttach may have another size, but begins with the header and the two versions,
// for ever.
void ClientSession::HandleAttach(const Packet& packet) {
  Attach begin{};
  std::memcpy(&begin, packet.bytes.data(), std::min(packet.size, sizeof(begin)));
  const bool has_versions = packet.size >=
                            offsetof(Attach, version_max) + sizeof(begin.version_max);
  if (has_versions && packet.size != sizeof(begin) && !SpeaksOurVersion(begin))
    return OnAttach(begin);
  Handle(packet, &ClientSession::OnAttach);
}

void ClientSession::OnAttach(const Attach& message) {
  if (Result<> admitted = Admit(message); !admitted) {
    ++services_.counters.attach_refused;
    LogWarning("client refused",
               {{"uid", who_.uid}, {"pid", who_.pid}, {"reason", admitted.error().message}});
    SendError(message.header.request, ToErrno(admitted.error().code), admitted.error().message);
    return Leave();
  }
  services_.loop.Cancel(std::exchange(attach_timer_, 0));
  state_ = State::kAttached;
  attached_at_ns_ = services_.loop.now_ns();
  ++services_.counters.attached;
  LogInfo("client attached", {{"client", id_},
                              {"name", name_},
                              {"tenant", tenant_->rule.name},
                              {"uid", who_.uid},
                              {"pid", who_.pid}});
  auto reply = MakeMessage<Attached>(Type::kAttached, message.header.request);
  reply.version = std::min(message.version_max, kVersionMax);
  reply.io_threads = static_cast<uint16_t>(services_.io.size());
  reply.client = id_;
  reply.instance = services_.options.instance;
  reply.pool_reserve_bytes = memory_->pool().reserve_bytes();
  // Several of the longest fit a pool at once, or none could be sent while another one arrives.
  max_message_bytes_ = std::min(services_.options.max_message_bytes, reply.pool_reserve_bytes / 4);
  reply.max_message_bytes = max_message_bytes_;
  reply.max_channels = tenant_->rule.max_channels;
  reply.max_sockets = tenant_->rule.max_sockets;
  connection_.Send(reply);
}

Result<> ClientSession::Admit(const Attach& message) {
  if (!SpeaksOurVersion(message)) {
    return Fail(ErrorCode::kVersion, "the client speaks control protocol " +
                                         Range(message.version_min, message.version_max) +
                                         ", this daemon " + Range(kVersionMin, kVersionMax) +
                                         "; upgrade the older one");
  }
  std::string_view name;
  if (!ReadText(message.name, name))
    return Fail(ErrorCode::kInvalid, "the client's name is not zero-terminated");
  if (Result<> admitted = services_.tenants.Admit(*tenant_, services_.loop.now_ns()); !admitted)
    return admitted;
  admitted_ = true;
  auto pool = memory::ClientPool::Create(tenant_->rule.pool_quota_bytes,
                                         services_.options.extent_bytes);
  if (!pool) return std::unexpected(pool.error());
  if (Result<> watched = WatchProcess(); !watched) return watched;
  for (const char c : name)
    name_ += (c >= ' ' && c != 0x7f) ? c : '?';  // It is shown on terminals.
  memory_ = std::make_unique<ClientMemory>(*this, std::move(*pool));
  return {};
}

Result<> ClientSession::WatchProcess() {
  if (who_.pid <= 0) return {};  // In a namespace we cannot see into: the connection alone tells.
  process_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, who_.pid, 0)));
  if (!process_.valid()) {
    // It has ended already, or the process that connected has handed the connection on and ended.
    if (errno == ESRCH)
      return Fail(ErrorCode::kUnavailable, "the process that connected has ended");
    return FailErrno("watching the client's process");
  }
  return services_.loop.Add(process_.get(), EPOLLIN, [this](uint32_t) { Leave(); });
}

// --- channels and memory ---

void ClientSession::OnOpenChannel(const OpenChannel& message) {
  if (Result<> opened = ports_.Open(message.channel, message.ring_capacity); !opened) {
    return Answer(message.header.request, opened);
  }
  auto reply = MakeMessage<ChannelOpened>(Type::kChannelOpened, message.header.request);
  reply.channel = message.channel;
  connection_.Send(reply);
}

void ClientSession::OnCloseChannel(const CloseChannel& message) {
  if (ports_.IsOpen(message.channel)) {
    std::erase_if(listeners_, [&](const auto& entry) {
      if (entry.second.channel != message.channel) return false;
      services_.services.Remove(entry.second.service, id_, entry.first);
      return true;
    });
  }
  Answer(message.header.request, ports_.Close(message.header.request, message.channel));
}

void ClientSession::OnMapped(const Mapped& message) {
  if (memory_->OnMapped(message.region, message.error) ||
      ports_.OnMapped(message.region, message.error))
    return;
  // A region that was dropped while the client mapped it, as when a channel was closed at once:
  // nothing is wrong.
  if (message.region != 0 && message.region < next_region_) return;
  Reject(message.header.request, ENOENT,
         "there has never been a region " + std::to_string(message.region));
}

void ClientSession::OnGrow(const Grow& message) {
  memory_->OnGrow(message.header.request, message.bytes);
}

void ClientSession::OnShrink(const Shrink& message) {
  Answer(message.header.request, memory_->OnShrink(message.pool_offset, message.bytes));
}

void ClientSession::OnUnmapped(const Unmapped& message) {
  Answer(message.header.request, memory_->OnUnmapped(message.region));
}

// --- sockets ---

void ClientSession::OnListen(const Listen& message) {
  const uint32_t request = message.header.request;
  const std::string service = "service " + std::to_string(message.service);
  if (message.service == 0 || message.service > kMaxService)
    return Reject(request, EINVAL, service + "; 1 to 65535");
  if (!ports_.IsOpen(message.channel))
    return Reject(request, ENOENT, "listening on a channel that is not open");
  if (listeners_.contains(message.token))
    return Reject(request, EEXIST, "a listener's token is in use");
  if (listeners_.size() >= kMaxListeners) {
    return Reject(request, ENOMEM,
                  "a client has at most " + std::to_string(kMaxListeners) + " listeners");
  }
  // No fault of the client's: its library asks again every second until it may.
  if (!tenant_->rule.MayListen(message.service)) {
    return SendError(request, EACCES,
                     "tenant " + tenant_->rule.name + " may not listen on " + service);
  }
  if (!services_.services.Add(message.service, {id_, message.channel, message.token})) {
    return SendError(request, EADDRINUSE, service + " is another client's");
  }
  listeners_[message.token] = message;
  auto reply = MakeMessage<Listening>(Type::kListening, request);
  reply.token = message.token;
  connection_.Send(reply);
}

void ClientSession::OnUnlisten(const Unlisten& message) {
  const auto listener = listeners_.find(message.token);
  if (listener == listeners_.end())
    return Reject(message.header.request, ENOENT, "no listener has this token");
  services_.services.Remove(listener->second.service, id_, message.token);
  listeners_.erase(listener);
}

void ClientSession::OnConnect(const Connect& message) {
  std::string_view host;
  const bool text = ReadText(message.host, host);
  if (!text || message.service == 0 || message.service > kMaxService) {
    ++services_.counters.rejected_requests;
    ++rejected_requests_;
    return FailConnect(
        message, EINVAL,
        text ? "a service is a number from 1 to 65535" : "the host is not zero-terminated");
  }
  const Result<HostAddress> address = ParseHostAddress(host);
  if (!address) return FailConnect(message, EINVAL, address.error().message);
  if (!ports_.IsOpen(message.channel))
    return FailConnect(message, ENOENT, "connecting on a channel that is not open");
  if (!HasRoomForSocket()) {
    return FailConnect(message, ENOMEM,
                       "the client has all of its " + std::to_string(tenant_->rule.max_sockets) +
                           " sockets; close some, or raise the tenant's max_sockets");
  }
  ++sockets_;
  services_.peers.Resolve(
      address->host, address->port,
      [this, message, alive = std::weak_ptr<void>(alive_)](Result<PeerRef> peer) {
        if (!alive.expired() && state_ == State::kAttached) OnResolved(message, std::move(peer));
      });
}

void ClientSession::OnResolved(const Connect& message, Result<PeerRef> peer) {
  const auto fail = [this, message](const Error& error) {
    --sockets_;
    FailConnect(message, ToErrno(error.code), error.message);
  };
  if (!peer) return fail(peer.error());
  ports_.Ensure(
      message.channel, peer->io_thread, [this, message, fail, peer = *peer](Result<> ready) {
        if (!ready) return fail(ready.error());
        Tell(peer.io_thread, io::OpenSocket{id_, message.channel, message.token, peer.peer,
                                            static_cast<uint16_t>(message.service)});
      });
}

void ClientSession::FailConnect(const Connect& message, int error, const std::string& text) {
  auto reply = MakeMessage<ConnectFailed>(Type::kConnectFailed, message.header.request);
  reply.token = message.token;
  reply.channel = message.channel;
  reply.error = error;
  CopyText(reply.text, text);
  connection_.Send(reply);
}

}  // namespace sluice::control
