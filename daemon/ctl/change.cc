// SPDX-License-Identifier: Apache-2.0
// Commands about the configuration, and those that change something.
#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>

#include "daemon/ctl/commands.h"
#include "daemon/ctl/table.h"
#include "shm_proto/base/clock.h"

namespace sluice::ctl {
namespace {

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

std::string Text(const Json& row, const char* key) {
  const auto found = row.find(key);
  if (found == row.end()) return "-";
  return Printable(found->is_string() ? found->get<std::string>() : found->dump());
}

std::string Changes(const Json& differences, const char* before) {
  std::string out;
  for (const Json& row : differences) {
    out += fmt::format("{}{}: {} -> {}\n", before, Text(row, "key"), Text(row, "before"),
                       Text(row, "after"));
  }
  return out;
}

std::string LocalTime(int64_t unix_time_ms) {
  const time_t seconds = unix_time_ms / 1'000;
  tm local;
  localtime_r(&seconds, &local);
  char text[32];
  strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

// {"KEY": "VALUE"} from either way of writing; null when the words do not pair up.
Json ParseAssignments(const std::vector<std::string>& words) {
  Json values = Json::object();
  if (!words.empty() && words[0].find('=') != std::string::npos) {
    for (const std::string& word : words) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos) return nullptr;
      values[word.substr(0, equals)] = word.substr(equals + 1);
    }
    return values;
  }
  if (words.empty() || words.size() % 2 != 0) return nullptr;
  for (size_t i = 0; i < words.size(); i += 2) values[words[i]] = words[i + 1];
  return values;
}

int Ask(Session& session, const char* verb, const Json& arguments,
        std::string (*print)(const Json&)) {
  const Answer answer = session.client.Ask(verb, arguments);
  if (!answer.ok) return Report(session, answer.failure);
  if (session.json) {
    PrintJson(answer.result);
  } else {
    Print(print(answer.result));
  }
  return kOk;
}

std::string PrintChanged(const Json& result) {
  const std::string changes = Changes(result.value("changed", Json::array()), "");
  const std::string waiting = Changes(result.value("needs_restart", Json::array()),
                                      "needs a restart: ");
  return (changes.empty() ? "nothing changed\n" : changes) + waiting;
}

std::string PrintHistory(const Json& result) {
  std::string out;
  for (const Json& change : result) {
    out += fmt::format("{}  {} by uid {} (process {})\n",
                       LocalTime(change.value("unix_time_ms", int64_t{0})), Text(change, "how"),
                       Text(change, "uid"), Text(change, "process_id"));
    out += Changes(change.value("changed", Json::array()), "  ");
  }
  return out.empty() ? "nothing has been changed since the daemon started\n" : out;
}

}  // namespace

int Get(Session& session, const std::string& key) {
  return Ask(session, "get", {{"key", key}},
             [](const Json& result) { return Text(result, "value") + "\n"; });
}

int Set(Session& session, const std::vector<std::string>& words) {
  const Json values = ParseAssignments(words);
  if (values.is_null()) {
    return Report(session, {kUsage, "write KEY VALUE, or KEY=VALUE, for each key"});
  }
  return Ask(session, "set", {{"values", values}}, PrintChanged);
}

int Reload(Session& session) { return Ask(session, "reload", Json::object(), PrintChanged); }

int ShowConfig(Session& session) {
  return Ask(session, "config_show", Json::object(), [](const Json& result) {
    return Table(result, {{"key", "KEY"}, {"value", "VALUE"}, {"live", "LIVE", Shape::kYesNo}}, "");
  });
}

int DiffConfig(Session& session) {
  return Ask(session, "config_diff", Json::object(), [](const Json& result) {
    return Table(result,
                 {{"key", "KEY"},
                  {"in_force", "IN FORCE"},
                  {"in_file", "IN THE FILE"},
                  {"default", "DEFAULT"},
                  {"state", "FROM"}},
                 "everything has its default");
  });
}

int ShowConfigHistory(Session& session) {
  return Ask(session, "config_history", Json::object(), PrintHistory);
}

int Drain(Session& session, double wait_s) {
  const Answer answer = session.client.Ask("drain");
  if (!answer.ok) return Report(session, answer.failure);
  if (wait_s > 0) {
    // Each look is a connection of its own: the daemon has gone when nobody takes one any more.
    const uint64_t deadline_ns = MonotonicClock().NowNs() + static_cast<uint64_t>(wait_s * 1e9);
    while (true) {
      AdminClient look(session.client.path());
      const Answer gone = look.Ask("version");
      if (!gone.ok && gone.failure.code == kUnreachable) break;
      if (MonotonicClock().NowNs() > deadline_ns) {
        return Report(
            session,
            {kFailed, "the daemon has not ended in time; `sluicectl sockets` shows what is left"});
      }
      usleep(50'000);
    }
  }
  if (session.json) {
    PrintJson({{"draining", true}, {"ended", wait_s > 0}});
  } else {
    Print(wait_s > 0 ? "the daemon has ended\n"
                     : "the daemon ends once what is in flight is over\n");
  }
  return kOk;
}

}  // namespace sluice::ctl
