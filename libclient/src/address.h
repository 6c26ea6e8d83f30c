// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shm_proto/base/result.h"

namespace sluice::client {

// Where to connect: the host as the daemon wants it ("host", "host:port", "[v6]", "[v6]:port") and
// the service.
struct Address {
  std::string host;
  uint16_t service;
};

// "host:service" or "host:port:service"; IPv6 addresses stand in brackets.
Result<Address> ParseAddress(std::string_view text);

}  // namespace sluice::client
