// SPDX-License-Identifier: Apache-2.0
// What people read about the configuration, made from the table of keys.

#include <fmt/format.h>

#include "daemon/control/config_keys.h"

namespace sluice {
namespace {

std::string_view SectionOf(std::string_view name) { return name.substr(0, name.find('.')); }

std::string_view SectionDoc(std::string_view section) {
  if (section == "daemon") return "The daemon itself and its threads.";
  if (section == "peer") return "Connections to peer daemons and how peers prove themselves.";
  if (section == "engine") return "How messages move between two daemons.";
  if (section == "rdma")
    return "RDMA beside TCP: which device, how its packets are sent, and when to leave it.";
  if (section == "pool") return "Memory that clients share with the daemon.";
  if (section == "clients") return "Applications on this host.";
  if (section == "http") return "Metrics, health and the status page.";
  return "What the daemon writes to standard error.";
}

constexpr std::string_view kTenantDoc =
    "Who may attach, and how much each may hold. Write one `[[tenant]]` table for each tenant; a "
    "client belongs to the "
    "first one that names its user or one of its groups, and is refused when none does. Without "
    "any, root and the "
    "daemon's own user may attach, with the defaults below.";

std::string Row(const KeyInfo& key, std::string_view name, const ConfigValue& value) {
  std::string allowed = Allowed(key);
  return fmt::format("| `{}` | `{}` | {} | {} | {} |\n", name, FormatValue(value), allowed,
                     key.live ? "live" : "restart", key.doc);
}

constexpr std::string_view
    kTableHead = "| key | default | allowed | change | meaning |\n|---|---|---|---|---|\n";

// Wraps `text` at words into comment lines.
std::string Commented(std::string_view text) {
  constexpr size_t kWidth = 98;
  std::string out, line = "#";
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    if (line.size() + 1 + word.size() > kWidth) {
      out += line + "\n";
      line = "#";
    }
    line += ' ';
    line += word;
    text = space == std::string_view::npos ? std::string_view() : text.substr(space + 1);
  }
  return out + line + "\n";
}

std::string CommentedKey(const KeyInfo& key, std::string_view name, const ConfigValue& value) {
  return Commented(
             fmt::format("{} Allowed: {}.{}", key.doc, Allowed(key), key.live ? " Live." : "")) +
         fmt::format("#{} = {}\n", name, FormatValue(value));
}

}  // namespace

std::string ConfigReference() {
  std::string out =
      "# Configuration of sluiced\n\n"
      "<!-- Made by `sluiced --print-config-reference`; do not edit. -->\n\n"
      "`sluiced` reads `/etc/sluice/sluiced.toml` (another file with `--config FILE`). Every key "
      "has a default; "
      "without the default file all defaults hold. An unknown key or a bad value is an error that "
      "names the file, the "
      "line, the key and what is allowed.\n\n"
      "Keys marked *live* change while the daemon runs, without dropping a connection: by "
      "`sluicectl set KEY VALUE` "
      "(until the next restart or reload), or by editing the file and `sluicectl reload` or "
      "SIGHUP. A change is applied "
      "as a whole or refused as a whole. Keys marked *restart* take effect at the next start; "
      "`sluicectl config diff` "
      "shows what waits for it.\n";
  std::string_view section;
  for (const auto& key : ConfigKeys()) {
    if (SectionOf(key.name) != section) {
      section = SectionOf(key.name);
      out += fmt::format("\n## [{}]\n\n{}\n\n{}", section, SectionDoc(section), kTableHead);
    }
    out += Row(key, key.name.substr(section.size() + 1), key.get(Config{}));
  }
  out += fmt::format(
      "\n## [[tenant]]\n\n{}\n\n`sluicectl get` and `set` name a tenant's key as "
      "`tenant.NAME.KEY`.\n\n{}",
      kTenantDoc, kTableHead);
  for (const auto& key : TenantKeys()) out += Row(key, key.name, key.get(TenantConfig{}));
  return out;
}

std::string DefaultConfigFile() {
  std::string out =
      "# SPDX-License-Identifier: Apache-2.0\n"
      "# Configuration of sluiced: every key with its default. Remove the '#' before a key to "
      "change it.\n"
      "# \"Live\" keys change by `sluicectl reload`, the others by a restart.\n";
  std::string_view section;
  for (const auto& key : ConfigKeys()) {
    if (SectionOf(key.name) != section) {
      section = SectionOf(key.name);
      out += fmt::format("\n[{}]\n", section);
    } else {
      out += "\n";
    }
    out += CommentedKey(key, key.name.substr(section.size() + 1), key.get(Config{}));
  }
  out += "\n" + Commented(kTenantDoc) + "#[[tenant]]\n";
  const TenantConfig example{.name = "default", .uids = {0}};
  for (const auto& key : TenantKeys()) out += "\n" + CommentedKey(key, key.name, key.get(example));
  return out;
}

}  // namespace sluice
