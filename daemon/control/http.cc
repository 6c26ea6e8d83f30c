// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/http.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <string_view>

#include "daemon/control/config_check.h"
#include "daemon/control/log.h"
#include "daemon/control/metrics.h"
#include "daemon/control/status_json.h"
#include "daemon/control/status_page.h"

namespace sluice::control {
namespace {

struct Answer {
  int code = 200;
  const char* type = "text/plain; charset=utf-8";
  std::string body;
};

const char* Reason(int code) {
  switch (code) {
    case 200: return "OK";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    default: return "Service Unavailable";
  }
}

Answer Render(std::string_view path, const NodeStatus& status) {
  if (path == "/metrics") {
    return {200, "text/plain; version=0.0.4; charset=utf-8", MetricsText(status)};
  }
  if (path == "/") return {200, "text/html; charset=utf-8", StatusPage(status)};
  const Health health = HealthOf(status);
  // Alive means that every thread makes progress; ready also that new work is taken.
  const bool good = path == "/readyz" ? health.ok : status.AllThreadsAnswered();
  return {good ? 200 : 503, "text/plain; charset=utf-8", (good ? "ok" : health.reason) + "\n"};
}

bool IsPath(std::string_view path) {
  return path == "/metrics" || path == "/healthz" || path == "/readyz" || path == "/";
}

void Send(mg_connection* connection, const Answer& answer, bool with_body) {
  const std::string head = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; style-src "
      "'unsafe-inline'\r\n{}Connection: close\r\n\r\n",
      answer.code, Reason(answer.code), answer.type, answer.body.size(),
      answer.code == 405 ? "Allow: GET, HEAD\r\n" : "");
  // A caller that left is no concern of ours.
  (void)mg_write(connection, head.data(), head.size());
  if (with_body) (void)mg_write(connection, answer.body.data(), answer.body.size());
}

}  // namespace

// What the web server's threads and the control thread share. Outlives both ends.
struct HttpServer::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;  // Guarded by mutex.
  bool gone = false;      // Control thread only: the server and its source may not be touched.

  // Thread: any but control. Nothing when the control thread did not answer in time.
  std::optional<NodeStatus> Picture(EventLoop& loop, StatusSource& source,
                                    const std::shared_ptr<Shared>& self) {
    auto slot = std::make_shared<std::optional<NodeStatus>>();  // Guarded by mutex.
    loop.Post([self, slot, &source] {
      if (self->gone) return;
      source.Collect([self, slot](const NodeStatus& status) {
        std::lock_guard lock(self->mutex);
        *slot = status;
        self->changed.notify_all();
      });
    });
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::nanoseconds(kPatienceNs),
                     [&] { return slot->has_value() || stopping; });
    return std::move(*slot);
  }
};

HttpServer::HttpServer(EventLoop& loop, StatusSource& status, std::string listen)
    : loop_(loop),
      status_(status),
      listen_(std::move(listen)),
      shared_(std::make_shared<Shared>()) {}

HttpServer::~HttpServer() { Stop(); }

int HttpServer::OnRequest(mg_connection* connection, void* self) {
  auto* server = static_cast<HttpServer*>(self);
  const mg_request_info* request = mg_get_request_info(connection);
  const std::string_view method = request->request_method;
  const std::string_view path = request->local_uri == nullptr ? "" : request->local_uri;
  Answer answer;
  if (method != "GET" && method != "HEAD") {
    answer = {.code = 405, .body = "only GET and HEAD; use sluicectl to change anything\n"};
  } else if (!IsPath(path)) {
    answer = {.code = 404, .body = "there are /metrics, /healthz, /readyz and /\n"};
  } else if (const auto status = server->shared_->Picture(server->loop_, server->status_,
                                                          server->shared_)) {
    answer = Render(path, *status);
  } else {
    answer = {.code = 503, .body = "the control thread does not answer\n"};
  }
  Send(connection, answer, method != "HEAD");
  return answer.code;
}

Result<> HttpServer::Start() {
  const std::string threads = std::to_string(kThreads);
  const char* options[] = {"listening_ports",
                           listen_.c_str(),
                           "num_threads",
                           threads.c_str(),
                           "request_timeout_ms",
                           "5000",
                           "enable_keep_alive",
                           "no",
                           "enable_directory_listing",
                           "no",
                           "max_request_size",
                           "16384",
                           "tcp_nodelay",
                           "1",
                           nullptr};
  mg_callbacks callbacks{};
  callbacks.log_message = [](const mg_connection*, const char* message) {
    LogWarning("http", {{"message", message}});
    return 1;
  };
  mg_init_library(0);
  context_ = mg_start(&callbacks, this, options);
  if (context_ == nullptr) {
    mg_exit_library();
    return Fail(ErrorCode::kSystem,
                "cannot serve HTTP on http.listen = \"" + listen_ +
                    "\"; is the address this host's, and the port free? Another one, or \"\" for "
                    "none, can be set in the configuration");
  }
  mg_server_port ports[1] = {};
  if (mg_get_server_ports(context_, 1, ports) == 1) port_ = static_cast<uint16_t>(ports[0].port);
  mg_set_request_handler(context_, "**", OnRequest, this);
  return {};
}

// Connects to ourselves and leaves again.
void HttpServer::Knock() const {
  const auto target = ParseNumericAddress(listen_.substr(0, listen_.rfind(':')), port_);
  if (!target) return;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port_);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port_);
  const bool is_v4 = inet_pton(AF_INET, target->address.c_str(), &v4.sin_addr) == 1;
  if (!is_v4 && inet_pton(AF_INET6, target->address.c_str(), &v6.sin6_addr) != 1) return;
  const Fd fd(socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto* address = is_v4 ? reinterpret_cast<sockaddr*>(&v4) : reinterpret_cast<sockaddr*>(&v6);
  (void)connect(fd.get(), address, is_v4 ? sizeof(v4) : sizeof(v6));  // Only an attempt to hurry.
}

void HttpServer::Stop() {
  if (context_ == nullptr) return;
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
    shared_->changed.notify_all();
  }
  shared_->gone = true;
  // Joins its threads. The one that accepts looks for the end only every two seconds unless
  // somebody connects, so somebody does.
  const auto stopped = std::async(std::launch::async, [this] { mg_stop(context_); });
  while (stopped.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) Knock();
  mg_exit_library();
  context_ = nullptr;
}

}  // namespace sluice::control
