// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "shm_proto/base/result.h"

// Rules for the text of single values; each error says what is allowed.
namespace sluice {

Result<> CheckAbsolutePath(const std::string& text);
Result<> CheckListenAddress(
    const std::string& text);                        // "ADDRESS", "ADDRESS:PORT" or "[IPV6]:PORT".
Result<> CheckHttpAddress(const std::string& text);  // The same with a port; empty is allowed.
Result<> CheckNetwork(const std::string& text);      // "ADDRESS/BITS".
Result<> CheckTenantName(const std::string& text);

// Splits "ADDRESS:PORT", "[IPV6]:PORT" and "ADDRESS" (then port is `default_port`); numeric
// addresses only.
struct NumericAddress {
  std::string address;
  uint16_t port;
};
Result<NumericAddress> ParseNumericAddress(const std::string& text, uint16_t default_port);

}  // namespace sluice
