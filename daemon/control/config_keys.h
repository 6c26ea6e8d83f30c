// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "daemon/control/config.h"

// The table of configuration keys: the one truth behind parsing, validation, get and set, the
// reference and the default file. Adding a key means a field in config.h and a line in
// config_keys.cc.
namespace sluice {

using ConfigValue = std::variant<bool, int64_t, std::string, std::vector<int64_t>,
                                 std::vector<std::string>>;

constexpr size_t kMaxListItems = 1'024;

enum class KeyType { kBoolean, kInteger, kString, kIntegerList, kStringList };

// What is told about a key to people and checked of its values.
struct KeyInfo {
  std::string_view
      name;  // With its section: "engine.send_window_bytes"; a tenant's key stands alone.
  KeyType type;
  bool live;        // May change while the daemon runs.
  int64_t min = 0;  // Integers, a list's integers, a string's length, a list's number of strings.
  int64_t max = 0;
  std::vector<std::string_view> choices;            // Strings: these only. Empty: any.
  Result<> (*check)(const std::string&) = nullptr;  // Strings: a finer rule.
  std::string_view doc;
};

template <typename Target>
struct Key : KeyInfo {
  ConfigValue (*get)(const Target&);
  void (*set)(Target&, const ConfigValue&);
};

std::span<const Key<Config>> ConfigKeys();
std::span<const Key<TenantConfig>> TenantKeys();

// Whether the value is of the key's type and within its range; the error says what is allowed.
Result<> CheckValue(const KeyInfo& key, const ConfigValue& value);
std::string Allowed(const KeyInfo& key);  // "a whole number from 1 to 64"

// As an operator types it: lists are separated by commas, or written as in TOML.
Result<ConfigValue> ParseValue(const KeyInfo& key, std::string_view text);
std::string FormatValue(const ConfigValue& value);  // As TOML.

// Get and set by name. A tenant's key is "tenant.NAME.pool_quota_mib". Only live keys can be set;
// once all wanted ones are, CheckConfig() must follow.
Result<ConfigValue> GetConfigKey(const Config& config, std::string_view name);
Result<> SetConfigKey(Config& config, std::string_view name, std::string_view text);

struct NamedValue {
  std::string name;
  ConfigValue value;
  bool live;
};
// Every key with its value, tenants' keys included, in the table's order.
std::vector<NamedValue> AllConfigValues(const Config& config);

// The nearest known name when `name` looks like a slip of it, else empty.
std::string_view NearestName(std::string_view name, std::span<const std::string_view> known);

// docs/config.md and a commented file with every default.
std::string ConfigReference();
std::string DefaultConfigFile();

}  // namespace sluice
