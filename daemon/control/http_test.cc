// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/http.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>

#include "daemon/control/metrics.h"
#include "daemon/control/status_page.h"

namespace sluice::control {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A daemon with two I/O threads, a few peers and clients with the names that hurt most.
NodeStatus BusyNode() {
  NodeStatus status;
  status.daemon = {
      .name = "<b>node</b>", .version = "1", .instance = 7, .peer_auth = "key", .ready = true};
  for (uint32_t i = 0; i < 2; ++i) {
    ThreadStatus thread{.io_thread = i, .answered = true};
    io::EngineSnapshot engine;
    engine.peer = i;
    engine.name = i == 0 ? "a:4500" : "quote\"back\\slash\nline";
    engine.state = "up";
    engine.sent_bytes = uint64_t{1} << 60;
    thread.snapshot.engines.push_back(engine);
    thread.snapshot.ports.push_back({.client = 1, .submitted = 5});
    status.threads.push_back(std::move(thread));
  }
  status.clients = {{.client = 1, .name = "<script>", .tenant = "t", .pool_bytes = 4096},
                    {.client = 2, .name = "x", .tenant = "t", .pool_bytes = 4096}};
  status.peers = {{.peer = 0, .name = "a:4500", .state = "up", .attempts = 3}};
  status.device = {.state = "up", .name = "rxe0", .counters = {{"rcvd_seq_err", 7}}};
  status.threads[0].snapshot.fabric = {.queue_pairs = 3,
                                       .completions = 4096,
                                       .completions_reserved = 300,
                                       .shared_receives = 64,
                                       .shared_lent = 24,
                                       .shared_low = 5};
  status.numbers = {{.name = "attaches_refused_total",
                     .help = "Refused.",
                     .labels = {{"reason", "rate"}},
                     .value = 2}};
  return status;
}

class FakeStatus final : public StatusSource {
 public:
  void Collect(Callback done) override {
    ++asked;
    asked.notify_all();
    if (!hangs) done(status);
  }
  std::atomic<int> asked = 0;
  NodeStatus status = BusyNode();
  std::atomic<bool> hangs = false;
};

// The server with a loop on a thread of its own.
class Http : public testing::Test {
 protected:
  Http() {
    const auto started = server_.Start();
    EXPECT_TRUE(started) << started.error().message;
    control_ = std::thread([this] { loop_.Run(); });
  }
  ~Http() override { StopAll(); }
  void StopAll() {
    if (!control_.joinable()) return;
    loop_.Post([this] {
      server_.Stop();
      loop_.Stop();
    });
    control_.join();
  }
  void SetStatus(std::function<void(NodeStatus&)> change) {
    std::atomic<bool> done = false;
    loop_.Post([&] {
      change(status_.status);
      done = true;
      done.notify_one();
    });
    done.wait(false);
  }

