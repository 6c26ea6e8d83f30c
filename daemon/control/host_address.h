// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shm_proto/base/result.h"

namespace sluice::control {

struct HostAddress {
  std::string host;
  uint16_t port;  // 0: the default.
};

// "host", "host:port", "[v6]", "[v6]:port", or a bare IPv6 address. Names hold letters, digits,
// '-', '_' and '.'.
Result<HostAddress> ParseHostAddress(std::string_view text);

}  // namespace sluice::control
