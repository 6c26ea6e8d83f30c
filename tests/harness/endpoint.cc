// SPDX-License-Identifier: Apache-2.0
#include "tests/harness/endpoint.h"

#include <cerrno>

namespace sluice::testing {

Endpoint::Endpoint(const Daemon& daemon, uint32_t ring_entries) {
  const std::string path = daemon.control_socket();
  sluice_options options{};
  options.size = sizeof(options);
  options.socket_path = path.c_str();
  options.name = "endpoint";
  error_ = sluice_attach(&options, &client_);
  if (error_ == 0) error_ = sluice_channel_open(client_, ring_entries, &channel_);
  if (error_ != 0) error_text_ = sluice_error_text();
}

Endpoint::~Endpoint() {
  if (channel_ != nullptr) sluice_channel_close(channel_);
  if (client_ != nullptr) sluice_detach(client_);
}

::testing::AssertionResult Endpoint::ok() const {
  if (error_ == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "error " << error_ << ": " << error_text_;
}

::testing::AssertionResult Endpoint::Listen(uint16_t service) {
  sluice_listener listener = 0;
  const int status = sluice_listen(channel_, service, service, &listener);
  if (status == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "error " << status << ": " << sluice_error_text();
}

sluice_socket Endpoint::Connect(const std::string& host_and_service) {
  sluice_socket socket = 0;
  return sluice_connect(channel_, host_and_service.c_str(), 0, &socket) == 0 ? socket : 0;
}

sluice_socket Endpoint::Connected(const std::string& host_and_service, milliseconds timeout) {
  sluice_socket connected = 0;
  WaitUntil(
      [&] {
        const sluice_socket socket = Connect(host_and_service);
        if (socket == 0) return false;
        const std::optional<Event> event = Next(SLUICE_EVENT_CONNECTED, timeout);
        if (event && event->outcome == SLUICE_OK) connected = socket;
        return connected != 0;
      },
      timeout);
  return connected;
}

int Endpoint::Send(sluice_socket socket, const std::string& payload, uint64_t user_data,
                   uint32_t flags) {
  int status = -EAGAIN;
  WaitUntil([&] {
    status = sluice_send_copy(channel_, socket, payload.data(), payload.size(), flags, user_data,
                              0);
    if (status == -EAGAIN) Poll();
    return status != -EAGAIN;
  });
  return status;
}

std::optional<Endpoint::Event> Endpoint::Next(sluice_event_type type, milliseconds timeout) {
  std::optional<Event> found;
  WaitUntil(
      [&] {
        Poll();
        for (auto event = events_.begin(); event != events_.end(); ++event) {
          if (event->type != type) continue;
          found = std::move(*event);
          events_.erase(event);
          return true;
        }
        return false;
      },
      timeout);
  return found;
}

int Endpoint::Poll() {
  sluice_event batch[16];
  const int count = sluice_poll(channel_, batch, 16);
  for (int i = 0; i < count; ++i) {
    Event event{.type = static_cast<sluice_event_type>(batch[i].type),
                .outcome = static_cast<sluice_outcome>(batch[i].outcome),
                .error = batch[i].error,
                .socket = batch[i].socket,
                .user_data = batch[i].user_data,
                .payload = {}};
    if (event.type == SLUICE_EVENT_MESSAGE) {
      event.payload.assign(static_cast<const char*>(batch[i].data), batch[i].length);
      sluice_free(channel_, batch[i].data);
    }
    events_.push_back(std::move(event));
  }
  return count;
}

::testing::AssertionResult Exchange(Endpoint& from, sluice_socket from_socket, Endpoint& to,
                                    const std::string& payload) {
  if (const int status = from.Send(from_socket, payload, 1); status != 0) {
    return ::testing::AssertionFailure() << "send: " << status << ": " << sluice_error_text();
  }
  const auto there = to.Next(SLUICE_EVENT_MESSAGE);
  if (!there) return ::testing::AssertionFailure() << "the message did not arrive";
  if (there->payload != payload) return ::testing::AssertionFailure() << "another payload arrived";
  const auto sent = from.Next(SLUICE_EVENT_SENT);
  if (!sent || sent->outcome != SLUICE_OK)
    return ::testing::AssertionFailure() << "the send did not end as OK";
  if (const int status = to.Send(there->socket, payload, 2); status != 0) {
    return ::testing::AssertionFailure() << "reply: " << status << ": " << sluice_error_text();
  }
  const auto back = from.Next(SLUICE_EVENT_MESSAGE);
  if (!back || back->payload != payload)
    return ::testing::AssertionFailure() << "the reply did not arrive whole";
  const auto replied = to.Next(SLUICE_EVENT_SENT);
  if (!replied || replied->outcome != SLUICE_OK) {
    return ::testing::AssertionFailure() << "the reply's send did not end as OK";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace sluice::testing
