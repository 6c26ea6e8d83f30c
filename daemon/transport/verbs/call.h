// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

#include "shm_proto/base/result.h"

namespace sluice::transport {

// What an ibv_* call returned as an error of ours. Some return an errno, some -1 and set it, some
// providers a negative errno: whatever is not 0 has failed.
inline Result<> Verbs(int result, const std::string& what) {
  if (result == 0) return {};
  const int number = result == -1 ? errno : (result < 0 ? -result : result);
  return Fail(number == ENOMEM ? ErrorCode::kNoMemory : ErrorCode::kUnavailable,
              what + ": " + std::strerror(number));
}

}  // namespace sluice::transport
