// SPDX-License-Identifier: Apache-2.0
// The C interface: checks what every call must check and hands on to Client and Channel.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <bit>
#include <new>

#include "libclient/include/sluice/sluice.h"
#include "libclient/src/channel.h"
#include "libclient/src/client.h"
#include "libclient/src/control_thread.h"
#include "libclient/src/error_text.h"

using sluice::client::Refuse;

struct sluice_client {
  sluice_client(sluice::client::Client::Options options, std::string path)
      : thread(std::move(path), clock), client(std::move(options), thread, clock, random) {}
  ~sluice_client() { thread.Stop(); }  // Before the client that it calls.

  const sluice::MonotonicClock clock;
  sluice::SystemRandom random;
  sluice::client::ControlThread thread;
  sluice::client::Client client;
};

struct sluice_channel {
  sluice_channel(sluice_client* owner, sluice::client::Client::OpenedChannel opened)
      : client(owner), channel(owner->client, std::move(opened)) {}

  sluice_client* const client;
  sluice::client::Channel channel;
};

namespace {

constexpr uint32_t kDefaultRingEntries = 1024;
constexpr uint32_t kMinRingEntries = 16;
constexpr uint32_t kMaxRingEntries = 65536;
constexpr char kDefaultSocketPath[] = "/run/sluice/sluiced.sock";

int Dead() {
  return Refuse(EOWNERDEAD, "this process was forked from the one that attached: attach again");
}
int Null() { return Refuse(EINVAL, "a null handle"); }

// What every call on a handle begins with. Memory that cannot be had ends as -ENOMEM, never as an
// exception.
template <typename Call>
int On(sluice_client* client, Call call) try {
  if (client == nullptr) return Null();
  if (client->client.guard().InChild()) return Dead();
  return call(client->client);
} catch (const std::bad_alloc&) {
  return Refuse(ENOMEM, "this process is out of memory");
}

template <typename Call>
int On(sluice_channel* channel, Call call) try {
  if (channel == nullptr) return Null();
  if (channel->client->client.guard().InChild()) return Dead();
  return call(channel->channel);
} catch (const std::bad_alloc&) {
  return Refuse(ENOMEM, "this process is out of memory");
}

std::string SocketPath(const sluice_options& options) {
  if (options.socket_path != nullptr) return options.socket_path;
  const char* path = secure_getenv("SLUICE_SOCKET");
  return path != nullptr && *path != '\0' ? path : kDefaultSocketPath;
}

int Attach(const sluice_options* given, sluice_client** result) {
  if (result == nullptr) return Null();
  sluice_options options{};
  if (given != nullptr) {
    if (given->size == 0 || given->size > sizeof(options)) {
      return Refuse(EINVAL,
                    "options.size must be sizeof(sluice_options) of this library or an older one");
    }
    memcpy(&options, given, given->size);
  }
  sluice::client::Client::Options own;
  own.name = options.name != nullptr ? options.name : program_invocation_short_name;
  if (options.attach_timeout_ms != 0) {
    own.attach_timeout_ns = uint64_t{options.attach_timeout_ms} * sluice::kNsPerMs;
  }
  auto client = std::make_unique<sluice_client>(std::move(own), SocketPath(options));
  if (const auto started = client->client.Start(); !started) {
    return sluice::client::Refuse(sluice::client::Deny(started.error()).error());
  }
  if (const auto started = client->thread.Start(client->client); !started) {
    return sluice::client::Refuse(sluice::client::Deny(started.error()).error());
  }
  if (const auto attached = client->client.AwaitAttached(); !attached)
    return Refuse(attached.error());
  *result = client.release();
  return 0;
}

int OpenChannel(sluice_client* owner, uint32_t ring_entries, sluice_channel** result) {
  const uint32_t entries = ring_entries == 0 ? kDefaultRingEntries : ring_entries;
  if (result == nullptr) return Null();
  if (!std::has_single_bit(entries) || entries < kMinRingEntries || entries > kMaxRingEntries) {
    return Refuse(EINVAL, "ring_entries must be a power of two from 16 to 65536, or 0");
  }
  auto opened = owner->client.OpenChannel(entries);
  if (!opened) return Refuse(opened.error());
  auto channel = std::make_unique<sluice_channel>(owner, std::move(*opened));
  if (const auto started = channel->channel.Start(); !started) {
    return sluice::client::Refuse(sluice::client::Deny(started.error()).error());
  }
  *result = channel.release();
  return 0;
}

}  // namespace

