// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <sluice/rpc.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libclient/rpc/admission.h"
#include "libclient/rpc/duplicate_table.h"
#include "libclient/rpc/endpoint.h"
#include "libclient/rpc/wire.h"

namespace sluice::rpc {

// A request from its arrival to its end.
struct RequestState {
  enum class Stage { kWaiting, kRunning, kOver };

  ServerImpl* server = nullptr;  // nullptr: the server has gone.
  Stage stage = Stage::kWaiting;
  sluice_socket socket = 0;  // Where the reply goes; 0: nobody wants it.
  uint64_t call = 0;
  uint8_t attempt = 0;
  uint32_t method = 0;
  uint32_t next_part = 0;
  uint64_t deadline_ns = 0;
  uint64_t trace_id = 0;
  DuplicateTable::Token token;
  bool cancelled = false;
  Payload payload;
  std::function<void()> on_cancel;
  std::function<void()> on_writable;
};

// Serves: reads requests, admits them, runs handlers, sends replies.
// Invariant: a request is in its connection's `requests` until it is over or its connection is; one
// with a token is in tokens_ while it waits or runs, and entered in duplicates_.
// Thread: its endpoint's. Owns: its connections' unsent replies.
class ServerImpl final : public Member {
 public:
  ServerImpl(EndpointImpl& endpoint, const ServerOptions& options);
  ~ServerImpl() override;

  void Handle(uint32_t method, std::string name, Handler handler);
  Status Listen(uint16_t service);
  void SetServing(bool serving) { serving_ = serving; }
  void SetLimits(uint32_t max_running, uint32_t max_waiting);
  uint32_t running() const { return admission_.running(); }
  std::string MetricsText() const;

  void OnEvent(const sluice_event& event, uint64_t now_ns) override;
  uint64_t OnTurn(uint64_t now_ns) override;

  // What a Request does.
  void Finish(RequestState& state, Code code, Payload payload);
  bool Part(RequestState& state, Payload& part);
  EndpointImpl& endpoint() { return endpoint_; }

 private:
  using StatePtr = std::shared_ptr<RequestState>;
  struct Unsent {
    Payload payload;
    ReplyHeader header;
    uint64_t trace_id;
  };
  struct Connection {
    std::unordered_map<uint64_t, StatePtr> requests;  // By call and attempt.
    std::deque<Unsent> unsent;
  };
  struct MethodEntry {
    std::string name;
    Handler handler;
    std::array<uint64_t, kCodes> ended{};
  };

  static uint64_t KeyOf(uint64_t call, uint8_t attempt) {
    return call ^ uint64_t { attempt } << 56;
  }
  void OnMessage(const sluice_event& event, uint64_t now_ns);
  void OnRequest(const RequestHeader& header, StatePtr state, uint64_t now_ns);
  bool AdmitToken(const RequestHeader& header, const StatePtr& state);
  void Join(const StatePtr& running, const RequestState& repeated);
  void SendRemembered(const RequestState& state, const DuplicateTable::Reply& reply);
  void OnCancel(sluice_socket socket, const Prefix& prefix);
  void Cancel(const StatePtr& state);
  void Run(const StatePtr& state);
  void RunWaiting(uint64_t now_ns);
  void CloseConnection(sluice_socket socket);
  void SendReply(const RequestState& state, Code code, Payload payload, uint8_t flags,
                 uint32_t part);
  bool SendOne(sluice_socket socket, Unsent& reply);
  bool Flush(sluice_socket socket, Connection& connection);

  EndpointImpl& endpoint_;
  ServerOptions options_;
  uint32_t instance_;
  bool serving_ = true;
  Admission admission_;
  DuplicateTable duplicates_;
  std::unordered_map<uint32_t, MethodEntry> methods_;
  std::unordered_map<sluice_socket, Connection> connections_;
  std::vector<sluice_socket> blocked_;
  std::deque<StatePtr> waiting_;
  std::map<std::pair<uint64_t, uint64_t>, StatePtr> tokens_;
  uint64_t expired_ = 0;
  uint64_t rubbish_ = 0;
  uint64_t repeated_ = 0;
  uint64_t unsent_dropped_ = 0;
};

}  // namespace sluice::rpc
