// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/client_ports.h"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string>
#include <utility>

#include "daemon/control/packet.h"
#include "shm_proto/base/check.h"

namespace sluice::control {
namespace {

constexpr uint64_t kPageBytes = 4 * kKiB;

uint64_t RingPairBytes(uint32_t capacity) { return RoundUp(2 * RingBytes(capacity), kPageBytes); }

RingMemory Submissions(std::byte* base, uint32_t capacity) { return {base, capacity}; }
RingMemory Completions(std::byte* base, uint32_t capacity) {
  return {base + RingBytes(capacity), capacity};
}

std::string Name(uint32_t channel) { return "channel " + std::to_string(channel); }

}  // namespace

ClientPorts::~ClientPorts() { Abandon(); }

void ClientPorts::Abandon() {
  abandoned_ = true;
  host_.services().loop.Cancel(std::exchange(deadline_timer_, 0));
  for (auto& [number, channel] : channels_) {
    for (auto& [io_thread, port] : channel.ports) {
      for (Waiter& waiter : std::exchange(port.waiters, {})) {
        waiter.ready(Fail(ErrorCode::kClosed, "the client is gone"));
      }
    }
  }
}

std::vector<memory::SharedMemory> ClientPorts::TakeMemory() {
  std::vector<memory::SharedMemory> memories;
  for (auto& [number, channel] : channels_) {
    for (auto& [io_thread, port] : channel.ports) {
      if (port.memory.valid()) memories.push_back(std::move(port.memory));
    }
  }
  channels_.clear();
  return memories;
}

size_t ClientPorts::port_count() const {
  size_t count = 0;
  for (const auto& [number, channel] : channels_) count += channel.ports.size();
  return count;
}

// --- channels ---

Result<> ClientPorts::Open(uint32_t channel, uint32_t ring_capacity) {
  const uint32_t max_channels = host_.tenant().rule.max_channels;
  if (channel >= max_channels) {
    return Fail(ErrorCode::kNoMemory, Name(channel) +
                                          ": this tenant's clients have channels 0 to " +
                                          std::to_string(max_channels - 1));
  }
  if (!std::has_single_bit(ring_capacity) || ring_capacity < kMinRingCapacity ||
      ring_capacity > kMaxRingCapacity) {
    return Fail(ErrorCode::kInvalid, "a ring of " + std::to_string(ring_capacity) +
                                         " entries; it must be a power of two from 16 to 65536");
  }
  if (channels_.contains(channel)) {
    return Fail(ErrorCode::kExists, Name(channel) + " is open, or not closed completely yet");
  }
  channels_[channel].capacity = ring_capacity;
  return {};
}

bool ClientPorts::IsOpen(uint32_t channel) const {
  const auto found = channels_.find(channel);
  return found != channels_.end() && !found->second.closing;
}

Result<> ClientPorts::Close(uint32_t request, uint32_t channel) {
  if (!IsOpen(channel)) return Fail(ErrorCode::kNotFound, Name(channel) + " is not open");
  Channel& closing = channels_.at(channel);
  closing.closing = true;
  closing.close_request = request;
  for (auto it = closing.ports.begin(); it != closing.ports.end();) {
    const uint32_t io_thread = it->first;
    Port& port = (it++)->second;
    if (port.state == PortState::kReady) {
      port.state = PortState::kRemoving;
      host_.Tell(io_thread, io::RemovePort{host_.id(), channel});
    } else {
      Drop(channel, io_thread, {ErrorCode::kClosed, Name(channel) + " was closed"});
    }
  }
  FinishClose(channel);
  return {};
}

void ClientPorts::FinishClose(uint32_t channel) {
  const auto found = channels_.find(channel);
  if (found == channels_.end() || !found->second.closing || !found->second.ports.empty()) return;
  auto reply = MakeMessage<ChannelClosed>(Type::kChannelClosed, found->second.close_request);
  reply.channel = channel;
  channels_.erase(found);
  host_.connection().Send(reply);
}

void ClientPorts::OnPortRemoved(const io::PortRemoved& removed) {
  if (abandoned_) return;
  Port* port = FindPort(removed.channel, removed.io_thread);
  SLUICE_CHECK(port != nullptr && port->state == PortState::kRemoving,
               "a port is removed once, when told to");
  Retire(std::move(port->memory));
  channels_.at(removed.channel).ports.erase(removed.io_thread);
  FinishClose(removed.channel);
}

// --- ring pairs ---

ClientPorts::Port* ClientPorts::FindPort(uint32_t channel, uint32_t io_thread) {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return nullptr;
  const auto port = found->second.ports.find(io_thread);
  return port == found->second.ports.end() ? nullptr : &port->second;
}

void ClientPorts::Ensure(uint32_t channel, uint32_t io_thread, ReadyCallback ready) {
  if (abandoned_ || !IsOpen(channel))
    return ready(Fail(ErrorCode::kNotFound, Name(channel) + " is not open"));
  Channel& open = channels_.at(channel);
  if (Port* port = FindPort(channel, io_thread);
      port != nullptr && port->state == PortState::kReady)
    return ready({});

  const bool is_new = !open.ports.contains(io_thread);
  const uint64_t bytes = RingPairBytes(open.capacity);
  const uint64_t quota_bytes = host_.tenant().rule.ring_quota_bytes;
  if (is_new && !InRange(ring_bytes_, bytes, quota_bytes)) {
    return ready(Fail(ErrorCode::kNoMemory,
                      "the rings of this client hold " + std::to_string(ring_bytes_) + " of " +
                          std::to_string(quota_bytes) + " bytes; use fewer or smaller channels"));
  }
  Port& port = open.ports[io_thread];
  const uint64_t deadline_ns = host_.services().loop.now_ns() +
                               host_.services().options.mapping_deadline_ns;
  port.waiters.push_back({deadline_ns, std::move(ready)});
  ArmDeadline(deadline_ns);
  if (is_new) Make(channel, io_thread, port, open.capacity);
}

void ClientPorts::Make(uint32_t channel, uint32_t io_thread, Port& port, uint32_t capacity) {
  port.region = host_.NextRegion();
  const uint64_t bytes = RingPairBytes(capacity);
  ring_bytes_ += bytes;
  host_.MakeMemory(
      "sluice-ring", bytes, nullptr,
      [this, channel, io_thread, region = port.region, bytes](Result<memory::SharedMemory> memory) {
        if (!memory) ring_bytes_ -= bytes;
        OnMade(channel, io_thread, region, std::move(memory));
      });
}

void ClientPorts::OnMade(uint32_t channel, uint32_t io_thread, uint32_t region,
                         Result<memory::SharedMemory> memory) {
  Port* port = FindPort(channel, io_thread);
  // Meanwhile the channel may have been closed, and its number used again.
  if (abandoned_ || port == nullptr || port->region != region) {
    if (memory) Retire(std::move(*memory));
    return;
  }
  if (!memory) return Drop(channel, io_thread, memory.error());
  port->memory = std::move(*memory);
  if (Result<> offered = Offer(channel, io_thread, *port, channels_.at(channel).capacity);
      !offered) {
    Drop(channel, io_thread, offered.error());
  }
}

Result<> ClientPorts::Offer(uint32_t channel, uint32_t io_thread, Port& port, uint32_t capacity) {
  // Datagrams: closing or shutting down one end never makes the other one "readable for ever".
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) != 0)
    return FailErrno("making a doorbell");
  port.doorbell = Fd(ends[0]);
  std::vector<Fd> fds;
  fds.push_back(port.memory.TakeClientFd());
  fds.emplace_back(ends[1]);

  InitializeRing(Submissions(port.memory.base(), capacity), host_.services().options.ring_start);
  InitializeRing(Completions(port.memory.base(), capacity), host_.services().options.ring_start);
  auto message = MakeMessage<Region>(Type::kRegion, 0);
  message.region = port.region;
  message.kind = RegionKind::kRingPair;
  message.bytes = port.memory.bytes();
  message.channel = channel;
  message.io_thread = io_thread;
  message.capacity = capacity;
  host_.connection().Send(message, std::move(fds));
  port.state = PortState::kOffered;
  return {};
}

