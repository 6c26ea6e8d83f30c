// SPDX-License-Identifier: Apache-2.0
// Random packets through the switch against a model that says in the plainest way what has to
// happen.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "p4_scheduler/core/switch_testing.h"

namespace sluice::rain {
namespace {

constexpr uint16_t kMembers = 12;
constexpr uint8_t kSlices = 3;

struct ModelTask {
  uint16_t client;
  uint32_t request;
  uint64_t at_ns;
};
struct ModelToken {
  uint16_t member;
  uint16_t epoch;
};
struct ModelSlice {
  std::deque<ModelTask> tasks;
  std::deque<ModelToken> tokens;
};

class SwitchModel : public testing::TestWithParam<uint32_t> {
 protected:
  SwitchModel() : rack_(Config()), random_(GetParam()) {
    for (uint8_t slice = 0; slice < kSlices; ++slice) {
      rack_.SetLimits(16, 8, 8, slice);
      if (slice != kSlice) {
        EXPECT_TRUE(rack_.rain.types().Insert(slice + 10u, {.slice = slice}));
      }
    }
    for (uint16_t member = 1; member <= kMembers; ++member) {
      rack_.AddMember(member, static_cast<uint16_t>(11 + member % 3),
                      static_cast<uint8_t>(member % kSlices));
    }
  }

  static SwitchConfig Config() {
    SwitchConfig config = Rack::DefaultConfig();
    config.first_ticket = 0u - 300;  // Wraps early.
    return config;
  }

