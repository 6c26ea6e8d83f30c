// SPDX-License-Identifier: Apache-2.0
#include "daemon/ctl/admin_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "shm_proto/base/clock.h"

namespace sluice::ctl {
namespace {

Answer Fail(ExitCode code, std::string message) {
  return {.ok = false, .result = {}, .failure = {code, std::move(message)}};
}

// Waits for `events` until the deadline.
bool Wait(int fd, short events, uint64_t deadline_ns) {
  while (true) {
    const uint64_t now_ns = MonotonicClock().NowNs();
    if (now_ns >= deadline_ns) return false;
    pollfd poll_fd{fd, events, 0};
    const int ready = poll(&poll_fd, 1, static_cast<int>((deadline_ns - now_ns) / kNsPerMs) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// Turns the daemon's answer into ours. Codes by which the daemon says no end with kRefused.
Answer Interpret(const std::string& line) {
  const Json answer = Json::parse(line, nullptr, false);
  if (!answer.is_object() || !answer.contains("ok") || !answer["ok"].is_boolean()) {
    return Fail(
        kFailed,
        "the daemon's answer is not understood; are sluicectl and sluiced of the same version?");
  }
  if (answer["ok"].get<bool>()) {
    return {.ok = true, .result = answer.value("result", Json()), .failure = {}};
  }
  const Json error = answer.value("error", Json::object());
  const auto text = [&error](const char* key) {
    const bool there = error.is_object() && error.contains(key) && error[key].is_string();
    return there ? error[key].get<std::string>() : std::string();
  };
  const std::string code = text("code");
  const bool broken = code == "system" || code == "timeout" || code == "no_memory" || code.empty();
  return Fail(broken ? kFailed : kRefused, text("message"));
}

}  // namespace

Answer AdminClient::Connect() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof(address.sun_path)) {
    return Fail(kUsage, "the socket's path is too long: " + path_);
  }
  std::memcpy(address.sun_path, path_.data(), path_.size());
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid())
    return Fail(kFailed, std::string("cannot make a socket: ") + std::strerror(errno));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    const std::string why = std::strerror(errno);
    if (errno == EACCES || errno == EPERM) {
      return Fail(kRefused, "no permission to use " + path_ +
                                "; run sluicectl as root or as the daemon's user");
    }
    return Fail(kUnreachable, "cannot reach sluiced at " + path_ + ": " + why +
                                  "; does it run (systemctl status sluiced)? Another socket can be "
                                  "named by --socket or $SLUICE_RUN_DIR");
  }
  fd_ = std::move(fd);
  return {.ok = true, .result = {}, .failure = {}};
}

Answer AdminClient::Ask(const std::string& verb, const Json& arguments) {
  if (!fd_.valid()) {
    if (Answer connected = Connect(); !connected.ok) return connected;
  }
  const Json request = {{"verb", verb}, {"args", arguments}};
  Answer answer = Exchange(request.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  if (!answer.ok) fd_.Reset();
  return answer;
}

Answer AdminClient::Exchange(const std::string& request) {
  const uint64_t deadline_ns = MonotonicClock().NowNs() + kTimeoutMs * kNsPerMs;
  const auto no_answer = [this] {
    return Fail(kUnreachable,
                "sluiced at " + path_ +
                    " takes connections but does not answer; see its log, and `sluicectl "
                    "errors`, which reads its counters file");
  };
  for (size_t sent = 0; sent < request.size();) {
    if (!Wait(fd_.get(), POLLOUT, deadline_ns)) return no_answer();
    const ssize_t took = send(fd_.get(), request.data() + sent, request.size() - sent,
                              MSG_NOSIGNAL);
    if (took < 0 && errno != EAGAIN && errno != EINTR)
      break;  // What it said before is still to be read.
    if (took > 0) sent += static_cast<size_t>(took);
  }
  std::string input;
  while (input.size() < kMaxAnswerBytes) {
    if (!Wait(fd_.get(), POLLIN, deadline_ns)) return no_answer();
    char buffer[65536];
    const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return Fail(kUnreachable, "sluiced at " + path_ + " closed the connection");
    input.append(buffer, static_cast<size_t>(got));
    if (input.back() == '\n') return Interpret(input);
  }
  return Fail(kFailed, "the daemon's answer is too long");
}

}  // namespace sluice::ctl
