// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "daemon/engine/handshake_mac.h"
#include "shm_proto/base/result.h"

namespace sluice::control {

// Reads the cluster's key, 32 to 4096 bytes, from a regular file that nobody but its owner may
// read. Errors say how to make one.
Result<std::unique_ptr<handshake::MacKey>> ReadKeyFile(const std::string& path);

}  // namespace sluice::control
