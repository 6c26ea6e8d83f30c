// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "p4_scheduler/core/switch.h"
#include "shm_proto/base/result.h"

// The software switch's configuration file (TOML). Everything is checked before anything starts.
namespace sluice::rain {

constexpr uint32_t kMinPortFrameBytes = 2048;
constexpr uint32_t kMaxPortFrameBytes = 8192;

// One port; its number is its place in the file, from 0.
struct PortConfig {
  enum class Driver { kAfPacket, kAfXdp, kPci };
  Driver driver = Driver::kAfPacket;
  std::string device;                         // An interface's name, or a PCI address.
  uint32_t frame_bytes = kMinPortFrameBytes;  // The longest frame and its kernel header.
};

struct ProgramConfig {
  SwitchConfig rain;
  std::vector<PortConfig> ports;
  uint32_t core = 0;
  bool hugepages = true;
  uint32_t memory_mb = 256;
  uint32_t idle_sleep_us = 0;  // Sleep so long when nothing has come for a while; 0: always poll.
  std::string metrics_listen;  // ADDRESS:PORT; empty: none.

  uint32_t FrameBytes() const;  // Room of a packet buffer: that of the port with the most.

  // What the tables hold from the start.
  template <typename Entry>
  using Rows = std::vector<std::pair<uint32_t, Entry>>;
  Rows<TypeEntry> types;
  Rows<SliceEntry> slices;
  Rows<ClientEntry> clients;
  Rows<MemberEntry> members;
  Rows<ReplicaEntry> replicas;
};

Result<ProgramConfig> LoadProgramConfig(const std::string& path);
Result<ProgramConfig> ParseProgramConfig(const std::string& text, const std::string& name);

// A commented file that can be started from.
const char* ExampleConfig();

// A switch with these tables.
Result<Switch> MakeSwitch(const ProgramConfig& config);

}  // namespace sluice::rain
