// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sluice/sluice.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace sluice::bench {

constexpr int kEventsAtOnce = 64;
using Events = std::array<sluice_event, kEventsAtOnce>;

// Says on stderr what the library says of its last error; returns false.
bool FailSluice(const char* what);

// An attachment to the daemon with one channel. What it does returns false after saying on stderr
// what went wrong.
// Thread: one.
class SluiceApp {
 public:
  explicit SluiceApp(bool spin) : spin_(spin) {}
  ~SluiceApp();
  SluiceApp(const SluiceApp&) = delete;
  SluiceApp& operator=(const SluiceApp&) = delete;

  bool Attach(const std::string& socket_path, uint32_t ring_entries = 0);
  bool Listen(uint16_t service);
  // Waits for the answer.
  bool Connect(const std::string& address, sluice_socket& socket);

  // The events that are there; waits for the first unless it spins. A caller whose last send found
  // no room does not wait long.
  std::span<const sluice_event> TakeEvents(Events& events, bool blocked = false) const;

  // Sends `bytes` bytes that start with `head`, and are otherwise whatever the buffer holds.
  // 0, or a negative errno value.
  int Send(sluice_socket socket, std::span<const std::byte> head, uint32_t bytes) const;

  sluice_channel* channel() const { return channel_; }

 private:
  bool spin_;
  sluice_client* client_ = nullptr;
  sluice_channel* channel_ = nullptr;
};

}  // namespace sluice::bench
