// SPDX-License-Identifier: Apache-2.0
// sluicectl as a process, against the daemon's own admin server and against one that misbehaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "daemon/control/admin_verbs.h"
#include "shm_proto/counters_file.h"

namespace sluice::control {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

struct Ended {
  int code = -1;
  std::string out;    // Standard output.
  std::string error;  // Standard error.
};

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Runs sluicectl with a shell's idea of `arguments`.
Ended RunCtl(const std::string& arguments, const std::string& environment,
             const std::string& scratch) {
  const std::string errors = scratch + "/stderr";
  FILE* pipe = popen(
      (environment + " " SLUICE_CTL_PROGRAM " " + arguments + " 2>" + errors).c_str(), "r");
  Ended ended;
  char buffer[4096];
  for (size_t got; (got = fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    ended.out.append(buffer, got);
  const int status = pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  ended.error = FileText(errors);
  return ended;
}

class FakeStatus final : public StatusSource {
 public:
  void Collect(Callback done) override { done(status); }
  NodeStatus status;
};

// The daemon's admin socket on a thread of its own.
class Ctl : public testing::Test {
 protected:
  Ctl() {
    char directory[] = "/tmp/sluice-ctl-XXXXXX";
    directory_ = mkdtemp(directory);
    store_.emplace(DefaultConfig(), directory_ + "/sluiced.toml");
    FillStatus();
    server_.emplace(loop_, directory_ + "/admin.sock");
    RegisterAdminVerbs(*server_,
                       {loop_, status_, *store_, [this] { loop_.Post([this] { End(); }); }});
    auto lock = InstanceLock::Acquire(directory_);
    EXPECT_TRUE(lock);
    lock_.emplace(*std::move(lock));
    EXPECT_TRUE(server_->Start(*lock_));
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~Ctl() override {
    loop_.Post([this] { End(); });
    thread_.join();
    std::filesystem::remove_all(directory_);
  }
  void End() {
    server_->Stop();
    loop_.Stop();
  }
  void FillStatus() {
    status_.status.daemon = {
        .name = "node-a", .version = SLUICE_VERSION, .peer_auth = "key", .ready = true};
    ThreadStatus thread{.answered = true};
    io::EngineSnapshot engine;
    engine.peer = 3;
    engine.name = "b:4500";
    engine.state = "up";
    engine.sent_bytes = 5 << 20;
    thread.snapshot.engines.push_back(engine);
    thread.snapshot.sockets.push_back(
        {.socket = 9, .peer = 3, .client = 1, .service = 7, .state = "open"});
    status_.status.threads.push_back(std::move(thread));
    status_.status.clients.push_back(
        {.client = 1, .name = "evil\x1b[2J\nname", .tenant = "t", .pool_bytes = 33 << 20});
  }
  Ended Run(const std::string& arguments) {
    return RunCtl("--socket " + directory_ + "/admin.sock " + arguments, "", directory_);
  }
  // Runs it with --json and parses what it printed.
  Json RunJson(const std::string& arguments) {
    const Ended ended = Run("--json " + arguments);
    EXPECT_EQ(ended.code, 0) << arguments << ": " << ended.error;
    const Json json = Json::parse(ended.out, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << arguments << ": " << ended.out;
    return json;
  }

  MonotonicClock clock_;
  EventLoop loop_{clock_};
  FakeStatus status_;
  std::string directory_;
  std::optional<ConfigStore> store_;
  std::optional<InstanceLock> lock_;
  std::optional<AdminServer> server_;
  std::thread thread_;
};

TEST_F(Ctl, ShowsEverythingToPeople) {
  EXPECT_THAT(Run("status").out, HasSubstr("node-a"));
  EXPECT_THAT(Run("engines").out, HasSubstr("b:4500"));
  EXPECT_THAT(Run("engines").out, HasSubstr("5.0 MiB"));
  EXPECT_THAT(Run("sockets").out, HasSubstr("open"));
  EXPECT_THAT(Run("pools").out, HasSubstr("33.0 MiB"));
  EXPECT_THAT(Run("clients").out, HasSubstr("CLIENT"));
  EXPECT_THAT(Run("explain b:4500").out, HasSubstr("limited by"));
  EXPECT_THAT(Run("version").out, HasSubstr(std::string("sluiced ") + SLUICE_VERSION));
  EXPECT_THAT(Run("top --interval 0.01 --count 2").out, HasSubstr("b:4500"));
  EXPECT_THAT(Run("config show").out, HasSubstr("engine.fragment_bytes"));
  EXPECT_THAT(Run("config diff").out, HasSubstr("everything has its default"));
  EXPECT_THAT(Run("config history").out, HasSubstr("nothing has been changed"));
}

TEST_F(Ctl, NeverLetsAnApplicationsNameSteerTheTerminal) {
  const std::string out = Run("clients").out;
  EXPECT_EQ(out.find('\x1b'), std::string::npos);
  EXPECT_THAT(out, HasSubstr("evil?[2J?name"));
}

TEST_F(Ctl, ShowsEverythingAsJson) {
  EXPECT_EQ(RunJson("status")["healthy"], true);
  EXPECT_EQ(RunJson("engines")[0]["name"], "b:4500");
  EXPECT_EQ(RunJson("sockets")[0]["service"], 7);
  EXPECT_EQ(RunJson("pools")[0]["pool_bytes"], 33 << 20);
  EXPECT_EQ(RunJson("clients")[0]["client"], 1);
  EXPECT_TRUE(RunJson("explain 3").contains("limit"));
  EXPECT_EQ(RunJson("version")["sluiced"], SLUICE_VERSION);
  EXPECT_EQ(RunJson("top --interval 0.01 --count 1")[0]["name"], "b:4500");
  EXPECT_EQ(RunJson("get engine.fragment_bytes")["value"], 65536);
  EXPECT_EQ(RunJson("set engine.fragment_bytes 4096")["changed"][0]["after"], "4096");
  EXPECT_EQ(RunJson("config diff")[0]["key"], "engine.fragment_bytes");
  EXPECT_EQ(RunJson("config history")[0]["how"], "set");
  EXPECT_GT(RunJson("config show").size(), 30u);
  EXPECT_EQ(RunJson("engines --json").size(), 1u) << "--json may stand behind the command too";
}

TEST_F(Ctl, SetsInBothWaysOfWriting) {
  EXPECT_EQ(Run("set engine.fragment_bytes 4096 daemon.spin_us 3").code, 0);
  EXPECT_EQ(Run("get daemon.spin_us").out, "3\n");
  EXPECT_EQ(Run("set engine.fragment_bytes=8192 log.level=debug").code, 0);
  EXPECT_EQ(Run("get log.level").out, "debug\n");
  EXPECT_EQ(Run("set tenant.default.uids 0,5").code, 0);
  EXPECT_EQ(Run("get tenant.default.uids").out, "[0,5]\n");
  EXPECT_EQ(Run("set tenant.default.uids=[6]").code, 0);
  EXPECT_EQ(Run("get tenant.default.uids").out, "[6]\n");
}

TEST_F(Ctl, EndsWithOneWhenTheDaemonIsUnhealthy) {
  loop_.Post([this] { status_.status.threads[0].answered = false; });
  const Ended ended = Run("status");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, HasSubstr("I/O thread 0 has not answered"));
}

TEST_F(Ctl, EndsWithTwoForAWrongCommandLine) {
  for (const char* wrong :
       {"", "nothing", "status --nothing", "--nothing", "status extra", "get", "set",
        "set engine.fragment_bytes", "set a=1 b", "explain", "config", "config nothing",
        "top --interval x", "top --interval 0", "top --count -1", "completion fish"}) {
    const Ended ended = Run(wrong);
    EXPECT_EQ(ended.code, 2) << wrong << ": " << ended.out << ended.error;
  }
  EXPECT_EQ(Run("--help").code, 0);
  EXPECT_EQ(Run("set --help").code, 0);
  EXPECT_EQ(Run("--version").code, 0);
}

TEST_F(Ctl, EndsWithFourWhenTheDaemonRefuses) {
  const Ended bad = Run("set engine.send_window_bytes 1");
  EXPECT_EQ(bad.code, 4);
  EXPECT_THAT(bad.error, HasSubstr("a whole number from"));
  EXPECT_EQ(Run("set daemon.io_threads 2").code, 4);
  EXPECT_EQ(Run("get no.such.key").code, 4);
  EXPECT_EQ(Run("explain nobody").code, 4);
  std::ofstream(directory_ + "/sluiced.toml") << "[engine]\nfragment_byte = 1\n";
  const Ended reload = Run("reload");
  EXPECT_EQ(reload.code, 4);
  EXPECT_THAT(reload.error, HasSubstr("sluiced.toml:2"));
  EXPECT_EQ(Json::parse(Run("--json reload").out)["exit_code"], 4);
}

TEST_F(Ctl, ReloadsTheFile) {
  std::ofstream(directory_ + "/sluiced.toml")
      << "[engine]\nfragment_bytes = 4096\n[daemon]\nio_threads = 9\n";
  const Ended ended = Run("reload");
  EXPECT_EQ(ended.code, 0) << ended.error;
  EXPECT_THAT(ended.out, HasSubstr("engine.fragment_bytes: 65536 -> 4096"));
  EXPECT_THAT(ended.out, HasSubstr("needs a restart: daemon.io_threads: 1 -> 9"));
  EXPECT_THAT(Run("config diff").out, HasSubstr("needs_restart"));
}

TEST_F(Ctl, WaitsForTheEndOfADrain) {
  const Ended ended = Run("drain --wait 20");
  EXPECT_EQ(ended.code, 0) << ended.error;
  EXPECT_THAT(ended.out, HasSubstr("the daemon has ended"));
  EXPECT_EQ(Run("status").code, 3);
}

TEST_F(Ctl, FindsTheSocketInTheRunDirectory) {
  EXPECT_EQ(RunCtl("status", "SLUICE_RUN_DIR=" + directory_, directory_).code, 0);
}

TEST_F(Ctl, CompletesItsCommandsInBash) {
  const Ended ended = Run("completion bash");
  ASSERT_EQ(ended.code, 0);
  std::ofstream(directory_ + "/completion") << ended.out;
  const std::string
      script = "source " + directory_ +
               "/completion; COMP_WORDS=(sluicectl config d); COMP_CWORD=2; _sluicectl; "
               "echo \"${COMPREPLY[*]}\"; COMP_WORDS=(sluicectl sta); COMP_CWORD=1; _sluicectl; "
               "echo \"${COMPREPLY[*]}\"";
  FILE* bash = popen(("bash -c '" + script + "'").c_str(), "r");
  char buffer[256] = {};
  const size_t got = fread(buffer, 1, sizeof(buffer) - 1, bash);
  pclose(bash);
  EXPECT_EQ(std::string(buffer, got), "diff\nstatus\n");
}

// A daemon that answers every request with the same bytes, and then closes.
class Rubbish {
 public:
  Rubbish(const std::string& path, std::string bytes) : bytes_(std::move(bytes)) {
    listener_.Reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 4), 0);
    thread_ = std::thread([this] { Serve(); });
  }
  ~Rubbish() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

 private:
  void Serve() {
    while (true) {
      const Fd connection(accept(listener_.get(), nullptr, nullptr));
      if (!connection.valid()) return;
      char buffer[4096];
      if (recv(connection.get(), buffer, sizeof(buffer), 0) <= 0) continue;
      send(connection.get(), bytes_.data(), bytes_.size(), MSG_NOSIGNAL);
    }
  }
  std::string bytes_;
  Fd listener_;
  std::thread thread_;
};

class CtlAlone : public testing::Test {
 protected:
  CtlAlone() {
    char directory[] = "/tmp/sluice-ctl-XXXXXX";
    directory_ = mkdtemp(directory);
  }
  ~CtlAlone() override { std::filesystem::remove_all(directory_); }
  Ended Run(const std::string& arguments) {
    return RunCtl("--socket " + directory_ + "/admin.sock " + arguments, "", directory_);
  }
  std::string directory_;
};

TEST_F(CtlAlone, EndsWithThreeAndSaysWhatToDoWithoutADaemon) {
  for (const char* verb : {"status", "clients", "engines", "sockets", "pools", "explain x", "get x",
                           "set x 1", "reload", "config show", "config diff", "config history",
                           "drain", "version", "top --count 1"}) {
    const Ended ended = Run(verb);
    EXPECT_EQ(ended.code, 3) << verb;
    EXPECT_THAT(ended.error, HasSubstr("does it run")) << verb;
  }
}

TEST_F(CtlAlone, ReadsTheErrorsOfADeadDaemon) {
  EXPECT_EQ(Run("errors").code, 3);
  {
    auto writer = CountersWriter::Create(directory_ + "/counters", 0600, 1);
    ASSERT_TRUE(writer);
    writer->AddError(4, "dial", "dial failed \x1b[31m", 1'000);
    writer->AddEvent(2, "ready", 1'000);
    writer->SetCounter("sockets", 5);
  }
  const Ended dead = Run("errors --all");
  EXPECT_EQ(dead.code, 1);
  EXPECT_THAT(dead.out, HasSubstr("dead or hanging"));
  EXPECT_THAT(dead.out, HasSubstr("dial failed ?[31m"));
  EXPECT_THAT(dead.out, HasSubstr("ready"));
  const Json json = Json::parse(Run("--json errors --file " + directory_ + "/counters").out);
  EXPECT_EQ(json["alive"], false);
  EXPECT_EQ(json["errors"][0]["count"], 1);
  EXPECT_EQ(json["counters"]["sockets"], 5);
  std::ofstream(directory_ + "/counters") << "rubbish";
  EXPECT_EQ(Run("errors").code, 3);
}

TEST_F(CtlAlone, DoctorSaysWhatToFixAndEndsWithOne) {
  const Ended ended = Run("doctor");
  EXPECT_EQ(ended.code, 1) << "there is no daemon";
  EXPECT_THAT(ended.out, HasSubstr("FIX   daemon: cannot reach sluiced"));
  EXPECT_THAT(ended.out, HasSubstr("shared memory"));
  const Json json = Json::parse(Run("--json doctor").out);
  for (const Json& finding : json) {
    EXPECT_TRUE(finding["severity"] != "fix" || finding["advice"] != "") << finding;
  }
}

TEST_F(CtlAlone, PacksABugReportAlsoWithoutADaemon) {
  const std::string archive = directory_ + "/report.tar.gz";
  EXPECT_EQ(Run("bugreport --dry-run --output " + archive).code, 0);
  EXPECT_FALSE(std::filesystem::exists(archive));
  ASSERT_EQ(Run("bugreport --output " + archive).code, 0);
  EXPECT_EQ(std::system(("tar -tzf " + archive + " | grep -q doctor.json").c_str()), 0);
  EXPECT_EQ(Run("bugreport --output /nonexistent/x.tar.gz").code, 1);
}

TEST_F(CtlAlone, SurvivesAnswersThatMakeNoSense) {
  for (const std::string bytes :
       {"rubbish\n", "[]\n", "{\"ok\":false,\"error\":7}\n", "{\"ok\":true,\"result\":7}\n",
        "{\"ok\":true,\"result\":[1,[],null]}\n", "{\"ok\":true}\n"}) {
    const std::string path = directory_ + "/admin.sock";
    const Rubbish server(path, bytes);
    for (const char* verb : {"status", "engines", "config history", "reload", "get x", "version",
                             "explain x", "top --count 1 --interval 0.01"}) {
      const Ended ended = Run(verb);
      EXPECT_THAT(ended.code, testing::AllOf(testing::Ge(0), testing::Le(4)))
          << verb << " " << bytes << ended.error;
    }
    std::filesystem::remove(path);
  }
}

TEST_F(CtlAlone, EndsWithThreeWhenTheDaemonClosesInTheMiddle) {
  const Rubbish server(directory_ + "/admin.sock", "{\"ok\":tr");
  const Ended ended = Run("status");
  EXPECT_EQ(ended.code, 3);
  EXPECT_THAT(ended.error, HasSubstr("closed the connection"));
}

}  // namespace
}  // namespace sluice::control
