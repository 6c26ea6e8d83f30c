// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "daemon/engine/socket.h"
#include "daemon/sched/send_budget.h"

namespace sluice {

// A message as it is handed on: inline, or in a buffer that is the owner's from now on.
struct Delivery {
  uint64_t length;
  uint64_t trace_id;
  uint8_t traffic_class;
  const std::byte* inline_data;  // Null: look at `buffer`.
  PoolBuffer buffer;
};

// What an engine needs of the I/O thread it lives on. Called on that thread only; never calls back
// into the engine.
class EngineHost {
 public:
  virtual ~EngineHost() = default;

  // A buffer of at least `bytes` in the pool of the socket's owner. Empty: not now; the host calls
  // Engine::Retry(socket) when there may be.
  virtual std::optional<PoolBuffer> Allocate(Socket& socket, uint64_t bytes) = 0;
  virtual void Free(Socket& socket, const PoolBuffer& buffer) = 0;
  // The pool is full and the engine keeps a message of that size for the owner. False: it must not,
  // since it keeps too many already.
  virtual bool Hold(Socket& socket, uint64_t bytes) = 0;
  virtual void Unhold(Socket& socket, uint64_t bytes) = 0;
  // The longest message that this socket's owner could ever receive.
  virtual uint64_t LargestBuffer(Socket& socket) = 0;

  // False: the owner has no room for it now; the host calls Engine::Retry(socket) when it has.
  virtual bool Deliver(Socket& socket, const Delivery& message) = 0;

  // The send with this token is over; its memory is the owner's again.
  virtual void SendOver(Socket& socket, const SendOperation& operation, Outcome outcome,
                        int error) = 0;

  virtual void Connected(Socket& socket, Outcome outcome, int error) = 0;
  virtual void Incoming(Socket& socket) = 0;

  // Nothing more comes for this socket. Told once to a socket that was open, unless its owner is
  // gone.
  virtual void Closed(Socket& socket, int error) = 0;

  // The socket leaves the table: nothing of it touches its owner's memory any more.
  virtual void Gone(Socket& socket) = 0;

  // What its engines share; asked for once, when an engine is made. Null: nothing.
  virtual SendBudget* budget() { return nullptr; }

  // What there is beside the wire; null: nothing, or not now.
  virtual transport::Fabric* fabric() { return nullptr; }

  // The messages take the other path from now on: Engine::on_fabric() says which.
  virtual void PathChanged(Engine& engine) { (void)engine; }

  virtual void PathLost(Engine& engine, bool session_over, const std::string& reason) = 0;
};

}  // namespace sluice
