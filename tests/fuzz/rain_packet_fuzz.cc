// SPDX-License-Identifier: Apache-2.0
// Rain and RoCEv2 packets from the network: whatever the bytes are, parsing stays within them, and
// what was accepted is built again bit for bit.
#include <algorithm>

#include "p4_scheduler/packet/golden_testing.h"
#include "shm_proto/base/check.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace sluice::rain;

bool IsWithin(std::span<const std::byte> part, std::span<const std::byte> whole) {
  return part.empty() ||
         (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

void CheckRain(std::span<const std::byte> bytes, uint16_t port) {
  RainFrame parsed;
  if (ParseFrame(bytes, port, parsed) != Malformed::kNone) return;
  SLUICE_CHECK(IsWithin(parsed.body, bytes), "views lie in the frame");
  SLUICE_CHECK(ValidateHeader(parsed.header) == Malformed::kNone, "an accepted header is valid");
  SLUICE_CHECK(parsed.body.size() == BodyBytes(parsed.header), "the body is as long as said");
  std::array<std::byte, kMaxFrameBytes> out;
  const auto built = BuildFrame(parsed.source, parsed.destination, parsed.header,
                                parsed.body.empty() ? parsed.body : parsed.Payload(), out);
  RainFrame again;
  SLUICE_CHECK(ParseFrame(built, port, again) == Malformed::kNone, "what is built is accepted");
  SLUICE_CHECK(again.header == parsed.header && again.source == parsed.source &&
                   again.destination == parsed.destination &&
                   std::ranges::equal(again.Payload(), parsed.Payload()),
               "what is built says the same");
}

void CheckWrite(std::span<const std::byte> bytes) {
  ParsedWrite parsed;
  if (ParseWrite(bytes, parsed) != BadWrite::kNone) return;
  SLUICE_CHECK(IsWithin(parsed.data, bytes), "views lie in the frame");
  if (parsed.data.size() > kMaxRdmaBytes) return;
  std::array<std::byte, kMaxWriteFrameBytes> out;
  const auto built = BuildWrite(parsed.source, parsed.destination, kDefaultTrafficClass,
                                parsed.write, SharedWriteData(parsed.data, {}), out);
  ParsedWrite again;
  SLUICE_CHECK(ParseWrite(built, again) == BadWrite::kNone, "what is built is accepted");
  SLUICE_CHECK(again.write.address == parsed.write.address && again.write.psn == parsed.write.psn &&
                   std::ranges::equal(again.data, parsed.data),
               "what is built says the same");
}

std::string Text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::vector<std::string> sluice::fuzz::Seeds() {
  std::vector<std::string> seeds;
  for (const GoldenPacket& golden : GoldenPackets()) seeds.push_back(Text(golden.frame));
  for (const GoldenWrite& golden : GoldenWrites()) seeds.push_back(Text(golden.frame));
  return seeds;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of exactly that size, so that a sanitizer sees a read beyond it.
  const std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(data),
                                     reinterpret_cast<const std::byte*>(data) + size);
  CheckRain(bytes, kUdpPort);
  CheckRain(bytes, kUdpPort + 1);
  CheckWrite(bytes);
  return 0;
}
