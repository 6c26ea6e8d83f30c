// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/packet/golden_testing.h"

#include <arpa/inet.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "shm_proto/base/check.h"

namespace sluice::rain {
namespace {

using nlohmann::json;

const json& File() {
  static const json file = json::parse(std::ifstream(SLUICE_RAIN_PACKETS));
  return file;
}

std::vector<std::byte> Bytes(const std::string& hex) {
  std::vector<std::byte> bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

Endpoint EndpointOf(const json& from) {
  Endpoint end{.port = from["port"]};
  auto& m = end.mac;
  const std::string mac = from["mac"];
  SLUICE_CHECK(std::sscanf(mac.c_str(), "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &m[0], &m[1], &m[2], &m[3],
                           &m[4], &m[5]) == 6,
               "the file has a MAC address here");
  in_addr ip;
  SLUICE_CHECK(inet_pton(AF_INET, from["ip"].get<std::string>().c_str(), &ip) == 1,
               "the file has an IPv4 address here");
  end.ip = ntohl(ip.s_addr);
  return end;
}

Kind KindOf(const std::string& name) {
  constexpr std::array kNames = {"TASK",   "TOKEN",  "DISPATCH", "REPLY",
                                 "REJECT", "AFFINE", "PROBE",    "RESET"};
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Kind>(i + 1);
  }
  SLUICE_CHECK(false, "the file names a kind");
  return Kind::kTask;
}

Header HeaderOf(const json& from) {
  const auto value = [&](const char* name) { return from.value(name, uint64_t{0}); };
  Header header{.kind = KindOf(from["kind"]),
                .flags = static_cast<uint8_t>(value("flags")),
                .code = static_cast<uint8_t>(value("code")),
                .type = static_cast<uint8_t>(value("type")),
                .slice = static_cast<uint8_t>(value("slice")),
                .fragment = static_cast<uint8_t>(value("fragment")),
                .fragments = static_cast<uint8_t>(value("fragments")),
                .client = static_cast<uint16_t>(value("client")),
                .size = static_cast<uint16_t>(value("size")),
                .request = static_cast<uint32_t>(value("request")),
                .epoch = static_cast<uint16_t>(value("epoch")),
                .member = static_cast<uint16_t>(value("member")),
                .ticket = static_cast<uint32_t>(value("ticket")),
                .queue_tasks = static_cast<uint32_t>(value("queue_tasks")),
                .switch_ns = static_cast<uint32_t>(value("switch_ns"))};
  const std::vector<std::byte> data = Bytes(from.value("data", std::string()));
  std::copy(data.begin(), data.end(), header.data.begin());
  return header;
}

template <typename Row>
const Row& Named(const std::vector<Row>& rows, const std::string& name) {
  for (const Row& row : rows) {
    if (row.name == name) return row;
  }
  SLUICE_CHECK(false, "the file has a row of that name");
  return rows.front();
}

}  // namespace

const std::vector<GoldenPacket>& GoldenPackets() {
  static const std::vector<GoldenPacket> packets = [] {
    std::vector<GoldenPacket> made;
    for (const json& row : File()["packets"]) {
      made.push_back({row["name"], EndpointOf(row["source"]), EndpointOf(row["destination"]),
                      HeaderOf(row["header"]), Bytes(row["payload"]), Bytes(row["frame"])});
    }
    return made;
  }();
  return packets;
}

const std::vector<GoldenWrite>& GoldenWrites() {
  static const std::vector<GoldenWrite> writes = [] {
    std::vector<GoldenWrite> made;
    for (const json& row : File()["writes"]) {
      const json& w = row["write"];
      made.push_back({row["name"], EndpointOf(row["source"]), EndpointOf(row["destination"]),
                      Write{.opcode = static_cast<WriteOpcode>(w["opcode"].get<uint8_t>()),
                            .wants_ack = w["wants_ack"],
                            .queue_pair = w["queue_pair"],
                            .psn = w["psn"],
                            .address = w["address"],
                            .rkey = w["rkey"]},
                      Bytes(row["data"]), Bytes(row["frame"])});
    }
    return made;
  }();
  return writes;
}

const GoldenPacket& GoldenPacketNamed(const std::string& name) {
  return Named(GoldenPackets(), name);
}
const GoldenWrite& GoldenWriteNamed(const std::string& name) { return Named(GoldenWrites(), name); }

}  // namespace sluice::rain
