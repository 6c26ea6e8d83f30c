// SPDX-License-Identifier: Apache-2.0
// Single values of the configuration: checking, parsing, printing, looking up by name.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>

#include "daemon/control/config_keys.h"

namespace sluice {
namespace {

constexpr std::string_view kTenantPrefix = "tenant.";

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string Join(const auto& items, auto&& print) {
  std::string out;
  for (const auto& item : items) {
    if (!out.empty()) out += ", ";
    out += print(item);
  }
  return out;
}

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string_view Unquote(std::string_view text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    return text.substr(1, text.size() - 2);
  }
  return text;
}

std::optional<int64_t> ParseInteger(std::string_view text) {
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return number;
}

std::vector<std::string_view> SplitList(std::string_view text) {
  text = Trim(text);
  if (text.starts_with('[') && text.ends_with(']')) text = Trim(text.substr(1, text.size() - 2));
  std::vector<std::string_view> items;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    items.push_back(Unquote(Trim(text.substr(0, comma))));
    if (comma == std::string_view::npos) break;
    text = Trim(text.substr(comma + 1));
  }
  return items;
}

std::unexpected<Error> Refuse(const KeyInfo& key, const std::string& what) {
  return Fail(ErrorCode::kInvalid,
              fmt::format("{}: {}; allowed is {}", key.name, what, Allowed(key)));
}

Result<> CheckInteger(const KeyInfo& key, int64_t number) {
  if (number >= key.min && number <= key.max) return {};
  return Refuse(key, fmt::format("{} is out of range", number));
}

Result<> CheckString(const KeyInfo& key, const std::string& text) {
  if (!key.choices.empty()) {
    if (std::ranges::find(key.choices, text) != key.choices.end()) return {};
    return Refuse(key, Quoted(text) + " is not known");
  }
  // The bounds are of the string's own length, or, for a list, of the number of its strings.
  if (key.type == KeyType::kString &&
      (text.size() < static_cast<size_t>(key.min) || text.size() > static_cast<size_t>(key.max))) {
    return Refuse(key, fmt::format("a text of {} bytes does not fit", text.size()));
  }
  if (key.check != nullptr) {
    if (auto checked = key.check(text); !checked) {
      return Fail(ErrorCode::kInvalid, fmt::format("{}: {} is not allowed: {}", key.name,
                                                   Quoted(text), checked.error().message));
    }
  }
  return {};
}

// A tenant's key by its dotted name; both pointers are set or the error says what is wrong.
struct TenantKeyRef {
  size_t tenant;
  const Key<TenantConfig>* key;
};

Result<TenantKeyRef> FindTenantKey(const Config& config, std::string_view name) {
  const std::string_view rest = name.substr(kTenantPrefix.size());
  const size_t dot = rest.find('.');
  const std::string_view tenant_name = rest.substr(0, dot);
  const auto tenant = std::ranges::find(config.tenants, tenant_name, &TenantConfig::name);
  if (tenant == config.tenants.end()) {
    return Fail(ErrorCode::kNotFound,
                fmt::format("{}: there is no tenant \"{}\"", name, tenant_name));
  }
  const std::string_view key_name = dot == std::string_view::npos ? "" : rest.substr(dot + 1);
  for (const auto& key : TenantKeys()) {
    if (key.name == key_name) {
      return TenantKeyRef{static_cast<size_t>(tenant - config.tenants.begin()), &key};
    }
  }
  return Fail(
      ErrorCode::kNotFound,
      fmt::format("{}: a tenant has no key \"{}\"; it has {}", name, key_name,
                  Join(TenantKeys(), [](const auto& key) { return std::string(key.name); })));
}

Result<const Key<Config>*> FindConfigKey(std::string_view name) {
  std::vector<std::string_view> known;
  for (const auto& key : ConfigKeys()) {
    if (key.name == name) return &key;
    known.push_back(key.name);
  }
  const std::string_view nearest = NearestName(name, known);
  return Fail(ErrorCode::kNotFound,
              fmt::format("there is no key \"{}\"{}", name,
                          nearest.empty() ? "; `sluicectl config show` lists them"
                                          : fmt::format("; did you mean \"{}\"?", nearest)));
}

}  // namespace

std::string Allowed(const KeyInfo& key) {
  switch (key.type) {
    case KeyType::kBoolean: return "true or false";
    case KeyType::kInteger: return fmt::format("a whole number from {} to {}", key.min, key.max);
    case KeyType::kIntegerList:
      return fmt::format("a list of up to {} whole numbers from {} to {}", kMaxListItems, key.min,
                         key.max);
    case KeyType::kStringList: return fmt::format("a list of {} to {} texts", key.min, key.max);
    case KeyType::kString: break;
  }
  if (!key.choices.empty()) return "one of " + Join(key.choices, Quoted);
  return fmt::format("a text of {} to {} bytes", key.min, key.max);
}

