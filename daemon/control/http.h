// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "daemon/control/event_loop.h"
#include "daemon/control/status.h"

struct mg_connection;
struct mg_context;

namespace sluice::control {

// Looking at the daemon over HTTP: /metrics, /healthz, /readyz and a status page at /. GET and HEAD
// only; nothing can be changed here, and there is no password, so it listens where the operator
// says. Its few threads ask the control thread for a picture and wait for it at most kPatienceNs: a
// control thread that hangs makes /healthz say so. Thread: control makes, starts and stops it.
// Owns: the web server's threads.
class HttpServer {
 public:
  static constexpr uint64_t kPatienceNs = 2 * kNsPerSecond;
  static constexpr int kThreads = 4;

  // `listen` is "ADDRESS:PORT", the port 0 for any.
  HttpServer(EventLoop& loop, StatusSource& status, std::string listen);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  Result<> Start();
  void Stop();  // Idempotent. Requests under way are answered with 503.

  uint16_t port() const { return port_; }

 private:
  struct Shared;
  void Knock() const;
  static int OnRequest(mg_connection* connection, void* self);

  EventLoop& loop_;
  StatusSource& status_;
  const std::string listen_;
  std::shared_ptr<Shared> shared_;
  mg_context* context_ = nullptr;
  uint16_t port_ = 0;
};

}  // namespace sluice::control
