// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "p4_scheduler/packet/frame.h"
#include "p4_scheduler/packet/roce.h"

// tests/data/rain_packets.json: frames made by a program that shares nothing with this codec.
namespace sluice::rain {

struct GoldenPacket {
  std::string name;
  Endpoint source;
  Endpoint destination;
  Header header;
  std::vector<std::byte> payload;
  std::vector<std::byte> frame;
};

struct GoldenWrite {
  std::string name;
  Endpoint source;
  Endpoint destination;
  Write write;
  std::vector<std::byte> data;
  std::vector<std::byte> frame;
};

const std::vector<GoldenPacket>& GoldenPackets();
const std::vector<GoldenWrite>& GoldenWrites();
const GoldenPacket& GoldenPacketNamed(const std::string& name);
const GoldenWrite& GoldenWriteNamed(const std::string& name);

}  // namespace sluice::rain
