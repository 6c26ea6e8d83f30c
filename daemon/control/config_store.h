// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control/config.h"
#include "shm_proto/base/result.h"

namespace sluice::control {

// Who changes the configuration, and by what means.
struct ConfigActor {
  std::string how;  // "set", "reload", "signal".
  uint32_t uid = 0;
  int32_t process_id = 0;
};

struct ConfigDifference {
  std::string key;
  std::string before;  // As TOML; empty: the key did not exist (a tenant came or went).
  std::string after;
};

struct ConfigChange {
  int64_t unix_time_ms = 0;
  ConfigActor actor;
  std::vector<ConfigDifference> differences;
};

struct ReloadReport {
  std::vector<ConfigDifference> applied;
  std::vector<ConfigDifference> needs_restart;  // In the file, not in force.
};

// A key whose value in force is not its default, or not what the file says.
struct ConfigDeviation {
  std::string key;
  std::string in_force;
  std::string in_file;
  std::string standard;  // Its default.
  bool live = false;
};

// The configuration in force, and the only way to change it while the daemon runs.
// Invariant: what is in force has passed CheckConfig() and was accepted by the applier; a change is
// applied as a whole or leaves everything as it was. Keys that need a restart keep their value of
// the start.
// Thread: control.
class ConfigStore {
 public:
  static constexpr size_t kMaxHistory = 256;
  static constexpr size_t kMaxDifferencesInHistory = 64;  // Of one change.

  // Hands a new configuration to the parts of the daemon. Returning an error refuses it; then
  // nothing may have changed.
  using Applier = std::function<Result<>(const Config& before, const Config& after)>;

  // `path`: the file that Reload() reads; empty: there is none.
  ConfigStore(Config at_start, std::string path);

  void SetApplier(Applier applier) { applier_ = std::move(applier); }

  const Config& config() const { return in_force_; }
  const std::string& path() const { return path_; }

  // All of them or none. Each is a key's name and its new value as text.
  Result<std::vector<ConfigDifference>> Set(
      const std::vector<std::pair<std::string, std::string>>& values, const ConfigActor& actor);

  // Puts the file's live keys in force, those changed by Set() included.
  Result<ReloadReport> Reload(const ConfigActor& actor);

  std::vector<ConfigDeviation> Deviations() const;
  const std::deque<ConfigChange>& history() const { return history_; }  // Oldest first.

 private:
  Result<std::vector<ConfigDifference>> Apply(const Config& wanted, const ConfigActor& actor);
  void Record(const std::vector<ConfigDifference>& differences, const ConfigActor& actor);

  Config in_force_;
  Config in_file_;
  std::string path_;
  Applier applier_;
  std::deque<ConfigChange> history_;
};

}  // namespace sluice::control
