// SPDX-License-Identifier: Apache-2.0
// Clients that break the protocol on purpose: the daemon stays up, others notice nothing, and
// nothing is left behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <random>
#include <thread>

#include "tests/process/app.h"
#include "tests/process/raw_client.h"

namespace sluice::testing {
namespace {

constexpr uint16_t kService = 700;
constexpr uint16_t kVictimService = 701;

// Two good applications exchange messages across the daemons all the while; the left daemon is
// under attack.
class Hostile : public TwoHosts {
 protected:
  bool BeginWithApps() {
    if (!Begin()) {
      return false;
    }
    client_ = std::make_unique<App>(*left_, "good");
    server_ = std::make_unique<App>(*right_, "good");
    EXPECT_TRUE(server_->Listen(kService));
    EXPECT_TRUE(ConnectApps(*client_, *server_, *right_, kService, pair_));
    EXPECT_TRUE(Exchange(*client_, *server_, pair_, 1, 100'000));
    victim_ = std::make_unique<App>(*right_, "victim");
    EXPECT_TRUE(victim_->Listen(kVictimService));
    // One raw client comes and goes first, so that what the daemon keeps for its first one is there
    // already.
    if (auto raw = ConnectedRaw(); raw == nullptr) {
      ADD_FAILURE() << "a raw client cannot follow the protocol";
    }
    EXPECT_TRUE(victim_->Next(SLUICE_EVENT_CLOSED));
    before_ = left_->usage();
    return !HasFailure();
  }

  // Attached, with memory, rings, and a socket to the victim.
  std::unique_ptr<RawClient> ConnectedRaw(uint32_t capacity = 64) {
    auto raw = RawClient::Connect(*left_);
    const bool good = raw != nullptr && raw->Attach() && raw->OpenChannel(capacity) &&
                      raw->Grow(control::kBlockBytes) &&
                      raw->ConnectTo(right_->Address(), kVictimService);
    return good ? std::move(raw) : nullptr;
  }

  void ExpectOthersUnaffected() {
    ASSERT_TRUE(left_->Running()) << left_->Log();
    ASSERT_TRUE(right_->Running()) << right_->Log();
    ASSERT_TRUE(Exchange(*client_, *server_, pair_, 1, 100));
    ASSERT_TRUE(Exchange(*client_, *server_, pair_, 3, 100'000));
    EXPECT_EQ(client_->Waiting(SLUICE_EVENT_CLOSED), 0u);
  }

  void ExpectNothingLeft() {
    ExpectOthersUnaffected();
    EXPECT_TRUE(left_->ReturnsTo(before_)) << left_->Log();
  }

  std::unique_ptr<App> client_;
  std::unique_ptr<App> server_;
  std::unique_ptr<App> victim_;
  Pair pair_;
  Usage before_;
};

Descriptor GoodSend(const RawClient& raw, uint64_t token) {
  Descriptor descriptor{};
  descriptor.op = static_cast<uint8_t>(SubmitOp::kSend);
  descriptor.socket = raw.socket();
  descriptor.token = token;
  descriptor.region.offset = raw.pool_offset();
  descriptor.region.length = 64;
  return descriptor;
}

// The outcome of one bad send: a completion that is not OK, or the end of the connection.
bool RefusedOrDetached(RawClient& raw, const Descriptor& descriptor) {
  raw.Submit(descriptor);
  bool refused = false;
  WaitUntil([&] {
    while (const auto completion = raw.Complete(milliseconds(1))) {
      if (completion->op == static_cast<uint8_t>(CompletionOp::kSent) &&
          completion->token == descriptor.token) {
        refused = completion->result.outcome != static_cast<uint32_t>(Outcome::kOk);
        return true;
      }
    }
    raw.Receive(milliseconds(1));
    refused = raw.hung_up();
    return refused;
  });
  return refused;
}

TEST_F(Hostile, ARawClientThatFollowsTheProtocolIsServed) {
  if (!BeginWithApps()) {
    return;
  }
  auto raw = ConnectedRaw();
  ASSERT_NE(raw, nullptr);
  raw->Submit(GoodSend(*raw, 5));
  const auto completion = raw->Complete();
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->op, static_cast<uint8_t>(CompletionOp::kSent));
  EXPECT_EQ(completion->token, 5u);
  EXPECT_EQ(completion->result.outcome, static_cast<uint32_t>(Outcome::kOk));
  const auto message = victim_->Next(SLUICE_EVENT_MESSAGE);
  ASSERT_TRUE(message);
  victim_->Free(*message);
  raw.reset();
  ExpectNothingLeft();
}

TEST_F(Hostile, DescriptorsWithAnyFieldWrongFailAndHarmNobody) {
  if (!BeginWithApps()) {
    return;
  }
  struct Case {
    const char* what;
    void (*spoil)(Descriptor&, const RawClient&);
  };
  const Case cases[] = {
      {"a socket of nobody", [](Descriptor& d, const RawClient&) { d.socket = 0xfffffff0; }},
      {"socket 0", [](Descriptor& d, const RawClient&) { d.socket = 0; }},
      {"an offset beyond the pool",
       [](Descriptor& d, const RawClient& r) { d.region.offset = r.reserve_bytes(); }},
      {"an offset near 2^64",
       [](Descriptor& d, const RawClient&) { d.region.offset = ~uint64_t{0} - 10; }},
      {"an offset between extents",
       [](Descriptor& d, const RawClient& r) { d.region.offset = r.reserve_bytes() - 4096; }},
      {"a length beyond the extent",
       [](Descriptor& d, const RawClient& r) { d.region.length = r.reserve_bytes(); }},
      {"a length near 2^64",
       [](Descriptor& d, const RawClient&) { d.region.length = ~uint64_t{0}; }},
      {"offset and length that wrap",
       [](Descriptor& d, const RawClient& r) {
         d.region.offset = r.pool_offset() + 64;
         d.region.length = ~uint64_t{0} - d.region.offset + 2;
       }},
      {"too many inline bytes",
       [](Descriptor& d, const RawClient&) {
         d.flags = kFlagInline;
         d.inline_bytes = 255;
       }},
      {"too many inline bytes by one",
       [](Descriptor& d, const RawClient&) {
         d.flags = kFlagInline;
         d.inline_bytes = kInlineBytes + 1;
       }},
      {"an op that is none", [](Descriptor& d, const RawClient&) { d.op = 200; }},
      {"op 0", [](Descriptor& d, const RawClient&) { d.op = 0; }},
  };
  for (const Case& bad : cases) {
    auto raw = ConnectedRaw();
    ASSERT_NE(raw, nullptr) << bad.what;
    Descriptor descriptor = GoodSend(*raw, 77);
    bad.spoil(descriptor, *raw);
    EXPECT_TRUE(RefusedOrDetached(*raw, descriptor)) << bad.what;
    raw.reset();
    ExpectOthersUnaffected();
  }
  ExpectNothingLeft();
}

TEST_F(Hostile, FreesOfWhatIsNotItsOwnHarmNobody) {
  if (!BeginWithApps()) {
    return;
  }
  for (const uint64_t offset :
       {uint64_t{0}, uint64_t{1}, uint64_t{64}, uint64_t{1} << 40, ~uint64_t{0}}) {
    auto raw = ConnectedRaw();
    ASSERT_NE(raw, nullptr);
    for (int times = 0; times < 2; ++times) {
      Descriptor descriptor{};
      descriptor.op = static_cast<uint8_t>(SubmitOp::kFree);
      descriptor.inline_bytes = kInlineBytes;
      std::ranges::fill(descriptor.free_offsets, offset);
      raw->Submit(descriptor);
      descriptor.inline_bytes = 255;
      raw->Submit(descriptor);
      descriptor.inline_bytes = 3;
      raw->Submit(descriptor);
    }
    raw.reset();
    ExpectOthersUnaffected();
  }
  ExpectNothingLeft();
}

TEST_F(Hostile, RandomDescriptorsHarmNobody) {
  if (!BeginWithApps()) {
    return;
  }
  std::mt19937_64 random(5);
  for (int round = 0; round < 5; ++round) {
    auto raw = ConnectedRaw();
    ASSERT_NE(raw, nullptr);
    for (int i = 0; i < 500 && !raw->hung_up(); ++i) {
      Descriptor descriptor;
      for (size_t word = 0; word < sizeof(descriptor) / sizeof(uint64_t); ++word) {
        const uint64_t value = random();
        std::memcpy(reinterpret_cast<std::byte*>(&descriptor) + word * sizeof(value), &value,
                    sizeof(value));
      }
      if (i % 2 == 0) {  // Half of them get further than the first check.
        descriptor.op = static_cast<uint8_t>(1 + random() % 3);
        descriptor.flags &= kFlagInline;
        descriptor.socket = raw->socket();
        descriptor.inline_bytes = static_cast<uint8_t>(random() % 48);
      }
      raw->Submit(descriptor);
      while (raw->Complete(milliseconds(0))) {
      }
      if (i % 20 == 0) {
        raw->Receive(milliseconds(0));
      }
    }
    raw.reset();
    ExpectOthersUnaffected();
  }
  ExpectNothingLeft();
}

TEST_F(Hostile, JumpingRingCountersEndTheClientAlone) {
  if (!BeginWithApps()) {
    return;
  }
  const std::pair<const char*, void (*)(RawClient&)> cases[] = {
      {"submissions' tail far ahead",
       [](RawClient& raw) { raw.submissions().header()->tail.fetch_add(1000); }},
      {"submissions' tail backwards",
       [](RawClient& raw) { raw.submissions().header()->tail.fetch_sub(1); }},
      {"completions' head beyond the tail",
       [](RawClient& raw) { raw.completions().header()->head.fetch_add(5000); }},
      {"completions' head backwards",
       [](RawClient& raw) { raw.completions().header()->head.fetch_sub(5000); }},
  };
  for (const auto& [what, spoil] : cases) {
    auto raw = ConnectedRaw();
    ASSERT_NE(raw, nullptr) << what;
    spoil(*raw);
    Descriptor descriptor = GoodSend(*raw, 9);
    if (std::string_view(what).starts_with("completions")) {
      raw->Submit(descriptor);
    }
    raw->Ring();
    EXPECT_TRUE(raw->WaitHangUp()) << "stays attached: " << what;
    EXPECT_TRUE(victim_->Next(SLUICE_EVENT_CLOSED)) << "its peer is not told: " << what;
    ExpectOthersUnaffected();
    raw.reset();
  }
  ExpectNothingLeft();
}

TEST_F(Hostile, ASubmissionRingThatMakesNoSenseIsDetached) {
  if (!BeginWithApps()) {
    return;
  }
  auto raw = ConnectedRaw();
  ASSERT_NE(raw, nullptr);
  raw->submissions().header()->tail.fetch_add(1000);
  raw->Ring();
  EXPECT_TRUE(raw->WaitHangUp()) << "a broken client stays attached";
  EXPECT_TRUE(victim_->Next(SLUICE_EVENT_CLOSED)) << "its peer is not told";
  raw.reset();
  ExpectNothingLeft();
}

TEST_F(Hostile, GarbageOnTheControlSocketIsAnsweredOrEnded) {
  if (!BeginWithApps()) {
    return;
  }
  std::mt19937_64 random(6);
  for (int round = 0; round < 200; ++round) {
    auto raw = RawClient::Connect(*left_);
    ASSERT_NE(raw, nullptr);
    if (round % 2 == 0) {
      ASSERT_TRUE(raw->Attach());
    }
    for (int i = 0; i < 5; ++i) {
      std::vector<std::byte> bytes(random() % 1500 + 1);
      std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
      control::Header header{};
      header.type = static_cast<control::Type>(random() % 16);
      header.bytes = static_cast<uint16_t>(random() % 2 == 0 ? bytes.size() : random());
      if (random() % 4 != 0) {
        std::memcpy(bytes.data(), &header, std::min(bytes.size(), sizeof(header)));
      }
      raw->SendBytes(bytes);
    }
    raw->Receive(milliseconds(2));
  }
  ExpectNothingLeft();
}

TEST_F(Hostile, EveryRequestWithExtremeFieldsIsAnsweredOrEnded) {
  if (!BeginWithApps()) {
    return;
  }
  for (uint16_t type = 0; type < 16; ++type) {
    for (const int fill : {0x00, 0xff, 0x80, 0x7f}) {
      for (const size_t bytes :
           {sizeof(control::Header), sizeof(control::Grow), sizeof(control::Listen),
            sizeof(control::OpenChannel), sizeof(control::Connect)}) {
        auto raw = RawClient::Connect(*left_);
        ASSERT_NE(raw, nullptr);
        ASSERT_TRUE(raw->Attach());
        std::vector<std::byte> packet(bytes, static_cast<std::byte>(fill));
        control::Header header{};
        header.type = static_cast<control::Type>(type);
        header.bytes = static_cast<uint16_t>(bytes);
        header.request = 9;
        std::memcpy(packet.data(), &header, sizeof(header));
        raw->SendBytes(packet);
      }
    }
    ASSERT_TRUE(left_->Running()) << "request " << type << "\n" << left_->Log();
  }
  ExpectNothingLeft();
}

TEST_F(Hostile, AWrongVersionIsRefusedNamingBoth) {
  if (!BeginWithApps()) {
    return;
  }
  auto raw = RawClient::Connect(*left_);
  ASSERT_NE(raw, nullptr);
  control::Attach attach{};
  attach.version_min = control::kVersionMax + 5;
  attach.version_max = control::kVersionMax + 6;
  raw->Send(attach, control::Type::kAttach);
  const auto packet = raw->Receive();
  ASSERT_TRUE(packet);
  ASSERT_EQ(packet->type(), control::Type::kError);
  const auto reply = packet->As<control::ErrorReply>();
  EXPECT_EQ(reply.error, EPROTONOSUPPORT);
  EXPECT_EQ(reply.version_max, control::kVersionMax);
  const std::string text = reply.text;
  EXPECT_NE(text.find(std::to_string(control::kVersionMax + 6)), std::string::npos) << text;
  EXPECT_NE(text.find(std::to_string(control::kVersionMax)), std::string::npos) << text;
}

TEST_F(Hostile, DescriptorsSentToTheDaemonDoNotStayThere) {
  if (!BeginWithApps()) {
    return;
  }
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::vector<int> many(20, null.get());
  auto raw = RawClient::Connect(*left_);
  ASSERT_NE(raw, nullptr);
  ASSERT_TRUE(raw->Attach());
  control::Grow grow{};
  grow.header.type = control::Type::kGrow;
  grow.header.bytes = sizeof(grow);
  for (int i = 0; i < 50; ++i) {
    raw->SendBytes(std::as_bytes(std::span(&grow, 1)), many);
  }
  raw.reset();
  ExpectNothingLeft();
}

TEST_F(Hostile, AClientThatConnectsAndSaysNothingHoldsNobodyUp) {
  if (!BeginWithApps()) {
    return;
  }
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 50; ++i) {
    silent.push_back(RawClient::Connect(*left_));
    ASSERT_NE(silent.back(), nullptr);
  }
  App late(*left_);
  EXPECT_TRUE(late.attached()) << late.error();
  silent.clear();
  ExpectOthersUnaffected();
}

// The receiver gets whatever was there at some moment, and exactly as much of it as was announced.
TEST_F(Hostile, MemoryWrittenWhileItIsBeingSentHarmsNobody) {
  if (!BeginWithApps()) {
    return;
  }
  auto raw = ConnectedRaw();
  ASSERT_NE(raw, nullptr);
  std::jthread writer([memory = raw->memory()](const std::stop_token& stop) {
    for (int value = 0; !stop.stop_requested(); ++value) {
      std::memset(memory, value, control::kBlockBytes);
    }
  });
  constexpr uint64_t kSends = 40;
  constexpr uint64_t kAtOnce = 8;  // The same memory in several sends at once.
  uint64_t begun = 0;
  uint64_t ended = 0;
  uint64_t received = 0;
  uint64_t mixed = 0;
  EXPECT_TRUE(WaitUntil([&] {
    while (begun < kSends && begun - ended < kAtOnce) {
      Descriptor descriptor = GoodSend(*raw, ++begun);
      descriptor.region.length = control::kBlockBytes;
      raw->Submit(descriptor);
    }
    while (const auto completion = raw->Complete(milliseconds(0))) {
      EXPECT_EQ(completion->op, static_cast<uint8_t>(CompletionOp::kSent));
      EXPECT_EQ(completion->token, ++ended);
      EXPECT_EQ(completion->result.outcome, static_cast<uint32_t>(Outcome::kOk));
    }
    victim_->Poll();
    while (victim_->Waiting(SLUICE_EVENT_MESSAGE) > 0) {
      const auto message = victim_->Next(SLUICE_EVENT_MESSAGE);
      EXPECT_EQ(message->length, control::kBlockBytes);
      const auto* bytes = static_cast<const unsigned char*>(message->data);
      mixed += std::memcmp(bytes, bytes + 1, message->length - 1) != 0;
      victim_->Free(*message);
      ++received;
    }
    return (ended == kSends && received == kSends) || raw->hung_up();
  }));
  EXPECT_EQ(ended, kSends);
  EXPECT_EQ(received, kSends);
  EXPECT_GT(mixed, 0u) << "no message was written to while it was sent";
  writer.request_stop();
  writer.join();
  raw.reset();
  ExpectNothingLeft();
}

}  // namespace
}  // namespace sluice::testing
