// SPDX-License-Identifier: Apache-2.0
#include "fake_sluice.h"

#include <sluice/sluice.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>

struct sluice_client {
  int unused;
};

struct sluice_channel {
  std::deque<sluice_event> events;
};

namespace {

struct Socket {
  sluice_channel* channel;
  sluice_socket peer;
  uint64_t user_data;
  size_t in_transit;
  uint16_t service = 0;
};

struct Message {
  sluice_socket from;
  void* data;  // The buffer; the message begins `offset` bytes into it.
  size_t offset;
  size_t bytes;
  uint64_t user_data;
  uint32_t flags;
  uint64_t trace_id;
};

struct World {
  std::map<sluice_socket, Socket> sockets;
  std::map<uint16_t, std::pair<sluice_channel*, uint64_t>> listeners;
  std::deque<Message> transit;
  std::set<sluice_channel*> channels;
  std::set<uint16_t> degraded;      // Services.
  std::map<void*, size_t> buffers;  // And their length.
  sluice_socket next_socket = 1;
  size_t bad_frees = 0;
  size_t transit_limit = 64;
  bool daemon_up = true;
  bool duplicate_next = false;
  bool lose_next = false;
  bool flip_next = false;
  bool fail_next = false;
  bool hold_connects = false;
};

World world;

void* NewBuffer(size_t bytes) {
  void* buffer = std::malloc(bytes == 0 ? 1 : bytes);
  world.buffers[buffer] = bytes;
  return buffer;
}

// The buffer in which `data` lies, or nullptr.
void* BufferOf(const void* data) {
  auto after = world.buffers.upper_bound(const_cast<void*>(data));
  if (after == world.buffers.begin()) return nullptr;
  const auto& [buffer, bytes] = *--after;
  return static_cast<const char*>(data) <= static_cast<char*>(buffer) + bytes ? buffer : nullptr;
}

void Post(sluice_channel* channel, uint32_t type, sluice_socket socket, uint64_t user_data,
          uint32_t outcome = SLUICE_OK, int error = 0) {
  sluice_event event{};
  event.type = type;
  event.outcome = outcome;
  event.error = error;
  event.socket = socket;
  event.user_data = user_data;
  const auto of = world.sockets.find(socket);
  const bool degraded = of != world.sockets.end() && world.degraded.contains(of->second.service);
  event.flags = degraded ? SLUICE_EVENT_DEGRADED_TCP : 0;
  channel->events.push_back(event);
}

void Arrive(const Message& message) {
  const auto from = world.sockets.find(message.from);
  const auto to = world.sockets.find(from->second.peer);
  if (to == world.sockets.end()) {
    return;
  }
  Post(to->second.channel, SLUICE_EVENT_MESSAGE, to->first, to->second.user_data);
  sluice_event& event = to->second.channel->events.back();
  event.data = NewBuffer(message.bytes);
  event.length = message.bytes;
  event.trace_id = message.trace_id;
  std::memcpy(event.data, static_cast<char*>(message.data) + message.offset, message.bytes);
  if (std::exchange(world.flip_next, false)) {
    static_cast<unsigned char*>(event.data)[message.bytes - 1] ^= 1;
  }
}

void End(const Message& message, uint32_t outcome, int error) {
  const auto from = world.sockets.find(message.from);
  --from->second.in_transit;
  if (outcome != SLUICE_OK || (message.flags & SLUICE_SEND_SILENT) == 0) {
    Post(from->second.channel, SLUICE_EVENT_SENT, message.from, message.user_data, outcome, error);
  }
  if ((message.flags & SLUICE_SEND_KEEP) != 0) {
    from->second.channel->events.back().data = message.data;
    return;
  }
  world.buffers.erase(message.data);
  std::free(message.data);
}

// What this socket's owner has sent and the other end has not got, never arrives.
void EndTransit(sluice_socket socket) {
  std::deque<Message> kept;
  for (const Message& message : world.transit) {
    if (message.from == socket) {
      End(message, SLUICE_UNKNOWN, ECONNRESET);
    } else {
      kept.push_back(message);
    }
  }
  world.transit = kept;
}

void CloseSocket(sluice_socket socket, int error) {
  const auto found = world.sockets.find(socket);
  if (found == world.sockets.end()) {
    return;
  }
  Post(found->second.channel, SLUICE_EVENT_CLOSED, socket, found->second.user_data, SLUICE_OK,
       error);
  world.sockets.erase(found);
}

}  // namespace

