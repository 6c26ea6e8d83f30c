// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/handshake_reason.h"

namespace sluice::handshake {

ErrorCode CodeOf(RefuseReason reason) {
  switch (reason) {
    case RefuseReason::kProtocol: return ErrorCode::kProtocol;
    case RefuseReason::kVersion:
    case RefuseReason::kFeatures: return ErrorCode::kVersion;
    case RefuseReason::kAuthentication:
    case RefuseReason::kBadProof:
    case RefuseReason::kNotAllowed: return ErrorCode::kPermission;
    case RefuseReason::kDuplicate: return ErrorCode::kExists;
    case RefuseReason::kShuttingDown: return ErrorCode::kUnavailable;
    case RefuseReason::kBusy: return ErrorCode::kWouldBlock;
    case RefuseReason::kSelf: return ErrorCode::kInvalid;
  }
  return ErrorCode::kRefused;
}

bool IsDefinite(RefuseReason reason) {
  switch (reason) {
    case RefuseReason::kVersion:
    case RefuseReason::kFeatures:
    case RefuseReason::kAuthentication:
    case RefuseReason::kBadProof:
    case RefuseReason::kNotAllowed:
    case RefuseReason::kSelf: return true;
    default: return false;
  }
}

const char* ReasonText(RefuseReason reason) {
  switch (reason) {
    case RefuseReason::kProtocol: return "protocol";
    case RefuseReason::kVersion: return "version";
    case RefuseReason::kFeatures: return "features";
    case RefuseReason::kAuthentication: return "authentication-mode";
    case RefuseReason::kBadProof: return "bad-proof";
    case RefuseReason::kNotAllowed: return "not-allowed";
    case RefuseReason::kDuplicate: return "duplicate";
    case RefuseReason::kShuttingDown: return "shutting-down";
    case RefuseReason::kBusy: return "busy";
    case RefuseReason::kSelf: return "self";
  }
  return "unknown";
}

}  // namespace sluice::handshake
