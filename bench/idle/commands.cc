// SPDX-License-Identifier: Apache-2.0
// sluice-bench idle: clients and sockets that are there and do nothing, for bench/idle.py to look
// at the daemon meanwhile.
#include "bench/commands.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/clock.h"
#include "bench/net/workload.h"
#include "bench/sluice_app.h"

namespace sluice::bench {
namespace {

struct Settings {
  std::string socket_path;
  std::string address;
  uint32_t count = 0;
  uint32_t outstanding = 64;
};

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Until something, or the end, comes on standard input; false: a signal came.
bool AwaitInput() {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  while (!StopRequested()) {
    if (poll(&input, 1, -1) > 0) {
      std::array<char, 64> line;
      return read(STDIN_FILENO, line.data(), line.size()) >= 0;
    }
  }
  return false;
}

bool HoldClients(const Settings& settings) {
  std::vector<std::unique_ptr<SluiceApp>> apps;
  for (uint32_t i = 0; i < settings.count; ++i) {
    apps.push_back(std::make_unique<SluiceApp>(false));
    if (!apps.back()->Attach(settings.socket_path)) {
      return false;
    }
  }
  Say("ready");
  AwaitInput();
  return true;
}

bool Accept(const Settings& settings) {
  SluiceApp app(false);
  if (!app.Attach(settings.socket_path) || !app.Listen(Split(settings.address).port)) {
    return false;
  }
  Say("ready");
  Events events;
  while (!StopRequested()) {
    app.TakeEvents(events);
  }
  return true;
}

// False: a connect failed.
bool TakeAnswers(const SluiceApp& app, Events& events, uint32_t& answered) {
  for (const sluice_event& event : app.TakeEvents(events)) {
    if (event.type != SLUICE_EVENT_CONNECTED || event.outcome != SLUICE_OK) {
      std::fprintf(stderr, "sluice-bench: socket %u: event %u, error %d: %s\n", answered,
                   event.type, event.error, event.text != nullptr ? event.text : "");
      return false;
    }
    ++answered;
  }
  return true;
}

bool HoldSockets(const Settings& settings) {
  SluiceApp app(false);
  sluice_socket socket = 0;
  // The first socket makes the connection between the daemons, which is not of interest here.
  if (!app.Attach(settings.socket_path) || !app.Connect(settings.address, socket)) {
    return false;
  }
  Say("ready");
  if (!AwaitInput()) {
    return false;
  }
  Events events;
  uint32_t asked = 0;
  uint32_t answered = 0;
  const uint64_t start_ns = NowNs();
  while (answered < settings.count && !StopRequested()) {
    while (asked < settings.count && asked - answered < settings.outstanding) {
      const int result = sluice_connect(app.channel(), settings.address.c_str(), 0, &socket);
      if (result != 0 && result != -EAGAIN) {
        return FailSluice("connecting");
      }
      if (result != 0) {
        break;
      }
      ++asked;
    }
    if (!TakeAnswers(app, events, answered)) {
      return false;
    }
  }
  const double seconds = static_cast<double>(NowNs() - start_ns) / 1e9;
  Say(nlohmann::json{{"sockets", answered}, {"connects_per_s", answered / seconds}}.dump());
  AwaitInput();
  return true;
}

}  // namespace

std::vector<Command> AddIdleCommands(CLI::App& app) {
  const auto settings = std::make_shared<Settings>();
  auto* idle = app.add_subcommand("idle", "Holds clients or sockets, for others to measure");
  idle->require_subcommand(1);
  auto* clients = idle->add_subcommand("clients", "Attaches clients; ends with its input");
  auto* accept = idle->add_subcommand("accept", "Accepts sockets until SIGTERM");
  auto* connect = idle->add_subcommand(
      "connect", "Connects once; after a line of input as often as told; ends with its input");
  for (auto* sub : {clients, accept, connect}) {
    sub->add_option("--socket", settings->socket_path, "The daemon's control socket");
  }
  for (auto* sub : {accept, connect}) {
    sub->add_option("--address", settings->address, "HOST:SERVICE")->required();
  }
  for (auto* sub : {clients, connect}) {
    sub->add_option("--count", settings->count, "How many")->required();
  }
  connect->add_option("--outstanding", settings->outstanding, "Connects at a time")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  return {{clients, [settings] { return HoldClients(*settings); }},
          {accept, [settings] { return Accept(*settings); }},
          {connect, [settings] { return HoldSockets(*settings); }}};
}

}  // namespace sluice::bench
