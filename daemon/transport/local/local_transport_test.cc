// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/local/local_transport.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

// What only the local transport does. The contract itself is tested by the conformance suite.
namespace sluice::transport {
namespace {

class LocalTransportTest : public testing::Test {
 protected:
  void SetUp() override {
    auto created = LocalTransport::Create();
    ASSERT_TRUE(created.has_value());
    transport_ = std::move(*created);
    const QueuePairLimits limits{
        .send_queue_depth = 4, .receive_queue_depth = 4, .receive_bytes = 64};
    std::tie(a_, b_) = transport_->CreatePair(limits, &a_, limits, &b_);
  }

  void PostReceive(QueuePair& queue_pair, uint64_t id) {
    const ReceiveRequest request{.id = id, .address = memory_.data(), .length = 64, .local_key = 0};
    ASSERT_TRUE(queue_pair.PostReceive({&request, 1}).has_value());
  }

  static size_t PostSend(QueuePair& queue_pair, uint64_t id, std::string_view text) {
    SendRequest request{};
    request.id = id;
    request.opcode = Opcode::kSend;
    request.signalled = true;
    request.segment_count = 1;
    request.segments[0] = {reinterpret_cast<const std::byte*>(text.data()),
                           static_cast<uint32_t>(text.size()), 0};
    return queue_pair.PostSend({&request, 1});
  }

  std::span<const Completion> Poll() {
    return std::span(completions_).first(transport_->Poll(completions_, 1));
  }

  std::unique_ptr<LocalTransport> transport_;
  std::unique_ptr<QueuePair> a_;
  std::unique_ptr<QueuePair> b_;
  std::array<std::byte, 64> memory_{};
  std::array<Completion, 32> completions_{};
};

TEST_F(LocalTransportTest, ASendWaitsUntilItsReceiveIsPosted) {
  ASSERT_EQ(PostSend(*a_, 1, "early"), 1u);
  EXPECT_TRUE(Poll().empty());
  EXPECT_TRUE(transport_->Arm());

  PostReceive(*b_, 9);
  EXPECT_FALSE(transport_->Arm());
  const auto completions = Poll();
  ASSERT_EQ(completions.size(), 2u);
  EXPECT_EQ(completions[0].kind, CompletionKind::kReceived);
  EXPECT_EQ(completions[0].context, &b_);
  EXPECT_EQ(completions[0].id, 9u);
  EXPECT_EQ(std::memcmp(completions[0].data, "early", 5), 0);
  EXPECT_EQ(completions[1].kind, CompletionKind::kSent);
  EXPECT_EQ(completions[1].id, 1u);
}

TEST_F(LocalTransportTest, AHeldRequestIsDeliveredOnceThePolicyLetsIt) {
  bool hold = true;
  transport_->SetPolicy([&hold](void*, const SendRequest&) {
    return hold ? LocalVerdict::kHold : LocalVerdict::kDeliver;
  });
  PostReceive(*b_, 9);
  PostSend(*a_, 1, "late");
  EXPECT_TRUE(Poll().empty());
  hold = false;
  EXPECT_EQ(Poll().size(), 2u);
}

TEST_F(LocalTransportTest, ABrokenLinkKillsBothEndsBeforeTheRequestArrives) {
  transport_->SetPolicy([](void*, const SendRequest&) { return LocalVerdict::kBreak; });
  PostReceive(*b_, 9);
  PostSend(*a_, 1, "never");
  int disconnected = 0;
  for (const Completion& completion : Poll()) {
    EXPECT_EQ(completion.status, Status::kFlushed);
    disconnected += completion.kind == CompletionKind::kDisconnected;
  }
  EXPECT_EQ(disconnected, 2);
  EXPECT_EQ(a_->reason(), "the link broke");
  EXPECT_EQ(PostSend(*a_, 2, "dead"), 0u);
}

TEST_F(LocalTransportTest, ABreakAfterDeliveryLeavesTheSenderInTheDark) {
  transport_->SetPolicy([](void*, const SendRequest&) { return LocalVerdict::kDeliverThenBreak; });
  PostReceive(*b_, 9);
  PostSend(*a_, 1, "there");
  const auto completions = Poll();
  ASSERT_EQ(completions.size(), 4u);
  EXPECT_EQ(completions[0].kind, CompletionKind::kReceived);
  EXPECT_EQ(completions[0].status, Status::kOk);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(completions[i].status, Status::kFlushed);
}

TEST_F(LocalTransportTest, DestroyingOneEndDisconnectsTheOther) {
  a_.reset();
  const auto completions = Poll();
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].kind, CompletionKind::kDisconnected);
  EXPECT_EQ(completions[0].context, &b_);
  EXPECT_TRUE(Poll().empty());
}

}  // namespace
}  // namespace sluice::transport