extern "C" {

int sluice_attach(const sluice_options* options, sluice_client** client) try {
  return Attach(options, client);
} catch (const std::bad_alloc&) {
  return Refuse(ENOMEM, "this process is out of memory");
}

int sluice_detach(sluice_client* client) {
  return On(client, [client](sluice::client::Client& inner) {
    if (inner.open_channels() > 0) return Refuse(EBUSY, "channels are open: close them first");
    delete client;
    return 0;
  });
}

int sluice_channel_open(sluice_client* client, uint32_t ring_entries, sluice_channel** channel) {
  return On(client,
            [&](sluice::client::Client&) { return OpenChannel(client, ring_entries, channel); });
}

int sluice_channel_close(sluice_channel* channel) {
  return On(channel, [channel](sluice::client::Channel&) {
    delete channel;
    return 0;
  });
}

void* sluice_alloc(sluice_channel* channel, size_t length) {
  void* buffer = nullptr;
  int error = 0;
  const int refused = On(channel, [&](sluice::client::Channel& inner) {
    buffer = inner.Allocate(length, &error);
    return error;
  });
  if (buffer == nullptr) errno = -refused;
  return buffer;
}

int sluice_free(sluice_channel* channel, void* buffer) {
  return On(channel, [buffer](sluice::client::Channel& inner) { return inner.Free(buffer); });
}

int sluice_client_free(sluice_client* client, void* buffer) {
  return On(client, [buffer](sluice::client::Client& inner) {
    if (buffer == nullptr) return 0;
    if (inner.slab().Contains(buffer)) {
      return inner.slab().Free(buffer, nullptr)
                 ? 0
                 : sluice::client::RefuseFree(sluice::client::Pool::Freed::kNotABuffer);
    }
    const auto freed = inner.Free(buffer);
    return freed == sluice::client::Pool::Freed::kDone ? 0 : sluice::client::RefuseFree(freed);
  });
}

int sluice_listen(sluice_channel* channel, uint16_t service, uint64_t user_data,
                  sluice_listener* listener) {
  return On(channel, [&](sluice::client::Channel& inner) {
    return inner.Listen(service, user_data, listener);
  });
}

int sluice_unlisten(sluice_channel* channel, sluice_listener listener) {
  return On(channel, [&](sluice::client::Channel& inner) { return inner.Unlisten(listener); });
}

int sluice_connect(sluice_channel* channel, const char* address, uint64_t user_data,
                   sluice_socket* socket) {
  return On(channel, [&](sluice::client::Channel& inner) {
    return inner.Connect(address, user_data, socket);
  });
}

int sluice_set_user_data(sluice_channel* channel, sluice_socket socket, uint64_t user_data) {
  return On(channel,
            [&](sluice::client::Channel& inner) { return inner.SetUserData(socket, user_data); });
}

int sluice_close(sluice_channel* channel, sluice_socket socket) {
  return On(channel, [&](sluice::client::Channel& inner) { return inner.Close(socket); });
}

int sluice_send(sluice_channel* channel, sluice_socket socket, void* data, size_t length,
                uint32_t flags, uint64_t user_data, uint64_t trace_id) {
  return On(channel, [&](sluice::client::Channel& inner) {
    return inner.Send(socket, {data, length, flags, user_data, trace_id});
  });
}

int sluice_send_copy(sluice_channel* channel, sluice_socket socket, const void* data, size_t length,
                     uint32_t flags, uint64_t user_data, uint64_t trace_id) {
  return On(channel, [&](sluice::client::Channel& inner) {
    return inner.SendCopy(socket, {data, length, flags, user_data, trace_id});
  });
}

int sluice_poll(sluice_channel* channel, sluice_event* events, int max) {
  return On(channel, [&](sluice::client::Channel& inner) { return inner.Poll(events, max); });
}

int sluice_wait(sluice_channel* channel, sluice_event* events, int max, int timeout_ms) {
  return On(channel,
            [&](sluice::client::Channel& inner) { return inner.Wait(events, max, timeout_ms); });
}

int sluice_event_fd(sluice_channel* channel) {
  return On(channel, [](sluice::client::Channel& inner) { return inner.event_fd(); });
}

int sluice_arm(sluice_channel* channel) {
  return On(channel, [](sluice::client::Channel& inner) { return inner.Arm(); });
}

size_t sluice_max_message_bytes(const sluice_client* client) {
  if (client == nullptr || client->client.guard().InChild()) return 0;
  return const_cast<sluice_client*>(client)->client.limits().max_message_bytes;
}

size_t sluice_pool_quota_bytes(const sluice_client* client) {
  if (client == nullptr || client->client.guard().InChild()) return 0;
  return const_cast<sluice_client*>(client)->client.limits().pool_reserve_bytes;
}

const char* sluice_error_text(void) { return sluice::client::ErrorText(); }

const char* sluice_version(void) { return SLUICE_VERSION_TEXT; }

}  // extern "C"
