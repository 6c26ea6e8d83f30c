// SPDX-License-Identifier: Apache-2.0
#include "bench/sluice_app.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace sluice::bench {
namespace {

constexpr int kWaitMs = 100;
constexpr int kBlockedRetryMs = 1;
constexpr int kConnectAttempts = 100;  // Of kWaitMs each.
constexpr size_t kCopiedBytes = 40;    // Up to here a message is all in the ring.

}  // namespace

bool FailSluice(const char* what) {
  std::fprintf(stderr, "sluice-bench: %s: %s\n", what, sluice_error_text());
  return false;
}

SluiceApp::~SluiceApp() {
  if (channel_ != nullptr) {
    sluice_channel_close(channel_);
  }
  if (client_ != nullptr) {
    sluice_detach(client_);
  }
}

bool SluiceApp::Attach(const std::string& socket_path, uint32_t ring_entries) {
  sluice_options options{};
  options.size = sizeof(options);
  options.socket_path = socket_path.empty() ? nullptr : socket_path.c_str();
  options.name = "sluice-bench";
  return (sluice_attach(&options, &client_) == 0 &&
          sluice_channel_open(client_, ring_entries, &channel_) == 0) ||
         FailSluice("attaching");
}

bool SluiceApp::Listen(uint16_t service) {
  sluice_listener listener;
  return sluice_listen(channel_, service, 0, &listener) == 0 || FailSluice("listening");
}

bool SluiceApp::Connect(const std::string& address, sluice_socket& socket) {
  if (sluice_connect(channel_, address.c_str(), 0, &socket) != 0) {
    return FailSluice("connecting");
  }
  sluice_event event{};
  for (int i = 0; i < kConnectAttempts; ++i) {
    if (sluice_wait(channel_, &event, 1, kWaitMs) != 1 || event.type != SLUICE_EVENT_CONNECTED) {
      continue;
    }
    if (event.outcome != SLUICE_OK) {
      std::fprintf(stderr, "sluice-bench: connecting to %s: %s\n", address.c_str(),
                   event.text != nullptr ? event.text : std::strerror(event.error));
    }
    return event.outcome == SLUICE_OK;
  }
  std::fprintf(stderr, "sluice-bench: no answer from %s\n", address.c_str());
  return false;
}

std::span<const sluice_event> SluiceApp::TakeEvents(Events& events, bool blocked) const {
  const int count = spin_ ? sluice_poll(channel_, events.data(), kEventsAtOnce)
                          : sluice_wait(channel_, events.data(), kEventsAtOnce,
                                        blocked ? kBlockedRetryMs : kWaitMs);
  return {events.data(), count > 0 ? static_cast<size_t>(count) : 0};
}

int SluiceApp::Send(sluice_socket socket, std::span<const std::byte> head, uint32_t bytes) const {
  if (bytes <= kCopiedBytes) {
    std::array<std::byte, kCopiedBytes> small{};
    std::memcpy(small.data(), head.data(), head.size());
    return sluice_send_copy(channel_, socket, small.data(), bytes, SLUICE_SEND_SILENT, 0, 0);
  }
  void* buffer = sluice_alloc(channel_, bytes);
  if (buffer == nullptr) {
    return -EAGAIN;
  }
  std::memcpy(buffer, head.data(), head.size());
  const int result = sluice_send(channel_, socket, buffer, bytes, SLUICE_SEND_SILENT, 0, 0);
  if (result != 0) {
    sluice_free(channel_, buffer);
  }
  return result;
}

}  // namespace sluice::bench