  // Everything the server sends until it closes.
  std::string Raw(const std::string& request) const {
    Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    timeval patience{20, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return "";
    send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
    std::string all;
    char buffer[4096];
    for (ssize_t got; (got = recv(fd.get(), buffer, sizeof(buffer), 0)) > 0;) {
      all.append(buffer, static_cast<size_t>(got));
    }
    return all;
  }
  std::string Get(const std::string& path, const std::string& method = "GET") const {
    return Raw(method + " " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
  }

  MonotonicClock clock_;
  EventLoop loop_{clock_};
  FakeStatus status_;
  HttpServer server_{loop_, status_, "127.0.0.1:0"};
  std::thread control_;
};

std::string BodyOf(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

TEST_F(Http, ServesMetricsThatPromtoolAccepts) {
  const std::string answer = Get("/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("sluice_rdma_up 1\n"));
  EXPECT_THAT(answer,
              HasSubstr("sluice_rdma_device_figure{device=\"rxe0\",figure=\"rcvd_seq_err\"} 7\n"));
  for (const char* figure :
       {"rdma_queue_pairs{io_thread=\"0\"} 3\n", "rdma_completions{io_thread=\"0\"} 4096\n",
        "rdma_completions_reserved{io_thread=\"0\"} 300\n",
        "rdma_shared_receives{io_thread=\"0\"} 64\n",
        "rdma_shared_receives_lent{io_thread=\"0\"} 24\n",
        "rdma_shared_receives_low_total{io_thread=\"0\"} 5\n"}) {
    EXPECT_THAT(answer, HasSubstr(std::string("sluice_") + figure));
  }
  EXPECT_THAT(answer, HasSubstr("sluice_clients{tenant=\"t\"} 2\n"));
  EXPECT_THAT(answer, HasSubstr("sluice_attaches_refused_total{reason=\"rate\"} 2\n"));
  EXPECT_THAT(answer, HasSubstr("sluice_operation_seconds_bucket{le=\"+Inf\"} "));
  if (std::system("promtool --version >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool is not installed (Debian's package prometheus)";
  }
  FILE* promtool = popen("promtool check metrics >&2", "w");
  ASSERT_NE(promtool, nullptr);
  const std::string body = BodyOf(answer);
  fwrite(body.data(), 1, body.size(), promtool);
  EXPECT_EQ(pclose(promtool), 0);
}

TEST_F(Http, AnswersHealthForGetAndHead) {
  for (const char* path : {"/healthz", "/readyz"}) {
    EXPECT_THAT(Get(path), StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_EQ(BodyOf(Get(path)), "ok\n");
    const std::string head = Get(path, "HEAD");
    EXPECT_THAT(head, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(head, HasSubstr("Content-Length: 3\r\n"));
    EXPECT_EQ(BodyOf(head), "");
  }
}

TEST_F(Http, IsAliveButNotReadyWhileDraining) {
  SetStatus([](NodeStatus& status) { status.daemon.draining = true; });
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_EQ(BodyOf(Get("/readyz")), "draining\n");
}

TEST_F(Http, IsNotAliveWhenAnIoThreadHangs) {
  SetStatus([](NodeStatus& status) { status.threads[1].answered = false; });
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Get("/healthz"), HasSubstr("I/O thread 1 has not answered"));
  EXPECT_THAT(Get("/metrics"), HasSubstr("sluice_io_thread_answering{io_thread=\"1\"} 0\n"));
}

TEST_F(Http, IsNotAliveWhenTheControlThreadHangs) {
  status_.hangs = true;
  EXPECT_THAT(Get("/healthz"), HasSubstr("the control thread does not answer"));
}

TEST_F(Http, StopsAtOnceWhileRequestsWait) {
  status_.hangs = true;
  std::thread waiting([this] { Get("/metrics"); });
  status_.asked.wait(0);
  StopAll();
  waiting.join();
}

TEST_F(Http, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(Get("/etc/passwd"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Get("/metrics/x"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Get("/../../etc/passwd"), Not(HasSubstr("root:")));
  EXPECT_THAT(Get("/healthz", "POST"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Get("/", "DELETE"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Raw("rubbish\r\n\r\n"), Not(HasSubstr(" 200 ")));
  EXPECT_THAT(Raw("GET /" + std::string(100'000, 'x') + " HTTP/1.1\r\n\r\n"),
              Not(HasSubstr(" 200 ")));
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(Http, ShowsNamesAsText) {
  const std::string page = Get("/");
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<script>")));
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;node"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST_F(Http, SaysWhyItCannotListen) {
  MonotonicClock clock;
  EventLoop loop(clock);
  HttpServer second(loop, status_, "127.0.0.1:" + std::to_string(server_.port()));
  const auto started = second.Start();
  ASSERT_FALSE(started);
  EXPECT_THAT(started.error().message, HasSubstr("http.listen"));
}

TEST(Metrics, SumsUpPeersBeyondTheirBound) {
  NodeStatus status;
  ThreadStatus thread;
  for (size_t i = 0; i < kMaxPeersInMetrics + 50; ++i) {
    io::EngineSnapshot engine;
    engine.name = "peer-" + std::to_string(i);
    engine.sent_messages = 1;
    thread.snapshot.engines.push_back(std::move(engine));
  }
  status.threads.push_back(std::move(thread));
  EXPECT_THAT(MetricsText(status), HasSubstr("sluice_sent_messages_total{peer=\"other\"} 50\n"));
}

TEST(StatusPage, CutsLongLists) {
  NodeStatus status;
  status.clients.resize(1'000);
  EXPECT_THAT(StatusPage(status), HasSubstr("800 more; sluicectl lists them all."));
}

}  // namespace
}  // namespace sluice::control
