// SPDX-License-Identifier: Apache-2.0
// Clients that are killed, stopped, or do not take what they get: nobody else notices, and nothing
// is left behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>

#include "tests/process/app.h"

namespace sluice::testing {
namespace {

constexpr uint16_t kService = 700;
constexpr uint16_t kShardService = 800;

class Clients : public TwoHosts {
 protected:
  // A parameter server on the right, as a process.
  bool StartServer() {
    auto server = Process::Start(
        {.arguments = {SLUICE_PS_PROGRAM, "server", "--listen", std::to_string(kShardService),
                       "--shard", "0-1/2", "--rows", "2000"},
         .environment = {{"SLUICE_SOCKET", right_->control_socket()}},
         .output_file = folder_.File("server.log")});
    if (!server) {
      ADD_FAILURE() << server.error().message;
      return false;
    }
    server_ = std::move(*server);
    const bool ready = WaitUntil(
        [&] { return ReadFile(folder_.File("server.log")).find("ready") != std::string::npos; });
    EXPECT_TRUE(ready) << ReadFile(folder_.File("server.log"));
    return ready;
  }

  Result<std::unique_ptr<Process>> StartWorker(double seconds, const std::string& index = "0") {
    const std::string shard = right_->Address() + ":";
    return Process::Start({.arguments = {SLUICE_PS_PROGRAM, "worker", "--servers",
                                         shard + std::to_string(kShardService) + "," + shard +
                                             std::to_string(kShardService + 1),
                                         "--rows", "2000", "--seconds", std::to_string(seconds),
                                         "--worker", index, "--workers", "2"},
                           .environment = {{"SLUICE_SOCKET", left_->control_socket()}},
                           .output_file = folder_.File("worker.log")});
  }

  // Runs a worker to its end; it checks every value itself.
  void ExpectGoodRun() {
    auto worker = StartWorker(0.3);
    ASSERT_TRUE(worker) << worker.error().message;
    const auto status = (*worker)->Wait();
    ASSERT_TRUE(status) << "a worker that does not end";
    EXPECT_EQ(*status, 0) << ReadFile(folder_.File("worker.log"));
  }

