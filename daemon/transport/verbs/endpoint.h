// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "daemon/transport/transport.h"
#include "shm_proto/base/result.h"

namespace sluice::transport {

// An Endpoint as RC queue pairs fill it in. Little endian, as it lies in memory.
struct VerbsEndpoint {
  static constexpr uint8_t kVersion = 1;
  uint8_t version = kVersion;
  uint8_t link_layer = 0;   // 1 InfiniBand, 2 Ethernet, as in verbs.
  uint16_t lid = 0;         // InfiniBand only.
  uint32_t queue_pair = 0;  // 24 bits.
  uint32_t first_psn = 0;   // 24 bits: of what this end will send.
  uint32_t path_mtu = 0;    // Bytes.
  std::array<uint8_t, 16> gid{};
};
static_assert(sizeof(VerbsEndpoint) == 32 && std::is_trivially_copyable_v<VerbsEndpoint>);
static_assert(sizeof(VerbsEndpoint) <= sizeof(Endpoint::bytes));

inline Endpoint Pack(const VerbsEndpoint& verbs) {
  Endpoint endpoint;
  endpoint.size = sizeof(verbs);
  std::memcpy(endpoint.bytes.data(), &verbs, sizeof(verbs));
  return endpoint;
}

// The bytes are the peer's word: kProtocol for what no peer of this version says.
Result<VerbsEndpoint> Unpack(const Endpoint& endpoint);

}  // namespace sluice::transport