namespace fake_sluice {

void Reset() { world = World(); }

void Deliver(size_t messages) {
  for (; messages > 0 && !world.transit.empty(); --messages) {
    const Message message = world.transit.front();
    world.transit.pop_front();
    if (std::exchange(world.fail_next, false)) {
      End(message, SLUICE_FAILED, EHOSTUNREACH);
      continue;
    }
    if (!std::exchange(world.lose_next, false)) {
      Arrive(message);
    }
    if (std::exchange(world.duplicate_next, false)) {
      Arrive(message);
    }
    End(message, SLUICE_OK, 0);
  }
}

size_t InTransit() { return world.transit.size(); }

void BreakPaths(uint64_t random) {
  // What arrives of one socket is a prefix of what was sent, as on any ordered path.
  std::set<sluice_socket> cut;
  for (const Message& message : world.transit) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    if (random >> 63 != 0) {
      cut.insert(message.from);
    }
    if (!cut.contains(message.from)) {
      Arrive(message);
    }
    End(message, SLUICE_UNKNOWN, ECONNRESET);
  }
  world.transit.clear();
  while (!world.sockets.empty()) {
    CloseSocket(world.sockets.begin()->first, ECONNRESET);
  }
}

void StopDaemon(uint64_t random) {
  BreakPaths(random);
  world.daemon_up = false;
  for (sluice_channel* channel : world.channels) {
    Post(channel, SLUICE_EVENT_DETACHED, 0, 0);
  }
}

void StartDaemon() {
  world.daemon_up = true;
  for (sluice_channel* channel : world.channels) {
    Post(channel, SLUICE_EVENT_REATTACHED, 0, 0);
  }
}

void LimitInTransit(size_t messages) { world.transit_limit = messages; }
void DuplicateNext() { world.duplicate_next = true; }
void LoseNext() { world.lose_next = true; }
void FlipBitInNext() { world.flip_next = true; }
void FailNext() { world.fail_next = true; }
void HoldConnects(bool hold) { world.hold_connects = hold; }
void Degrade(uint16_t service) { world.degraded.insert(service); }
void Mend(uint16_t service) { world.degraded.erase(service); }
size_t Buffers() { return world.buffers.size(); }
size_t BadFrees() { return world.bad_frees; }

}  // namespace fake_sluice

