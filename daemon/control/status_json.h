// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "daemon/control/status.h"

// The picture of the daemon as administrators get it. Keys end in their unit; 64-bit identities are
// hexadecimal text, since readers of JSON keep only 53 bits of a number.
namespace sluice::control {

nlohmann::ordered_json StatusJson(const NodeStatus& status);  // The whole daemon in figures.
nlohmann::ordered_json ClientsJson(const NodeStatus& status);
nlohmann::ordered_json EnginesJson(const NodeStatus& status);  // Peers with and without a path.
nlohmann::ordered_json SocketsJson(const NodeStatus& status);
nlohmann::ordered_json PoolsJson(const NodeStatus& status);
// The RDMA device, how it was chosen, and what its engines use of it.
nlohmann::ordered_json DevicesJson(const NodeStatus& status);

// Which control holds one engine back, from two pictures a moment apart. Null when `engine` (a
// peer's name or number) is not known.
nlohmann::ordered_json ExplainJson(const NodeStatus& before, const NodeStatus& after,
                                   const std::string& engine);

// "ok", or what is wrong: not ready, draining, or a thread that does not answer.
struct Health {
  bool ok;
  std::string reason;
};
Health HealthOf(const NodeStatus& status);

}  // namespace sluice::control
