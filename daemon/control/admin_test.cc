// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/admin.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "daemon/control/admin_verbs.h"

namespace sluice::control {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

constexpr uint64_t kPatienceNs = 20 * kNsPerSecond;

// The real time, moved on by the test.
class SteppedClock final : public Clock {
 public:
  uint64_t NowNs() const override { return MonotonicClock().NowNs() + step_ns; }
  uint64_t step_ns = 0;
};

// A picture made up by the test.
class FakeStatus final : public StatusSource {
 public:
  void Collect(Callback done) override { done(status); }
  NodeStatus status;
};

// A connection of an administrator, driven by the same thread as the loop.
class Client {
 public:
  Client(EventLoop& loop, const std::string& path) : loop_(loop) {
    fd_.Reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    connected_ = connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  bool connected() const { return connected_; }
  int fd() const { return fd_.get(); }

  // Sends all of it, turning the loop while the socket is full.
  bool Send(const std::string& bytes) {
    size_t sent = 0;
    const uint64_t deadline = clock_.NowNs() + kPatienceNs;
    while (sent < bytes.size() && clock_.NowNs() < deadline) {
      const ssize_t took = send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (took > 0) sent += static_cast<size_t>(took);
      if (took < 0 && errno != EAGAIN) return false;
      loop_.RunOnce(kNsPerMs);
    }
    return sent == bytes.size();
  }

  // The next line, or nothing once the daemon has closed.
  std::optional<std::string> Line() {
    const uint64_t deadline = clock_.NowNs() + kPatienceNs;
    while (clock_.NowNs() < deadline) {
      if (const size_t end = input_.find('\n'); end != std::string::npos) {
        std::string line = input_.substr(0, end);
        input_.erase(0, end + 1);
        return line;
      }
      char buffer[65536];
      const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return std::nullopt;
      if (got > 0) {
        input_.append(buffer, static_cast<size_t>(got));
      } else {
        loop_.RunOnce(kNsPerMs);
      }
    }
    ADD_FAILURE() << "the daemon neither answered nor closed";
    return std::nullopt;
  }

  Json Ask(const std::string& verb, const Json& args = Json::object()) {
    EXPECT_TRUE(Send(Json{{"verb", verb}, {"args", args}}.dump() + "\n"));
    return Json::parse(Line().value_or("null"));
  }

 private:
  MonotonicClock clock_;
  EventLoop& loop_;
  Fd fd_;
  bool connected_ = false;
  std::string input_;
};

class Admin : public testing::Test {
 protected:
  Admin() {
    char directory[] = "/tmp/sluice-admin-XXXXXX";
    directory_ = mkdtemp(directory);
    path_ = directory_ + "/admin.sock";
    config_path_ = directory_ + "/sluiced.toml";
    server_.emplace(loop_, path_);
    store_.emplace(DefaultConfig(), config_path_);
    RegisterAdminVerbs(*server_, {loop_, status_, *store_, [this] { ++drains_; }});
    auto lock = InstanceLock::Acquire(directory_);
    EXPECT_TRUE(lock);
    lock_.emplace(*std::move(lock));
    const auto started = server_->Start(*lock_);
    EXPECT_TRUE(started) << started.error().message;
  }
  ~Admin() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }
  Client Connect() { return Client(loop_, path_); }
  void WriteConfig(const std::string& text) { std::ofstream(config_path_) << text; }

