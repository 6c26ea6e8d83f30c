// SPDX-License-Identifier: Apache-2.0
// The workloads over libsluice.
#include <sluice/sluice.h>

#include <cerrno>
#include <cstdio>
#include <deque>

#include "bench/net/workload.h"

namespace sluice::bench {
namespace {

constexpr int kEventsAtOnce = 64;
constexpr int kWaitMs = 100;
constexpr int kBlockedRetryMs = 1;

// An attachment with one channel.
class Attachment {
 public:
  ~Attachment() {
    if (channel_ != nullptr) {
      sluice_channel_close(channel_);
    }
    if (client_ != nullptr) {
      sluice_detach(client_);
    }
  }

  bool Open(const std::string& socket_path) {
    sluice_options options{};
    options.size = sizeof(options);
    options.socket_path = socket_path.empty() ? nullptr : socket_path.c_str();
    options.name = "sluice-bench";
    return sluice_attach(&options, &client_) == 0 &&
           sluice_channel_open(client_, 0, &channel_) == 0;
  }

  sluice_channel* channel() const { return channel_; }

 private:
  sluice_client* client_ = nullptr;
  sluice_channel* channel_ = nullptr;
};

bool Fail(const char* what) {
  std::fprintf(stderr, "sluice-bench: %s: %s\n", what, sluice_error_text());
  return false;
}

struct Sender {
  sluice_channel* channel;

  // 0, or a negative errno value.
  int Send(sluice_socket socket, const MessageHeader& header) const {
    constexpr size_t kCopiedBytes = 40;
    if (header.bytes <= kCopiedBytes) {
      std::array<std::byte, kCopiedBytes> small{};
      std::memcpy(small.data(), &header, sizeof(header));
      return sluice_send_copy(channel, socket, small.data(), header.bytes, SLUICE_SEND_SILENT, 0,
                              0);
    }
    void* buffer = sluice_alloc(channel, header.bytes);
    if (buffer == nullptr) {
      return -EAGAIN;
    }
    std::memcpy(buffer, &header, sizeof(header));
    const int result = sluice_send(channel, socket, buffer, header.bytes, SLUICE_SEND_SILENT, 0, 0);
    if (result != 0) {
      sluice_free(channel, buffer);
    }
    return result;
  }
};

int Events(sluice_channel* channel, std::array<sluice_event, kEventsAtOnce>& events, bool spin,
           bool blocked) {
  return spin ? sluice_poll(channel, events.data(), kEventsAtOnce)
              : sluice_wait(channel, events.data(), kEventsAtOnce,
                            blocked ? kBlockedRetryMs : kWaitMs);
}

}  // namespace

bool RunSluiceServer(const std::string& socket_path, uint16_t service, bool spin) {
  Attachment attachment;
  sluice_listener listener;
  if (!attachment.Open(socket_path)) {
    return Fail("attaching");
  }
  sluice_channel* channel = attachment.channel();
  if (sluice_listen(channel, service, 0, &listener) != 0) {
    return Fail("listening");
  }
  std::printf("ready\n");
  std::fflush(stdout);

  struct Pending {
    sluice_socket socket;
    MessageHeader header;
  };
  const Sender sender{channel};
  std::deque<Pending> pending;
  std::array<sluice_event, kEventsAtOnce> events;
  while (!StopRequested()) {
    const int count = Events(channel, events, spin, !pending.empty());
    for (int i = 0; i < count; ++i) {
      const sluice_event& event = events[static_cast<size_t>(i)];
      if (event.type != SLUICE_EVENT_MESSAGE) {
        continue;
      }
      MessageHeader request{};
      std::memcpy(&request, event.data, std::min(event.length, sizeof(request)));
      sluice_free(channel, event.data);
      pending.push_back(
          {event.socket, {.bytes = request.reply_bytes, .reply_bytes = 0, .slot = request.slot}});
    }
    while (!pending.empty() &&
           sender.Send(pending.front().socket, pending.front().header) != -EAGAIN) {
      pending.pop_front();
    }
  }
  return true;
}

namespace {

bool Connect(sluice_channel* channel, const std::string& address, sluice_socket& socket) {
  if (sluice_connect(channel, address.c_str(), 0, &socket) != 0) {
    return Fail("connecting");
  }
  sluice_event event{};
  const uint64_t deadline_ns = NowNs() + 10'000'000'000;
  while (NowNs() < deadline_ns) {
    if (sluice_wait(channel, &event, 1, kWaitMs) == 1 && event.type == SLUICE_EVENT_CONNECTED) {
      errno = event.error;
      return event.outcome == SLUICE_OK || (std::perror("sluice-bench: connecting"), false);
    }
  }
  std::fprintf(stderr, "sluice-bench: no answer from %s\n", address.c_str());
  return false;
}

}  // namespace

bool RunSluiceClient(const std::string& socket_path, const std::string& address,
                     const RunOptions& options, Requests& requests) {
  Attachment attachment;
  if (!attachment.Open(socket_path)) {
    return Fail("attaching");
  }
  sluice_channel* channel = attachment.channel();
  sluice_socket socket = 0;
  if (!Connect(channel, address, socket)) {
    return false;
  }
  requests = Requests(options.workload, options.seconds, options.warm_up_seconds);
  const Sender sender{channel};
  std::array<sluice_event, kEventsAtOnce> events;
  uint64_t now_ns = NowNs();
  while (requests.Running(now_ns)) {
    bool blocked = false;
    MessageHeader header;
    while (!blocked && requests.Begin(now_ns, header)) {
      const int result = sender.Send(socket, header);
      if (result != 0 && result != -EAGAIN) {
        return Fail("sending");
      }
      blocked = result == -EAGAIN;
      if (blocked) {
        requests.Undo(header);
      }
    }
    const int count = Events(channel, events, options.spin, blocked);
    now_ns = NowNs();
    for (int i = 0; i < count; ++i) {
      const sluice_event& event = events[static_cast<size_t>(i)];
      if (event.type == SLUICE_EVENT_MESSAGE) {
        const bool ours = requests.End({static_cast<const std::byte*>(event.data), event.length},
                                       now_ns);
        sluice_free(channel, event.data);
        if (!ours) {
          std::fprintf(stderr, "sluice-bench: a reply that was not asked for\n");
          return false;
        }
      } else {
        std::fprintf(stderr, "sluice-bench: unexpected event %u, error %d\n", event.type,
                     event.error);
        return false;
      }
    }
  }
  return true;
}

}  // namespace sluice::bench
