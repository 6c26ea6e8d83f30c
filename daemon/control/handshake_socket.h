// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "daemon/control/event_loop.h"
#include "daemon/engine/handshake.h"
#include "shm_proto/base/fd.h"

namespace sluice::control {

// Carries one handshake over one TCP connection.
// Invariant: reads no byte that the handshake does not want, so what follows it is left to the
// engine; ends by its deadline whatever the peer does. Calls back last of all in each of its own
// calls, so the owner may destroy it there; never from the constructor. Thread: control. Owns: the
// descriptor until Take().
class HandshakeSocket {
 public:
  // `decide`: the peer has proven itself; call Proceed(), Grant() or Reject() here. `ended`: the
  // handshake is kDone, all of it written, or kFailed. Exactly one `ended`, unless destroyed
  // before.
  struct Callbacks {
    std::function<void()> decide;
    std::function<void()> ended;
  };

  HandshakeSocket(EventLoop& loop, Fd socket, handshake::Handshake handshake, uint64_t deadline_ns,
                  Callbacks callbacks);
  ~HandshakeSocket();
  HandshakeSocket(const HandshakeSocket&) = delete;
  HandshakeSocket& operator=(const HandshakeSocket&) = delete;

  handshake::Handshake& state() { return handshake_; }
  const handshake::Handshake& state() const { return handshake_; }

  void Reject(handshake::RefuseReason reason,
              const std::string& text);  // Outside `decide`; no `ended` follows.
  Fd Take();                             // Once kDone.

 private:
  void Pump();
  bool Read();  // False: nothing came.
  void Write();
  void Broken(const std::string& what);
  void Rest();
  void End();
  void SayLastWord();

  EventLoop& loop_;
  Fd socket_;
  handshake::Handshake handshake_;
  const uint64_t deadline_ns_;
  EventLoop::TimerId timer_ = 0;
  Callbacks callbacks_;
  bool broken_ = false;  // The connection is dead: no last word.
};

}  // namespace sluice::control
