// SPDX-License-Identifier: Apache-2.0
#include "tests/process/app.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace sluice::testing {
namespace {

constexpr int kEventsAtOnce = 64;
constexpr int kTurnMs = 20;

uint64_t Next(uint64_t& state) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return state >> 24;
}

}  // namespace

std::vector<unsigned char> Pattern(uint64_t seed, size_t length) {
  std::vector<unsigned char> bytes(length);
  uint64_t state = seed * 0x9e3779b97f4a7c15ULL + length;
  for (unsigned char& byte : bytes) {
    byte = static_cast<unsigned char>(Next(state));
  }
  return bytes;
}

bool HasPattern(const void* data, uint64_t seed, size_t length) {
  const std::vector<unsigned char> expected = Pattern(seed, length);
  return std::memcmp(data, expected.data(), length) == 0;
}

App::App(const Daemon& daemon, std::string name, uint32_t ring_entries) {
  const std::string path = daemon.control_socket();
  sluice_options options{};
  options.size = sizeof(options);
  options.socket_path = path.c_str();
  options.name = name.c_str();
  if (sluice_attach(&options, &client_) != 0 ||
      sluice_channel_open(client_, ring_entries, &channel_) != 0) {
    error_ = sluice_error_text();
    channel_ = nullptr;
  }
}

App::~App() {
  for (const sluice_event& event : events_) {
    Free(event);
  }
  if (channel_ != nullptr) {
    sluice_channel_close(channel_);
  }
  if (client_ != nullptr) {
    sluice_detach(client_);
  }
}

::testing::AssertionResult App::Listen(uint16_t service) {
  if (!attached()) {
    return ::testing::AssertionFailure() << "not attached: " << error_;
  }
  sluice_listener listener = 0;
  if (const int result = sluice_listen(channel_, service, service, &listener); result != 0) {
    return ::testing::AssertionFailure()
           << "listening on " << service << ": " << sluice_error_text();
  }
  return ::testing::AssertionSuccess();
}

int App::Send(sluice_socket socket, uint64_t seed, size_t length) {
  void* buffer = sluice_alloc(channel_, length);
  if (buffer == nullptr) {
    return -errno;
  }
  const std::vector<unsigned char> bytes = Pattern(seed, length);
  std::memcpy(buffer, bytes.data(), length);
  const uint64_t operation = next_operation_++;
  const int result = sluice_send(channel_, socket, buffer, length, 0, operation, seed);
  if (result == 0) {
    outstanding_[operation] = true;
    ++sends_.begun;
  } else {
    sluice_free(channel_, buffer);
  }
  return result;
}

void App::Poll(int timeout_ms) {
  std::array<sluice_event, kEventsAtOnce> events;
  const int count = sluice_wait(channel_, events.data(), kEventsAtOnce, timeout_ms);
  for (int i = 0; i < count; ++i) {
    Take(events[static_cast<size_t>(i)]);
  }
}

void App::Take(const sluice_event& event) {
  if (event.socket != 0) degraded_ = (event.flags & SLUICE_EVENT_DEGRADED_TCP) != 0;
  if (event.type != SLUICE_EVENT_SENT) {
    events_.push_back(event);
    events_.back().text = nullptr;  // Valid until the next poll only.
    return;
  }
  if (outstanding_.erase(event.user_data) == 0) {
    ++sends_.odd;
    return;
  }
  ++(event.outcome == SLUICE_OK       ? sends_.ok
     : event.outcome == SLUICE_FAILED ? sends_.failed
                                      : sends_.unknown);
}

std::optional<sluice_event> App::Next(uint32_t type, sluice_socket socket, milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const auto found = std::ranges::find_if(events_, [&](const sluice_event& event) {
      return event.type == type && (socket == 0 || event.socket == socket);
    });
    if (found != events_.end()) {
      const sluice_event event = *found;
      events_.erase(found);
      return event;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return std::nullopt;
    }
    Poll(kTurnMs);
  }
}

size_t App::Waiting(uint32_t type) const {
  return static_cast<size_t>(std::ranges::count(events_, type, &sluice_event::type));
}

