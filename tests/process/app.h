// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sluice/sluice.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/harness/harness.h"

// Applications inside the test process: attached to any host's daemon, since a client needs nothing
// but its socket.
namespace sluice::testing {

// Bytes that tell which message they are of; the same seed and length give the same bytes.
std::vector<unsigned char> Pattern(uint64_t seed, size_t length);
bool HasPattern(const void* data, uint64_t seed, size_t length);

// One attachment with one channel. Keeps every event until a test asks for it, and the books of
// what was sent. Thread: one. Owns: the client, the channel, and the messages' buffers not yet
// taken.
class App {
 public:
  explicit App(const Daemon& daemon, std::string name = "test", uint32_t ring_entries = 0);
  ~App();
  App(const App&) = delete;
  App& operator=(const App&) = delete;

  bool attached() const { return channel_ != nullptr; }
  const std::string& error() const { return error_; }
  sluice_channel* channel() const { return channel_; }
  size_t max_message_bytes() const { return sluice_max_message_bytes(client_); }

  ::testing::AssertionResult Listen(uint16_t service);

  // Sends the pattern; 0 or what sluice_send() said. Its outcome is counted by OutcomeOf().
  int Send(sluice_socket socket, uint64_t seed, size_t length);

  // Takes what events there are; with a timeout waits for the first.
  void Poll(int timeout_ms = 0);

  // The first event of that type (of that socket, unless 0), waiting for it. It is taken out.
  std::optional<sluice_event> Next(uint32_t type, sluice_socket socket = 0,
                                   milliseconds timeout = kPatience);
  size_t Waiting(uint32_t type) const;
  // What the last event of a socket said: DEGRADED_TCP.
  bool degraded() const { return degraded_; }
  void Free(const sluice_event& message);

  // A message whose length and bytes must be right.
  ::testing::AssertionResult Receive(sluice_socket socket, uint64_t seed, size_t length,
                                     milliseconds timeout = kPatience);

  // Of the sends of this app: begun, and ended by outcome. Ends of what was never begun, or twice,
  // are `odd`.
  struct Sends {
    uint64_t begun = 0;
    uint64_t ok = 0;
    uint64_t failed = 0;
    uint64_t unknown = 0;
    uint64_t odd = 0;
    uint64_t ended() const { return ok + failed + unknown; }
  };
  const Sends& sends() const { return sends_; }
  bool WaitAllSent(milliseconds timeout = kPatience);

 private:
  void Take(const sluice_event& event);

  sluice_client* client_ = nullptr;
  sluice_channel* channel_ = nullptr;
  std::string error_;
  bool degraded_ = false;
  std::deque<sluice_event> events_;
  std::map<uint64_t, bool> outstanding_;
  uint64_t next_operation_ = 1;
  Sends sends_;
};

// Both ends of one socket.
struct Pair {
  sluice_socket from = 0;
  sluice_socket to = 0;
};

// Connects `from` to a listener of `to` on `daemon`, which must be listening already.
::testing::AssertionResult ConnectApps(App& from, App& to, const Daemon& daemon, uint16_t service,
                                       Pair& pair);

// Polls all of them until the condition holds.
bool PollUntil(const std::vector<App*>& apps, const std::function<bool()>& condition,
               milliseconds timeout = kPatience);

// A message each way, checked: this path works.
::testing::AssertionResult Exchange(App& from, App& to, Pair pair, uint64_t seed = 1,
                                    size_t length = 1000);

// Two hosts with a daemon each, for one test.
class TwoHosts : public ::testing::Test {
 protected:
  // Skips or fails the test when there are none; call first: `if (!Begin()) return;`.
  bool Begin(DaemonOptions left = {}, DaemonOptions right = {});

  std::unique_ptr<Network> network_;
  std::unique_ptr<Daemon> left_;
  std::unique_ptr<Daemon> right_;
};

}  // namespace sluice::testing
