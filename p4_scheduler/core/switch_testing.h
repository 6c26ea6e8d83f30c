// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "p4_scheduler/core/switch.h"

// A small rack around a switch: controller at port 0, clients at ports 1 and 2, agents at 11 to 13.
namespace sluice::rain {

constexpr uint16_t kControllerPort = 0;
constexpr uint8_t kType = 3;  // Of slice kSlice.
constexpr uint8_t kSlice = 2;

Endpoint SwitchEndpoint();
// Whoever sits at that port.
Endpoint At(uint16_t port);

struct Rack {
  static SwitchConfig DefaultConfig();

  // Clients 1 and 2; type kType to slice kSlice, of which agents 11 and 12 hold replicas 1 and 2.
  explicit Rack(const SwitchConfig& config = DefaultConfig());

  // Worker `member` of the agent at `port`.
  void AddMember(uint16_t member, uint16_t port, uint8_t slice = kSlice, uint16_t epoch = 1);
  void ModifyMember(uint16_t member, const MemberEntry& entry);
  MemberEntry Member(uint16_t member) { return *rain.members().Find(member); }
  void SetLimits(uint32_t tasks, uint32_t large, uint32_t tokens, uint8_t slice = kSlice);

  // What came out of the switch for one packet.
  struct Result {
    Decision decision;
    std::vector<std::byte> frame;                         // As rewritten.
    RainFrame rain;                                       // Parsed, for kSend; views `frame`.
    std::map<uint16_t, std::vector<std::byte>> replicas;  // By port.
  };
  Result Process(uint16_t port, const Header& header, std::span<const std::byte> payload = {},
                 uint64_t now_ns = 0);
  Result ProcessFrame(uint16_t port, std::vector<std::byte> frame, uint64_t now_ns = 0);

  Result Task(uint16_t client, uint32_t request, std::span<const std::byte> payload,
              uint64_t now_ns = 0, uint8_t type = kType);
  Result SendToken(uint16_t member, uint64_t now_ns = 0);  // By its owner, in its epoch.
  // {T, K, held, waiting} as the controller reads them.
  struct State {
    uint32_t tasks_seen, tokens_seen, held, waiting;
    bool operator==(const State&) const = default;
  };
  State Probe(uint16_t member, uint8_t slice = kSlice);

  Switch rain;
};

std::vector<std::byte> Payload(size_t bytes, uint8_t first = 1);

}  // namespace sluice::rain