extern "C" {

int sluice_attach(const sluice_options*, sluice_client** client) {
  *client = new sluice_client{};
  return 0;
}

int sluice_detach(sluice_client* client) {
  delete client;
  return 0;
}

int sluice_channel_open(sluice_client*, uint32_t, sluice_channel** channel) {
  *channel = new sluice_channel();
  world.channels.insert(*channel);
  return 0;
}

int sluice_channel_close(sluice_channel* channel) {
  std::erase_if(world.transit, [&](const Message& message) {
    const bool mine = world.sockets.at(message.from).channel == channel;
    if (mine) {
      world.buffers.erase(message.data);
      std::free(message.data);
    }
    return mine;
  });
  std::set<sluice_socket> orphans;  // Whose other end was this channel's.
  std::erase_if(world.sockets, [&](const auto& socket) {
    if (socket.second.channel != channel) return false;
    orphans.insert(socket.second.peer);
    return true;
  });
  for (const sluice_socket orphan : orphans) EndTransit(orphan);
  for (const sluice_socket orphan : orphans) CloseSocket(orphan, ECONNRESET);
  std::erase_if(world.listeners,
                [&](const auto& listener) { return listener.second.first == channel; });
  for (const sluice_event& event : channel->events) {
    sluice_free(channel, event.data);  // Of a message, or of a send with KEEP.
  }
  world.channels.erase(channel);
  delete channel;
  return 0;
}

void* sluice_alloc(sluice_channel*, size_t length) {
  if (!world.daemon_up) {
    errno = ENOTCONN;
    return nullptr;
  }
  return NewBuffer(length);
}

int sluice_free(sluice_channel*, void* buffer) {
  if (buffer == nullptr) {
    return 0;
  }
  if (world.buffers.erase(buffer) == 0) {
    ++world.bad_frees;
    return -EINVAL;
  }
  std::free(buffer);
  return 0;
}

int sluice_listen(sluice_channel* channel, uint16_t service, uint64_t user_data,
                  sluice_listener* listener) {
  if (world.listeners.contains(service)) {
    return -EADDRINUSE;
  }
  world.listeners[service] = {channel, user_data};
  *listener = service;
  return 0;
}

int sluice_connect(sluice_channel* channel, const char* address, uint64_t user_data,
                   sluice_socket* socket) {
  if (!world.daemon_up) {
    return -ENOTCONN;
  }
  const std::string text = address;
  const auto service = static_cast<uint16_t>(std::atoi(text.substr(text.rfind(':') + 1).c_str()));
  const auto listener = world.listeners.find(service);
  *socket = world.next_socket++;
  if (world.hold_connects) {
    world.sockets[*socket] = {channel, 0, user_data, 0};
    return 0;
  }
  if (listener == world.listeners.end()) {
    Post(channel, SLUICE_EVENT_CONNECTED, *socket, user_data, SLUICE_FAILED, ECONNREFUSED);
    return 0;
  }
  const sluice_socket accepted = world.next_socket++;
  world.sockets[*socket] = {channel, accepted, user_data, 0, service};
  world.sockets[accepted] = {listener->second.first, *socket, 0, 0, service};
  Post(channel, SLUICE_EVENT_CONNECTED, *socket, user_data);
  Post(listener->second.first, SLUICE_EVENT_ACCEPTED, accepted, listener->second.second);
  listener->second.first->events.back().listener = service;
  return 0;
}

int sluice_close(sluice_channel*, sluice_socket socket) {
  const auto found = world.sockets.find(socket);
  if (found == world.sockets.end()) {
    return -ENOTCONN;
  }
  const sluice_socket peer = found->second.peer;
  EndTransit(socket);
  EndTransit(peer);
  CloseSocket(socket, 0);
  CloseSocket(peer, 0);
  return 0;
}

int sluice_unlisten(sluice_channel*, sluice_listener listener) {
  return world.listeners.erase(static_cast<uint16_t>(listener)) == 0 ? -EINVAL : 0;
}

int sluice_event_fd(sluice_channel*) { return -1; }
int sluice_arm(sluice_channel* channel) { return channel->events.empty() ? 0 : 1; }

int sluice_send(sluice_channel*, sluice_socket socket, void* data, size_t length, uint32_t flags,
                uint64_t user_data, uint64_t trace_id) {
  const auto found = world.sockets.find(socket);
  if (found == world.sockets.end()) {
    return -ENOTCONN;
  }
  void* buffer = BufferOf(data);
  if (buffer == nullptr) {
    return -EINVAL;
  }
  if (found->second.in_transit >= world.transit_limit) {
    return -EAGAIN;
  }
  ++found->second.in_transit;
  const auto offset = static_cast<size_t>(static_cast<char*>(data) - static_cast<char*>(buffer));
  world.transit.push_back({socket, buffer, offset, length, user_data, flags, trace_id});
  return 0;
}

int sluice_send_copy(sluice_channel* channel, sluice_socket socket, const void* data, size_t length,
                     uint32_t flags, uint64_t user_data, uint64_t trace_id) {
  void* buffer = NewBuffer(length);
  std::memcpy(buffer, data, length);
  const int result = sluice_send(channel, socket, buffer, length, flags, user_data, trace_id);
  if (result != 0) {
    sluice_free(channel, buffer);
  }
  return result;
}

int sluice_poll(sluice_channel* channel, sluice_event* events, int max) {
  int count = 0;
  for (; count < max && !channel->events.empty(); ++count) {
    events[count] = channel->events.front();
    channel->events.pop_front();
  }
  return count;
}

int sluice_wait(sluice_channel* channel, sluice_event* events, int max, int) {
  return sluice_poll(channel, events, max);  // Time does not pass in a test.
}

size_t sluice_max_message_bytes(const sluice_client*) { return size_t{64} << 20; }
const char* sluice_error_text(void) { return "made up by the test"; }

}  // extern "C"
