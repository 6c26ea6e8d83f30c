// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/status_page.h"

#include <fmt/format.h>

#include "daemon/control/status_json.h"
#include "shm_proto/base/clock.h"

namespace sluice::control {
namespace {

constexpr size_t kMaxRows = 200;

constexpr std::string_view kHead =
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width\"><meta http-equiv=\"refresh\" "
    "content=\"5\">"
    "<title>sluiced</title><style>"
    ":root{color-scheme:light dark}body{font:15px/1.5 "
    "system-ui,sans-serif;margin:2rem;max-width:70rem}"
    "table{border-collapse:collapse;margin:0 0 2rem}th,td{padding:.2rem .8rem;text-align:left;"
    "border-bottom:1px solid #8884;font-variant-numeric:tabular-nums}td.n,th.n{text-align:right}"
    ".good{color:#0a7d33}.bad{color:#c62828}@media(prefers-color-scheme:dark){.good{color:#5fd38d}"
    ".bad{color:#ff8a80}}</style></head><body>";

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string Bytes(uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string Text(std::string_view text) { return "<td>" + Escaped(text) + "</td>"; }
std::string Number(const auto& value) { return fmt::format("<td class=\"n\">{}</td>", value); }

std::string Cut(size_t rows) {
  return rows <= kMaxRows
             ? ""
             : fmt::format("<p>{} more; sluicectl lists them all.</p>", rows - kMaxRows);
}

std::string Daemon(const NodeStatus& status) {
  const Health health = HealthOf(status);
  const DaemonStatus& daemon = status.daemon;
  return fmt::format(
      "<h1>sluiced on {}</h1><p class=\"{}\"><strong>{}</strong></p>"
      "<p>Version {}, instance {:016x}, up for {} s. Peers are {}.</p>",
      Escaped(daemon.name), health.ok ? "good" : "bad", Escaped(health.reason),
      Escaped(daemon.version), daemon.instance, daemon.uptime_ns / kNsPerSecond,
      daemon.peer_auth == "none" ? "<span class=\"bad\">not authenticated</span>"
                                 : "authenticated by the cluster key");
}

std::string Engines(const NodeStatus& status) {
  std::string out =
      "<h2>Peers</h2><table><tr><th>peer</th><th>state</th><th>transport</th>"
      "<th class=\"n\">sockets</th><th class=\"n\">sent</th><th class=\"n\">received</th>"
      "<th class=\"n\">in flight</th><th class=\"n\">window</th><th class=\"n\">credits</th></tr>";
  size_t rows = 0;
  for (const ThreadStatus& thread : status.threads) {
    for (const io::EngineSnapshot& engine : thread.snapshot.engines) {
      if (++rows > kMaxRows) continue;
      out += "<tr>" + Text(engine.name) + Text(engine.state) + Text(engine.transport) +
             Number(engine.sockets) + Number(Bytes(engine.sent_bytes)) +
             Number(Bytes(engine.received_bytes)) + Number(Bytes(engine.in_flight_bytes)) +
             Number(Bytes(engine.window_bytes)) + Number(engine.credits) + "</tr>";
    }
  }
  return out + "</table>" + Cut(rows);
}

std::string Clients(const NodeStatus& status) {
  std::string out =
      "<h2>Clients</h2><table><tr><th class=\"n\">client</th><th>name</th><th>tenant</th>"
      "<th class=\"n\">process</th><th class=\"n\">channels</th><th class=\"n\">sockets</th>"
      "<th class=\"n\">pool</th><th class=\"n\">quota</th></tr>";
  size_t rows = 0;
  for (const ClientStatus& client : status.clients) {
    if (++rows > kMaxRows) continue;
    out += "<tr>" + Number(client.client) + Text(client.name) + Text(client.tenant) +
           Number(client.process_id) + Number(client.channels) + Number(client.sockets) +
           Number(Bytes(client.pool_bytes)) + Number(Bytes(client.pool_quota_bytes)) + "</tr>";
  }
  return out + "</table>" + Cut(rows);
}

}  // namespace

std::string StatusPage(const NodeStatus& status) {
  return std::string(kHead) + Daemon(status) + Engines(status) + Clients(status) +
         "<p><a href=\"/metrics\">/metrics</a> <a href=\"/healthz\">/healthz</a> "
         "<a href=\"/readyz\">/readyz</a></p></body></html>\n";
}

}  // namespace sluice::control
