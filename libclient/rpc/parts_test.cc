// SPDX-License-Identifier: Apache-2.0
// The parts that decide, without sockets: time and randomness come from the test.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "libclient/rpc/admission.h"
#include "libclient/rpc/duplicate_table.h"
#include "libclient/rpc/latency_window.h"
#include "libclient/rpc/quarantine.h"
#include "libclient/rpc/replica_choice.h"
#include "libclient/rpc/retry_budget.h"
#include "libclient/rpc/wire.h"

namespace sluice::rpc {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

template <typename Header>
std::vector<std::byte> Bytes(const Header& header, size_t payload = 0) {
  std::vector<std::byte> bytes(sizeof(header) + payload);
  Write(header, bytes);
  return bytes;
}

TEST(Wire, ReadsWhatItWrote) {
  RequestHeader request;
  request.prefix.call = 7;
  request.prefix.attempt = 3;
  request.method = 12;
  request.remaining_us = 40'000;
  request.client = 99;
  request.sequence = 5;
  request.incomplete_span = 2;
  const auto parsed = Parse(Bytes(request, 100));
  ASSERT_TRUE(parsed);
  const auto& read = std::get<RequestHeader>(parsed->header);
  EXPECT_EQ(read.prefix.call, 7u);
  EXPECT_EQ(read.prefix.attempt, 3u);
  EXPECT_EQ(read.method, 12u);
  EXPECT_EQ(read.sequence, 5u);
  EXPECT_EQ(parsed->payload_offset, sizeof(RequestHeader));
}

TEST(Wire, RefusesEveryMessageThatIsCutShort) {
  const std::vector<std::byte> reply = Bytes(ReplyHeader{});
  for (size_t length = 0; length < reply.size(); ++length) {
    EXPECT_FALSE(Parse(std::span(reply).first(length))) << length;
  }
  EXPECT_TRUE(Parse(reply));
}

TEST(Wire, SkipsWhatALaterVersionAddedToAHeader) {
  std::vector<std::byte> reply = Bytes(ReplyHeader{}, 16);
  reply[6] = std::byte{sizeof(ReplyHeader) + 8};
  const auto parsed = Parse(reply);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->payload_offset, sizeof(ReplyHeader) + 8);
}

TEST(Wire, RefusesRubbishWithoutReadingPastIt) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100'000; ++round) {
    std::vector<std::byte> bytes(random() % 80);
    for (std::byte& byte : bytes) byte = std::byte(random());
    if (bytes.size() >= 4 && round % 2 == 0) {  // Half of them look right at first.
      bytes[0] = std::byte{0x53}, bytes[1] = std::byte{0x52}, bytes[2] = std::byte{1};
      bytes[3] = std::byte(random() % 6);
    }
    const auto parsed = Parse(bytes);
    if (parsed) {
      ASSERT_LE(parsed->payload_offset, bytes.size());
      ASSERT_GE(parsed->payload_offset, sizeof(Prefix));
    }
  }
}

TEST(RetryBudget, NeverGivesMoreThanItsShareAndItsReserve) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const double share = static_cast<double>(random() % 101) / 100;
    const auto reserve = static_cast<uint32_t>(random() % 20);
    RetryBudget budget(share, reserve);
    double requests = 0;
    double given = 0;
    for (int step = 0; step < 2000; ++step) {
      if (random() % 3 != 0) {
        budget.OnRequest();
        ++requests;
      } else if (budget.Take()) {
        ++given;
      }
      ASSERT_LE(given, share * requests + std::max(reserve, 1u) + 1e-6) << "seed " << seed;
    }
  }
}

TEST(RetryBudget, GivesAllOfItsShareToWhoAsksOften) {
  RetryBudget budget(0.1, 0);
  int given = 0;
  for (int i = 0; i < 1000; ++i) {
    budget.OnRequest();
    given += budget.Take() ? 1 : 0;
  }
  EXPECT_NEAR(given, 100, 1);
}

TEST(RetryBudget, OfNothingGivesNothing) {
  RetryBudget budget(0, 0);
  for (int i = 0; i < 1000; ++i) budget.OnRequest();
  EXPECT_FALSE(budget.Take());
}

TEST(LatencyWindow, PercentileIsWithinAnEighthOfTheTruth) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    std::lognormal_distribution<> latency(10, 1);
    LatencyWindow window;
    std::vector<uint64_t> all;
    for (uint32_t i = 0; i < LatencyWindow::kSamples - 1; ++i) {
      all.push_back(static_cast<uint64_t>(latency(random)));
      window.Add(all.back());
    }
    std::ranges::sort(all);
    const auto truth = static_cast<double>(all[all.size() * 95 / 100]);
    const auto told = static_cast<double>(window.PercentileNs(95));
    EXPECT_GE(told, truth) << seed;
    EXPECT_LE(told, truth * 1.13 + 1) << seed;
  }
}