  uint32_t Random(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  void SendTask() {
    const auto slice = static_cast<uint8_t>(Random(kSlices));
    const auto client = static_cast<uint16_t>(1 + Random(2));
    const size_t bytes = Random(3) == 0 ? 9 + Random(300) : Random(9);
    const auto type = static_cast<uint8_t>(slice == kSlice ? kType : slice + 10);
    const auto result = rack_.Task(client, ++requests_, Payload(bytes), now_ns_, type);
    ModelSlice& model = slices_[slice];
    const size_t limit = IsLarge(bytes) ? 8 : 16;
    if (!model.tokens.empty()) {
      const ModelToken token = model.tokens.front();
      model.tokens.pop_front();
      const bool alive = rack_.Member(token.member).epoch == token.epoch;
      ASSERT_EQ(result.decision.outcome,
                alive ? Outcome::kDispatchedAtOnce : Outcome::kRejectedWorkerGone);
      if (alive) {
        ASSERT_EQ(result.rain.header.member, token.member);
      }
      ++ended_;
    } else if (model.tasks.size() < limit) {
      ASSERT_EQ(result.decision.outcome,
                IsLarge(bytes) ? Outcome::kLargeTaskWaits : Outcome::kTaskWaits);
      ASSERT_EQ(result.replicas.size(), IsLarge(bytes) ? 2u : 0u);
      model.tasks.push_back({client, requests_, now_ns_});
    } else {
      ASSERT_EQ(result.decision.outcome,
                IsLarge(bytes) ? Outcome::kRejectedLargeQueueFull : Outcome::kRejectedQueueFull);
      ++ended_;
    }
  }

  void SendToken() {
    const auto member = static_cast<uint16_t>(1 + Random(kMembers));
    const auto result = rack_.SendToken(member, now_ns_);
    ModelSlice& model = slices_[member % kSlices];
    if (!model.tasks.empty()) {
      const ModelTask task = model.tasks.front();
      ASSERT_EQ(result.decision.outcome, Outcome::kDispatchedFromQueue);
      ASSERT_EQ(result.rain.header.request, task.request);
      ASSERT_EQ(result.rain.header.client, task.client);
      ASSERT_EQ(result.rain.header.switch_ns, static_cast<uint32_t>(now_ns_ - task.at_ns));
      ASSERT_EQ(result.rain.header.queue_tasks, model.tasks.size());
      model.tasks.pop_front();
      ++ended_;
    } else if (model.tokens.size() < 8) {
      ASSERT_EQ(result.decision.outcome, Outcome::kTokenWaits);
      model.tokens.push_back({member, rack_.Member(member).epoch});
    } else {
      ASSERT_EQ(result.decision.outcome, Outcome::kRejectedTokensFull);
    }
  }

  // A worker dies and is registered anew: its epoch advances and its count starts again.
  void Kill() {
    const auto member = static_cast<uint16_t>(1 + Random(kMembers));
    MemberEntry entry = rack_.Member(member);
    ++entry.epoch;
    rack_.ModifyMember(member, entry);
    rack_.Process(kControllerPort, {.kind = Kind::kReset, .code = kResetMember, .member = member});
  }

  void ResetSlice() {
    const auto slice = static_cast<uint8_t>(Random(kSlices));
    rack_.Process(
        kControllerPort,
        {.kind = Kind::kReset, .code = kResetSlice, .slice = slice, .ticket = 0u - Random(50)});
    ended_ += slices_[slice].tasks.size();
    slices_[slice] = {};
    for (uint16_t member = 1; member <= kMembers; ++member) {
      if (member % kSlices != slice) continue;
      rack_.Process(kControllerPort,
                    {.kind = Kind::kReset, .code = kResetMember, .member = member});
    }
  }

  void ExpectProbesToAgree() {
    uint64_t waiting = 0;
    for (uint16_t member = 1; member <= kMembers; ++member) {
      const ModelSlice& model = slices_[member % kSlices];
      uint32_t held = 0;
      for (const ModelToken& token : model.tokens) {
        held += token.member == member && token.epoch == rack_.Member(member).epoch;
      }
      const Rack::State state = rack_.Probe(member);
      ASSERT_EQ(state.held, held) << "member " << member;
      ASSERT_EQ(state.waiting, model.tasks.size());
      ASSERT_EQ(state.tokens_seen - state.tasks_seen,
                static_cast<uint32_t>(model.tokens.size() - model.tasks.size()));
    }
    for (const ModelSlice& slice : slices_) waiting += slice.tasks.size();
    ASSERT_EQ(ended_ + waiting, requests_) << "every task has ended once or waits";
  }

  Rack rack_;
  std::mt19937 random_;
  ModelSlice slices_[kSlices];
  uint32_t requests_ = 0;
  uint64_t ended_ = 0;
  uint64_t now_ns_ = 0xffff'0000;
};

TEST_P(SwitchModel, DoesWhatThePlainModelSays) {
  for (int step = 0; step < 6'000; ++step) {
    now_ns_ += Random(100'000);
    const uint32_t favoured = (step / 300) % 2 == 0 ? 6 : 3;
    const uint32_t draw = Random(10);
    if (draw < favoured) {
      SendTask();
    } else if (draw < 9) {
      SendToken();
    } else if (Random(4) == 0) {
      Kill();
    } else if (Random(100) == 0) {
      ResetSlice();
    }
    if (step % 50 == 0) ExpectProbesToAgree();
    if (HasFatalFailure()) FAIL() << "at step " << step;
  }
  for (const Outcome outcome :
       {Outcome::kDispatchedAtOnce, Outcome::kDispatchedFromQueue, Outcome::kLargeTaskWaits,
        Outcome::kRejectedQueueFull, Outcome::kRejectedLargeQueueFull, Outcome::kRejectedWorkerGone,
        Outcome::kRejectedTokensFull, Outcome::kReset}) {
    EXPECT_GT(rack_.rain.count(outcome), 0u) << Name(outcome);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SwitchModel, testing::Range(1u, 9u));

// Whatever comes in: nothing breaks, and what goes out is well formed.
TEST(SwitchRobustness, DamagedPacketsNeverBreakItsInvariants) {
  Rack rack;
  for (uint16_t member = 1; member <= 4; ++member) rack.AddMember(member, 11);
  std::mt19937 random(9);
  for (int i = 0; i < 60'000; ++i) {
    Header header{.kind = static_cast<Kind>(1 + random() % 8), .fragments = 1};
    header.type = static_cast<uint8_t>(random() % 5);
    header.client = static_cast<uint16_t>(random() % 4);
    header.member = static_cast<uint16_t>(random() % 6);
    header.epoch = static_cast<uint16_t>(random() % 3);
    header.code = static_cast<uint8_t>(random() % 3 == 0 ? random() % 7 : 0);
    if (header.kind == Kind::kToken || header.kind >= Kind::kProbe) header.fragments = 0;
    const auto payload = Payload(header.fragments == 0 ? 0 : random() % 30);
    SetPayload(header, payload);
    const uint16_t port = std::array<uint16_t, 4>{kControllerPort, 1, 2, 11}[random() % 4];
    std::vector<std::byte> frame(FrameBytes(header));
    BuildFrame(At(port), SwitchEndpoint(), header, payload, frame);
    for (uint64_t edits = random() % 3; edits > 0; --edits) {
      frame[random() % frame.size()] ^= static_cast<std::byte>(1 << random() % 8);
    }
    if (random() % 16 == 0) frame.resize(random() % frame.size());
    const auto result = rack.ProcessFrame(port, frame);  // Checks what is sent.
    const TicketQueue& queue = rack.rain.queue(kSlice);
    ASSERT_EQ(static_cast<uint32_t>(queue.balance()), queue.tokens_seen() - queue.tasks_seen());
    if (result.decision.action == Decision::Action::kDrop) {
      ASSERT_EQ(result.frame, frame);
    }
  }
  EXPECT_GT(rack.rain.count(Outcome::kDispatchedAtOnce), 10u);
  EXPECT_GT(rack.rain.count(Outcome::kMalformed), 1'000u);
}

}  // namespace
}  // namespace sluice::rain
