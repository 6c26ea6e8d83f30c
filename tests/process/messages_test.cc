// SPDX-License-Identifier: Apache-2.0
// Messages between applications on two hosts, when nothing goes wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <random>
#include <set>
#include <thread>

#include "tests/process/app.h"

namespace sluice::testing {
namespace {

constexpr uint16_t kService = 700;
constexpr size_t kReceiveBytes = 16 * 1024;
constexpr size_t kFragmentBytes = 64 * 1024;

class Messages : public TwoHosts {
 protected:
  // Sizes around every boundary that a message may cross.
  static std::vector<size_t> Sizes(size_t largest) {
    std::set<size_t> sizes = {0, 1, 7, 8, 39, 40, 41, 63, 64, 65, 1000, 1 << 20};
    for (const size_t edge :
         {size_t{4096}, kReceiveBytes, kFragmentBytes, 4 * kFragmentBytes, size_t{4} << 20}) {
      sizes.insert({edge - 1, edge, edge + 1});
    }
    for (size_t header = 1; header <= 128; ++header) {
      sizes.insert(kReceiveBytes -
                   header);  // One of these is the largest message that goes out in one send.
    }
    std::erase_if(sizes, [&](size_t size) { return size > largest; });
    return {sizes.begin(), sizes.end()};
  }