TEST(LatencyWindow, SaysNothingWithoutSamplesAndForgetsOldOnes) {
  LatencyWindow window;
  EXPECT_EQ(window.PercentileNs(95), 0u);
  for (uint32_t i = 0; i < LatencyWindow::kSamples; ++i) window.Add(1'000'000);
  EXPECT_GE(window.PercentileNs(50), 1'000'000u);
  for (uint32_t i = 0; i < 2 * LatencyWindow::kSamples; ++i) window.Add(1'000);
  EXPECT_LT(window.PercentileNs(99), 1'200u);
  window.Add(UINT64_MAX);
  window.Add(0);
  EXPECT_GT(window.PercentileNs(100), 1'000'000u);
}

TEST(Admission, KeepsItsLimitsInAnyOrder) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const auto max_running = 1 + static_cast<uint32_t>(random() % 5);
    const auto max_waiting = static_cast<uint32_t>(random() % 5);
    Admission admission(max_running, max_waiting);
    for (int step = 0; step < 1000; ++step) {
      switch (random() % 3) {
        case 0: {
          const bool full = admission.waiting() == max_waiting;
          const bool busy = admission.running() == max_running || admission.waiting() > 0;
          const auto verdict = admission.OnArrival();
          ASSERT_EQ(verdict == Admission::Verdict::kOverloaded, busy && full);
          break;
        }
        case 1:
          if (admission.running() > 0) admission.OnFinished();
          break;
        case 2:
          if (admission.waiting() > 0) admission.OnLeftQueue();
          break;
      }
      while (admission.StartNext()) {
      }
      ASSERT_LE(admission.running(), max_running);
      ASSERT_LE(admission.waiting(), max_waiting);
      ASSERT_TRUE(admission.waiting() == 0 || admission.running() == max_running);
    }
  }
}

TEST(Quarantine, BeginsAboveItsNumbersAndNotBefore) {
  const QuarantineSettings settings;
  Quarantine by_connections;
  for (int i = 0; i < 30; ++i) by_connections.OnConnectionFailure(kSecond, settings);
  EXPECT_GT(by_connections.LoadShare(kSecond, settings), 0);
  by_connections.OnConnectionFailure(kSecond, settings);
  EXPECT_EQ(by_connections.LoadShare(kSecond, settings), 0);

  Quarantine by_requests;
  for (int i = 0; i < 50; ++i) by_requests.OnRequestFailure(kSecond, settings);
  EXPECT_GT(by_requests.LoadShare(kSecond, settings), 0);
  by_requests.OnRequestFailure(kSecond, settings);
  EXPECT_EQ(by_requests.LoadShare(kSecond, settings), 0);
}

TEST(Quarantine, ForgetsFailuresOlderThanItsWindow) {
  const QuarantineSettings settings;
  Quarantine quarantine;
  // 50 in each window of five minutes at most: one every seven seconds.
  for (uint64_t i = 0; i < 1000; ++i) quarantine.OnRequestFailure(i * 7 * kSecond, settings);
  EXPECT_GT(quarantine.LoadShare(7000 * kSecond, settings), 0);
}

TEST(Quarantine, DoubtEndsWithOneProbeAndExclusionWithThree) {
  const QuarantineSettings settings;
  Quarantine quarantine;
  uint64_t now = kSecond;
  quarantine.OnConnectionFailure(now, settings);
  EXPECT_EQ(quarantine.state(now, settings), Quarantine::State::kDoubted);
  EXPECT_FALSE(quarantine.ProbeDue(now));
  now = quarantine.probe_at_ns();
  ASSERT_TRUE(quarantine.ProbeDue(now));
  quarantine.OnProbeSent();
  EXPECT_FALSE(quarantine.ProbeDue(now)) << "one at a time";
  quarantine.OnProbe(true, now, settings);
  EXPECT_EQ(quarantine.state(now, settings), Quarantine::State::kGood);

  for (int i = 0; i < 60; ++i) quarantine.OnRequestFailure(now, settings);
  for (uint32_t i = 0; i < settings.probes_to_return; ++i) {
    EXPECT_EQ(quarantine.state(now, settings), Quarantine::State::kExcluded);
    now = quarantine.probe_at_ns();
    quarantine.OnProbeSent();
    quarantine.OnProbe(true, now, settings);
  }
  EXPECT_EQ(quarantine.state(now, settings), Quarantine::State::kReturning);
  const double first = quarantine.LoadShare(now, settings);
  EXPECT_GT(first, 0);
  EXPECT_LT(first, 0.1);
  EXPECT_GT(quarantine.LoadShare(now + settings.return_ns / 2, settings), first);
  EXPECT_EQ(quarantine.LoadShare(now + settings.return_ns, settings), 1);
}

