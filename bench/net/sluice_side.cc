// SPDX-License-Identifier: Apache-2.0
// The workloads over libsluice.
#include <cerrno>
#include <cstdio>
#include <deque>

#include "bench/net/workload.h"
#include "bench/sluice_app.h"

namespace sluice::bench {
namespace {

int Send(const SluiceApp& app, sluice_socket socket, const MessageHeader& header) {
  return app.Send(socket, std::as_bytes(std::span(&header, 1)), header.bytes);
}

bool Serve(const Endpoint& endpoint) {
  SluiceApp app(endpoint.spin);
  if (!app.Attach(endpoint.socket_path) || !app.Listen(Split(endpoint.address).port)) {
    return false;
  }
  std::printf("ready\n");
  std::fflush(stdout);

  struct Pending {
    sluice_socket socket;
    MessageHeader header;
  };
  std::deque<Pending> pending;
  Events events;
  while (!StopRequested()) {
    for (const sluice_event& event : app.TakeEvents(events, !pending.empty())) {
      if (event.type != SLUICE_EVENT_MESSAGE) {
        continue;
      }
      MessageHeader request{};
      std::memcpy(&request, event.data, std::min(event.length, sizeof(request)));
      sluice_free(app.channel(), event.data);
      pending.push_back(
          {event.socket, {.bytes = request.reply_bytes, .reply_bytes = 0, .slot = request.slot}});
    }
    while (!pending.empty() &&
           Send(app, pending.front().socket, pending.front().header) != -EAGAIN) {
      pending.pop_front();
    }
  }
  return true;
}

bool TakeReply(const SluiceApp& app, const sluice_event& event, uint64_t now_ns,
               Requests& requests) {
  if (event.type != SLUICE_EVENT_MESSAGE) {
    std::fprintf(stderr, "sluice-bench: unexpected event %u, error %d\n", event.type, event.error);
    return false;
  }
  const bool ours = requests.End({static_cast<const std::byte*>(event.data), event.length}, now_ns);
  sluice_free(app.channel(), event.data);
  if (!ours) {
    std::fprintf(stderr, "sluice-bench: a reply that was not asked for\n");
  }
  return ours;
}

bool Request(const Endpoint& endpoint, const RunOptions& options, Requests& requests) {
  SluiceApp app(endpoint.spin);
  if (!app.Attach(endpoint.socket_path)) {
    return false;
  }
  std::vector<sluice_socket> sockets(endpoint.sockets);
  for (sluice_socket& socket : sockets) {
    if (!app.Connect(endpoint.address, socket)) {
      return false;
    }
  }
  requests = Requests(options);
  Events events;
  uint64_t now_ns = NowNs();
  while (requests.Running(now_ns)) {
    bool blocked = false;
    MessageHeader header;
    while (!blocked && requests.Begin(now_ns, header)) {
      const int result = Send(app, sockets[header.slot % sockets.size()], header);
      if (result != 0 && result != -EAGAIN) {
        return FailSluice("sending");
      }
      blocked = result == -EAGAIN;
      if (blocked) {
        requests.Undo(header);
      }
    }
    const auto taken = app.TakeEvents(events, blocked);
    now_ns = NowNs();
    for (const sluice_event& event : taken) {
      if (!TakeReply(app, event, now_ns, requests)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

const System kSluice = {"sluice", Serve, Request};

}  // namespace sluice::bench
