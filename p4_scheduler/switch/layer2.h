// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "p4_scheduler/packet/frame.h"

// What the software switch does with traffic that is not Rain's.
namespace sluice::rain {

// Which port an address was last seen at. Where the table is full of others, a newer address takes
// an older one's place, and frames to that one are flooded again.
// Invariant: an address is in it once. Thread: one. Allocates: in its constructor.
class MacTable {
 public:
  static constexpr uint32_t kWays = 4;

  explicit MacTable(uint32_t addresses = 4096);  // A power of two, kWays at least.

  void Learn(const Mac& mac, uint16_t port);
  std::optional<uint16_t> Find(const Mac& mac) const;

 private:
  struct Entry {
    Mac mac = {};
    uint16_t port = 0;
    bool used = false;
  };

  uint64_t FirstOf(const Mac& mac) const;

  std::vector<Entry> entries_;
  uint32_t next_way_ = 0;
};

bool IsMulticast(const Mac& mac);
Mac DestinationOf(std::span<const std::byte> frame);  // Requires an Ethernet header.
Mac SourceOf(std::span<const std::byte> frame);

// Turns an ARP request for `own` into its answer. False: it is something else, unchanged.
bool AnswerArp(const Endpoint& own, std::span<std::byte> frame);

}  // namespace sluice::rain
