// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "daemon/control/acceptor.h"
#include "daemon/control/event_loop.h"
#include "daemon/control/run_directory.h"
#include "shm_proto/base/result.h"

namespace sluice::control {

struct AdminCaller {
  uint32_t uid = 0;
  uint32_t gid = 0;
  int32_t process_id = 0;  // For display.
};

class AdminConnection;

// The answer to one request; copies share it. Exactly one call counts. When every copy is gone
// without one, the caller is told that the daemon gave no answer. Thread: control.
class AdminReply {
 public:
  AdminReply(std::weak_ptr<AdminConnection> connection, uint64_t request);

  void Ok(const nlohmann::ordered_json& result) const;
  void Fail(const Error& error) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// The admin socket: one JSON object a line. A request is {"verb": "get", "args": {...}}; its answer
// is
// {"ok": true, "result": ...} or {"ok": false, "error": {"code": "invalid", "message": "..."}}.
// A connection has one request under way; what it sends meanwhile waits in the kernel.
// Invariant: at most kMaxConnections, each holding at most kMaxRequestBytes of input and one
// answer; who does not take an answer within kWriteTimeoutNs is dropped. Thread: control. Owns: the
// socket file and the connections.
class AdminServer {
 public:
  static constexpr size_t kMaxConnections = 32;
  static constexpr size_t kMaxRequestBytes = 64 * 1024;
  static constexpr uint64_t kWriteTimeoutNs = 5 * kNsPerSecond;

  // `args` is an object. Must answer within a bounded time, now or later.
  using Handler = std::function<void(const nlohmann::json& args, const AdminCaller& caller,
                                     AdminReply reply)>;

  AdminServer(EventLoop& loop, std::string path);
  ~AdminServer();
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  void Register(const std::string& verb, Handler handler);

  // Makes the socket, readable and writable by its owner alone.
  Result<> Start(const InstanceLock& held);
  void Stop();  // Idempotent.

  size_t connections() const { return connections_.size(); }
  uint64_t requests() const { return requests_; }
  uint64_t refused() const { return refused_; }

 private:
  friend class AdminConnection;

  void OnAccept(Fd connection);
  void Dispatch(const std::shared_ptr<AdminConnection>& connection, const std::string& line);
  bool MakeRoom();
  void Close(uint64_t id);

  EventLoop& loop_;
  std::string path_;
  std::map<std::string, Handler> handlers_;
  std::unique_ptr<Acceptor> acceptor_;
  std::map<uint64_t, std::shared_ptr<AdminConnection>> connections_;  // Oldest first.
  uint64_t next_id_ = 1;
  uint64_t requests_ = 0;
  uint64_t refused_ = 0;
};

// "not_found" and the like: how answers name an error.
const char* ErrorCodeName(ErrorCode code);

}  // namespace sluice::control
