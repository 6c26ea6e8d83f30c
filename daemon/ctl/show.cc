// SPDX-License-Identifier: Apache-2.0
// Commands that only look.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "daemon/ctl/commands.h"
#include "daemon/ctl/table.h"

namespace sluice::ctl {
namespace {

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

// Asks, and prints the rows of the answer.
int ShowRows(Session& session, const char* verb, const std::vector<Column>& columns,
             const char* when_empty) {
  const Answer answer = session.client.Ask(verb);
  if (!answer.ok) return Report(session, answer.failure);
  if (session.json) {
    PrintJson(answer.result);
  } else {
    Print(Table(answer.result, columns, when_empty));
  }
  return kOk;
}

const std::vector<Column> kStatusLines = {
    {"health", "health"},
    {"name", "name"},
    {"version", "version"},
    {"instance", "instance"},
    {"process_id", "process"},
    {"uptime_s", "uptime", Shape::kSeconds},
    {"config_file", "configuration"},
    {"peer_listen", "peer addresses"},
    {"peer_auth", "peer authentication"},
    {"idle", "idle policy"},
    {"clients", "clients"},
    {"peers", "peers"},
    {"engines_up", "engines up"},
    {"sockets", "sockets"},
    {"pool_bytes", "pool memory", Shape::kBytes},
    {"sent_messages", "sent messages"},
    {"sent_bytes", "sent", Shape::kBytes},
    {"received_messages", "received messages"},
    {"received_bytes", "received", Shape::kBytes},
    {"operations_ok", "operations ok"},
    {"operations_failed", "operations failed"},
    {"operations_unknown", "operations unknown"},
};

double Field(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number() ? found->get<double>() : 0;
}

// How fast each engine moved between two answers.
Json Rates(const Json& before, const Json& now, double seconds) {
  std::map<std::string, const Json*> old_rows;
  for (const Json& row : before) old_rows[row.value("name", "")] = &row;
  Json rates = Json::array();
  for (const Json& row : now) {
    const auto found = old_rows.find(row.value("name", ""));
    const auto rate = [&](const char* key) {
      if (found == old_rows.end()) return 0.0;
      return std::max(0.0, Field(row, key) - Field(*found->second, key)) / seconds;
    };
    rates.push_back({{"name", row.value("name", "")},
                     {"state", row.value("state", "")},
                     {"transport", row.value("transport", "")},
                     {"sockets", row.value("sockets", 0)},
                     {"sent_messages_per_s", std::round(rate("sent_messages"))},
                     {"sent_bytes_per_s", std::round(rate("sent_bytes"))},
                     {"received_messages_per_s", std::round(rate("received_messages"))},
                     {"received_bytes_per_s", std::round(rate("received_bytes"))},
                     {"in_flight_bytes", row.value("in_flight_bytes", 0.0)},
                     {"credits", row.value("credits", 0)},
                     {"limited_by", row.value("limited_by", "")}});
  }
  return rates;
}

const std::vector<Column> kTopColumns = {
    {"name", "PEER"},
    {"state", "STATE"},
    {"sockets", "SOCKETS", Shape::kNumber},
    {"sent_messages_per_s", "SENT/S", Shape::kNumber},
    {"sent_bytes_per_s", "BYTES/S", Shape::kBytes},
    {"received_messages_per_s", "RECEIVED/S", Shape::kNumber},
    {"received_bytes_per_s", "BYTES/S", Shape::kBytes},
    {"in_flight_bytes", "IN FLIGHT", Shape::kBytes},
    {"credits", "CREDITS", Shape::kNumber},
    {"limited_by", "LIMITED BY"},
};

}  // namespace

int Report(const Session& session, const Failure& failure) {
  if (session.json) PrintJson({{"error", failure.message}, {"exit_code", failure.code}});
  std::fprintf(stderr, "sluicectl: %s\n", Printable(failure.message).c_str());
  return failure.code;
}

void PrintJson(const Json& json) {
  Print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

int ShowStatus(Session& session) {
  const Answer answer = session.client.Ask("status");
  if (!answer.ok) return Report(session, answer.failure);
  const bool healthy = answer.result.value("healthy", false);
  if (session.json) {
    PrintJson(answer.result);
  } else {
    Print(Sheet(answer.result, kStatusLines));
    Print("\n" + Table(answer.result.value("io_threads", Json::array()),
                       {{"io_thread", "I/O THREAD", Shape::kNumber},
                        {"answering", "ANSWERS", Shape::kYesNo},
                        {"engines", "ENGINES", Shape::kNumber},
                        {"sockets", "SOCKETS", Shape::kNumber},
                        {"loops", "LOOPS", Shape::kNumber},
                        {"sleeps", "SLEEPS", Shape::kNumber}},
                       "no I/O threads"));
    if (answer.result.value("peer_auth", "") == "none") {
      Print("\nPeers are NOT authenticated: peer.auth = \"none\".\n");
    }
  }
  return healthy ? kOk : kFailed;
}

int ShowClients(Session& session) {
  return ShowRows(session, "clients",
                  {{"client", "CLIENT", Shape::kNumber},
                   {"name", "NAME"},
                   {"tenant", "TENANT"},
                   {"uid", "UID", Shape::kNumber},
                   {"process_id", "PROCESS", Shape::kNumber},
                   {"attached_s", "ATTACHED", Shape::kSeconds},
                   {"channels", "CHANNELS", Shape::kNumber},
                   {"sockets", "SOCKETS", Shape::kNumber},
                   {"listeners", "LISTENERS", Shape::kNumber},
                   {"pool_bytes", "POOL", Shape::kBytes},
                   {"operations_in_flight", "IN FLIGHT", Shape::kNumber}},
                  "no client is attached");
}

int ShowEngines(Session& session) {
  return ShowRows(session, "engines",
                  {{"peer", "ENGINE", Shape::kNumber},
                   {"name", "PEER"},
                   {"state", "STATE"},
                   {"transport", "TRANSPORT"},
                   {"sockets", "SOCKETS", Shape::kNumber},
                   {"sent_messages", "SENT", Shape::kNumber},
                   {"sent_bytes", "BYTES", Shape::kBytes},
                   {"received_messages", "RECEIVED", Shape::kNumber},
                   {"received_bytes", "BYTES", Shape::kBytes},
                   {"in_flight_bytes", "IN FLIGHT", Shape::kBytes},
                   {"credits", "CREDITS", Shape::kNumber},
                   {"last_error", "LAST ERROR"}},
                  "no peer daemon is known yet");
}

int ShowSockets(Session& session) {
  return ShowRows(session, "sockets",
                  {{"socket", "SOCKET", Shape::kNumber},
                   {"io_thread", "I/O THREAD", Shape::kNumber},
                   {"peer", "PEER"},
                   {"client_name", "CLIENT"},
                   {"service", "SERVICE", Shape::kNumber},
                   {"state", "STATE"},
                   {"queued_messages", "QUEUED", Shape::kNumber},
                   {"sent_messages", "SENT", Shape::kNumber},
                   {"sent_bytes", "BYTES", Shape::kBytes},
                   {"received_messages", "RECEIVED", Shape::kNumber},
                   {"received_bytes", "BYTES", Shape::kBytes}},
                  "no socket is open");
}

int ShowPools(Session& session) {
  return ShowRows(session, "pools",
                  {{"client", "CLIENT", Shape::kNumber},
                   {"name", "NAME"},
                   {"tenant", "TENANT"},
                   {"pool_bytes", "POOL", Shape::kBytes},
                   {"pool_quota_bytes", "QUOTA", Shape::kBytes},
                   {"send_block_bytes", "SEND BLOCKS", Shape::kBytes},
                   {"receive_block_bytes", "RECEIVE BLOCKS", Shape::kBytes},
                   {"receive_live_bytes", "RECEIVED, HELD", Shape::kBytes}},
                  "no client is attached");
}

int ShowDevices(Session& session) {
  const Answer answer = session.client.Ask("devices");
  if (!answer.ok) return Report(session, answer.failure);
  if (session.json) return PrintJson(answer.result), kOk;
  Print(Sheet(answer.result, {{"state", "state"},
                              {"device", "device"},
                              {"reason", "none because"},
                              {"opened", "times opened"},
                              {"pause_frames_per_s", "pause frames a second"},
                              {"pause_storms", "storms of them"}}));
  const Json notes = answer.result.value("notes", Json::array());
  for (const Json& note : notes)
    Print("  " + Printable(note.is_string() ? note.get<std::string>() : "") + "\n");
  Print("\n" + Table(answer.result.value("io_threads", Json::array()),
                     {{"io_thread", "I/O THREAD", Shape::kNumber},
                      {"completion_queues", "COMPLETION QUEUES", Shape::kNumber},
                      {"completions", "COMPLETIONS", Shape::kNumber},
                      {"completions_reserved", "RESERVED", Shape::kNumber},
                      {"queue_pairs", "QUEUE PAIRS", Shape::kNumber},
                      {"shared_receives", "SHARED RECEIVES", Shape::kNumber},
                      {"shared_receives_lent", "LENT", Shape::kNumber},
                      {"engines", "ENGINES", Shape::kNumber}},
                     "no I/O threads"));
  const Json named = answer.result.value("counters", Json::object());
  Json counters = Json::array();
  for (auto counter = named.begin(); counter != named.end(); ++counter)
    counters.push_back({{"name", counter.key()}, {"value", *counter}});
  if (!counters.empty())
    Print("\n" + Table(counters, {{"name", "COUNTER"}, {"value", "VALUE", Shape::kNumber}}, ""));
  return kOk;
}

int Explain(Session& session, const std::string& engine) {
  const Answer answer = session.client.Ask("explain", {{"engine", engine}});
  if (!answer.ok) return Report(session, answer.failure);
  if (session.json) {
    PrintJson(answer.result);
  } else {
    Print(Sheet(answer.result, {{"engine", "engine"},
                                {"state", "state"},
                                {"transport", "transport"},
                                {"not_rdma_because", "not RDMA because"},
                                {"limit", "limited by"},
                                {"why", "because"},
                                {"advice", "what to do"},
                                {"window_bytes", "send window", Shape::kBytes},
                                {"in_flight_bytes", "in flight", Shape::kBytes},
                                {"credits", "credits"}}));
  }
  return kOk;
}

int ShowVersion(Session& session) {
  const Answer answer = session.client.Ask("version");
  const std::string daemon = answer.ok ? answer.result.value("version", "") : "";
  if (session.json) {
    PrintJson({{"sluicectl", SLUICE_VERSION}, {"sluiced", answer.ok ? Json(daemon) : Json()}});
  } else {
    Print(fmt::format("sluicectl {}\n", SLUICE_VERSION));
    if (answer.ok) Print(fmt::format("sluiced {}\n", Printable(daemon)));
  }
  if (answer.ok) return kOk;
  std::fprintf(stderr, "sluicectl: %s\n", Printable(answer.failure.message).c_str());
  return answer.failure.code;
}

int Top(Session& session, double interval_s, int count) {
  const bool terminal = isatty(STDOUT_FILENO) != 0 && !session.json;
  Answer before = session.client.Ask("engines");
  if (!before.ok) return Report(session, before.failure);
  for (int i = 0; count == 0 || i < count; ++i) {
    usleep(static_cast<useconds_t>(interval_s * 1e6));
    Answer now = session.client.Ask("engines");
    if (!now.ok) return Report(session, now.failure);
    const Json rates = Rates(before.result, now.result, interval_s);
    if (session.json) {
      Print(rates.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");  // One line a look.
    } else {
      Print((terminal ? "\x1b[H\x1b[2J" : "") +
            Table(rates, kTopColumns, "no peer daemon is known yet"));
    }
    std::fflush(stdout);
    before = std::move(now);
  }
  return kOk;
}

}  // namespace sluice::ctl
