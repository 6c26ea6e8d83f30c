// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "daemon/engine/session.h"
#include "shm_proto/base/result.h"

namespace sluice::control {

// A peer daemon as the I/O thread that owns its engine knows it.
struct PeerRef {
  PeerId peer;
  uint32_t io_thread;
};

// Who the peer daemons are. Asked by the client server when a client connects. Thread: control.
class PeerDirectory {
 public:
  using ResolveCallback = std::function<void(Result<PeerRef>)>;

  virtual ~PeerDirectory() = default;

  // Finds the peer daemon on `host` (a name, an IPv4 address, or an IPv6 address without brackets)
  // at `port` (0: the configured default), making it known and dialling it if it is new. Calls
  // `done` exactly once on the control thread, inside Resolve() or later (name look-ups never block
  // the loop); AddPeer has been posted to that I/O thread before, so an OpenSocket posted from
  // `done` finds its engine. Errors: kNotFound no such name, kPermission outside the allowed
  // networks, kNoMemory too many peers or look-ups, kClosed the daemon is stopping.
  virtual void Resolve(std::string_view host, uint16_t port, ResolveCallback done) = 0;
};

}  // namespace sluice::control
