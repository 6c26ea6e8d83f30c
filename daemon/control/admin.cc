// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/admin.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "daemon/control/log.h"

namespace sluice::control {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

std::string ToLine(const OrderedJson& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ErrorLine(const Error& error) {
  return ToLine({{"ok", false},
                 {"error", {{"code", ErrorCodeName(error.code)}, {"message", error.message}}}});
}

// Only root and the daemon's own user steer it; the file's mode says the same.
Result<AdminCaller> Identify(int connection) {
  ucred credentials;
  socklen_t length = sizeof(credentials);
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return FailErrno("asking who connected to the admin socket");
  }
  if (credentials.uid != 0 && credentials.uid != geteuid()) {
    return Fail(ErrorCode::kPermission, "user " + std::to_string(credentials.uid) +
                                            " may not steer this daemon; use root or its own user");
  }
  return AdminCaller{credentials.uid, credentials.gid, credentials.pid};
}

// Best effort, for a connection that is about to be closed.
void SendRefusal(int connection, const Error& error) {
  const std::string line = ErrorLine(error);
  (void)send(connection, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

// One administrator's connection. Invariant: reads only while no answer is awaited or being
// written. Thread: control. Owned by its server; kept alive by callbacks that are under way.
class AdminConnection : public std::enable_shared_from_this<AdminConnection> {
 public:
  AdminConnection(AdminServer& server, uint64_t id, Fd fd, const AdminCaller& caller)
      : server_(server), id_(id), fd_(std::move(fd)), caller_(caller) {}
  ~AdminConnection() { Shut(); }

  Result<> Start() {
    return server_.loop_.Add(fd_.get(), EPOLLIN, [this](uint32_t events) { OnEvents(events); });
  }

  void Shut() {
    if (!fd_.valid()) return;
    server_.loop_.Cancel(std::exchange(write_deadline_, 0));
    server_.loop_.Remove(fd_.get());
    fd_.Reset();
  }

  void Answer(uint64_t request, std::string line) {
    if (!fd_.valid() || !awaiting_ || request != request_) return;
    awaiting_ = false;
    output_ = std::move(line);
    written_ = 0;
    Write();
  }

  const AdminCaller& caller() const { return caller_; }
  uint64_t request() const { return request_; }
  bool idle() const { return !awaiting_ && output_.empty(); }

 private:
  void OnEvents(uint32_t events) {
    const auto self = shared_from_this();  // The server may drop us meanwhile.
    if ((events & EPOLLERR) != 0) return Drop();
    if (!output_.empty()) return Write();
    if ((events & (EPOLLIN | EPOLLHUP)) != 0) Read();
  }

  void Read() {
    if (awaiting_) {  // Only a hang-up gets here: nobody is left to answer.
      Drop();
      return;
    }
    char buffer[4096];
    const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return Drop();
    input_.append(buffer, static_cast<size_t>(got));
    NextRequest();
  }

  void NextRequest() {
    const size_t end = input_.find('\n');
    if (end == std::string::npos) {
      if (input_.size() <= AdminServer::kMaxRequestBytes) return;
      SendRefusal(fd_.get(), {ErrorCode::kInvalid, "a request has at most 65536 bytes"});
      return Drop();
    }
    const std::string line = input_.substr(0, end);
    input_.erase(0, end + 1);
    awaiting_ = true;
    ++request_;
    Wait(0);
    server_.Dispatch(shared_from_this(), line);
  }

  void Write() {
    while (written_ < output_.size()) {
      const ssize_t sent = send(fd_.get(), output_.data() + written_, output_.size() - written_,
                                MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return WaitForReader();
      if (sent < 0) return Drop();
      written_ += static_cast<size_t>(sent);
    }
    output_ = {};
    server_.loop_.Cancel(std::exchange(write_deadline_, 0));
    Wait(EPOLLIN);
    // A request that came along with the last one is taken in a turn of its own.
    if (input_.find('\n') != std::string::npos) {
      server_.loop_.Post([weak = weak_from_this()] {
        const auto self = weak.lock();
        if (self && self->fd_.valid() && self->idle()) self->NextRequest();
      });
    }
  }

  void WaitForReader() {
    Wait(EPOLLOUT);
    // The whole answer has one deadline: a reader cannot hold it for ever byte by byte.
    if (write_deadline_ != 0) return;
    write_deadline_ = server_.loop_.After(AdminServer::kWriteTimeoutNs, [this] {
      write_deadline_ = 0;
      LogWarning("admin client does not read", {{"pid", caller_.process_id}});
      Drop();
    });
  }

  void Wait(uint32_t events) {
    if (!server_.loop_.Modify(fd_.get(), events)) Drop();
  }

  void Drop() { server_.Close(id_); }

  AdminServer& server_;
  const uint64_t id_;
  Fd fd_;
  const AdminCaller caller_;
  std::string input_;
  std::string output_;
  size_t written_ = 0;
  uint64_t request_ = 0;
  bool awaiting_ = false;
  EventLoop::TimerId write_deadline_ = 0;
};

struct AdminReply::State {
  std::weak_ptr<AdminConnection> connection;
  uint64_t request;
  bool answered = false;

  void Send(std::string line) {
    if (std::exchange(answered, true)) return;
    if (const auto alive = connection.lock()) alive->Answer(request, std::move(line));
  }
  ~State() { Send(ErrorLine({ErrorCode::kSystem, "the daemon gave no answer"})); }
};

AdminReply::AdminReply(std::weak_ptr<AdminConnection> connection, uint64_t request)
    : state_(std::make_shared<State>(std::move(connection), request)) {}

void AdminReply::Ok(const OrderedJson& result) const {
  state_->Send(ToLine({{"ok", true}, {"result", result}}));
}

void AdminReply::Fail(const Error& error) const { state_->Send(ErrorLine(error)); }

AdminServer::AdminServer(EventLoop& loop, std::string path) : loop_(loop), path_(std::move(path)) {}

AdminServer::~AdminServer() { Stop(); }

void AdminServer::Register(const std::string& verb, Handler handler) {
  handlers_[verb] = std::move(handler);
}

Result<> AdminServer::Start(const InstanceLock& held) {
  auto listener = ListenUnix(path_, SOCK_STREAM, 0600, held);
  if (!listener) return std::unexpected(listener.error());
  acceptor_ = std::make_unique<Acceptor>(
      loop_, *std::move(listener), [this](Fd connection) { OnAccept(std::move(connection)); },
      [](int connection) {
        SendRefusal(connection, {ErrorCode::kNoMemory, "the daemon is out of descriptors"});
      });
  return acceptor_->Start();
}

void AdminServer::Stop() {
  if (!acceptor_) return;
  acceptor_.reset();
  unlink(path_.c_str());
  for (const auto& [id, connection] : connections_) connection->Shut();
  connections_.clear();
}

void AdminServer::OnAccept(Fd fd) {
  const auto caller = Identify(fd.get());
  if (!caller || !MakeRoom()) {
    ++refused_;
    SendRefusal(fd.get(), caller ? Error{ErrorCode::kNoMemory, "too many administrators at once"}
                                 : caller.error());
    return;
  }
  const uint64_t id = next_id_++;
  auto connection = std::make_shared<AdminConnection>(*this, id, std::move(fd), *caller);
  if (auto started = connection->Start(); !started) {
    LogError("admin connection failed", {{"error", started.error().message}});
    return;
  }
  connections_.emplace(id, std::move(connection));
}

// At the limit the connection that has been idle since the longest ago gives way.
bool AdminServer::MakeRoom() {
  if (connections_.size() < kMaxConnections) return true;
  for (const auto& [id, connection] : connections_) {
    if (!connection->idle()) continue;
    Close(id);
    return true;
  }
  return false;
}

void AdminServer::Close(uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const auto connection = std::move(found->second);
  connections_.erase(found);
  connection->Shut();
}

void AdminServer::Dispatch(const std::shared_ptr<AdminConnection>& connection,
                           const std::string& line) {
  ++requests_;
  const AdminReply reply(connection, connection->request());
  const Json request = Json::parse(line, nullptr, false);
  if (!request.is_object() || !request.contains("verb") || !request["verb"].is_string()) {
    return reply.Fail(
        {ErrorCode::kInvalid, "a request is one JSON object a line with \"verb\" and \"args\""});
  }
  const Json args = request.contains("args") ? request["args"] : Json::object();
  if (!args.is_object()) return reply.Fail({ErrorCode::kInvalid, "\"args\" must be an object"});
  const std::string verb = request["verb"].get<std::string>();
  const auto handler = handlers_.find(verb);
  if (handler == handlers_.end()) {
    return reply.Fail({ErrorCode::kNotFound, "this daemon has no verb \"" + verb + "\""});
  }
  handler->second(args, connection->caller(), reply);
}

const char* ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid: return "invalid";
    case ErrorCode::kNotFound: return "not_found";
    case ErrorCode::kExists: return "exists";
    case ErrorCode::kPermission: return "permission";
    case ErrorCode::kNoMemory: return "no_memory";
    case ErrorCode::kWouldBlock: return "would_block";
    case ErrorCode::kVersion: return "version";
    case ErrorCode::kProtocol: return "protocol";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kRefused: return "refused";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kClosed: return "closed";
    case ErrorCode::kSystem: return "system";
  }
  return "system";
}

}  // namespace sluice::control
