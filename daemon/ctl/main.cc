// SPDX-License-Identifier: Apache-2.0
// sluicectl: looks at a running daemon and steers it, over the daemon's admin socket.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <functional>

#include "daemon/ctl/commands.h"
#include "daemon/ctl/completion.h"

namespace sluice::ctl {
namespace {

std::string DefaultSocket() {
  const char* run_dir = std::getenv("SLUICE_RUN_DIR");
  return std::string(run_dir != nullptr && *run_dir != '\0' ? run_dir : "/run/sluice") +
         "/admin.sock";
}

// What the command line says. Options are bound to it while CLI11 parses.
struct Arguments {
  std::string socket = DefaultSocket();
  bool json = false;
  std::string engine, key, shell = "bash";
  std::vector<std::string> words;
  std::string file, output = "sluice-bugreport.tar.gz";
  bool everything = false, dry_run = false;
  double interval_s = 1, wait_s = 0;
  int count = 0;
};

// The command that was chosen, run once parsing is over.
using Command = std::function<int(Session&)>;

void AddLooking(CLI::App& app, Arguments& arguments, Command& chosen) {
  const auto add = [&](const char* name, const char* doc, int (*run)(Session&)) {
    app.add_subcommand(name, doc)->callback([&chosen, run] { chosen = run; });
  };
  add("status", "Health and figures of the daemon; exit code 1 when it is not healthy", ShowStatus);
  add("clients", "Attached applications", ShowClients);
  add("engines", "Peer daemons and the engines to them", ShowEngines);
  add("sockets", "Open sockets", ShowSockets);
  add("pools", "Memory shared with each application", ShowPools);
  add("devices", "The RDMA device in use, why that one, and its counters", ShowDevices);
  add("version", "Versions of sluicectl and of the daemon", ShowVersion);

  CLI::App* explain = app.add_subcommand("explain", "What holds one engine back, and what to do");
  explain->add_option("engine", arguments.engine, "A peer's name or number, as in `engines`")
      ->required();
  explain->callback(
      [&] { chosen = [&](Session& session) { return Explain(session, arguments.engine); }; });

  CLI::App* top = app.add_subcommand("top", "Live rates of every engine");
  top->add_option("--interval", arguments.interval_s, "Seconds between two looks")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  top->add_option("--count", arguments.count, "End after so many looks; 0: never")
      ->check(CLI::Range(0, 1'000'000));
  top->callback([&] {
    chosen = [&](Session& session) { return Top(session, arguments.interval_s, arguments.count); };
  });
}

void AddChanging(CLI::App& app, Arguments& arguments, Command& chosen) {
  CLI::App* get = app.add_subcommand("get", "One value of the configuration in force");
  get->add_option("key", arguments.key, "As engine.send_window_bytes")->required();
  get->callback([&] { chosen = [&](Session& session) { return Get(session, arguments.key); }; });

  CLI::App* set = app.add_subcommand(
      "set", "Change live keys, all of those given or none, until the next reload or restart");
  set->add_option("assignments", arguments.words, "KEY VALUE or KEY=VALUE, for each key")
      ->required();
  set->callback([&] { chosen = [&](Session& session) { return Set(session, arguments.words); }; });

  app.add_subcommand("reload", "Read the configuration file again and apply its live keys")
      ->callback([&] { chosen = Reload; });

  CLI::App* drain = app.add_subcommand("drain",
                                       "Shut the daemon down once what is in flight is over");
  drain->add_option("--wait", arguments.wait_s, "Wait so many seconds for it to end")
      ->check(CLI::Range(0.0, 86400.0));
  drain->callback(
      [&] { chosen = [&](Session& session) { return Drain(session, arguments.wait_s); }; });

  CLI::App* config = app.add_subcommand("config", "The configuration in force");
  config->require_subcommand(1);
  config->fallthrough();
  config->add_subcommand("show", "Every key and its value")->callback([&] { chosen = ShowConfig; });
  config->add_subcommand("diff", "Keys that differ from their default or from the file")
      ->callback([&] { chosen = DiffConfig; });
  config->add_subcommand("history", "Who changed what, and when")->callback([&] {
    chosen = ShowConfigHistory;
  });
}

void AddSupport(CLI::App& app, Arguments& arguments, Command& chosen) {
  CLI::App* errors = app.add_subcommand(
      "errors",
      "Distinct warnings and errors with their counts, also when the daemon hangs or is dead");
  errors->add_option("--file", arguments.file, "The counters file; else that beside the socket");
  errors->add_flag("--all", arguments.everything, "Counters and the last events too");
  errors->callback([&] {
    chosen = [&](Session& session) {
      return ShowErrors(session, arguments.file, arguments.everything);
    };
  });
  app.add_subcommand(
         "doctor",
         "What is wrong with this host or its daemon; exit code 1 when something must be fixed")
      ->callback([&] { chosen = Doctor; });
  CLI::App* report = app.add_subcommand("bugreport",
                                        "Pack what a developer needs to see into one archive");
  report->add_option("--output", arguments.output, "The archive")->capture_default_str();
  report->add_flag("--dry-run", arguments.dry_run, "Only list what would be in it");
  report->callback([&] {
    chosen = [&](Session& session) {
      return BugReport(session, arguments.output, arguments.dry_run);
    };
  });
}

int Main(int argc, char** argv) {
  CLI::App app{
      "Look at the node's transport daemon and steer it.\n"
      "Exit codes: 0 ok, 1 unhealthy or failed, 2 usage, 3 daemon unreachable, 4 refused."};
  app.name("sluicectl");
  Arguments arguments;
  Command chosen;
  app.add_option("--socket", arguments.socket, "The daemon's admin socket")
      ->type_name("PATH")
      ->capture_default_str();
  app.add_flag("--json", arguments.json, "Print JSON");
  app.set_version_flag("--version", std::string("sluicectl ") + SLUICE_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  AddLooking(app, arguments, chosen);
  AddChanging(app, arguments, chosen);
  AddSupport(app, arguments, chosen);
  CLI::App* completion = app.add_subcommand("completion", "A completion script for a shell");
  completion->add_option("shell", arguments.shell, "bash")->check(CLI::IsMember({"bash"}));
  completion->callback([&] {
    chosen = [&](Session&) {
      return std::fputs(BashCompletion(app).c_str(), stdout) < 0 ? kFailed : kOk;
    };
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  Session session{AdminClient(arguments.socket), arguments.json};
  int code = kFailed;
  try {
    code = chosen(session);
  } catch (const Json::exception&) {  // An answer of another shape than this sluicectl knows.
    code = Report(session, {kFailed,
                            "the daemon's answer is not understood; are sluicectl and "
                            "sluiced of the same version?"});
  }
  return std::fflush(stdout) == 0 ? code : kFailed;
}

}  // namespace
}  // namespace sluice::ctl

int main(int argc, char** argv) { return sluice::ctl::Main(argc, argv); }
