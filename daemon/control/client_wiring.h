// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/control/client_server.h"
#include "daemon/control/config.h"
#include "daemon/control/status.h"

// Between the client server and what surrounds it: the configuration it runs with, and what it
// shows.
namespace sluice::control {

std::vector<clients::TenantRule> ToTenantRules(const Config& config);
clients::NodeLimits ToNodeLimits(const Config& config);
ClientServerOptions ToClientServerOptions(const Config& config, uint64_t instance);

std::vector<ClientStatus> ToClientStatus(const ClientServerSnapshot& snapshot);
// For /metrics and sluicectl: the server's counters, and each tenant's share.
std::vector<NamedNumber> ToNumbers(const ClientServerSnapshot& snapshot);

}  // namespace sluice::control
