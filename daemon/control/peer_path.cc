// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/peer_path.h"

#include <algorithm>

namespace sluice::control {
namespace {

constexpr uint32_t kLastEpoch = UINT32_MAX -
                                1;  // A session that used them up is followed by a new one.

}  // namespace

handshake::Wish PeerPath::MakeWish(uint16_t lane) const {
  if (session_ == 0 || path_epoch_ >= kLastEpoch) return {.lane = lane};
  return {.lane = lane,
          .resume_session = session_,
          .resume_instance = peer_instance_,
          .path_epoch = path_epoch_ + 1};
}

std::optional<handshake::Decision> PeerPath::Decide(const handshake::PeerClaims& peer,
                                                    bool own_dial, uint64_t arrival,
                                                    Random& random) const {
  if (own_dial && local_instance_ < peer.instance) return std::nullopt;
  if (up_ && peer.instance == peer_instance_ && arrival < up_since_) return std::nullopt;
  const bool known = session_ != 0 && peer.instance == peer_instance_ &&
                     peer.resume_session == session_;
  if (known && path_epoch_ < kLastEpoch && peer.path_epoch <= kLastEpoch) {
    return handshake::Decision{session_, std::max(path_epoch_ + 1, peer.path_epoch), true};
  }
  uint64_t number = random.Next();
  while (number == 0 || number == session_ || number == peer.resume_session) number = random.Next();
  return handshake::Decision{number, 1, false};
}

bool PeerPath::Fits(const SessionParameters& session) const {
  if (!session.resumed) return true;
  return session.session == session_ && session.peer_instance == peer_instance_ &&
         session.path_epoch > path_epoch_;
}

void PeerPath::OnUp(const SessionParameters& session, uint64_t arrival) {
  peer_instance_ = session.peer_instance;
  session_ = session.session;
  path_epoch_ = session.path_epoch;
  up_since_ = arrival;
  up_ = true;
}

bool PeerPath::OnLost(uint64_t session, uint32_t path_epoch, bool session_over) {
  if (session != session_ || path_epoch != path_epoch_) return false;
  up_ = false;
  if (session_over) {
    session_ = 0;
    path_epoch_ = 0;
  }
  return true;
}

}  // namespace sluice::control
