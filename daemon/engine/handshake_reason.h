// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "daemon/engine/handshake_wire.h"
#include "shm_proto/base/result.h"

// What a refusal means to this daemon.
namespace sluice::handshake {

ErrorCode CodeOf(RefuseReason reason);  // kRefused for one this build does not know.
bool IsDefinite(
    RefuseReason reason);  // Trying again changes nothing until somebody changes a setting.
const char* ReasonText(
    RefuseReason reason);  // "version", "bad-proof", ...: one word for logs and counters.

}  // namespace sluice::handshake
