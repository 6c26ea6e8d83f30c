// SPDX-License-Identifier: Apache-2.0
#include "libclient/src/address.h"

#include <charconv>

#include "shm_proto/control.h"

namespace sluice::client {
namespace {

std::unexpected<Error> Bad(std::string_view text, const std::string& why) {
  return Fail(ErrorCode::kInvalid, "\"" + std::string(text.substr(0, 300)) + "\" is no address: " +
                                       why + "; write host:service or host:port:service");
}

bool IsNumber16(std::string_view text) {
  uint16_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value != 0;
}

// Splits off the host: up to the bracket's end, or up to the first colon.
size_t HostEnd(std::string_view text) {
  if (!text.starts_with('[')) return text.find(':');
  const size_t bracket = text.find(']');
  return bracket == std::string_view::npos ? bracket : bracket + 1;
}

}  // namespace

Result<Address> ParseAddress(std::string_view text) {
  const size_t host_end = HostEnd(text);
  if (host_end == std::string_view::npos || host_end >= text.size() || text[host_end] != ':') {
    return Bad(text, "a service is missing");
  }
  if (host_end == 0 || text.substr(0, host_end) == "[]") return Bad(text, "the host is empty");

  const std::string_view rest = text.substr(host_end + 1);
  const size_t colon = rest.find(':');
  const std::string_view port = colon == std::string_view::npos ? "" : rest.substr(0, colon);
  const std::string_view service = colon == std::string_view::npos ? rest : rest.substr(colon + 1);
  if (service.find(':') != std::string_view::npos) {
    return Bad(text, "it has too many colons (IPv6 addresses stand in brackets)");
  }
  if (colon != std::string_view::npos && !IsNumber16(port)) {
    return Bad(text, "the port is not a number from 1 to 65535");
  }
  if (!IsNumber16(service)) return Bad(text, "the service is not a number from 1 to 65535");

  Address address{std::string(text.substr(0, host_end)), 0};
  if (!port.empty()) address.host += ":" + std::string(port);
  if (address.host.size() >= control::kMaxHostBytes) return Bad(text, "the host is too long");
  if (address.host.find('\0') != std::string::npos) return Bad(text, "the host contains a zero");
  std::from_chars(service.data(), service.data() + service.size(), address.service);
  return address;
}

}  // namespace sluice::client
