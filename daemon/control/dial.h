// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/control/backoff.h"
#include "daemon/control/connector.h"
#include "daemon/control/event_loop.h"
#include "daemon/control/handshake_socket.h"
#include "daemon/control/resolver.h"
#include "daemon/control/socket_address.h"
#include "shm_proto/base/random.h"

namespace sluice::control {

// Where a peer daemon may be found.
struct HostPort {
  std::string host;  // A name or a numeric address.
  uint16_t port = 0;
  std::string Text() const;
  auto operator<=>(const HostPort&) const = default;
};

struct DialError {
  ErrorCode code = ErrorCode::kUnavailable;
  bool definite = false;   // Trying again changes nothing until somebody changes a setting.
  bool duplicate = false;  // The peer keeps the connection that it dialled itself: no error.
  bool self = false;       // Proven: it was this daemon.
  std::string text;
};

// What all dials of a daemon share. Outlives them.
struct DialContext {
  EventLoop& loop;
  Resolver& resolver;
  Random& random;
  const handshake::Settings& handshake;
  const std::vector<Network>& allow;
  uint64_t connect_timeout_ns;
  uint64_t handshake_timeout_ns;
  uint64_t backoff_first_ns;
  uint64_t backoff_cap_ns;
};

// Reaches for one peer, again and again until told to stop: look-up, connection, handshake, pause.
// Invariant: at most one look-up, connection or handshake is under way. Every callback is the last
// thing done, so the owner may destroy the dial there, but for OnResolved() and OnProven(), which
// only answer. Thread: control. Owns: the connection until it is handed over.
class Dial {
 public:
  enum class State : uint8_t { kIdle, kWaiting, kResolving, kConnecting, kHandshaking };

  class Owner {
   public:
    virtual handshake::Wish MakeWish() = 0;
    // Whether to go on with these addresses; if not, OnYielded() follows.
    virtual bool OnResolved(const std::vector<SocketAddress>& addresses) = 0;
    // Whether to go on with this peer; if not, OnYielded() follows.
    virtual bool OnProven(const handshake::PeerClaims& peer, const SocketAddress& address) = 0;
    virtual void OnYielded() = 0;  // The dial is idle.
    virtual void OnConnected(Fd connection, const SessionParameters& session,
                             const handshake::PeerClaims& peer,
                             const SocketAddress& address) = 0;  // The dial is idle.
    virtual void OnFailed(const DialError& error) = 0;           // The dial pauses and tries again.

   protected:
    ~Owner() = default;
  };

  Dial(const DialContext& context, Owner& owner, HostPort where);
  ~Dial();
  Dial(const Dial&) = delete;
  Dial& operator=(const Dial&) = delete;

  // Begins at once, or after the next pause. Nothing happens unless idle.
  void Start(bool at_once);
  void Stop();  // Gives up what is under way.
  void ResetBackoff() { backoff_.Reset(); }
  void SetWhere(HostPort where) { where_ = std::move(where); }
  // Tried first, and alone when the name cannot be looked up.
  void SetKnownAddress(const SocketAddress& address) { known_ = address; }

  const HostPort& where() const { return where_; }
  State state() const { return state_; }
  bool Reaches(const SocketAddress& address,
               uint64_t instance) const;  // In a handshake with that daemon, as far as known.
  uint64_t attempts() const { return attempts_; }
  uint64_t next_retry_ns() const { return state_ == State::kWaiting ? next_retry_ns_ : 0; }
  const std::string& last_error() const { return last_error_; }

 private:
  void Attempt();
  void OnAddresses(Result<Resolver::Addresses> result);
  void OnSocket(Result<Connected> result);
  void OnDecide();
  void OnEnded();
  void Yield();
  void Failed(DialError error);

  const DialContext& context_;
  Owner& owner_;
  HostPort where_;
  std::optional<SocketAddress> known_;
  State state_ = State::kIdle;
  Backoff backoff_;
  EventLoop::TimerId timer_ = 0;
  uint64_t next_retry_ns_ = 0;
  uint64_t attempts_ = 0;
  std::string last_error_;
  std::shared_ptr<bool> lookup_;  // Its look-up is answered only while this lives.
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<HandshakeSocket> socket_;
  SocketAddress address_;         // The other end of `socket_`.
  uint64_t proven_instance_ = 0;  // Of the other end of `socket_`; 0: not yet.
  bool yielding_ = false;
};

const char* StateText(Dial::State state);

}  // namespace sluice::control
