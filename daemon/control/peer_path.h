// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/engine/handshake.h"
#include "daemon/engine/session.h"
#include "shm_proto/base/random.h"

namespace sluice::control {

// Which session and path one daemon has with one peer and lane, and what follows from it for the
// next connection. Both ends run this same logic, and whatever crosses on the way they end up on
// one and the same connection. Invariant: up() only with a session; epochs of one session only
// rise. Pure: no clock, no socket. Thread: control.
//
// `arrival` numbers order what one daemon saw: connections accepted and paths coming up, both
// counted by its owner.
class PeerPath {
 public:
  explicit PeerPath(uint64_t local_instance) : local_instance_(local_instance) {}

  // What to ask for when dialling.
  handshake::Wish MakeWish(uint16_t lane) const;

  // What to answer to a peer that dialled and has proven itself. nullopt: its connection is a
  // duplicate, refuse it. `own_dial`: our own connection to this peer is open and in its handshake.
  // The one that the lower instance dialled is kept; and whatever arrived before the path came up
  // was dialled by a peer that did not know of that path yet.
  std::optional<handshake::Decision> Decide(const handshake::PeerClaims& peer, bool own_dial,
                                            uint64_t arrival, Random& random) const;

  // Whether what our dial achieved still fits: a session that was ended here meanwhile must not be
  // resumed.
  bool Fits(const SessionParameters& session) const;

  void OnUp(const SessionParameters& session, uint64_t arrival);
  // False: it was about an older path than the present one, and nothing changed.
  bool OnLost(uint64_t session, uint32_t path_epoch, bool session_over);

  bool up() const { return up_; }
  bool session_alive() const { return session_ != 0; }
  uint64_t session() const { return session_; }
  uint32_t path_epoch() const { return path_epoch_; }
  uint64_t peer_instance() const { return peer_instance_; }  // Of the latest session; 0: never met.

 private:
  uint64_t local_instance_;
  uint64_t peer_instance_ = 0;
  uint64_t session_ = 0;  // 0: none alive.
  uint32_t path_epoch_ = 0;
  uint64_t up_since_ = 0;
  bool up_ = false;
};

}  // namespace sluice::control
