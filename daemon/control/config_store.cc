// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/config_store.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "daemon/control/config_keys.h"
#include "daemon/control/log.h"

namespace sluice::control {
namespace {

// Every key's value as TOML.
std::map<std::string, std::string> Texts(const Config& config) {
  std::map<std::string, std::string> texts;
  for (const NamedValue& value : AllConfigValues(config)) {
    texts.emplace(value.name, FormatValue(value.value));
  }
  return texts;
}

std::string Find(const std::map<std::string, std::string>& texts, const std::string& name) {
  const auto found = texts.find(name);
  return found == texts.end() ? std::string() : found->second;
}

std::vector<ConfigDifference> Differences(const Config& before, const Config& after) {
  const auto old_texts = Texts(before), new_texts = Texts(after);
  std::vector<ConfigDifference> differences;
  for (const auto& [name, text] : old_texts) {
    const std::string now = Find(new_texts, name);
    if (text != now) differences.push_back({name, text, now});
  }
  for (const auto& [name, text] : new_texts) {
    if (!old_texts.contains(name)) differences.push_back({name, "", text});
  }
  return differences;
}

// `wanted`, but for the keys that keep their value until a restart.
Config WithRestartKeysOf(const Config& running, const Config& wanted) {
  Config mixed = wanted;
  for (const auto& key : ConfigKeys()) {
    if (!key.live) key.set(mixed, key.get(running));
  }
  return mixed;
}

}  // namespace

ConfigStore::ConfigStore(Config at_start, std::string path)
    : in_force_(std::move(at_start)), in_file_(in_force_), path_(std::move(path)) {}

Result<std::vector<ConfigDifference>> ConfigStore::Set(
    const std::vector<std::pair<std::string, std::string>>& values, const ConfigActor& actor) {
  Config wanted = in_force_;
  for (const auto& [name, text] : values) {
    if (auto set = SetConfigKey(wanted, name, text); !set) return std::unexpected(set.error());
  }
  return Apply(wanted, actor);
}

Result<ReloadReport> ConfigStore::Reload(const ConfigActor& actor) {
  if (path_.empty()) {
    return Fail(ErrorCode::kNotFound,
                "the daemon was started without a configuration file; there is nothing to reload");
  }
  auto loaded = LoadConfig(path_);
  if (!loaded) return std::unexpected(loaded.error());
  auto applied = Apply(WithRestartKeysOf(in_force_, *loaded), actor);
  if (!applied) return std::unexpected(applied.error());
  in_file_ = *std::move(loaded);
  return ReloadReport{*std::move(applied), Differences(in_force_, in_file_)};
}

Result<std::vector<ConfigDifference>> ConfigStore::Apply(const Config& wanted,
                                                         const ConfigActor& actor) {
  if (auto checked = CheckConfig(wanted); !checked) return std::unexpected(checked.error());
  auto differences = Differences(in_force_, wanted);
  if (differences.empty()) return differences;
  if (applier_) {
    if (auto applied = applier_(in_force_, wanted); !applied) {
      return std::unexpected(applied.error());
    }
  }
  in_force_ = wanted;
  Record(differences, actor);
  return differences;
}

void ConfigStore::Record(const std::vector<ConfigDifference>& differences,
                         const ConfigActor& actor) {
  for (const ConfigDifference& difference : differences) {
    LogInfo("configuration changed", {{"key", difference.key},
                                      {"before", difference.before},
                                      {"after", difference.after},
                                      {"how", actor.how},
                                      {"uid", actor.uid},
                                      {"pid", actor.process_id}});
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();  // For people to read.
  ConfigChange change{std::chrono::duration_cast<std::chrono::milliseconds>(now).count(), actor,
                      differences};
  change.differences.resize(std::min(change.differences.size(), kMaxDifferencesInHistory));
  history_.push_back(std::move(change));
  if (history_.size() > kMaxHistory) history_.pop_front();
}

std::vector<ConfigDeviation> ConfigStore::Deviations() const {
  const auto file = Texts(in_file_), standard = Texts(DefaultConfig());
  std::vector<ConfigDeviation> deviations;
  const auto add = [&](const std::string& name, const std::string& in_force, bool live) {
    ConfigDeviation row{name, in_force, Find(file, name), Find(standard, name), live};
    if (row.in_force != row.in_file || row.in_force != row.standard) {
      deviations.push_back(std::move(row));
    }
  };
  const auto in_force = Texts(in_force_);
  for (const NamedValue& value : AllConfigValues(in_force_)) {
    add(value.name, FormatValue(value.value), value.live);
  }
  for (const NamedValue& value : AllConfigValues(in_file_)) {
    if (!in_force.contains(value.name)) add(value.name, "", value.live);
  }
  return deviations;
}

}  // namespace sluice::control
