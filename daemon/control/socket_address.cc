// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/socket_address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace sluice::control {
namespace {

constexpr uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

std::array<uint8_t, 16> Mapped(const in_addr& v4) {
  std::array<uint8_t, 16> ip;
  std::copy(std::begin(kMappedPrefix), std::end(kMappedPrefix), ip.begin());
  std::memcpy(&ip[12], &v4, 4);
  return ip;
}

}  // namespace

std::optional<SocketAddress> SocketAddress::Parse(std::string_view ip, uint16_t port) {
  SocketAddress address;
  address.port = port;
  const size_t percent = ip.find('%');
  const std::string number(ip.substr(0, percent));
  if (number.find('\0') != std::string::npos) return std::nullopt;
  in_addr v4;
  if (percent == std::string_view::npos && inet_pton(AF_INET, number.c_str(), &v4) == 1) {
    address.ip = Mapped(v4);
    return address;
  }
  if (inet_pton(AF_INET6, number.c_str(), address.ip.data()) != 1) return std::nullopt;
  if (percent != std::string_view::npos) {
    address.scope = if_nametoindex(std::string(ip.substr(percent + 1)).c_str());
    if (address.scope == 0) return std::nullopt;
  }
  return address;
}

std::optional<SocketAddress> SocketAddress::FromSockaddr(const sockaddr_storage& address) {
  SocketAddress made;
  if (address.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &address, sizeof(v4));
    made.ip = Mapped(v4.sin_addr);
    made.port = ntohs(v4.sin_port);
    return made;
  }
  if (address.ss_family != AF_INET6) return std::nullopt;
  sockaddr_in6 v6;
  std::memcpy(&v6, &address, sizeof(v6));
  std::memcpy(made.ip.data(), &v6.sin6_addr, made.ip.size());
  made.scope = v6.sin6_scope_id;
  made.port = ntohs(v6.sin6_port);
  return made;
}

socklen_t SocketAddress::ToSockaddr(sockaddr_storage& address) const {
  std::memset(&address, 0, sizeof(address));
  if (is_v4()) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, &ip[12], 4);
    std::memcpy(&address, &v4, sizeof(v4));
    return sizeof(v4);
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  v6.sin6_scope_id = scope;
  std::memcpy(&v6.sin6_addr, ip.data(), ip.size());
  std::memcpy(&address, &v6, sizeof(v6));
  return sizeof(v6);
}

bool SocketAddress::is_v4() const {
  return std::memcmp(ip.data(), kMappedPrefix, sizeof(kMappedPrefix)) == 0;
}

std::string SocketAddress::IpText() const {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family(), is_v4() ? &ip[12] : ip.data(), text, sizeof(text));
  return text;
}

std::string SocketAddress::Text() const {
  const std::string number = std::to_string(port);
  return is_v4() ? IpText() + ":" + number : "[" + IpText() + "]:" + number;
}

std::optional<Network> Network::Parse(std::string_view text) {
  const size_t slash = text.find('/');
  const auto address = SocketAddress::Parse(text.substr(0, slash), 0);
  if (!address || address->scope != 0) return std::nullopt;
  Network network;
  network.v4_ = address->is_v4();
  const unsigned most = network.v4_ ? 32 : 128;
  unsigned bits = most;
  if (slash != std::string_view::npos) {
    const std::string_view digits = text.substr(slash + 1);
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
    if (error != std::errc() || stop != digits.data() + digits.size() || bits > most)
      return std::nullopt;
  }
  network.bits_ = network.v4_ ? bits + 96 : bits;
  network.ip_ = address->ip;
  return network;
}

bool Network::Contains(const SocketAddress& address) const {
  if (address.is_v4() != v4_) return false;
  const unsigned whole = bits_ / 8, rest = bits_ % 8;
  if (!std::equal(ip_.begin(), ip_.begin() + whole, address.ip.begin())) return false;
  return rest == 0 || ((ip_[whole] ^ address.ip[whole]) >> (8 - rest)) == 0;
}

}  // namespace sluice::control
