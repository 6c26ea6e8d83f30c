// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <vector>

namespace sluice::handshake {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

class SeededRandom final : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : engine_(seed) {}
  uint64_t Next() override { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

std::unique_ptr<MacKey> Key(uint8_t fill) {
  const Bytes bytes(kMinKeyBytes, std::byte{fill});
  return std::move(MacKey::Create(bytes).value());
}

constexpr uint64_t kStart = 1'000'000;

// One end's settings and a connection's other end beside it. `rewrite` sees every message on its
// way and may change it.
class HandshakeTest : public ::testing::Test {
 protected:
  HandshakeTest() {
    dialer_settings_.instance = 11;
    dialer_settings_.key = key_.get();
    dialer_settings_.name = "left";
    dialer_settings_.listen_port = 7411;
    dialer_settings_.limits.receive_depth = 32;
    listener_settings_.instance = 22;
    listener_settings_.key = key_.get();
    listener_settings_.name = "right";
    listener_settings_.listen_port = 7422;
    listener_settings_.limits.receive_depth = 48;
  }

  void Begin() {
    dialer_.emplace(Handshake::Dial(dialer_settings_, wish_, random_, kStart));
    listener_.emplace(Handshake::Listen(listener_settings_, random_, kStart));
  }

  // Takes one whole message from `from`.
  static Bytes TakeMessage(Handshake& from) {
    const auto out = from.Output();
    if (out.empty()) return {};
    Prefix prefix;
    std::memcpy(&prefix, out.data(), sizeof(prefix));
    Bytes message(out.begin(), out.begin() + prefix.bytes);
    from.OnWritten(message.size());
    return message;
  }

  // Gives bytes to `to`, as much at a time as it wants and never more than `piece`.
  static void Give(Handshake& to, const Bytes& bytes, size_t piece = SIZE_MAX) {
    size_t done = 0;
    while (done < bytes.size() && to.WantedBytes() > 0) {
      const size_t take = std::min({piece, to.WantedBytes(), bytes.size() - done});
      to.OnBytes(std::span(bytes).subspan(done, take), kStart);
      done += take;
    }
  }

  void Decide() {
    if (dialer_->phase() == Phase::kDeciding) dialer_->Proceed(kStart);
    if (listener_->phase() == Phase::kDeciding) listener_->Grant(decision_);
  }

  using Rewrite = std::function<Bytes(bool from_dialer, Bytes)>;

  // Carries messages until nothing moves any more.
  void Run(const Rewrite& rewrite = nullptr, size_t piece = SIZE_MAX) {
    for (bool moved = true; moved;) {
      moved = false;
      for (const bool from_dialer : {true, false}) {
        Bytes message = TakeMessage(from_dialer ? *dialer_ : *listener_);
        if (message.empty()) continue;
        moved = true;
        if (rewrite) message = rewrite(from_dialer, std::move(message));
        Give(from_dialer ? *listener_ : *dialer_, message, piece);
        Decide();
      }
    }
  }

  bool BothDone() const {
    return dialer_->phase() == Phase::kDone && listener_->phase() == Phase::kDone;
  }

  std::unique_ptr<MacKey> key_ = Key(1);
  SeededRandom random_{7};
  Settings dialer_settings_, listener_settings_;
  Wish wish_;
  Decision decision_{0xabc, 1, false};
  std::optional<Handshake> dialer_, listener_;
};

template <typename Message>
Message As(const Bytes& bytes) {
  Message message;
  std::memcpy(&message, bytes.data(), sizeof(message));
  return message;
}

template <typename Message>
Bytes ToBytes(const Message& message) {
  const auto bytes = std::as_bytes(std::span(&message, 1));
  return {bytes.begin(), bytes.end()};
}

TEST_F(HandshakeTest, BothEndsAgreeOnEverything) {
  dialer_settings_.features_offered = 0b0111;
  listener_settings_.features_offered = 0b1110;
  listener_settings_.features_required = 0b0010;
  Begin();
  Run();
  ASSERT_TRUE(BothDone()) << dialer_->failure().text << listener_->failure().text;
  const SessionParameters d = dialer_->Parameters(), l = listener_->Parameters();
  EXPECT_EQ(d.session, 0xabcu);
  EXPECT_EQ(l.session, 0xabcu);
  EXPECT_EQ(d.path_epoch, 1u);
  EXPECT_FALSE(d.resumed);
  EXPECT_EQ(d.version, 1);
  EXPECT_EQ(l.version, 1);
  EXPECT_EQ(d.features, 0b0110u);
  EXPECT_EQ(l.features, 0b0110u);
  EXPECT_EQ(d.local_instance, 11u);
  EXPECT_EQ(d.peer_instance, 22u);
  EXPECT_EQ(l.local_instance, 22u);
  EXPECT_EQ(l.peer_instance, 11u);
  EXPECT_EQ(d.peer_receive_depth, 48u);
  EXPECT_EQ(l.peer_receive_depth, 32u);
  EXPECT_EQ(d.peer_name, "right");
  EXPECT_EQ(l.peer_name, "left");
  EXPECT_EQ(listener_->peer().listen_port, 7411);
  EXPECT_EQ(dialer_->peer().listen_port, 7422);
}

TEST_F(HandshakeTest, BytesMayComeOneByOne) {
  Begin();
  Run(nullptr, 1);
  EXPECT_TRUE(BothDone());
}

TEST_F(HandshakeTest, NeverAsksForBytesBehindItsOwnMessage) {
  Begin();
  Give(*listener_, TakeMessage(*dialer_));
  Give(*dialer_, TakeMessage(*listener_));
  EXPECT_EQ(dialer_->WantedBytes(), 0u) << "nothing is due while the dialer decides";
  dialer_->Proceed(kStart);
  Give(*listener_, TakeMessage(*dialer_));
  listener_->Grant(decision_);
  EXPECT_EQ(listener_->WantedBytes(), 0u);
  Bytes accept_and_frames = TakeMessage(*listener_);
  accept_and_frames.resize(accept_and_frames.size() + 100);
  size_t taken = 0;
  while (const size_t wanted = dialer_->WantedBytes()) {
    dialer_->OnBytes(std::span(accept_and_frames).subspan(taken, wanted), kStart);
    taken += wanted;
  }
  EXPECT_EQ(taken, sizeof(Accept));
  EXPECT_EQ(dialer_->phase(), Phase::kDone);
}

TEST_F(HandshakeTest, AResumedSessionCarriesItsNumberAndTheLaterEpoch) {
  wish_ = {.lane = 3, .resume_session = 0x77, .resume_instance = 22, .path_epoch = 4};
  decision_ = {0x77, 6, true};
  Begin();
  Run();
  ASSERT_TRUE(BothDone());
  EXPECT_EQ(listener_->peer().lane, 3);
  EXPECT_EQ(listener_->peer().resume_session, 0x77u);
  EXPECT_EQ(listener_->peer().path_epoch, 4u);
  EXPECT_TRUE(dialer_->Parameters().resumed);
  EXPECT_EQ(dialer_->Parameters().path_epoch, 6u);
  EXPECT_EQ(dialer_->Parameters().session, 0x77u);
}

TEST_F(HandshakeTest, TheDialerRefusesASessionItDidNotAskFor) {
  const Decision wrong[] = {{0x78, 6, true}, {0x77, 3, true}, {0x79, 2, false}, {0x77, 1, false}};
  for (const Decision& decision : wrong) {
    wish_ = {.lane = 0, .resume_session = 0x77, .resume_instance = 22, .path_epoch = 4};
    decision_ = decision;
    Begin();
    Run();
    EXPECT_EQ(dialer_->phase(), Phase::kFailed) << decision.session << " " << decision.path_epoch;
  }
}

TEST_F(HandshakeTest, TheDialerRefusesToResumeWithAnotherInstance) {
  wish_ = {.lane = 0, .resume_session = 0x77, .resume_instance = 23, .path_epoch = 4};
  decision_ = {0x77, 4, true};
  Begin();
  Run();
  EXPECT_EQ(dialer_->phase(), Phase::kFailed);
}

// --- authentication ---

TEST_F(HandshakeTest, DifferentKeysAreRefusedByTheDialerFirstAndBothSayWhy) {
  const auto other = Key(2);
  listener_settings_.key = other.get();
  Begin();
  Run();
  EXPECT_EQ(dialer_->phase(), Phase::kFailed);
  EXPECT_EQ(dialer_->failure().reason, RefuseReason::kBadProof);
  EXPECT_TRUE(dialer_->failure().definite);
  EXPECT_EQ(dialer_->failure().code, ErrorCode::kPermission);
  EXPECT_EQ(listener_->failure().reason, RefuseReason::kBadProof);
  EXPECT_TRUE(listener_->failure().by_peer);
  EXPECT_THAT(listener_->failure().text, HasSubstr("key file"));
}

TEST_F(HandshakeTest, ADialerWithoutTheKeyIsRefusedBeforeTheListenerDecidesAnything) {
  Begin();
  Give(*listener_, TakeMessage(*dialer_));
  TakeMessage(*listener_);
  Proof proof{};
  proof.prefix = {kMagic, Type::kProof, sizeof(Proof), 1, 1};
  Give(*listener_, ToBytes(proof));
  EXPECT_EQ(listener_->phase(), Phase::kFailed);
  EXPECT_EQ(listener_->failure().reason, RefuseReason::kBadProof);
}

TEST_F(HandshakeTest, AKeyedAndAnUnkeyedEndRefuseEachOtherWithAClearText) {
  for (const bool dialer_keyed : {true, false}) {
    dialer_settings_.key = dialer_keyed ? key_.get() : nullptr;
    listener_settings_.key = dialer_keyed ? nullptr : key_.get();
    Begin();
    Run();
    for (const Handshake* end : {&*dialer_, &*listener_}) {
      EXPECT_EQ(end->phase(), Phase::kFailed);
      EXPECT_EQ(end->failure().reason, RefuseReason::kAuthentication);
      EXPECT_TRUE(end->failure().definite);
      EXPECT_THAT(end->failure().text, HasSubstr("authentication off"));
    }
  }
}

TEST_F(HandshakeTest, TwoUnkeyedEndsAgreeWithoutProofs) {
  dialer_settings_.key = listener_settings_.key = nullptr;
  Begin();
  Run();
  EXPECT_TRUE(BothDone());
}

TEST_F(HandshakeTest, ADowngradeOnTheWayIsRefused) {
  dialer_settings_.key = nullptr;
  Begin();
  Run([](bool from_dialer, Bytes message) {
    if (!from_dialer || As<Prefix>(message).type != Type::kHello) return message;
    auto hello = As<Hello>(message);
    hello.authentication = Authentication::kHmacSha256;
    return ToBytes(hello);
  });
  EXPECT_NE(listener_->phase(), Phase::kDone);
  EXPECT_NE(dialer_->phase(), Phase::kDone);
}

TEST_F(HandshakeTest, AnySingleBitFlipInAnyMessageIsRefused) {
  const Type types[] = {Type::kHello, Type::kReply, Type::kProof, Type::kAccept};
  const size_t sizes[] = {sizeof(Hello), sizeof(Reply), sizeof(Proof), sizeof(Accept)};
  for (size_t t = 0; t < 4; ++t) {
    for (size_t bit = 0; bit < sizes[t] * 8; ++bit) {
      Begin();
      Run([&](bool, Bytes message) {
        if (As<Prefix>(message).type == types[t]) message[bit / 8] ^= std::byte{1} << (bit % 8);
        return message;
      });
      // Accept is the listener's last word: what becomes of it only the dialer can see.
      EXPECT_NE(dialer_->phase(), Phase::kDone) << "message " << t + 1 << " bit " << bit;
      if (types[t] != Type::kAccept) {
        EXPECT_NE(listener_->phase(), Phase::kDone) << "message " << t + 1 << " bit " << bit;
      }
    }
  }
}

TEST_F(HandshakeTest, ABitFlipInARefusalIsStillARefusal) {
  for (size_t bit = 0; bit < sizeof(Refuse) * 8; ++bit) {
    Begin();
    Give(*listener_, TakeMessage(*dialer_));
    listener_->OnWritten(listener_->Output().size());
    listener_->Reject(RefuseReason::kShuttingDown, "the daemon is stopping");
    Bytes refuse = TakeMessage(*listener_);
    refuse[bit / 8] ^= std::byte{1} << (bit % 8);
    Give(*dialer_, refuse);
    dialer_->OnTime(dialer_->deadline_ns());
    EXPECT_EQ(dialer_->phase(), Phase::kFailed) << bit;
    for (const char c : dialer_->failure().text) EXPECT_TRUE(c >= 0x20 && c <= 0x7e);
  }
}

TEST_F(HandshakeTest, MessagesCutShortLeaveBothEndsWaitingUntilTheirDeadline) {
  for (const Type type : {Type::kHello, Type::kReply, Type::kProof, Type::kAccept}) {
    for (size_t keep = 0; keep < sizeof(Proof); ++keep) {
      Begin();
      Run([&](bool, Bytes message) {
        if (As<Prefix>(message).type == type) message.resize(keep);
        return message;
      });
      EXPECT_NE(dialer_->phase(), Phase::kDone);
      Handshake& waiting = type == Type::kHello || type == Type::kProof ? *listener_ : *dialer_;
      ASSERT_EQ(waiting.phase(), Phase::kExchanging);
      waiting.OnTime(waiting.deadline_ns() - 1);
      EXPECT_EQ(waiting.phase(), Phase::kExchanging);
      waiting.OnTime(waiting.deadline_ns());
      EXPECT_EQ(waiting.phase(), Phase::kFailed);
      EXPECT_EQ(waiting.failure().code, ErrorCode::kTimeout);
      EXPECT_FALSE(waiting.failure().definite);
    }
  }
}

TEST_F(HandshakeTest, ASlowTrickleOfBytesDoesNotMoveTheDeadline) {
  Begin();
  const uint64_t deadline = listener_->deadline_ns();
  const Bytes hello = TakeMessage(*dialer_);
  for (size_t i = 0; i < 40; ++i)
    listener_->OnBytes(std::span(hello).subspan(i, 1), kStart + i * kNsPerMs);
  EXPECT_EQ(listener_->deadline_ns(), deadline);
  EXPECT_EQ(deadline, kStart + listener_settings_.step_timeout_ns);
}

TEST_F(HandshakeTest, ARecordedDialerIsRefusedOnReplay) {
  Begin();
  std::vector<Bytes> recorded;
  Run([&](bool from_dialer, Bytes message) {
    if (from_dialer) recorded.push_back(message);
    return message;
  });
  ASSERT_TRUE(BothDone());
  ASSERT_EQ(recorded.size(), 2u);
  Begin();
  Give(*listener_, recorded[0]);
  TakeMessage(*listener_);
  Give(*listener_, recorded[1]);
  EXPECT_EQ(listener_->phase(), Phase::kFailed);
  EXPECT_EQ(listener_->failure().reason, RefuseReason::kBadProof);
}

TEST_F(HandshakeTest, ARecordedListenerIsRefusedOnReplay) {
  Begin();
  Bytes reply;
  Run([&](bool from_dialer, Bytes message) {
    if (!from_dialer && reply.empty()) reply = message;
    return message;
  });
  Begin();
  Give(*dialer_, reply);
  EXPECT_EQ(dialer_->phase(), Phase::kFailed);
  EXPECT_EQ(dialer_->failure().reason, RefuseReason::kBadProof);
}

TEST_F(HandshakeTest, AProofIsGoodForOneRoleOnly) {
  // The listener's own proof, sent back to it as the dialer's.
  Begin();
  Give(*listener_, TakeMessage(*dialer_));
  const auto reply = As<Reply>(TakeMessage(*listener_));
  Proof proof{};
  proof.prefix = {kMagic, Type::kProof, sizeof(Proof), 1, 1};
  std::memcpy(proof.mac, reply.mac, sizeof(proof.mac));
  Give(*listener_, ToBytes(proof));
  EXPECT_EQ(listener_->failure().reason, RefuseReason::kBadProof);
}

TEST_F(HandshakeTest, WhatADialerSendsReflectedToItIsRefused) {
  Begin();
  Give(*dialer_, TakeMessage(*dialer_));
  EXPECT_EQ(dialer_->phase(), Phase::kFailed);
}

TEST_F(HandshakeTest, TheSameBytesUnderAnotherLabelHaveAnotherMac) {
  const Bytes bytes(10, std::byte{1});
  EXPECT_NE(key_->Compute("a", {bytes}).value(), key_->Compute("b", {bytes}).value());
  EXPECT_NE(key_->Compute("a", {bytes}).value(), Key(2)->Compute("a", {bytes}).value());
}

TEST_F(HandshakeTest, TheMacIsHmacSha256OverLabelZeroByteAndParts) {
  // HMAC-SHA256 under 32 bytes 0x01 of "abc", a zero byte, "data".
  const Mac expected = {0x73, 0xaf, 0x1d, 0x8c, 0x3e, 0x85, 0xbd, 0xc6, 0xa9, 0xa5, 0xd3,
                        0x10, 0x4f, 0x80, 0xdf, 0x36, 0x80, 0xf0, 0x01, 0x97, 0x1d, 0x26,
                        0xde, 0x1f, 0x4e, 0x30, 0x0b, 0xf8, 0x62, 0x8c, 0x2f, 0xb9};
  const char data[] = {'d', 'a', 't', 'a'};
  const auto bytes = std::as_bytes(std::span(data));
  EXPECT_EQ(key_->Compute("abc", {bytes}).value(), expected);
  EXPECT_EQ(key_->Compute("abc", {bytes.first(1), bytes.subspan(1)}).value(), expected);
}

TEST_F(HandshakeTest, ShortAndLongKeysAreRefused) {
  EXPECT_FALSE(MacKey::Create(Bytes(kMinKeyBytes - 1)));
  EXPECT_TRUE(MacKey::Create(Bytes(kMinKeyBytes)));
  EXPECT_TRUE(MacKey::Create(Bytes(kMaxKeyBytes)));
  EXPECT_FALSE(MacKey::Create(Bytes(kMaxKeyBytes + 1)));
}

TEST_F(HandshakeTest, TheDialerThatReachedItselfLearnsItFromAProof) {
  listener_settings_.instance = dialer_settings_.instance;
  Begin();
  Run();
  EXPECT_EQ(dialer_->failure().reason, RefuseReason::kSelf);
  EXPECT_EQ(dialer_->failure().code, ErrorCode::kInvalid);
  const auto other = Key(2);
  listener_settings_.key = other.get();
  Begin();
  Run();
  EXPECT_EQ(dialer_->failure().reason, RefuseReason::kBadProof) << "not from whoever claims it";
}

// --- versions and features ---

TEST_F(HandshakeTest, TheHighestCommonVersionIsChosen) {
  dialer_settings_.version_min = 1;
  dialer_settings_.version_max = 5;
  listener_settings_.version_min = 2;
  listener_settings_.version_max = 3;
  Begin();
  Run();
  ASSERT_TRUE(BothDone());
  EXPECT_EQ(dialer_->Parameters().version, 3);
  EXPECT_EQ(listener_->Parameters().version, 3);
}

TEST_F(HandshakeTest, WithoutACommonVersionBothEndsNameBothRanges) {
  for (const bool dialer_newer : {true, false}) {
    Settings& newer = dialer_newer ? dialer_settings_ : listener_settings_;
    Settings& older = dialer_newer ? listener_settings_ : dialer_settings_;
    newer.version_min = 4;
    newer.version_max = 6;
    older.version_min = 1;
    older.version_max = 3;
    Begin();
    Run();
    for (const Handshake* end : {&*dialer_, &*listener_}) {
      EXPECT_EQ(end->failure().reason, RefuseReason::kVersion);
      EXPECT_EQ(end->failure().code, ErrorCode::kVersion);
      EXPECT_TRUE(end->failure().definite);
      EXPECT_THAT(end->failure().text, HasSubstr("4 to 6"));
      EXPECT_THAT(end->failure().text, HasSubstr("1 to 3"));
    }
  }
}

TEST_F(HandshakeTest, ALaterAndLongerHelloIsUnderstoodAndItsTailIsCoveredByTheProofs) {
  for (const bool tamper : {false, true}) {
    Begin();
    Bytes hello = TakeMessage(*dialer_);
    auto fields = As<Hello>(hello);
    fields.prefix.version_max = 9;
    fields.prefix.bytes = sizeof(Hello) + 24;
    hello = ToBytes(fields);
    hello.resize(sizeof(Hello) + 24, std::byte{5});
    Give(*listener_, hello);
    ASSERT_EQ(listener_->phase(), Phase::kExchanging) << listener_->failure().text;
    const auto reply = As<Reply>(TakeMessage(*listener_));
    EXPECT_EQ(reply.version, 1);
    if (tamper) hello.back() ^= std::byte{1};
    const auto body = std::as_bytes(std::span(&reply, 1)).first(sizeof(Reply) - kMacBytes);
    const auto mac = key_->Compute("sluice handshake 1: the listener's reply", {hello, body})
                         .value();
    EXPECT_EQ(SameMac(mac, reply.mac), !tamper);
  }
}

TEST_F(HandshakeTest, AMissingRequiredFeatureIsRefusedAtEitherEnd) {
  for (const bool dialer_requires : {true, false}) {
    Settings& wanting = dialer_requires ? dialer_settings_ : listener_settings_;
    wanting.features_offered = wanting.features_required = 0x10;
    Begin();
    Run();
    EXPECT_EQ(dialer_->failure().reason, RefuseReason::kFeatures);
    EXPECT_EQ(listener_->failure().reason, RefuseReason::kFeatures);
    EXPECT_THAT(dialer_->failure().text, HasSubstr("0x10"));
    wanting.features_offered = wanting.features_required = 0;
  }
}

// --- broken and hostile peers ---

TEST_F(HandshakeTest, RubbishEndsItWithoutAnAnswer) {
  Begin();
  const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  Give(*listener_,
       Bytes(std::as_bytes(std::span(http)).begin(), std::as_bytes(std::span(http)).end()));
  EXPECT_EQ(listener_->phase(), Phase::kFailed);
  EXPECT_TRUE(listener_->Output().empty());
  EXPECT_EQ(listener_->WantedBytes(), 0u);
}

TEST_F(HandshakeTest, EveryHelloFieldOutOfRangeIsRefusedAsProtocolError) {
  using Mutation = std::function<void(Hello&)>;
  const Mutation mutations[] = {
      [](Hello& h) { h.prefix.type = Type::kProof; },
      [](Hello& h) { h.prefix.type = static_cast<Type>(99); },
      [](Hello& h) { h.prefix.bytes = sizeof(Hello) - 1; },
      [](Hello& h) { h.prefix.bytes = 0; },
      [](Hello& h) { h.prefix.bytes = kMaxMessageBytes + 1; },
      [](Hello& h) { h.instance = 0; },
      [](Hello& h) { h.lane = kMaxLanes; },
      [](Hello& h) { h.resume_session = 5; },
      [](Hello& h) { h.path_epoch = 5; },
      [](Hello& h) { h.limits.receive_depth = kMinReceiveDepth - 1; },
      [](Hello& h) { h.limits.receive_depth = kMaxReceiveDepth + 1; },
      [](Hello& h) { h.limits.receive_bytes = kMinReceiveBytes - 1; },
      [](Hello& h) { h.limits.receive_bytes = UINT32_MAX; },
      [](Hello& h) { h.limits.message_window = 0; },
      [](Hello& h) { h.limits.message_window = kMaxMessageWindow + 1; },
  };
  int index = 0;
  for (const Mutation& mutation : mutations) {
    Begin();
    auto hello = As<Hello>(TakeMessage(*dialer_));
    mutation(hello);
    Give(*listener_, ToBytes(hello));
    EXPECT_EQ(listener_->phase(), Phase::kFailed) << index;
    EXPECT_EQ(listener_->failure().reason, RefuseReason::kProtocol) << index;
    const auto refuse = As<Refuse>(TakeMessage(*listener_));
    EXPECT_EQ(refuse.prefix.type, Type::kRefuse) << index;
    ++index;
  }
}

TEST_F(HandshakeTest, AnInvertedVersionRangeIsAVersionMismatch) {
  Begin();
  auto hello = As<Hello>(TakeMessage(*dialer_));
  hello.prefix.version_min = 2;
  hello.prefix.version_max = 1;
  Give(*listener_, ToBytes(hello));
  EXPECT_EQ(listener_->failure().reason, RefuseReason::kVersion);
}

TEST_F(HandshakeTest, WithoutAuthenticationEveryReplyFieldOutOfRangeIsRefused) {
  dialer_settings_.key = listener_settings_.key = nullptr;
  dialer_settings_.features_offered = dialer_settings_.features_required = 1;
  listener_settings_.features_offered = 1;
  using Mutation = std::function<void(Reply&)>;
  const Mutation mutations[] = {
      [](Reply& r) { r.prefix.bytes = sizeof(Reply) + 1; },
      [](Reply& r) { r.instance = 0; },
      [](Reply& r) { r.version = 2; },
      [](Reply& r) { r.version = 0; },
      [](Reply& r) { r.features = 3; },
      [](Reply& r) { r.features = 0; },
      [](Reply& r) { r.mac[5] = 1; },
      [](Reply& r) { r.limits.receive_depth = 0; },
      [](Reply& r) { r.limits.receive_bytes = 0; },
      [](Reply& r) { r.limits.message_window = 0; },
      [](Reply& r) { r.authentication = static_cast<Authentication>(7); },
  };
  int index = 0;
  for (const Mutation& mutation : mutations) {
    Begin();
    Give(*listener_, TakeMessage(*dialer_));
    auto reply = As<Reply>(TakeMessage(*listener_));
    mutation(reply);
    Give(*dialer_, ToBytes(reply));
    EXPECT_EQ(dialer_->phase(), Phase::kFailed) << index++;
  }
}

TEST_F(HandshakeTest, APeersTextIsMadePrintableAndItsNameEndsWithItsField) {
  Begin();
  dialer_settings_.key = listener_settings_.key = nullptr;
  Begin();
  auto hello = As<Hello>(TakeMessage(*dialer_));
  std::memset(hello.name, 'x', sizeof(hello.name));
  hello.name[3] = '\x1b';
  Give(*listener_, ToBytes(hello));
  EXPECT_EQ(listener_->PeerName(), "xxx?" + std::string(kNameBytes - 4, 'x'));
}

TEST_F(HandshakeTest, AnUnknownReasonIsAPlainRefusal) {
  Begin();
  Refuse refuse{};
  refuse.prefix = {kMagic, Type::kRefuse, sizeof(Refuse), 1, 1};
  refuse.reason = static_cast<RefuseReason>(4711);
  std::memcpy(refuse.text, "because", 7);
  Give(*dialer_, ToBytes(refuse));
  EXPECT_EQ(dialer_->failure().code, ErrorCode::kRefused);
  EXPECT_FALSE(dialer_->failure().definite);
  EXPECT_THAT(dialer_->failure().text, HasSubstr("because"));
}

TEST_F(HandshakeTest, EitherEndMayRefuseWhenItDecides) {
  Begin();
  Give(*listener_, TakeMessage(*dialer_));
  Give(*dialer_, TakeMessage(*listener_));
  dialer_->Reject(RefuseReason::kDuplicate, "another connection is kept");
  Give(*listener_, TakeMessage(*dialer_));
  EXPECT_EQ(listener_->failure().reason, RefuseReason::kDuplicate);
  EXPECT_FALSE(listener_->failure().definite);
  EXPECT_EQ(listener_->failure().code, ErrorCode::kExists);
}

TEST_F(HandshakeTest, ARefusalGoesOutBehindWhatWasStillWaitingToBeWritten) {
  Begin();
  Give(*listener_, TakeMessage(*dialer_));
  listener_->OnWritten(10);
  listener_->Reject(RefuseReason::kShuttingDown, "bye");
  EXPECT_EQ(listener_->Output().size(), sizeof(Reply) - 10 + sizeof(Refuse));
}

TEST_F(HandshakeTest, RandomBytesNeverDoMoreThanEndIt) {
  for (int round = 0; round < 2'000; ++round) {
    Begin();
    for (Handshake* end : {&*dialer_, &*listener_}) {
      Bytes bytes(600);
      for (auto& b : bytes) b = static_cast<std::byte>(random_.Next());
      if (round % 2 == 0) {
        const Prefix prefix{kMagic, static_cast<Type>(random_.Next() % 7),
                            static_cast<uint16_t>(random_.Next() % 600), 1, 1};
        std::memcpy(bytes.data(), &prefix, sizeof(prefix));
      }
      Give(*end, bytes, 1 + random_.Next() % 50);
      EXPECT_NE(end->phase(), Phase::kDone);
      EXPECT_NE(end->phase(), Phase::kDeciding);
    }
  }
}

}  // namespace
}  // namespace sluice::handshake
