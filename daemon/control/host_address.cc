// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/host_address.h"

#include <algorithm>
#include <charconv>

namespace sluice::control {
namespace {

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}
// '%' and what follows: an interface.
bool IsV6Byte(char c) { return IsNameByte(c) || c == ':' || c == '%'; }

Result<uint16_t> ParsePort(std::string_view text) {
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port == 0) {
    return Fail(ErrorCode::kInvalid, "a daemon's port must be a number from 1 to 65535");
  }
  return port;
}

}  // namespace

Result<HostAddress> ParseHostAddress(std::string_view text) {
  std::string_view host = text;
  std::string_view port;
  bool v6 = false;
  bool has_port = false;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos)
      return Fail(ErrorCode::kInvalid, "an address opens a '[' that it does not close");
    host = text.substr(1, end - 1);
    v6 = true;
    const std::string_view rest = text.substr(end + 1);
    has_port = !rest.empty();
    if (has_port && rest[0] != ':')
      return Fail(ErrorCode::kInvalid, "after ']' an address has ':' and a port, or ends");
    if (has_port) port = rest.substr(1);
  } else if (std::ranges::count(text, ':') == 1) {
    host = text.substr(0, text.find(':'));
    port = text.substr(text.find(':') + 1);
    has_port = true;
  } else {
    v6 = text.find(':') != std::string_view::npos;
  }
  if (host.empty() || !std::ranges::all_of(host, v6 ? IsV6Byte : IsNameByte)) {
    return Fail(ErrorCode::kInvalid, "not a host name or an address");
  }
  HostAddress address{std::string(host), 0};
  if (has_port) {
    const Result<uint16_t> number = ParsePort(port);
    if (!number) return std::unexpected(number.error());
    address.port = *number;
  }
  return address;
}

}  // namespace sluice::control
