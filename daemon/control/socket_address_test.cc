// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/socket_address.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>

namespace sluice::control {
namespace {

SocketAddress Address(const char* ip, uint16_t port = 1) {
  return SocketAddress::Parse(ip, port).value();
}

TEST(SocketAddress, ReadsAndWritesBothFamilies) {
  EXPECT_EQ(Address("10.0.0.1", 4500).Text(), "10.0.0.1:4500");
  EXPECT_EQ(Address("fd00::1", 4500).Text(), "[fd00::1]:4500");
  EXPECT_EQ(Address("10.0.0.1").family(), AF_INET);
  EXPECT_EQ(Address("::1").family(), AF_INET6);
}

TEST(SocketAddress, IsNotAName) {
  for (const char* text : {"", "host", "10.0.0", "10.0.0.256", "1.2.3.4.5", "::g", "[::1]",
                           "10.0.0.1%lo", "fe80::1%nodev"}) {
    EXPECT_FALSE(SocketAddress::Parse(text, 1)) << text;
  }
  EXPECT_FALSE(SocketAddress::Parse(std::string_view("10.0.0.1\0x", 10), 1));
}

TEST(SocketAddress, IsTheSameWhicheverFamilyOfSocketItCameFrom) {
  sockaddr_in6 mapped{};
  mapped.sin6_family = AF_INET6;
  mapped.sin6_port = htons(7);
  const uint8_t bytes[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
  std::memcpy(&mapped.sin6_addr, bytes, sizeof(bytes));
  sockaddr_storage storage{};
  std::memcpy(&storage, &mapped, sizeof(mapped));
  EXPECT_EQ(SocketAddress::FromSockaddr(storage), Address("10.0.0.1", 7));
}

TEST(SocketAddress, SurvivesTheWayThroughTheSystemsForm) {
  for (const char* ip : {"10.0.0.1", "fd00::1", "fe80::1%lo"}) {
    sockaddr_storage storage;
    Address(ip, 4500).ToSockaddr(storage);
    EXPECT_EQ(SocketAddress::FromSockaddr(storage), Address(ip, 4500));
  }
  sockaddr_storage unix_socket{};
  unix_socket.ss_family = AF_UNIX;
  EXPECT_FALSE(SocketAddress::FromSockaddr(unix_socket));
}

TEST(Network, ContainsItsAddressesAndNoOthers) {
  struct Case {
    const char* network;
    const char* inside;
    const char* outside;
  };
  const Case cases[] = {
      {"10.0.0.0/8", "10.255.255.255", "11.0.0.0"},
      {"10.1.2.0/23", "10.1.3.255", "10.1.4.0"},
      {"10.1.2.3/32", "10.1.2.3", "10.1.2.2"},
      {"10.1.2.3", "10.1.2.3", "10.1.2.4"},
      {"0.0.0.0/0", "255.0.0.1", "::1"},
      {"::/0", "fd00::1", "10.0.0.1"},
      {"fd00::/8", "fdff::1", "fe00::1"},
      {"fd00:1::/33", "fd00:1:7fff::", "fd00:1:8000::"},
      {"10.9.9.9/8", "10.0.0.1", "9.9.9.9"},
      {"128.0.0.0/1", "255.255.255.255", "127.255.255.255"},
  };
  for (const Case& c : cases) {
    const auto network = Network::Parse(c.network);
    ASSERT_TRUE(network) << c.network;
    EXPECT_TRUE(network->Contains(Address(c.inside))) << c.network;
    EXPECT_FALSE(network->Contains(Address(c.outside))) << c.network;
  }
}

TEST(Network, RefusesWhatIsNone) {
  for (const char* text : {"", "/8", "10.0.0.0/", "10.0.0.0/33", "::/129", "10.0.0.0/-1",
                           "10.0.0.0/8x", "host/8", "fe80::1%lo/64"}) {
    EXPECT_FALSE(Network::Parse(text)) << text;
  }
}

}  // namespace
}  // namespace sluice::control
