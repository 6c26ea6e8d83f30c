// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/switch/layer2.h"

#include <bit>
#include <cstring>

#include "p4_scheduler/packet/bytes.h"
#include "shm_proto/base/check.h"

namespace sluice::rain {

MacTable::MacTable(uint32_t addresses) : entries_(addresses) {
  SLUICE_CHECK(std::has_single_bit(addresses) && addresses >= kWays,
               "a set of addresses is a power of two");
}

uint64_t MacTable::FirstOf(const Mac& mac) const {
  uint64_t number = 0;
  std::memcpy(&number, mac.data(), mac.size());
  number *= 0x9e3779b97f4a7c15;
  // The highest bits are those that all bits of the address had a part in.
  return (number >> (64 - std::countr_zero(entries_.size()))) & ~uint64_t{kWays - 1};
}

void MacTable::Learn(const Mac& mac, uint16_t port) {
  if (IsMulticast(mac)) return;
  const uint64_t first = FirstOf(mac);
  Entry* free = nullptr;
  for (uint32_t way = 0; way < kWays; ++way) {
    Entry& entry = entries_[first + way];
    if (entry.used && entry.mac == mac) {
      entry.port = port;
      return;
    }
    if (!entry.used && free == nullptr) free = &entry;
  }
  if (free == nullptr) free = &entries_[first + next_way_++ % kWays];
  *free = {.mac = mac, .port = port, .used = true};
}

std::optional<uint16_t> MacTable::Find(const Mac& mac) const {
  const uint64_t first = FirstOf(mac);
  for (uint32_t way = 0; way < kWays; ++way) {
    const Entry& entry = entries_[first + way];
    if (entry.used && entry.mac == mac) return entry.port;
  }
  return std::nullopt;
}

bool IsMulticast(const Mac& mac) { return (mac[0] & 1) != 0; }

Mac DestinationOf(std::span<const std::byte> frame) {
  Mac mac;
  std::memcpy(mac.data(), frame.data(), mac.size());
  return mac;
}

Mac SourceOf(std::span<const std::byte> frame) { return DestinationOf(frame.subspan(6)); }

bool AnswerArp(const Endpoint& own, std::span<std::byte> frame) {
  constexpr size_t kArpBytes = 28;
  constexpr uint64_t kEthernetIpv4 = 0x0001080006040001;  // And the operation: a request.
  constexpr uint16_t kReply = 2;
  std::byte* arp = frame.data() + kEthernetBytes;
  if (frame.size() < kEthernetBytes + kArpBytes ||
      LoadBigEndian<uint16_t>(frame.data() + 12) != 0x0806 ||
      LoadBigEndian<uint64_t>(arp) != kEthernetIpv4 ||
      LoadBigEndian<uint32_t>(arp + 24) != own.ip) {
    return false;
  }
  StoreBigEndian<uint16_t>(arp + 6, kReply);
  std::memcpy(arp + 18, arp + 8, 10);  // The sender becomes the target.
  std::memcpy(arp + 8, own.mac.data(), own.mac.size());
  StoreBigEndian<uint32_t>(arp + 14, own.ip);
  std::memcpy(frame.data(), frame.data() + 6, 6);
  std::memcpy(frame.data() + 6, own.mac.data(), own.mac.size());
  return true;
}

}  // namespace sluice::rain