Result<> CheckValue(const KeyInfo& key, const ConfigValue& value) {
  switch (key.type) {
    case KeyType::kBoolean:
      if (std::holds_alternative<bool>(value)) return {};
      break;
    case KeyType::kInteger:
      if (const auto* number = std::get_if<int64_t>(&value)) return CheckInteger(key, *number);
      break;
    case KeyType::kString:
      if (const auto* text = std::get_if<std::string>(&value)) return CheckString(key, *text);
      break;
    case KeyType::kIntegerList:
      if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
        if (list->size() > kMaxListItems)
          return Refuse(key, fmt::format("{} items are too many", list->size()));
        for (const int64_t item : *list) {
          if (auto checked = CheckInteger(key, item); !checked) return checked;
        }
        return {};
      }
      break;
    case KeyType::kStringList:
      if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
        if (list->size() < static_cast<size_t>(key.min) ||
            list->size() > static_cast<size_t>(key.max)) {
          return Refuse(key, fmt::format("{} items do not fit", list->size()));
        }
        for (const std::string& item : *list) {
          if (auto checked = CheckString(key, item); !checked) return checked;
        }
        return {};
      }
      break;
  }
  return Refuse(key, "the value has the wrong type");
}

Result<ConfigValue> ParseValue(const KeyInfo& key, std::string_view text) {
  ConfigValue value;
  switch (key.type) {
    case KeyType::kBoolean:
      if (text != "true" && text != "false") return Refuse(key, Quoted(text) + " is neither");
      value = text == "true";
      break;
    case KeyType::kInteger: {
      const auto number = ParseInteger(Trim(text));
      if (!number) return Refuse(key, Quoted(text) + " is not a whole number");
      value = *number;
      break;
    }
    case KeyType::kString: value = std::string(Unquote(text)); break;
    case KeyType::kIntegerList: {
      std::vector<int64_t> list;
      for (const std::string_view item : SplitList(text)) {
        const auto number = ParseInteger(item);
        if (!number) return Refuse(key, Quoted(item) + " is not a whole number");
        list.push_back(*number);
      }
      value = std::move(list);
      break;
    }
    case KeyType::kStringList: {
      const auto items = SplitList(text);
      value = std::vector<std::string>(items.begin(), items.end());
      break;
    }
  }
  if (auto checked = CheckValue(key, value); !checked) return std::unexpected(checked.error());
  return value;
}

std::string FormatValue(const ConfigValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  if (const auto* text = std::get_if<std::string>(&value)) return Quoted(*text);
  if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
    return "[" + Join(*list, [](int64_t item) { return std::to_string(item); }) + "]";
  }
  return "[" + Join(std::get<std::vector<std::string>>(value), Quoted) + "]";
}

Result<ConfigValue> GetConfigKey(const Config& config, std::string_view name) {
  if (name.starts_with(kTenantPrefix)) {
    const auto found = FindTenantKey(config, name);
    if (!found) return std::unexpected(found.error());
    return found->key->get(config.tenants[found->tenant]);
  }
  const auto key = FindConfigKey(name);
  if (!key) return std::unexpected(key.error());
  return (*key)->get(config);
}

Result<> SetConfigKey(Config& config, std::string_view name, std::string_view text) {
  const auto refuse_restart = [&](const KeyInfo& key) {
    return Fail(
        ErrorCode::kRefused,
        fmt::format(
            "{} cannot change while the daemon runs; edit the configuration file and restart",
            key.name));
  };
  if (name.starts_with(kTenantPrefix)) {
    auto found = FindTenantKey(config, name);
    if (!found) return std::unexpected(found.error());
    if (!found->key->live) return refuse_restart(*found->key);
    auto value = ParseValue(*found->key, text);
    if (!value) return std::unexpected(value.error());
    found->key->set(config.tenants[found->tenant], *value);
    return {};
  }
  auto key = FindConfigKey(name);
  if (!key) return std::unexpected(key.error());
  if (!(*key)->live) return refuse_restart(**key);
  auto value = ParseValue(**key, text);
  if (!value) return std::unexpected(value.error());
  (*key)->set(config, *value);
  return {};
}

std::vector<NamedValue> AllConfigValues(const Config& config) {
  std::vector<NamedValue> all;
  for (const auto& key : ConfigKeys())
    all.push_back({std::string(key.name), key.get(config), key.live});
  for (const TenantConfig& tenant : config.tenants) {
    for (const auto& key : TenantKeys()) {
      if (key.name == "name") continue;
      all.push_back({fmt::format("{}{}.{}", kTenantPrefix, tenant.name, key.name), key.get(tenant),
                     key.live});
    }
  }
  return all;
}

std::string_view NearestName(std::string_view name, std::span<const std::string_view> known) {
  constexpr size_t kMaxLength = 128;  // A longer name is no slip of the pen.
  if (name.size() > kMaxLength) return {};
  std::string_view nearest;
  size_t nearest_distance = 2 + name.size() / 8;
  for (const std::string_view candidate : known) {
    // Edit distance, row by row.
    std::vector<size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= name.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const size_t replaced = diagonal + (name[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
      }
    }
    if (row.back() <= nearest_distance) {
      nearest = candidate;
      nearest_distance = row.back() == 0 ? 0 : row.back() - 1;
    }
  }
  return nearest;
}

}  // namespace sluice