bool ClientPorts::OnMapped(uint32_t region, int error) {
  for (auto& [number, channel] : channels_) {
    for (auto& [io_thread, port] : channel.ports) {
      if (port.region != region) continue;
      if (port.state != PortState::kOffered) {
        host_.Detach(EPROTO, "it confirmed a ring pair twice, or one it was not offered");
      } else if (error != 0) {
        Drop(number, io_thread, {ErrorCode::kNoMemory, "the client could not map its rings"});
      } else if (Result<> sealed = port.memory.Seal(); !sealed) {
        host_.Detach(ToErrno(sealed.error().code), sealed.error().message);
      } else {
        port.state = PortState::kReady;
        host_.Tell(io_thread, io::AddPort{host_.id(), number,
                                          Submissions(port.memory.base(), channel.capacity),
                                          Completions(port.memory.base(), channel.capacity),
                                          std::move(port.doorbell)});
        for (Waiter& waiter : std::exchange(port.waiters, {})) waiter.ready({});
      }
      return true;
    }
  }
  return false;
}

// Forgets a port that never became ready.
void ClientPorts::Drop(uint32_t channel, uint32_t io_thread, const Error& error) {
  Port* port = FindPort(channel, io_thread);
  SLUICE_CHECK(port != nullptr && port->state != PortState::kReady,
               "a ready port is removed by its thread first");
  std::vector<Waiter> waiters = std::move(port->waiters);
  if (port->memory.valid()) Retire(std::move(port->memory));
  channels_.at(channel).ports.erase(io_thread);
  for (Waiter& waiter : waiters) waiter.ready(std::unexpected(error));
}

void ClientPorts::Retire(memory::SharedMemory memory) {
  const uint64_t bytes = memory.bytes();
  host_.RetireMemory(std::move(memory), [this, bytes] { ring_bytes_ -= bytes; });
}

// --- deadlines ---

void ClientPorts::ArmDeadline(uint64_t deadline_ns) {
  if (deadline_timer_ != 0) return;
  deadline_timer_ = host_.services().loop.At(deadline_ns, [this] { OnDeadline(); });
}

// The ring pair stays offered: a client that was only stopped for a while goes on where it was.
void ClientPorts::OnDeadline() {
  deadline_timer_ = 0;
  const uint64_t now_ns = host_.services().loop.now_ns();
  uint64_t next_ns = UINT64_MAX;
  std::vector<Waiter> late;
  for (auto& [number, channel] : channels_) {
    for (auto& [io_thread, port] : channel.ports) {
      const auto first_late = std::stable_partition(
          port.waiters.begin(), port.waiters.end(),
          [&](const Waiter& waiter) { return waiter.deadline_ns > now_ns; });
      std::move(first_late, port.waiters.end(), std::back_inserter(late));
      port.waiters.erase(first_late, port.waiters.end());
      for (const Waiter& waiter : port.waiters) next_ns = std::min(next_ns, waiter.deadline_ns);
    }
  }
  if (next_ns != UINT64_MAX) ArmDeadline(next_ns);
  for (Waiter& waiter : late) {
    waiter.ready(Fail(ErrorCode::kTimeout, "the client has not mapped its rings in time"));
  }
}

}  // namespace sluice::control