  TemporaryFolder folder_;
  std::unique_ptr<Process> server_;
};

void Pause(uint64_t us) {
  const timespec time{.tv_sec = 0, .tv_nsec = static_cast<long>(us * 1000)};
  nanosleep(&time, nullptr);
}

TEST_F(Clients, KilledAtFiftyRandomMomentsLeaveNothingBehind) {
  if (!Begin() || !StartServer()) {
    return;
  }
  ExpectGoodRun();  // Warms up what the daemons keep.
  const Usage left_before = left_->usage();
  const Usage right_before = right_->usage();
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    auto worker = StartWorker(60);
    ASSERT_TRUE(worker) << worker.error().message;
    Pause(random() %
          60'000);  // Attaching, connecting, catching up or under load: the moment is the test.
    (*worker)->Kill();
    ASSERT_TRUE(left_->Running()) << left_->Log();
    ASSERT_TRUE(right_->Running()) << right_->Log();
  }
  EXPECT_TRUE(left_->ReturnsTo(left_before));
  EXPECT_TRUE(right_->ReturnsTo(right_before));
  ExpectGoodRun();
}

TEST_F(Clients, AKilledServerIsToldToItsPeersAndLeavesNothingBehind) {
  if (!Begin()) {
    return;
  }
  App client(*left_);
  const Usage right_before = right_->usage();
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(StartServer());
    sluice_socket socket = 0;
    const std::string address = right_->Address() + ":" + std::to_string(kShardService);
    ASSERT_EQ(sluice_connect(client.channel(), address.c_str(), 0, &socket), 0)
        << sluice_error_text();
    const auto connected = client.Next(SLUICE_EVENT_CONNECTED, socket);
    ASSERT_TRUE(connected && connected->outcome == SLUICE_OK);
    server_->Kill();
    unlink(folder_.File("server.log").c_str());
    EXPECT_TRUE(client.Next(SLUICE_EVENT_CLOSED, socket));
  }
  EXPECT_TRUE(WaitUntil([&] { return right_->usage().memfd_bytes <= right_before.memfd_bytes; }));
}

TEST_F(Clients, AStoppedOneDelaysNobodyElse) {
  if (!Begin() || !StartServer()) {
    return;
  }
  auto stopped = StartWorker(600, "1");
  ASSERT_TRUE(stopped) << stopped.error().message;
  ASSERT_TRUE(WaitUntil([&] {
    return ReadFile(folder_.File("worker.log")).find("links=2/2") != std::string::npos;
  })) << ReadFile(folder_.File("worker.log"));
  (*stopped)->Signal(SIGSTOP);
  ExpectGoodRun();
  App client(*left_);
  App server(*right_);
  ASSERT_TRUE(server.Listen(kService));
  Pair pair;
  ASSERT_TRUE(ConnectApps(client, server, *right_, kService, pair));
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(Exchange(client, server, pair, 2 * i, 20'000));
  }
  (*stopped)->Kill();
  ExpectGoodRun();
}

TEST_F(Clients, OneThatNeverTakesItsMessagesStopsOnlyItsOwnSenders) {
  if (!Begin()) {
    return;
  }
  App sender(*left_);
  App other(*left_);
  App sink(*right_, "sink", 16);
  App server(*right_);
  ASSERT_TRUE(sink.Listen(kService));
  ASSERT_TRUE(server.Listen(kService + 1));
  Pair to_sink;
  Pair to_server;
  Pair same_app;
  ASSERT_TRUE(ConnectApps(sender, sink, *right_, kService, to_sink));
  ASSERT_TRUE(ConnectApps(other, server, *right_, kService + 1, to_server));
  ASSERT_TRUE(ConnectApps(sender, server, *right_, kService + 1, same_app));

  // Until nothing more goes: the sink takes nothing.
  uint64_t sent = 0;
  uint64_t refused_in_a_row = 0;
  const bool stuck = PollUntil({&sender}, [&] {
    const int result = sender.Send(to_sink.from, sent + 1, 100'000);
    sent += result == 0;
    refused_in_a_row = result == 0 ? 0 : refused_in_a_row + 1;
    return refused_in_a_row == 20 || sent == 5000;
  });
  EXPECT_TRUE(stuck);
  EXPECT_LT(sent, 5000u) << "500 MB were taken for a client that takes nothing";
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(Exchange(other, server, to_server, 2 * i, 20'000))
        << "another client of the same daemons is stopped";
  }
  ASSERT_TRUE(Exchange(sender, server, same_app, 1, 1000))
      << "another socket of the same sender is stopped";

  for (uint64_t number = 1; number <= sent; ++number) {
    ASSERT_TRUE(sink.Receive(to_sink.to, number, 100'000));
  }
  EXPECT_TRUE(sender.WaitAllSent());
  EXPECT_EQ(sender.sends().failed + sender.sends().unknown, 0u);
}

TEST_F(Clients, AForkedChildsHandleIsDeadAndTheParentGoesOn) {
  if (!Begin()) {
    return;
  }
  App client(*left_);
  App server(*right_);
  ASSERT_TRUE(server.Listen(kService));
  Pair pair;
  ASSERT_TRUE(ConnectApps(client, server, *right_, kService, pair));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    sluice_event event;
    const bool dead = sluice_poll(client.channel(), &event, 1) == -EOWNERDEAD &&
                      sluice_send_copy(client.channel(), pair.from, "x", 1, 0, 0, 0) == -EOWNERDEAD;
    _exit(dead ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "a child may use its parent's handle";
  EXPECT_TRUE(Exchange(client, server, pair));
}

TEST_F(Clients, TheParameterServerSurvivesBothDaemonsBeingKilled) {
  if (!Begin() || !StartServer()) {
    return;
  }
  auto worker = StartWorker(600);
  ASSERT_TRUE(worker) << worker.error().message;
  const auto lines = [&] {
    const std::string text = ReadFile(folder_.File("worker.log"));
    return std::ranges::count(text, '\n');
  };
  const auto goes_on = [&] {
    // Two more progress lines, the last of them with all links up and work done.
    const auto before = lines();
    return WaitUntil([&] {
      const std::string text = ReadFile(folder_.File("worker.log"));
      const size_t last = text.find_last_of('\n', text.size() - 2);
      const std::string line = text.substr(last == std::string::npos ? 0 : last);
      return lines() >= before + 2 && line.find("links=2/2") != std::string::npos &&
             line.find("fetch_per_s=0 ") == std::string::npos;
    });
  };
  ASSERT_TRUE(goes_on()) << ReadFile(folder_.File("worker.log"));
  right_->Kill();
  ASSERT_TRUE(right_->Start());
  ASSERT_TRUE(goes_on()) << ReadFile(folder_.File("worker.log"));
  left_->Kill();
  ASSERT_TRUE(left_->Start());
  ASSERT_TRUE(goes_on()) << ReadFile(folder_.File("worker.log"));
  (*worker)->Signal(SIGTERM);
  const auto status = (*worker)->Wait();
  ASSERT_TRUE(status) << "the worker does not end";
  EXPECT_EQ(*status, 0) << ReadFile(folder_.File("worker.log"));
  server_->Signal(SIGTERM);
  const auto server_status = server_->Wait();
  ASSERT_TRUE(server_status);
  EXPECT_EQ(*server_status, 0) << ReadFile(folder_.File("server.log"));
}

}  // namespace
}  // namespace sluice::testing