  static DaemonOptions Edges() {
    return {.settings = {{"engine.receive_bytes", std::to_string(kReceiveBytes)},
                         {"engine.fragment_bytes", std::to_string(kFragmentBytes)}}};
  }
};

TEST_F(Messages, OfEverySizeArriveUnchanged) {
  if (!Begin(Edges(), Edges())) {
    return;
  }
  App client(*left_);
  App server(*right_);
  ASSERT_TRUE(server.Listen(kService));
  Pair pair;
  ASSERT_TRUE(ConnectApps(client, server, *right_, kService, pair));
  uint64_t seed = 1;
  for (const size_t size : Sizes(client.max_message_bytes())) {
    ASSERT_TRUE(Exchange(client, server, pair, seed += 2, size)) << size << " bytes";
  }
  EXPECT_TRUE(client.WaitAllSent());
  EXPECT_EQ(client.sends().ok, client.sends().begun);
}

TEST_F(Messages, LargerThanAnExtentAndTheLargestArriveAndOneThatIsTooLongIsRefused) {
  if (!Begin()) {
    return;
  }
  App client(*left_);
  App server(*right_);
  ASSERT_TRUE(server.Listen(kService));
  Pair pair;
  ASSERT_TRUE(ConnectApps(client, server, *right_, kService, pair));
  constexpr size_t kBeyondAnExtent = (size_t{32} << 20) + 1;
  ASSERT_GE(client.max_message_bytes(), kBeyondAnExtent);
  ASSERT_EQ(client.Send(pair.from, 3, kBeyondAnExtent), 0) << sluice_error_text();
  EXPECT_TRUE(server.Receive(pair.to, 3, kBeyondAnExtent));
  const size_t largest = client.max_message_bytes();
  ASSERT_EQ(client.Send(pair.from, 5, largest), 0) << sluice_error_text();
  EXPECT_TRUE(server.Receive(pair.to, 5, largest));
  errno = 0;
  EXPECT_EQ(sluice_alloc(client.channel(), client.max_message_bytes() + 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_TRUE(Exchange(client, server, pair));
}

TEST_F(Messages, BetweenApplicationsOfOneHostArriveAsWell) {
  if (!Begin(Edges(), Edges())) {
    return;
  }
  App client(*left_);
  App server(*left_);
  ASSERT_TRUE(server.Listen(kService));
  Pair pair;
  ASSERT_TRUE(ConnectApps(client, server, *left_, kService, pair));
  uint64_t seed = 1;
  for (const size_t size : {0, 1, 40, 41, 16384, 65536, 1 << 20}) {
    ASSERT_TRUE(Exchange(client, server, pair, seed += 2, size)) << size << " bytes";
  }
}

// Sends `count` messages of mixed sizes each way at once; every receiver must see 1, 2, 3, ...
// `count`, counted from `before`.
void ExpectOrder(App& left, App& right, Pair pair, uint64_t count, uint64_t before = 0) {
  std::mt19937 random(4);
  std::vector<size_t> sizes(count + 1);
  std::ranges::generate(sizes,
                        [&] { return random() % 10 == 0 ? random() % 200'000 : random() % 600; });
  struct Side {
    App* app;
    sluice_socket socket;
    uint64_t sent = 0;
    uint64_t received = 0;
  };
  std::array<Side, 2> sides = {Side{&left, pair.from}, Side{&right, pair.to}};
  const bool done = PollUntil({&left, &right}, [&] {
    for (Side& side : sides) {
      while (side.sent < count &&
             side.app->Send(side.socket, before + side.sent + 1, sizes[side.sent + 1]) == 0) {
        ++side.sent;
      }
      while (side.app->Waiting(SLUICE_EVENT_MESSAGE) > 0) {
        const uint64_t number = ++side.received;
        EXPECT_TRUE(side.app->Receive(side.socket, before + number, sizes[number]));
      }
    }
    return ::testing::Test::HasFailure() ||
           std::ranges::all_of(sides, [&](const Side& side) { return side.received == count; });
  });
  EXPECT_TRUE(done) << "sent " << sides[0].sent << " and " << sides[1].sent << ", received "
                    << sides[1].received << " and " << sides[0].received;
  for (App* app : {&left, &right}) {
    EXPECT_TRUE(app->WaitAllSent());
    EXPECT_EQ(app->sends().ok, before + count);
    EXPECT_EQ(app->sends().odd, 0u);
  }
}

// What `host`'s daemon answers to a scrape.
std::string Scrape(const Network& network, const Daemon& daemon) {
  return RunCommand({.arguments = {"bash", "-c",
                                   "exec 3<>/dev/tcp/127.0.0.1/9450; printf 'GET /metrics "
                                   "HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"},
                     .network_namespace = network.Namespace(daemon.host())})
      .output;
}

TEST_F(Messages, AreNeitherLostNorReorderedWhileEverySettingChanges) {
  const DaemonOptions options = {.settings = {{"http.listen", "\"127.0.0.1:9450\""}}};
  if (!Begin(options, options)) {
    return;
  }
  App client(*left_);
  App server(*right_);
  ASSERT_TRUE(server.Listen(kService));
  Pair pair;
  ASSERT_TRUE(ConnectApps(client, server, *right_, kService, pair));
  std::atomic<bool> over = false;
  std::atomic<int> changes = 0;
  std::thread operator_at_work([&] {
    const std::vector<std::pair<std::string, std::array<std::string, 2>>> settings = {
        {"engine.send_window_bytes", {"20000", "1048576"}},
        {"engine.fragment_bytes", {"1500", "65536"}},
        {"engine.credit_batch", {"1", "0"}},
        {"engine.keepalive_interval_ms", {"20", "1000"}},
        {"engine.ack_delay_us", {"0", "100"}},
        {"engine.landing_ahead", {"0", "8"}},
        {"daemon.idle", {"event", "adaptive"}},
        {"log.level", {"warning", "info"}}};
    for (size_t turn = 0; !over || turn < 2; ++turn) {
      for (const auto& [key, values] : settings) {
        for (const Daemon* daemon : {left_.get(), right_.get()}) {
          const Finished set = daemon->Ctl({"set", key, values[turn % 2]});
          EXPECT_EQ(set.exit_code, 0) << key << ": " << set.output;
          ++changes;
        }
      }
    }
  });
  for (int round = 0; round < 50 && changes < 64; ++round) {
    ExpectOrder(client, server, pair, 2000, static_cast<uint64_t>(round) * 2000);
  }
  over = true;
  operator_at_work.join();
  EXPECT_GE(changes, 64);
  ASSERT_EQ(left_->Ctl({"set", "engine.send_window_bytes", "77777"}).exit_code, 0);
  const std::string scraped = Scrape(*network_, *left_);
  EXPECT_NE(scraped.find("} 77777\n"), std::string::npos) << "not in the next scrape";
  EXPECT_NE(scraped.find("sluice_operation_seconds_count "), std::string::npos);
  EXPECT_NE(left_->Ctl({"config", "history"}).output.find("77777"), std::string::npos);
}

TEST_F(Messages, OfOneSocketStayInOrderBothWays) {
  if (!Begin()) {
    return;
  }
  App client(*left_);
  App server(*right_);
  ASSERT_TRUE(server.Listen(kService));
  Pair pair;
  ASSERT_TRUE(ConnectApps(client, server, *right_, kService, pair));
  ExpectOrder(client, server, pair, 5000);
}

TEST_F(Messages, StayInOrderWhileRingCountersPassTwoToTheThirtyTwo) {
  const DaemonOptions options = {.settings = {{"pool.ring_start", "4294967000"}}};
  if (!Begin(options, options)) {
    return;
  }
  App client(*left_, "wrap", 64);
  App server(*right_, "wrap", 64);
  ASSERT_TRUE(server.Listen(kService));
  Pair pair;
  ASSERT_TRUE(ConnectApps(client, server, *right_, kService, pair));
  ExpectOrder(client, server, pair, 2000);
}

TEST_F(Messages, OfTwoHundredSocketsReachTheirOwn) {
  if (!Begin()) {
    return;
  }
  App client(*left_);
  App server(*right_);
  ASSERT_TRUE(server.Listen(kService));
  std::vector<Pair> pairs(200);
  for (Pair& pair : pairs) {
    ASSERT_TRUE(ConnectApps(client, server, *right_, kService, pair));
  }
  for (size_t round = 0; round < 3; ++round) {
    for (size_t i = 0; i < pairs.size(); ++i) {
      int result;
      PollUntil({&client, &server},
                [&] { return (result = client.Send(pairs[i].from, i, i * 37)) != -EAGAIN; });
      ASSERT_EQ(result, 0) << sluice_error_text();
    }
    for (size_t i = pairs.size(); i-- > 0;) {
      ASSERT_TRUE(server.Receive(pairs[i].to, i, i * 37)) << "socket " << i;
    }
  }
  std::set<sluice_socket> names;
  std::ranges::for_each(pairs, [&](const Pair& pair) { names.insert(pair.to); });
  EXPECT_EQ(names.size(), pairs.size());
}

TEST_F(Messages, FanInAndFanOutAreAnsweredInFull) {
  if (!Begin()) {
    return;
  }
  constexpr size_t kClients = 8;
  constexpr uint64_t kRounds = 30;
  App server(*right_);
  ASSERT_TRUE(server.Listen(kService));
  std::vector<std::unique_ptr<App>> clients;
  std::vector<Pair> pairs(kClients);
  for (size_t i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<App>(*left_));
    ASSERT_TRUE(ConnectApps(*clients[i], server, *right_, kService, pairs[i]));
  }
  for (uint64_t round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kClients; ++i) {
      ASSERT_EQ(clients[i]->Send(pairs[i].from, round * 100 + i, 20'000), 0) << sluice_error_text();
    }
    for (size_t i = 0; i < kClients; ++i) {
      ASSERT_TRUE(server.Receive(pairs[i].to, round * 100 + i, 20'000));
      ASSERT_EQ(server.Send(pairs[i].to, round * 100 + i + 50, 50'000), 0) << sluice_error_text();
    }
    for (size_t i = 0; i < kClients; ++i) {
      ASSERT_TRUE(clients[i]->Receive(pairs[i].from, round * 100 + i + 50, 50'000));
    }
  }
}

TEST_F(Messages, FlowAgainAfterBothRingsWereFullInBothDirections) {
  if (!Begin()) {
    return;
  }
  App left(*left_, "full", 16);
  App right(*right_, "full", 16);
  ASSERT_TRUE(right.Listen(kService));
  Pair pair;
  ASSERT_TRUE(ConnectApps(left, right, *right_, kService, pair));
  // Neither takes an event while both send until nothing more goes. The daemons move what they can
  // meanwhile, so "full" is having been refused for a while.
  uint64_t left_sent = 0;
  uint64_t right_sent = 0;
  auto last_taken = std::chrono::steady_clock::now();
  const bool full = WaitUntil([&] {
    const uint64_t before = left_sent + right_sent;
    while (left.Send(pair.from, left_sent + 1, 5000) == 0) {
      ++left_sent;
    }
    while (right.Send(pair.to, right_sent + 1, 5000) == 0) {
      ++right_sent;
    }
    if (left_sent + right_sent != before) {
      last_taken = std::chrono::steady_clock::now();
    }
    return std::chrono::steady_clock::now() - last_taken > milliseconds(300);
  });
  ASSERT_TRUE(full) << "sends are taken without end although nobody receives";
  for (uint64_t number = 1; number <= std::max(left_sent, right_sent); ++number) {
    if (number <= left_sent) {
      ASSERT_TRUE(right.Receive(pair.to, number, 5000));
    }
    if (number <= right_sent) {
      ASSERT_TRUE(left.Receive(pair.from, number, 5000));
    }
  }
  EXPECT_TRUE(left.WaitAllSent());
  EXPECT_TRUE(right.WaitAllSent());
  EXPECT_EQ(left.sends().ok, left_sent);
  EXPECT_EQ(right.sends().ok, right_sent);
  EXPECT_TRUE(Exchange(left, right, pair));
}

TEST_F(Messages, AClosedSocketIsClosedAtBothEnds) {
  if (!Begin()) {
    return;
  }
  App client(*left_);
  App server(*right_);
  ASSERT_TRUE(server.Listen(kService));
  Pair pair;
  ASSERT_TRUE(ConnectApps(client, server, *right_, kService, pair));
  ASSERT_EQ(client.Send(pair.from, 3, 100), 0);
  ASSERT_EQ(sluice_close(client.channel(), pair.from), 0);
  EXPECT_TRUE(client.Next(SLUICE_EVENT_CLOSED, pair.from));
  EXPECT_TRUE(server.Next(SLUICE_EVENT_CLOSED, pair.to));
  EXPECT_TRUE(client.WaitAllSent());
  EXPECT_EQ(client.Send(pair.from, 5, 100), -ENOTCONN);
}

TEST_F(Messages, NobodyListeningIsAFailedConnectWithAReason) {
  if (!Begin()) {
    return;
  }
  App client(*left_);
  sluice_socket socket = 0;
  const std::string address = right_->Address() + ":9";
  ASSERT_EQ(sluice_connect(client.channel(), address.c_str(), 5, &socket), 0)
      << sluice_error_text();
  const auto connected = client.Next(SLUICE_EVENT_CONNECTED, socket);
  ASSERT_TRUE(connected);
  EXPECT_EQ(connected->outcome, static_cast<uint32_t>(SLUICE_FAILED));
  EXPECT_NE(connected->error, 0);
}

}  // namespace
}  // namespace sluice::testing
