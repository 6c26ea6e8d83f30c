// SPDX-License-Identifier: Apache-2.0
// A peer that says anything at all in its handshake never gets past a daemon that wants proofs.
#include <algorithm>
#include <cstring>

#include "daemon/engine/handshake.h"
#include "shm_proto/base/check.h"
#include "tests/fuzz/fuzz.h"

namespace {

using sluice::handshake::Handshake;
using sluice::handshake::Phase;

// Random numbers that repeat, so that a run can be repeated.
class Counting final : public sluice::Random {
 public:
  explicit Counting(uint64_t start) : state_(start) {}
  uint64_t Next() override { return state_ += 0x9e3779b97f4a7c15; }

 private:
  uint64_t state_;
};

const sluice::handshake::Settings& Settings() {
  static const auto key = sluice::handshake::MacKey::Create(
      std::as_bytes(std::span("0123456789abcdef0123456789abcdef", 32)));
  static const sluice::handshake::Settings settings = [] {
    SLUICE_CHECK(key.has_value(), "OpenSSL has HMAC-SHA256");
    sluice::handshake::Settings made;
    made.instance = 77;
    made.key = key->get();
    made.name = "fuzzed";
    return made;
  }();
  return settings;
}

void Feed(Handshake handshake, std::span<const std::byte> bytes) {
  while (!bytes.empty() && handshake.phase() == Phase::kExchanging) {
    const size_t wanted = std::min(handshake.WantedBytes(), bytes.size());
    if (wanted == 0) break;
    handshake.OnBytes(bytes.first(wanted), 1);
    bytes = bytes.subspan(wanted);
    handshake.OnWritten(handshake.Output().size());
  }
  SLUICE_CHECK(handshake.phase() != Phase::kDone && handshake.phase() != Phase::kDeciding,
               "nobody gets past the handshake without the key");
  if (handshake.phase() == Phase::kFailed) {
    const std::string& text = handshake.failure().text;
    SLUICE_CHECK(!text.empty(), "a failed handshake says why");
    SLUICE_CHECK(std::ranges::all_of(text, [](char c) { return c >= ' ' && c != 0x7f; }),
                 "the reason is printable");
  }
}

}  // namespace

std::vector<std::string> sluice::fuzz::Seeds() {
  Counting random(1'000);  // Other nonces than the fuzzed runs have: a replay must not pass.
  std::vector<std::string> seeds;
  const Handshake dialer = Handshake::Dial(Settings(), {}, random, 0);
  auto hello = dialer.Output();
  seeds.emplace_back(reinterpret_cast<const char*>(hello.data()), hello.size());
  Handshake listener = Handshake::Listen(Settings(), random, 0);
  while (!hello.empty() && listener.WantedBytes() > 0) {
    const size_t bytes = std::min(listener.WantedBytes(), hello.size());
    listener.OnBytes(hello.first(bytes), 0);
    hello = hello.subspan(bytes);
  }
  const auto reply = listener.Output();
  seeds.emplace_back(reinterpret_cast<const char*>(reply.data()), reply.size());
  return seeds;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  Counting random(1);
  Feed(Handshake::Listen(Settings(), random, 0), bytes);
  Feed(Handshake::Dial(Settings(), {}, random, 0), bytes);
  return 0;
}