  SteppedClock clock_;
  EventLoop loop_{clock_};
  FakeStatus status_;
  std::string directory_, path_, config_path_;
  std::optional<ConfigStore> store_;
  std::optional<InstanceLock> lock_;
  std::optional<AdminServer> server_;
  int drains_ = 0;
};

std::string ErrorCodeOf(const Json& answer) {
  EXPECT_EQ(answer["ok"], false) << answer;
  return answer["error"]["code"];
}

TEST_F(Admin, MakesASocketThatOnlyItsOwnerMayUse) {
  struct stat status;
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(Admin, RemovesItsSocketFileWhenItStops) {
  EXPECT_TRUE(Connect().connected());
  server_->Stop();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(Connect().connected());
}

TEST_F(Admin, AnswersRequestsOfOneConnectionInOrder) {
  Client client = Connect();
  ASSERT_TRUE(
      client.Send("{\"verb\":\"version\"}\n{\"verb\":\"nothing\"}\n{\"verb\":\"version\"}\n"));
  EXPECT_EQ(Json::parse(client.Line().value_or(""))["ok"], true);
  EXPECT_EQ(Json::parse(client.Line().value_or(""))["ok"], false);
  EXPECT_EQ(Json::parse(client.Line().value_or(""))["result"]["version"], SLUICE_VERSION);
}

TEST_F(Admin, RefusesBadInputWithAnErrorAndGoesOn) {
  Client client = Connect();
  for (const std::string bad :
       {"", "x", "{", "[]", "null", "1", "\"verb\"", "{}", "{\"verb\":1}", "{\"verb\":null}",
        "{\"verb\":\"get\",\"args\":[]}", "{\"verb\":\"get\",\"args\":null}", "\xff\xfe",
        "{\"verb\":\"get\"", "{\"verb\":\"version\"}}"}) {
    ASSERT_TRUE(client.Send(bad + "\n"));
    const Json answer = Json::parse(client.Line().value_or("null"));
    ASSERT_TRUE(answer.is_object()) << bad;
    EXPECT_EQ(ErrorCodeOf(answer), "invalid") << bad;
  }
  EXPECT_EQ(ErrorCodeOf(client.Ask("no such verb")), "not_found");
  EXPECT_EQ(ErrorCodeOf(client.Ask("get", {{"key", 7}})), "invalid");
  EXPECT_EQ(ErrorCodeOf(client.Ask("get", {{"key", "no.such"}})), "not_found");
  EXPECT_EQ(ErrorCodeOf(client.Ask("set")), "invalid");
  EXPECT_EQ(ErrorCodeOf(client.Ask("set", {{"values", "x"}})), "invalid");
  EXPECT_EQ(ErrorCodeOf(client.Ask("explain")), "invalid");
  EXPECT_EQ(client.Ask("version")["ok"], true);
}

TEST_F(Admin, SurvivesDeeplyNestedJson) {
  Client client = Connect();
  ASSERT_TRUE(client.Send(std::string(60'000, '[') + "\n"));
  EXPECT_EQ(ErrorCodeOf(Json::parse(client.Line().value_or("null"))), "invalid");
  ASSERT_TRUE(client.Send(std::string(30'000, '[') + std::string(30'000, ']') + "\n"));
  EXPECT_EQ(ErrorCodeOf(Json::parse(client.Line().value_or("null"))), "invalid");
}

TEST_F(Admin, ClosesAfterARequestWithoutEnd) {
  Client client = Connect();
  client.Send(std::string(AdminServer::kMaxRequestBytes + 8'192, 'x'));
  const auto refusal = client.Line();
  if (refusal) {  // The kernel may drop it with the connection.
    EXPECT_THAT(*refusal, HasSubstr("at most"));
    EXPECT_EQ(client.Line(), std::nullopt);
  }
  EXPECT_EQ(server_->connections(), 0u);
}

TEST_F(Admin, LetsTheOldestIdleConnectionGiveWayAtItsLimit) {
  std::vector<Client> clients;
  for (size_t i = 0; i < AdminServer::kMaxConnections; ++i) {
    clients.push_back(Connect());
    ASSERT_EQ(clients.back().Ask("version")["ok"], true);
  }
  Client one_more = Connect();
  EXPECT_EQ(one_more.Ask("version")["ok"], true);
  EXPECT_EQ(clients[0].Line(), std::nullopt);
  EXPECT_EQ(clients[1].Ask("version")["ok"], true);
  EXPECT_EQ(server_->connections(), AdminServer::kMaxConnections);
}

TEST_F(Admin, AnswersLateAndNotAtAllToOneThatLeft) {
  std::optional<AdminReply> held;
  server_->Register("later", [&](const Json&, const AdminCaller&, AdminReply reply) {
    held.emplace(std::move(reply));
  });
  {
    Client client = Connect();
    ASSERT_TRUE(client.Send("{\"verb\":\"later\"}\n"));
    while (!held) loop_.RunOnce(kPatienceNs);
    held->Ok({{"a", 1}});
    EXPECT_EQ(Json::parse(client.Line().value_or("null"))["result"]["a"], 1);
    held.reset();
    ASSERT_TRUE(client.Send("{\"verb\":\"later\"}\n"));
    while (!held) loop_.RunOnce(kPatienceNs);
  }
  while (server_->connections() != 0) loop_.RunOnce(kPatienceNs);
  held->Ok({});
}

TEST_F(Admin, SaysSoWhenAHandlerForgetsItsAnswer) {
  server_->Register("forget", [](const Json&, const AdminCaller&, AdminReply) {});
  EXPECT_EQ(ErrorCodeOf(Connect().Ask("forget")), "system");
}

TEST_F(Admin, DropsOneThatDoesNotReadItsAnswer) {
  server_->Register("large", [](const Json&, const AdminCaller&, AdminReply reply) {
    reply.Ok(std::string(4 << 20, 'x'));
  });
  Client client = Connect();
  ASSERT_TRUE(client.Send("{\"verb\":\"large\"}\n"));
  Client other = Connect();
  EXPECT_EQ(other.Ask("version")["ok"], true) << "a slow reader must not hold up others";
  EXPECT_EQ(server_->connections(), 2u);
  clock_.step_ns = AdminServer::kWriteTimeoutNs;
  loop_.RunOnce(0);
  EXPECT_EQ(server_->connections(), 1u);
}

TEST_F(Admin, SetsAndGetsLiveKeys) {
  Client client = Connect();
  const Json changed = client.Ask("set", {{"values", {{"engine.fragment_bytes", 32768}}}});
  EXPECT_EQ(changed["result"]["changed"][0]["before"], "65536");
  EXPECT_EQ(client.Ask("get", {{"key", "engine.fragment_bytes"}})["result"]["value"], 32768);
  EXPECT_EQ(store_->config().engine.fragment_bytes, 32768u);
}

TEST_F(Admin, RefusesSeveralKeysAsAWhole) {
  Client client = Connect();
  const Json values = {{"engine.fragment_bytes", 32768}, {"engine.send_window_bytes", 1}};
  const Json answer = client.Ask("set", {{"values", values}});
  EXPECT_EQ(ErrorCodeOf(answer), "invalid");
  EXPECT_THAT(answer["error"]["message"].get<std::string>(), HasSubstr("engine.send_window_bytes"));
  EXPECT_EQ(store_->config().engine.fragment_bytes, 65536u);
}

TEST_F(Admin, SetsKeysThatAreOnlyRightTogether) {
  const Json values = {{"engine.keepalive_interval_ms", 3000},
                       {"engine.keepalive_timeout_ms", 9000}};
  EXPECT_EQ(Connect().Ask("set", {{"values", values}})["ok"], true);
  const Json alone = {{"engine.keepalive_interval_ms", 4000}};
  EXPECT_EQ(ErrorCodeOf(Connect().Ask("set", {{"values", alone}})), "invalid");
}

TEST_F(Admin, KeepsWhatTheDaemonRefuses) {
  store_->SetApplier([](const Config&, const Config&) -> Result<> {
    return Fail(ErrorCode::kRefused, "not now");
  });
  const Json answer = Connect().Ask("set", {{"values", {{"daemon.spin_us", 7}}}});
  EXPECT_EQ(ErrorCodeOf(answer), "refused");
  EXPECT_EQ(store_->config().daemon.spin_us, 20u);
  EXPECT_TRUE(store_->history().empty());
}

TEST_F(Admin, ReloadsLiveKeysAndNamesThoseThatWait) {
  WriteConfig("[engine]\nfragment_bytes = 8192\n[daemon]\nio_threads = 4\n");
  const Json answer = Connect().Ask("reload");
  ASSERT_EQ(answer["ok"], true) << answer;
  EXPECT_EQ(answer["result"]["changed"][0]["key"], "engine.fragment_bytes");
  EXPECT_EQ(answer["result"]["needs_restart"][0]["key"], "daemon.io_threads");
  EXPECT_EQ(store_->config().daemon.io_threads, 1u);
}

TEST_F(Admin, RefusesAFileWithAMistakeAsAWhole) {
  WriteConfig("[engine]\nfragment_bytes = 8192\nsend_window_bytes = 7\n");
  const Json answer = Connect().Ask("reload");
  EXPECT_EQ(ErrorCodeOf(answer), "invalid");
  EXPECT_THAT(answer["error"]["message"].get<std::string>(),
              HasSubstr("sluiced.toml:3: engine.send_window_bytes"));
  EXPECT_EQ(store_->config().engine.fragment_bytes, 65536u);
}

TEST_F(Admin, ShowsWhatDiffersAndWhoChangedIt) {
  Client client = Connect();
  client.Ask("set", {{"values", {{"daemon.spin_us", 7}}}});
  const Json diff = client.Ask("config_diff")["result"];
  ASSERT_EQ(diff.size(), 1u);
  EXPECT_EQ(diff[0]["key"], "daemon.spin_us");
  EXPECT_EQ(diff[0]["state"], "set");
  EXPECT_EQ(diff[0]["default"], "20");
  const Json history = client.Ask("config_history")["result"];
  ASSERT_EQ(history.size(), 1u);
  EXPECT_EQ(history[0]["uid"], geteuid());
  EXPECT_EQ(history[0]["process_id"], getpid());
  EXPECT_EQ(history[0]["how"], "set");
  EXPECT_GT(client.Ask("config_show")["result"].size(), 30u);
}

TEST_F(Admin, KeepsItsHistoryBounded) {
  for (size_t i = 0; i < ConfigStore::kMaxHistory + 10; ++i) {
    ASSERT_TRUE(store_->Set({{"daemon.spin_us", std::to_string(i)}}, {"set"}));
  }
  EXPECT_EQ(store_->history().size(), ConfigStore::kMaxHistory);
}

TEST_F(Admin, StartsADrainOnce) {
  Client client = Connect();
  EXPECT_EQ(client.Ask("drain")["ok"], true);
  EXPECT_EQ(client.Ask("drain")["ok"], true);
  EXPECT_EQ(drains_, 1);
}

ThreadStatus ThreadWith(const io::EngineSnapshot& engine) {
  ThreadStatus thread{.answered = true};
  thread.snapshot.engines = {engine};
  return thread;
}

io::EngineSnapshot EngineUp() {
  io::EngineSnapshot engine;
  engine.peer = 7;
  engine.name = "b:4500";
  engine.state = "up";
  engine.transport = "tcp";
  engine.credits = 5;
  engine.window_bytes = 1000;
  return engine;
}

TEST_F(Admin, ShowsThreadsThatDoNotAnswerAsUnhealthy) {
  status_.status.daemon.ready = true;
  status_.status.threads = {
      {.io_thread = 0, .answered = false, .silent_ns = 3 * kNsPerSecond, .snapshot = {}}};
  const Json answer = Connect().Ask("status")["result"];
  EXPECT_EQ(answer["healthy"], false);
  EXPECT_THAT(answer["health"].get<std::string>(),
              HasSubstr("I/O thread 0 has not answered for 3.0 s"));
}

TEST_F(Admin, ListsPeersWithAndWithoutAnEngine) {
  status_.status.threads = {ThreadWith(EngineUp())};
  status_.status.peers = {
      {.peer = 7, .name = "b:4500", .state = "up"},
      {.peer = 8, .name = "c:4500", .state = "waiting", .last_error = "no route"}};
  const Json rows = Connect().Ask("engines")["result"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["connection"], "up");
  EXPECT_EQ(rows[1]["last_error"], "no route");
}

TEST_F(Admin, ExplainsWhatLimitsAnEngine) {
  const auto explain = [&](io::EngineSnapshot engine) {
    status_.status.threads = {ThreadWith(engine)};
    return Connect().Ask("explain", {{"engine", "b:4500"}})["result"]["limit"].get<std::string>();
  };
  EXPECT_EQ(explain(EngineUp()), "none");
  auto engine = EngineUp();
  engine.credits = 0;
  EXPECT_EQ(explain(engine), "credits");
  engine = EngineUp();
  engine.in_flight_bytes = engine.window_bytes;
  EXPECT_EQ(explain(engine), "window");
  engine = EngineUp();
  engine.state = "lost";
  EXPECT_EQ(explain(engine), "peer");
  EXPECT_EQ(ErrorCodeOf(Connect().Ask("explain", {{"engine", "z"}})), "not_found");
  EXPECT_EQ(Connect().Ask("explain", {{"engine", "7"}})["ok"], true);
}

}  // namespace
}  // namespace sluice::control
