// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "daemon/control/config.h"
#include "daemon/control/fabrics.h"
#include "daemon/transport/verbs/registry.h"
#include "shm_proto/base/random.h"

namespace sluice {

// The RDMA device as the control thread wants it, over verbs. All memory is registered with it
// while it is open. Outlived by registry and random.
Result<std::unique_ptr<control::FabricDevice>> OpenRdmaDevice(const Config& config,
                                                              transport::VerbsRegistry& registry,
                                                              Random& random);

}  // namespace sluice