void App::Free(const sluice_event& message) {
  if (message.type == SLUICE_EVENT_MESSAGE) {
    EXPECT_EQ(sluice_free(channel_, message.data), 0) << sluice_error_text();
  }
}

::testing::AssertionResult App::Receive(sluice_socket socket, uint64_t seed, size_t length,
                                        milliseconds timeout) {
  const auto message = Next(SLUICE_EVENT_MESSAGE, socket, timeout);
  if (!message) {
    auto failure = ::testing::AssertionFailure();
    failure << "no message of " << length << " bytes came; what came instead:";
    for (const sluice_event& event : events_) {
      failure << " [event " << event.type << ", error " << event.error << "]";
    }
    return failure << (events_.empty() ? " nothing" : "");
  }
  const bool length_right = message->length == length;
  const bool bytes_right = length_right && HasPattern(message->data, seed, length);
  const uint64_t trace_id = message->trace_id;
  Free(*message);
  if (!length_right) {
    return ::testing::AssertionFailure() << message->length << " bytes came, not " << length;
  }
  if (trace_id != seed) {
    return ::testing::AssertionFailure() << "message " << trace_id << " came, not " << seed;
  }
  return bytes_right ? ::testing::AssertionSuccess()
                     : ::testing::AssertionFailure() << "the " << length << " bytes of message "
                                                     << seed << " are not what was sent";
}

bool App::WaitAllSent(milliseconds timeout) {
  return PollUntil(
      {this}, [this] { return outstanding_.empty(); }, timeout);
}

::testing::AssertionResult ConnectApps(App& from, App& to, const Daemon& daemon, uint16_t service,
                                       Pair& pair) {
  if (!from.attached() || !to.attached()) {
    return ::testing::AssertionFailure() << "not attached: " << from.error() << to.error();
  }
  const std::string address = daemon.Address() + ":" + std::to_string(service);
  if (sluice_connect(from.channel(), address.c_str(), 7, &pair.from) != 0) {
    return ::testing::AssertionFailure()
           << "connecting to " << address << ": " << sluice_error_text();
  }
  const auto connected = from.Next(SLUICE_EVENT_CONNECTED, pair.from);
  if (!connected || connected->outcome != SLUICE_OK || connected->user_data != 7) {
    return ::testing::AssertionFailure()
           << "connecting to " << address << ": "
           << (connected ? std::string("error ") + std::strerror(connected->error) : "no answer");
  }
  const auto accepted = to.Next(SLUICE_EVENT_ACCEPTED);
  if (!accepted || accepted->user_data != service) {
    return ::testing::AssertionFailure() << "nothing was accepted on service " << service;
  }
  pair.to = accepted->socket;
  return ::testing::AssertionSuccess();
}

bool PollUntil(const std::vector<App*>& apps, const std::function<bool()>& condition,
               milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
    for (App* app : apps) {
      app->Poll(apps.size() == 1 ? kTurnMs : 1);
    }
  }
  return true;
}

::testing::AssertionResult Exchange(App& from, App& to, Pair pair, uint64_t seed, size_t length) {
  if (const int result = from.Send(pair.from, seed, length); result != 0) {
    return ::testing::AssertionFailure() << "sending: " << sluice_error_text();
  }
  if (auto received = to.Receive(pair.to, seed, length); !received) {
    return received;
  }
  if (const int result = to.Send(pair.to, seed + 1, length); result != 0) {
    return ::testing::AssertionFailure() << "sending back: " << sluice_error_text();
  }
  return from.Receive(pair.from, seed + 1, length);
}

bool TwoHosts::Begin(DaemonOptions left, DaemonOptions right) {
  if (const std::string why = Network::WhyUnavailable(); !why.empty()) {
    [&] { GTEST_SKIP() << why; }();
    return false;
  }
  auto network = Network::Create(2);
  if (!network) {
    ADD_FAILURE() << network.error().message;
    return false;
  }
  network_ = std::move(*network);
  left_ = std::make_unique<Daemon>(*network_, 0, std::move(left));
  right_ = std::make_unique<Daemon>(*network_, 1, std::move(right));
  EXPECT_TRUE(left_->Start());
  EXPECT_TRUE(right_->Start());
  return !HasFailure();
}

}  // namespace sluice::testing
