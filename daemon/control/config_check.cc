// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/config_check.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace sluice {
namespace {

std::optional<uint32_t> ParseNumber(std::string_view text, uint32_t max) {
  uint32_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || text.empty() || number > max) return std::nullopt;
  return number;
}

bool IsAddress(int family, const std::string& text) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(family, text.c_str(), bytes) == 1;
}

}  // namespace

Result<> CheckAbsolutePath(const std::string& text) {
  if (text.starts_with('/') && text.find('\0') == std::string::npos) return {};
  return Fail(ErrorCode::kInvalid, "write an absolute path");
}

Result<NumericAddress> ParseNumericAddress(const std::string& text, uint16_t default_port) {
  const auto bad = Fail(
      ErrorCode::kInvalid,
      "write a numeric address with a port of 1 to 65535, as \"10.0.0.1:4500\" or "
      "\"[::1]:4500\"");
  std::string address = text, port;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string::npos) return bad;
    address = text.substr(1, close - 1);
    if (!IsAddress(AF_INET6, address)) return bad;
    port = text.substr(close + 1);
  } else if (const size_t colon = text.find(':');
             colon != std::string::npos && colon == text.rfind(':')) {
    address = text.substr(0, colon);
    port = text.substr(colon);
    if (!IsAddress(AF_INET, address)) return bad;
  } else if (!IsAddress(AF_INET, address) && !IsAddress(AF_INET6, address)) {
    return bad;
  }
  if (port.empty() && default_port != 0) return NumericAddress{address, default_port};
  const auto number = port.starts_with(':') ? ParseNumber(port.substr(1), 65'535) : std::nullopt;
  if (!number || *number == 0) return bad;
  return NumericAddress{address, static_cast<uint16_t>(*number)};
}

Result<> CheckListenAddress(const std::string& text) {
  const auto address = ParseNumericAddress(text, 1);
  if (!address) return std::unexpected(address.error());
  return {};
}

Result<> CheckHttpAddress(const std::string& text) {
  if (text.empty()) return {};
  const auto address = ParseNumericAddress(text, 0);
  if (!address) return std::unexpected(address.error());
  return {};
}

Result<> CheckNetwork(const std::string& text) {
  const size_t slash = text.find('/');
  const std::string address = text.substr(0, slash);
  if (slash != std::string::npos) {
    const std::string bits = text.substr(slash + 1);
    if (IsAddress(AF_INET, address) && ParseNumber(bits, 32)) return {};
    if (IsAddress(AF_INET6, address) && ParseNumber(bits, 128)) return {};
  }
  return Fail(ErrorCode::kInvalid, "write a network as \"10.0.0.0/8\" or \"fd00::/8\"");
}

Result<> CheckTenantName(const std::string& text) {
  const bool good = std::ranges::all_of(
      text, [](unsigned char c) { return (c < 0x80 && std::isalnum(c)) || c == '-' || c == '_'; });
  if (good) return {};
  return Fail(ErrorCode::kInvalid, "use letters, digits, '-' and '_' only");
}

}  // namespace sluice
