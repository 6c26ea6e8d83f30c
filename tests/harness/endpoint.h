// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sluice/sluice.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "tests/harness/daemon.h"

namespace sluice::testing {

// An application inside the test process: one client with one channel of one daemon, through the
// public library. Events wait in a queue until somebody asks for their kind, so that a test reads
// in the order it cares about. Thread: one. Owns: the client, the channel, and the buffers of
// messages until they were looked at.
class Endpoint {
 public:
  struct Event {
    sluice_event_type type;
    sluice_outcome outcome;
    int error;
    sluice_socket socket;
    uint64_t user_data;
    std::string payload;  // Of a MESSAGE, copied; its buffer is freed already.
  };

  // Attaches and opens the channel; check ok() (its message says what failed).
  explicit Endpoint(const Daemon& daemon, uint32_t ring_entries = 64);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  ::testing::AssertionResult ok() const;
  ::testing::AssertionResult Listen(uint16_t service);

  // Asks; the answer is an event.
  sluice_socket Connect(const std::string& host_and_service);  // 0: refused at once.

  // Connects and waits for a good end; tries again while the peer is not there yet.
  sluice_socket Connected(const std::string& host_and_service, milliseconds timeout = kPatience);

  // 0 or what sluice_send_copy() said; back-pressure is waited out.
  int Send(sluice_socket socket, const std::string& payload, uint64_t user_data = 0,
           uint32_t flags = 0);

  // The next event of this kind; events of other kinds stay.
  std::optional<Event> Next(sluice_event_type type, milliseconds timeout = kPatience);

  // Takes what has come; returns how many.
  int Poll();

  sluice_client* client() { return client_; }
  sluice_channel* channel() { return channel_; }

 private:
  sluice_client* client_ = nullptr;
  sluice_channel* channel_ = nullptr;
  int error_ = 0;
  std::string error_text_;
  std::deque<Event> events_;
};

// One message there and one back, checked.
::testing::AssertionResult Exchange(Endpoint& from, sluice_socket from_socket, Endpoint& to,
                                    const std::string& payload);

}  // namespace sluice::testing
