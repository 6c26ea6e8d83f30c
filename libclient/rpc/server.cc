// SPDX-License-Identifier: Apache-2.0
#include "libclient/rpc/server.h"

#include <algorithm>
#include <cstring>

namespace sluice::rpc {
namespace {

constexpr uint64_t kNsPerUs = 1000;
constexpr size_t kCopiedBytes = 1024;  // Up to here a copy costs less than a buffer in flight.

}  // namespace

ServerImpl::ServerImpl(EndpointImpl& endpoint, const ServerOptions& options)
    : endpoint_(endpoint),
      options_(options),
      instance_(static_cast<uint32_t>(endpoint.RandomNumber()) | 1),  // 0 means: not known.
      admission_(options.max_running, options.max_waiting),
      duplicates_(
          {options.remembered_clients, options.remembered_calls, options.remembered_bytes}) {
  methods_[kPingMethod] = {"ping", [](Request request) { request.ReplyCopy(nullptr, 0); }, {}};
  endpoint_.Join(*this);
}

ServerImpl::~ServerImpl() {
  for (auto& [socket, connection] : connections_) {
    for (auto& [key, state] : connection.requests) state->server = nullptr;
  }
  for (auto& [token, state] : tokens_) state->server = nullptr;
  endpoint_.Leave(*this);
}

void ServerImpl::Handle(uint32_t method, std::string name, Handler handler) {
  methods_[method] = {std::move(name), std::move(handler), {}};
}

Status ServerImpl::Listen(uint16_t service) {
  sluice_listener listener = 0;
  const Status status = sluice_listen(endpoint_.channel(), service, 0, &listener);
  if (status) endpoint_.OwnListener(listener, *this);
  return status;
}

void ServerImpl::SetLimits(uint32_t max_running, uint32_t max_waiting) {
  admission_.Resize(max_running, max_waiting);
}

void ServerImpl::OnEvent(const sluice_event& event, uint64_t now_ns) {
  switch (event.type) {
    case SLUICE_EVENT_ACCEPTED: {
      connections_[event.socket];
      ShortHeader hello;
      hello.prefix.kind = Kind::kHello;
      hello.prefix.call = instance_;
      std::array<std::byte, sizeof(hello)> bytes;
      Write(hello, bytes);
      // Without it the client still works, and asks less of a token.
      (void)sluice_send_copy(endpoint_.channel(), event.socket, bytes.data(), bytes.size(),
                             SLUICE_SEND_SILENT, 0, 0);
      break;
    }
    case SLUICE_EVENT_MESSAGE: OnMessage(event, now_ns); break;
    case SLUICE_EVENT_CLOSED: CloseConnection(event.socket); break;
    default: break;  // SENT: a reply that did not arrive is its client's to miss.
  }
}

void ServerImpl::OnMessage(const sluice_event& event, uint64_t now_ns) {
  Payload message(endpoint_.channel(), event.data, 0, event.length);
  const auto parsed = Parse({static_cast<const std::byte*>(event.data), event.length});
  if (!connections_.contains(event.socket)) return;
  const auto* request = parsed ? std::get_if<RequestHeader>(&parsed->header) : nullptr;
  if (request != nullptr) {
    auto state = std::make_shared<RequestState>();
    state->server = this;
    state->socket = event.socket;
    state->call = request->prefix.call;
    state->attempt = request->prefix.attempt;
    state->method = request->method;
    state->deadline_ns = now_ns + request->remaining_us * kNsPerUs;
    state->trace_id = event.trace_id;
    state->token = {request->client, request->sequence};
    state->payload = Payload(endpoint_.channel(), message.Release(), parsed->payload_offset,
                             event.length - parsed->payload_offset);
    OnRequest(*request, std::move(state), now_ns);
  } else if (parsed && parsed->prefix().kind == Kind::kCancel) {
    OnCancel(event.socket, parsed->prefix());
  } else {
    ++rubbish_;
    sluice_close(endpoint_.channel(), event.socket);
    CloseConnection(event.socket);
  }
}

void ServerImpl::OnRequest(const RequestHeader& header, StatePtr state, uint64_t now_ns) {
  const auto method = methods_.find(header.method);
  if (method == methods_.end()) return SendReply(*state, Code::kNoMethod, {}, 0, 0);
  if (!serving_) return SendReply(*state, Code::kNotServing, {}, 0, 0);
  if (header.sequence != 0 && !AdmitToken(header, state)) return;
  const auto verdict = admission_.OnArrival();
  if (verdict == Admission::Verdict::kOverloaded) {
    if (header.sequence != 0) duplicates_.Drop(state->token);
    ++method->second.ended[static_cast<size_t>(Code::kOverloaded)];
    return SendReply(*state, Code::kOverloaded, {}, 0, 0);
  }
  if (header.sequence != 0) tokens_[{header.client, header.sequence}] = state;
  connections_[state->socket].requests[KeyOf(state->call, state->attempt)] = state;
  if (verdict == Admission::Verdict::kRun) {
    Run(state);
    RunWaiting(now_ns);
  } else {
    waiting_.push_back(std::move(state));
  }
}

// True: it is new, carry it out. Otherwise it has been answered, or will be.
bool ServerImpl::AdmitToken(const RequestHeader& header, const StatePtr& state) {
  const bool may_have_run = (header.prefix.flags & kMayHaveRun) != 0;
  const auto token = std::pair(header.client, header.sequence);
  if (may_have_run && header.instance != instance_ && !tokens_.contains(token)) {
    SendReply(*state, Code::kForgotten, {}, 0, 0);  // It was another server that may know.
    return false;
  }
  const auto answer = duplicates_.Arrive(state->token, header.sequence - header.incomplete_span,
                                         may_have_run);
  switch (answer.verdict) {
    case DuplicateTable::Verdict::kRun: return true;
    case DuplicateTable::Verdict::kRunning:
      if (const auto found = tokens_.find(token); found != tokens_.end())
        Join(found->second, *state);
      break;
    case DuplicateTable::Verdict::kFinished: SendRemembered(*state, *answer.reply); break;
    case DuplicateTable::Verdict::kForgotten: SendReply(*state, Code::kForgotten, {}, 0, 0); break;
    case DuplicateTable::Verdict::kFull:
      SendReply(*state, Code::kOverloaded, {}, 0, 0);
      return false;
  }
  ++repeated_;
  return false;
}

// Whoever asked last gets the reply.
void ServerImpl::Join(const StatePtr& running, const RequestState& repeated) {
  if (const auto former = connections_.find(running->socket); former != connections_.end()) {
    former->second.requests.erase(KeyOf(running->call, running->attempt));
  }
  running->socket = repeated.socket;
  running->call = repeated.call;
  running->attempt = repeated.attempt;
  running->cancelled = false;
  connections_[running->socket].requests[KeyOf(running->call, running->attempt)] = running;
}

void ServerImpl::SendRemembered(const RequestState& state, const DuplicateTable::Reply& reply) {
  Payload copy;
  if (!reply.bytes.empty()) copy = endpoint_.Copy(reply.bytes.data(), reply.bytes.size());
  const bool whole = copy.size() == reply.bytes.size();
  // Without memory for it now, it can be asked for again.
  SendReply(state, whole ? static_cast<Code>(reply.code) : Code::kOverloaded, std::move(copy), 0,
            0);
}

void ServerImpl::Run(const StatePtr& state) {
  state->stage = RequestState::Stage::kRunning;
  methods_.at(state->method).handler(Request(state));
}

// Those whose deadline passed while they waited are not carried out.
void ServerImpl::RunWaiting(uint64_t now_ns) {
  while (!waiting_.empty()) {
    if (waiting_.front()->stage == RequestState::Stage::kOver) {  // Cancelled; off the books.
      waiting_.pop_front();
      continue;
    }
    if (!admission_.StartNext()) return;
    const StatePtr state = waiting_.front();
    waiting_.pop_front();
    if (now_ns >= state->deadline_ns) {
      ++expired_;
      Finish(*state, Code::kDeadline, {});
    } else {
      Run(state);
    }
  }
}

// Ends a request that runs, or was just taken from the queue.
void ServerImpl::Finish(RequestState& state, Code code, Payload payload) {
  if (state.stage == RequestState::Stage::kOver) return;
  const bool ran = state.stage == RequestState::Stage::kRunning;
  state.stage = RequestState::Stage::kOver;
  admission_.OnFinished();
  ++methods_.at(state.method).ended[static_cast<size_t>(code)];
  if (const auto connection = connections_.find(state.socket); connection != connections_.end()) {
    connection->second.requests.erase(KeyOf(state.call, state.attempt));
  }
  if (state.token.sequence != 0) {
    if (ran) {
      duplicates_.Finish(
          state.token, {static_cast<uint32_t>(code), std::string(payload.data(), payload.size())});
    } else {
      duplicates_.Drop(state.token);
    }
    tokens_.erase({state.token.client, state.token.sequence});
  }
  SendReply(state, code, std::move(payload), 0, state.next_part);
}

bool ServerImpl::Part(RequestState& state, Payload& part) {
  const auto connection = connections_.find(state.socket);
  if (connection == connections_.end() || state.stage == RequestState::Stage::kOver) return true;
  if (!connection->second.unsent.empty()) return false;
  SendReply(state, Code::kOk, std::move(part), kMoreFollows, state.next_part++);
  return true;
}

void ServerImpl::SendReply(const RequestState& state, Code code, Payload payload, uint8_t flags,
                           uint32_t part) {
  const auto found = connections_.find(state.socket);
  if (found == connections_.end()) return;
  Unsent reply{std::move(payload), {}, state.trace_id};
  reply.header.prefix.flags = flags;
  reply.header.prefix.attempt = state.attempt;
  reply.header.prefix.call = state.call;
  reply.header.code = static_cast<uint32_t>(code);
  reply.header.part = part;
  Connection& connection = found->second;
  if (connection.unsent.empty() && SendOne(state.socket, reply)) return;
  if (connection.unsent.size() >= options_.max_unsent) {
    ++unsent_dropped_;  // This client asks and does not listen.
    sluice_close(endpoint_.channel(), state.socket);
    return;
  }
  if (connection.unsent.empty()) blocked_.push_back(state.socket);
  connection.unsent.push_back(std::move(reply));
}

// False: no room; try again. A connection that is going has swallowed its reply.
bool ServerImpl::SendOne(sluice_socket socket, Unsent& reply) {
  sluice_channel* channel = endpoint_.channel();
  int result;
  if (!reply.payload) {
    std::array<std::byte, sizeof(ReplyHeader)> bytes;
    Write(reply.header, bytes);
    result = sluice_send_copy(channel, socket, bytes.data(), bytes.size(), SLUICE_SEND_SILENT, 0,
                              reply.trace_id);
  } else {
    void* start;
    if (!Prepend(endpoint_, reply.header, reply.payload, start)) return false;
    const size_t bytes = sizeof(reply.header) + reply.payload.size();
    if (bytes <= kCopiedBytes) {
      result = sluice_send_copy(channel, socket, start, bytes, SLUICE_SEND_SILENT, 0,
                                reply.trace_id);
    } else {
      result = sluice_send(channel, socket, start, bytes, SLUICE_SEND_SILENT, 0, reply.trace_id);
      if (result == 0) reply.payload.Release();
    }
  }
  return result == 0 || result == -ENOTCONN || result == -EMSGSIZE || result == -EINVAL;
}

bool ServerImpl::Flush(sluice_socket socket, Connection& connection) {
  while (!connection.unsent.empty()) {
    if (!SendOne(socket, connection.unsent.front())) return false;
    connection.unsent.pop_front();
  }
  return true;
}

uint64_t ServerImpl::OnTurn(uint64_t now_ns) {
  const std::vector<sluice_socket> blocked = std::exchange(blocked_, {});
  for (const sluice_socket socket : blocked) {
    const auto found = connections_.find(socket);
    if (found == connections_.end()) continue;
    if (!Flush(socket, found->second)) {
      blocked_.push_back(socket);
      continue;
    }
    std::vector<std::function<void()>> callbacks;
    for (auto& [key, state] : found->second.requests) {
      if (state->on_writable) callbacks.push_back(std::exchange(state->on_writable, nullptr));
    }
    for (const auto& callback : callbacks) callback();
  }
  RunWaiting(now_ns);
  return blocked_.empty() ? kNever : now_ns + kNsPerMs;
}

void ServerImpl::OnCancel(sluice_socket socket, const Prefix& prefix) {
  auto& requests = connections_.at(socket).requests;
  const auto found = requests.find(KeyOf(prefix.call, prefix.attempt));
  if (found == requests.end()) return;
  const StatePtr state = found->second;
  requests.erase(found);
  Cancel(state);
}

// Nobody waits for it. One that waits is given up, unless it has a token and may be asked for
// again.
void ServerImpl::Cancel(const StatePtr& state) {
  state->socket = 0;
  if (state->stage == RequestState::Stage::kOver || state->cancelled) return;
  state->cancelled = true;
  if (state->stage == RequestState::Stage::kWaiting && state->token.sequence == 0) {
    state->stage = RequestState::Stage::kOver;
    admission_.OnLeftQueue();
    ++methods_.at(state->method).ended[static_cast<size_t>(Code::kCancelled)];
  } else if (state->on_cancel) {
    std::exchange(state->on_cancel, nullptr)();
  }
}

void ServerImpl::CloseConnection(sluice_socket socket) {
  const auto found = connections_.find(socket);
  if (found == connections_.end()) return;
  Connection gone = std::move(found->second);
  connections_.erase(found);
  for (const auto& [key, state] : gone.requests) {
    if (state->socket == socket) Cancel(state);  // Not one that was asked for again elsewhere.
  }
}

std::string ServerImpl::MetricsText() const {
  std::string text;
  for (const auto& [id, method] : methods_) {
    for (size_t code = 0; code < kCodes; ++code) {
      if (method.ended[code] == 0) continue;
      text += "sluice_rpc_server_requests_total{method=\"" + method.name + "\",code=\"" +
              CodeName(static_cast<Code>(code)) + "\"} " + std::to_string(method.ended[code]) +
              "\n";
    }
  }
  const auto add = [&](const char* name, uint64_t value) {
    text += std::string("sluice_rpc_server_") + name + " " + std::to_string(value) + "\n";
  };
  add("running", admission_.running());
  add("waiting", admission_.waiting());
  add("connections", connections_.size());
  add("expired_total", expired_);
  add("repeated_total", repeated_);
  add("rubbish_total", rubbish_);
  add("slow_clients_total", unsent_dropped_);
  add("remembered_calls", duplicates_.entries());
  add("remembered_bytes", duplicates_.reply_bytes());
  return text;
}

// ---- Request --------------------------------------------------------------------------------

Request::Request(std::shared_ptr<RequestState> state) : state_(std::move(state)) {}

Request& Request::operator=(Request&& other) noexcept {
  if (this != &other) {
    if (state_ != nullptr) Fail("the handler gave no reply");
    state_ = std::move(other.state_);
  }
  return *this;
}

Request::~Request() {
  if (state_ != nullptr) Fail("the handler gave no reply");
}

uint32_t Request::method() const { return state_->method; }
Payload& Request::payload() { return state_->payload; }
uint64_t Request::deadline_ns() const { return state_->deadline_ns; }
uint64_t Request::trace_id() const { return state_->trace_id; }
uint32_t Request::attempt() const { return state_->attempt; }
uint64_t Request::token_client() const { return state_->token.client; }
uint64_t Request::token_sequence() const { return state_->token.sequence; }

bool Request::cancelled() const {
  return state_->cancelled || state_->server == nullptr ||
         state_->server->endpoint().now_ns() >= state_->deadline_ns;
}

void Request::OnCancel(std::function<void()> callback) { state_->on_cancel = std::move(callback); }
void Request::OnWritable(std::function<void()> callback) {
  state_->on_writable = std::move(callback);
}

void Request::Reply(Payload reply) {
  const auto state = std::exchange(state_, nullptr);
  if (state != nullptr && state->server != nullptr) {
    state->server->Finish(*state, Code::kOk, std::move(reply));
  }
}

void Request::ReplyCopy(const void* data, size_t bytes) {
  if (state_ == nullptr || state_->server == nullptr) return;
  Payload copy;
  if (bytes > 0) {
    copy = state_->server->endpoint().Copy(data, bytes);
    if (!copy) return Fail("no memory for the reply");
  }
  Reply(std::move(copy));
}

void Request::Fail(const std::string& text) {
  const auto state = std::exchange(state_, nullptr);
  if (state == nullptr || state->server == nullptr) return;
  state->server->Finish(*state, Code::kApplication,
                        state->server->endpoint().Copy(text.data(), text.size()));
}

bool Request::Part(Payload& part) {
  return state_ == nullptr || state_->server == nullptr || state_->server->Part(*state_, part);
}

// ---- Server ---------------------------------------------------------------------------------

Server::Server(Endpoint& endpoint, const ServerOptions& options)
    : impl_(std::make_unique<ServerImpl>(endpoint.impl(), options)) {}
Server::~Server() = default;
void Server::Handle(uint32_t method, std::string name, Handler handler) {
  if (method != kPingMethod) impl_->Handle(method, std::move(name), std::move(handler));
}
Status Server::Listen(uint16_t service) { return impl_->Listen(service); }
void Server::SetServing(bool serving) { impl_->SetServing(serving); }
void Server::SetLimits(uint32_t max_running, uint32_t max_waiting) {
  impl_->SetLimits(max_running, max_waiting);
}
uint32_t Server::running() const { return impl_->running(); }
std::string Server::MetricsText() const { return impl_->MetricsText(); }

}  // namespace sluice::rpc
