// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/admin_verbs.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "daemon/control/config_keys.h"
#include "daemon/control/log.h"
#include "daemon/control/status_json.h"
#include "daemon/control/version.h"

namespace sluice::control {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr uint64_t kExplainIntervalNs = 200 * kNsPerMs;
constexpr size_t kMaxKeysInSet = 64;

std::optional<std::string> TextArgument(const Json& args, const char* name) {
  const auto found = args.find(name);
  if (found == args.end() || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

Error MissingArgument(const char* name) {
  return {ErrorCode::kInvalid, std::string("the argument \"") + name + "\" (text) is missing"};
}

Json DifferencesJson(const std::vector<ConfigDifference>& differences) {
  Json rows = Json::array();
  for (const ConfigDifference& row : differences) {
    rows.push_back({{"key", row.key}, {"before", row.before}, {"after", row.after}});
  }
  return rows;
}

// A value with its JSON type.
Json ValueJson(const ConfigValue& value) {
  return std::visit([](const auto& held) { return Json(held); }, value);
}

ConfigActor ActorOf(const AdminCaller& caller, const char* how) {
  return {how, caller.uid, caller.process_id};
}

void Collected(AdminServer& server, const AdminContext& context, const char* verb,
               OrderedJson (*make)(const NodeStatus&)) {
  StatusSource* source = &context.status;
  server.Register(verb, [source, make](const Json&, const AdminCaller&, AdminReply reply) {
    source->Collect([reply, make](const NodeStatus& status) { reply.Ok(make(status)); });
  });
}

void Explain(const AdminContext& context, const Json& args, const AdminReply& reply) {
  const auto engine = TextArgument(args, "engine");
  if (!engine) return reply.Fail(MissingArgument("engine"));
  const auto again = [source = &context.status, reply, engine = *engine](const NodeStatus& before) {
    source->Collect([reply, engine, before](const NodeStatus& after) {
      const OrderedJson explained = ExplainJson(before, after, engine);
      if (!explained.is_null()) return reply.Ok(explained);
      reply.Fail({ErrorCode::kNotFound,
                  "there is no engine \"" + engine + "\"; `sluicectl engines` lists them"});
    });
  };
  context.status.Collect([loop = &context.loop, again](const NodeStatus& before) {
    loop->After(kExplainIntervalNs, [again, before] { again(before); });
  });
}

void Get(const ConfigStore& store, const Json& args, const AdminReply& reply) {
  const auto key = TextArgument(args, "key");
  if (!key) return reply.Fail(MissingArgument("key"));
  const auto value = GetConfigKey(store.config(), *key);
  if (!value) return reply.Fail(value.error());
  reply.Ok({{"key", *key}, {"value", ValueJson(*value)}});
}

// args: {"values": {"engine.fragment_bytes": "32768", ...}}; numbers and booleans may be given as
// such.
void Set(ConfigStore& store, const Json& args, const AdminCaller& caller, const AdminReply& reply) {
  const auto values = args.find("values");
  if (values == args.end() || !values->is_object() || values->empty()) {
    return reply.Fail({ErrorCode::kInvalid, "the argument \"values\" must name keys and values"});
  }
  if (values->size() > kMaxKeysInSet) {
    return reply.Fail({ErrorCode::kInvalid, "at most 64 keys can be set at once"});
  }
  std::vector<std::pair<std::string, std::string>> wanted;
  for (const auto& [key, value] : values->items()) {
    wanted.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  const auto applied = store.Set(wanted, ActorOf(caller, "set"));
  if (!applied) return reply.Fail(applied.error());
  reply.Ok({{"changed", DifferencesJson(*applied)}});
}

void Reload(ConfigStore& store, const AdminCaller& caller, const AdminReply& reply) {
  const auto report = store.Reload(ActorOf(caller, "reload"));
  if (!report) return reply.Fail(report.error());
  reply.Ok({{"changed", DifferencesJson(report->applied)},
            {"needs_restart", DifferencesJson(report->needs_restart)}});
}

OrderedJson ShowConfig(const ConfigStore& store) {
  OrderedJson rows = OrderedJson::array();
  for (const NamedValue& row : AllConfigValues(store.config())) {
    rows.push_back({{"key", row.name}, {"value", ValueJson(row.value)}, {"live", row.live}});
  }
  return rows;
}

OrderedJson DiffConfig(const ConfigStore& store) {
  OrderedJson rows = OrderedJson::array();
  for (const ConfigDeviation& row : store.Deviations()) {
    const char* state = row.in_force == row.in_file ? "file" : row.live ? "set" : "needs_restart";
    rows.push_back({{"key", row.key},
                    {"in_force", row.in_force},
                    {"in_file", row.in_file},
                    {"default", row.standard},
                    {"state", state}});
  }
  return rows;
}

OrderedJson ConfigHistory(const ConfigStore& store) {
  OrderedJson rows = OrderedJson::array();
  for (const ConfigChange& change : store.history()) {
    rows.push_back({{"unix_time_ms", change.unix_time_ms},
                    {"how", change.actor.how},
                    {"uid", change.actor.uid},
                    {"process_id", change.actor.process_id},
                    {"changed", DifferencesJson(change.differences)}});
  }
  return rows;
}

void RegisterConfigVerbs(AdminServer& server, ConfigStore& store) {
  server.Register("get", [&store](const Json& args, const AdminCaller&, AdminReply reply) {
    Get(store, args, reply);
  });
  server.Register("set", [&store](const Json& args, const AdminCaller& caller, AdminReply reply) {
    Set(store, args, caller, reply);
  });
  server.Register("reload", [&store](const Json&, const AdminCaller& caller, AdminReply reply) {
    Reload(store, caller, reply);
  });
  const auto shown = [&](const char* verb, OrderedJson (*make)(const ConfigStore&)) {
    server.Register(verb, [&store, make](const Json&, const AdminCaller&, AdminReply reply) {
      reply.Ok(make(store));
    });
  };
  shown("config_show", ShowConfig);
  shown("config_diff", DiffConfig);
  shown("config_history", ConfigHistory);
}

}  // namespace

void RegisterAdminVerbs(AdminServer& server, AdminContext context) {
  Collected(server, context, "status", StatusJson);
  Collected(server, context, "clients", ClientsJson);
  Collected(server, context, "engines", EnginesJson);
  Collected(server, context, "sockets", SocketsJson);
  Collected(server, context, "pools", PoolsJson);
  Collected(server, context, "devices", DevicesJson);
  RegisterConfigVerbs(server, context.config);
  server.Register("explain", [context](const Json& args, const AdminCaller&, AdminReply reply) {
    Explain(context, args, reply);
  });
  server.Register("version", [](const Json&, const AdminCaller&, AdminReply reply) {
    reply.Ok({{"version", kVersion}});
  });
  auto drain = std::make_shared<std::function<void()>>(std::move(context.drain));
  server.Register("drain", [drain](const Json&, const AdminCaller& caller, AdminReply reply) {
    LogInfo("drain requested", {{"uid", caller.uid}, {"pid", caller.process_id}});
    reply.Ok({{"draining", true}});
    if (auto start = std::exchange(*drain, nullptr)) start();
  });
}

}  // namespace sluice::control
