// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/verbs/endpoint.h"

#include <bit>

namespace sluice::transport {

Result<VerbsEndpoint> Unpack(const Endpoint& endpoint) {
  constexpr uint32_t k24Bits = 0xff'ffff;
  VerbsEndpoint verbs;
  if (endpoint.size != sizeof(verbs))
    return Fail(ErrorCode::kProtocol, "the peer's RDMA endpoint has an unknown size");
  std::memcpy(&verbs, endpoint.bytes.data(), sizeof(verbs));
  if (verbs.version != VerbsEndpoint::kVersion)
    return Fail(ErrorCode::kProtocol, "the peer's RDMA endpoint has an unknown version");
  const bool mtu_good = std::has_single_bit(verbs.path_mtu) && verbs.path_mtu >= 256 &&
                        verbs.path_mtu <= 4096;
  if (verbs.queue_pair > k24Bits || verbs.first_psn > k24Bits || !mtu_good)
    return Fail(ErrorCode::kProtocol, "the peer's RDMA endpoint is out of range");
  return verbs;
}

}  // namespace sluice::transport