// Whatever happens in whatever order: a share between 0 and 1, 0 exactly when excluded, and good
// probes alone always bring it back.
TEST(Quarantine, AlwaysEndsOnceFaultsStop) {
  const QuarantineSettings settings;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    Quarantine quarantine;
    uint64_t now = kSecond;
    const auto step = [&](bool faults) {
      now += random() % (2 * kSecond);
      if (quarantine.ProbeDue(now)) {
        quarantine.OnProbeSent();
        quarantine.OnProbe(!faults || random() % 2 == 0, now, settings);
      } else if (!faults || random() % 3 == 0) {
        quarantine.OnSuccess();
      } else if (random() % 2 == 0) {
        quarantine.OnConnectionFailure(now, settings);
      } else {
        quarantine.OnRequestFailure(now, settings);
      }
      const double share = quarantine.LoadShare(now, settings);
      ASSERT_GE(share, 0);
      ASSERT_LE(share, 1);
      ASSERT_EQ(share == 0, quarantine.state(now, settings) == Quarantine::State::kExcluded);
    };
    for (int i = 0; i < 500; ++i) step(true);
    for (int i = 0; i < 200; ++i) step(false);
    ASSERT_EQ(quarantine.state(now, settings), Quarantine::State::kGood) << "seed " << seed;
  }
}

TEST(Domains, DistanceCountsTheLevelsNotShared) {
  EXPECT_EQ(DomainDistance("dc1/pod1/a", "dc1/pod1/a"), 0u);
  EXPECT_EQ(DomainDistance("dc1/pod1/a", "dc1/pod1/b"), 1u);
  EXPECT_EQ(DomainDistance("dc1/pod1/a", "dc1/pod2/a"), 2u);
  EXPECT_EQ(DomainDistance("dc1/pod1/a", "dc2/pod1/a"), 3u);
  EXPECT_EQ(DomainDistance("dc1", "dc1/pod1/a"), 2u);
  EXPECT_EQ(DomainDistance("", ""), 0u);
  EXPECT_EQ(DomainDistance("", "dc1/pod1"), 2u);
  EXPECT_EQ(DomainDistance("dc1/pod1", "dc1/pod10"), 1u);
}

TEST(ReplicaChoice, PrefersUntriedThenSoundThenNear) {
  std::vector<Candidate> three(3);
  three[0].distance = 0;
  three[1].distance = 1;
  three[2].distance = 2;
  EXPECT_EQ(Choose(three, 0.5, 0.7), 0u);
  three[0].degraded = true;
  EXPECT_EQ(Choose(three, 0.5, 0.7), 1u) << "another mini-pod before the degraded path";
  three[1].doubted = three[2].doubted = true;
  EXPECT_EQ(Choose(three, 0.5, 0.7), 0u) << "the degraded path before one that fails";
  three[0].tried = true;
  EXPECT_EQ(Choose(three, 0.5, 0.7), 1u);
  three[0].usable = three[1].usable = three[2].usable = false;
  EXPECT_FALSE(Choose(three, 0.5, 0.7));
  EXPECT_FALSE(Choose({}, 0.5, 0.7));
}

TEST(ReplicaChoice, NeverExcludesAllAtOnce) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<Candidate> candidates(1 + random() % 5);
    size_t excluded = 0;
    for (Candidate& one : candidates) {
      one.load_share = random() % 2 == 0 ? 0 : 1;
      excluded += one.load_share == 0 ? 1 : 0;
    }
    std::set<size_t> chosen;
    for (int i = 0; i < 200; ++i) {
      const auto choice = Choose(candidates, 0.5, std::uniform_real_distribution<>(0, 1)(random));
      ASSERT_TRUE(choice);
      chosen.insert(*choice);
    }
    const bool panic = excluded * 2 > candidates.size();
    EXPECT_EQ(chosen.size(), panic ? candidates.size() : candidates.size() - excluded) << seed;
  }
}

