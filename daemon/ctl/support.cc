// SPDX-License-Identifier: Apache-2.0
// Commands for when something is wrong: doctor and bugreport.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "daemon/ctl/commands.h"
#include "daemon/ctl/doctor.h"
#include "daemon/ctl/table.h"

namespace sluice::ctl {
namespace {

namespace fs = std::filesystem;

const char* Name(Severity severity) {
  switch (severity) {
    case Severity::kGood: return "good";
    case Severity::kNote: return "note";
    case Severity::kFix: return "FIX";
  }
  return "?";
}

// What the running daemon adds to the host's findings.
void ExamineDaemon(Session& session, std::vector<Finding>& findings) {
  const Answer answer = session.client.Ask("status");
  if (!answer.ok) {
    findings.push_back({"daemon", Severity::kFix, answer.failure.message,
                        "nothing can be sent from this node", "start it: systemctl start sluiced"});
    return;
  }
  const Json& status = answer.result;
  const bool healthy = status.value("healthy", false);
  findings.push_back({"daemon", healthy ? Severity::kGood : Severity::kFix,
                      status.value("health", ""),
                      healthy ? "" : "it runs, but does not work as it should",
                      healthy ? "" : "see `sluicectl errors` and the journal"});
  const std::string version = status.value("version", "");
  if (version != SLUICE_VERSION) {
    findings.push_back({"versions", Severity::kNote,
                        fmt::format("sluiced {}, sluicectl {}", version, SLUICE_VERSION),
                        "an update is not finished", "restart the daemon"});
  }
  if (status.value("peer_auth", "") == "none") {
    findings.push_back({"peer authentication", Severity::kFix, "off (peer.auth = \"none\")",
                        "anybody who reaches the peer port is believed",
                        "give all nodes one cluster key and set peer.auth = \"key\""});
  }
}

Json FindingsJson(const std::vector<Finding>& findings) {
  Json rows = Json::array();
  for (const Finding& finding : findings) {
    rows.push_back(
        {{"check", finding.check},
         {"severity", finding.severity == Severity::kFix ? "fix" : Name(finding.severity)},
         {"found", finding.found},
         {"means", finding.means},
         {"advice", finding.advice}});
  }
  return rows;
}

uint16_t PeerPort(Session& session) {
  const Answer answer = session.client.Ask("get", {{"key", "peer.port"}});
  return answer.ok ? answer.result.value("value", uint16_t{4500}) : uint16_t{4500};
}

std::vector<Finding> Examine(Session& session) {
  std::vector<Finding> findings = ExamineHost(PeerPort(session));
  ExamineDaemon(session, findings);
  return findings;
}

// One piece of a bug report: its file's name, and where it comes from.
struct Piece {
  std::string file;
  std::string verb;     // Asked of the daemon, or
  std::string command;  // run by the shell.
};

const std::vector<Piece> kPieces = {
    {"status.json", "status", ""},
    {"clients.json", "clients", ""},
    {"engines.json", "engines", ""},
    {"sockets.json", "sockets", ""},
    {"pools.json", "pools", ""},
    {"devices.json", "devices", ""},
    {"config.json", "config_show", ""},
    {"config_diff.json", "config_diff", ""},
    {"config_history.json", "config_history", ""},
    {"system.txt", "",
     "uname -a; cat /etc/os-release; nproc; free -m; cat /proc/loadavg; ip -s addr; ip -s link"},
    {"rdma.txt", "", "rdma link show; ls -l /dev/infiniband"},
    {"unit.txt", "",
     "systemctl status sluiced --no-pager -n 0; systemctl show sluiced --no-pager "
     "-p MainPID,ActiveState,SubState,NRestarts,Result,LimitMEMLOCK,LimitNOFILE"},
    {"journal.txt", "", "journalctl -u sluiced --no-pager -n 2000 -o short-iso"},
};

bool WriteFile(const fs::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  return static_cast<bool>(file.flush());
}

std::string Pretty(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

bool Collect(Session& session, const fs::path& folder) {
  bool good = true;
  for (const Piece& piece : kPieces) {
    if (piece.verb.empty()) {
      // What a host lacks is told by the command's own complaint in the file. timeout(1) bounds
      // each.
      const std::string command = "timeout 20 sh -c '" + piece.command + "' >'" +
                                  (folder / piece.file).string() + "' 2>&1";
      (void)!std::system(command.c_str());
      continue;
    }
    const Answer answer = session.client.Ask(piece.verb);
    good = WriteFile(folder / piece.file, answer.ok
                                              ? Pretty(answer.result)
                                              : Pretty({{"error", answer.failure.message}})) &&
           good;
  }
  std::error_code error;
  for (const char* name : {"counters", "counters.previous"}) {
    const fs::path source = fs::path(session.client.path()).parent_path() / name;
    if (fs::is_regular_file(source, error)) fs::copy_file(source, folder / name, error);
  }
  return WriteFile(folder / "doctor.json", Pretty(FindingsJson(Examine(session)))) && good;
}

}  // namespace

int Doctor(Session& session) {
  const std::vector<Finding> findings = Examine(session);
  const bool fix = std::ranges::any_of(
      findings, [](const Finding& f) { return f.severity == Severity::kFix; });
  if (session.json) {
    PrintJson(FindingsJson(findings));
    return fix ? kFailed : kOk;
  }
  for (const Finding& finding : findings) {
    fmt::print("{:4}  {}: {}\n", Name(finding.severity), finding.check, Printable(finding.found));
    if (!finding.means.empty()) fmt::print("      this means: {}\n", finding.means);
    if (!finding.advice.empty()) fmt::print("      what to do: {}\n", finding.advice);
  }
  return fix ? kFailed : kOk;
}

int BugReport(Session& session, const std::string& output, bool dry_run) {
  Json files = Json::array();
  for (const Piece& piece : kPieces) {
    files.push_back({{"file", piece.file},
                     {"from", piece.verb.empty() ? piece.command : "sluicectl " + piece.verb}});
  }
  files.push_back({{"file", "doctor.json"}, {"from", "sluicectl doctor"}});
  files.push_back({{"file", "counters"}, {"from", "the daemon's counters file"}});
  if (dry_run) {
    if (session.json) {
      PrintJson({{"output", output}, {"files", files}});
    } else {
      fmt::print(
          "would write {} with:\n{}\nNot in it: keys, message contents, the contents of pools.\n",
          output, Table(files, {{"file", "FILE"}, {"from", "FROM"}}, ""));
    }
    return kOk;
  }
  const char* tmp = std::getenv("TMPDIR");
  std::string folder = std::string(tmp != nullptr && *tmp == '/' ? tmp : "/tmp") +
                       "/sluice-bugreport-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr)
    return Report(session, {kFailed, "cannot make a folder in /tmp; set TMPDIR"});
  const bool collected = Collect(session, folder);
  const pid_t child = fork();
  if (child == 0) {
    execlp("tar", "tar", "-czf", output.c_str(), "-C", folder.c_str(), ".",
           static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = -1;
  const bool packed = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
                      WEXITSTATUS(status) == 0;
  std::error_code error;
  fs::remove_all(folder, error);
  if (!collected || !packed)
    return Report(session,
                  {kFailed, "cannot write " + output + "; is there room, and is tar installed?"});
  if (session.json) {
    PrintJson({{"output", output}, {"files", files}});
  } else {
    fmt::print(
        "wrote {}; look it through before you pass it on: it names hosts, addresses and "
        "processes\n",
        output);
  }
  return kOk;
}

}  // namespace sluice::ctl
