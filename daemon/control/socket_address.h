// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::control {

// An IP address and a TCP port, as a value that can be a key. IPv4 is kept as IPv4-mapped IPv6, so
// that one address has one value, whichever family of socket it came from.
struct SocketAddress {
  std::array<uint8_t, 16> ip{};
  uint32_t scope = 0;  // Interface of a link-local IPv6 address.
  uint16_t port = 0;

  // A numeric address ("10.0.0.1", "::1", "fe80::1%eth0"); nullopt for anything else, a name for
  // instance.
  static std::optional<SocketAddress> Parse(std::string_view ip, uint16_t port);
  // nullopt for families other than IPv4 and IPv6.
  static std::optional<SocketAddress> FromSockaddr(const sockaddr_storage& address);
  // Fills in the address and returns its length.
  socklen_t ToSockaddr(sockaddr_storage& address) const;

  bool is_v4() const;
  int family() const { return is_v4() ? AF_INET : AF_INET6; }
  std::string Text() const;    // "10.0.0.1:4500", "[::1]:4500".
  std::string IpText() const;  // "10.0.0.1", "::1".

  auto operator<=>(const SocketAddress&) const = default;
};

// A range of IP addresses, "10.0.0.0/8" or "fd00::/8"; an address alone is the network of that
// address.
class Network {
 public:
  static std::optional<Network> Parse(std::string_view text);
  bool Contains(const SocketAddress& address) const;

 private:
  std::array<uint8_t, 16> ip_{};
  unsigned bits_ = 0;  // Of the IPv6 form: 96 more than an IPv4 network is written with.
  bool v4_ = false;    // "::/0" is every IPv6 address, not every IPv4 one.
};

}  // namespace sluice::control