// A model that forgets nothing beside the table: what the table runs twice, or answers wrongly, is
// found whatever the sizes.
TEST(DuplicateTable, RunsNothingTwiceHoweverSmallItIs) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const DuplicateTable::Limits limits{.clients = 1 + static_cast<uint32_t>(random() % 4),
                                        .entries = 1 + random() % 20,
                                        .reply_bytes = random() % 100};
    DuplicateTable table(limits);
    struct Call {
      bool running = false;
      int runs = 0;
      std::string reply;
    };
    std::map<std::pair<uint64_t, uint64_t>, Call> model;
    std::map<uint64_t, uint64_t> next;
    for (int step = 0; step < 1000; ++step) {
      const uint64_t client = 1 + random() % 5;
      const uint64_t fresh = next[client] + 1;
      const uint64_t sequence = random() % 2 == 0 ? fresh : 1 + random() % fresh;
      next[client] = std::max(next[client], sequence);
      const bool repeated = model.contains({client, sequence});
      Call& call = model[{client, sequence}];
      const uint64_t lowest = sequence > 10 ? sequence - 10 : 1;
      const auto answer = table.Arrive({client, sequence}, lowest, repeated);
      switch (answer.verdict) {
        case DuplicateTable::Verdict::kRun:
          ASSERT_EQ(call.runs, 0) << "seed " << seed << ": carried out twice";
          ++call.runs;
          call.running = true;
          break;
        case DuplicateTable::Verdict::kRunning: ASSERT_TRUE(call.running); break;
        case DuplicateTable::Verdict::kFinished:
          ASSERT_FALSE(call.running);
          ASSERT_EQ(answer.reply->bytes, call.reply);
          break;
        case DuplicateTable::Verdict::kForgotten: ASSERT_FALSE(call.running); break;
        case DuplicateTable::Verdict::kFull: break;
      }
      for (auto& [token, other] : model) {
        if (!other.running || random() % 3 != 0) continue;
        other.running = false;
        if (random() % 4 == 0) {
          other.runs = 0;
          table.Drop({token.first, token.second});
        } else {
          other.reply = std::string(random() % 30, 'x');
          table.Finish({token.first, token.second}, {.code = 0, .bytes = other.reply});
        }
      }
      ASSERT_LE(table.entries(), limits.entries);
      ASSERT_LE(table.clients(), limits.clients);
      ASSERT_LE(table.reply_bytes(), limits.reply_bytes);
    }
  }
}

TEST(DuplicateTable, SaysSoWhenACallWasForgotten) {
  DuplicateTable table({.clients = 2, .entries = 2, .reply_bytes = 1000});
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) {
    ASSERT_EQ(table.Arrive({1, sequence}, 1, false).verdict, DuplicateTable::Verdict::kRun);
    table.Finish({1, sequence}, {});
  }
  EXPECT_EQ(table.Arrive({1, 1}, 1, true).verdict, DuplicateTable::Verdict::kForgotten);
  EXPECT_EQ(table.Arrive({1, 3}, 1, true).verdict, DuplicateTable::Verdict::kFinished);
}

TEST(DuplicateTable, SaysSoAlsoOfAClientThatWasForgotten) {
  DuplicateTable table({.clients = 1, .entries = 10, .reply_bytes = 1000});
  ASSERT_EQ(table.Arrive({1, 1}, 1, false).verdict, DuplicateTable::Verdict::kRun);
  table.Finish({1, 1}, {});
  ASSERT_EQ(table.Arrive({2, 1}, 1, false).verdict, DuplicateTable::Verdict::kRun);
  EXPECT_EQ(table.Arrive({1, 1}, 1, true).verdict, DuplicateTable::Verdict::kForgotten);
  table.Finish({2, 1}, {});
  EXPECT_EQ(table.Arrive({1, 2}, 1, false).verdict, DuplicateTable::Verdict::kRun);
  EXPECT_EQ(table.Arrive({1, 1}, 1, true).verdict, DuplicateTable::Verdict::kForgotten);
}

TEST(DuplicateTable, ForgetsWhatItsClientNeverAsksForAgain) {
  DuplicateTable table({});
  for (uint64_t sequence = 1; sequence <= 1000; ++sequence) {
    ASSERT_EQ(table.Arrive({1, sequence}, sequence, false).verdict, DuplicateTable::Verdict::kRun);
    table.Finish({1, sequence}, {.code = 0, .bytes = "done"});
  }
  EXPECT_EQ(table.entries(), 1u);
  EXPECT_EQ(table.reply_bytes(), 4u);
}

}  // namespace
}  // namespace sluice::rpc
