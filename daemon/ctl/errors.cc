// SPDX-License-Identifier: Apache-2.0
// What the daemon left in its counters file: readable when it hangs or is dead.
#include <fmt/format.h>
#include <time.h>

#include <cstdio>

#include "daemon/ctl/commands.h"
#include "daemon/ctl/table.h"
#include "shm_proto/base/clock.h"
#include "shm_proto/counters_file.h"

namespace sluice::ctl {
namespace {

constexpr uint64_t kStaleNs = 5 * kNsPerSecond;     // Five missed beats.
constexpr uint64_t kIoStaleNs = 15 * kNsPerSecond;  // Three missed looks.

const char* Level(uint32_t level) {
  constexpr const char* kNames[] = {"trace", "debug", "info", "warning", "error"};
  return level < std::size(kNames) ? kNames[level] : "?";
}

std::string LocalTime(int64_t unix_ms) {
  const time_t seconds = unix_ms / 1'000;
  tm local{};
  if (localtime_r(&seconds, &local) == nullptr) return "?";
  char text[32] = "?";
  strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

struct Liveness {
  bool alive;
  std::string state;
};

Liveness LivenessOf(const CountersImage& image) {
  if (image.stopped) return {true, "ended cleanly"};
  if (!image.same_boot) return {false, "died: the host has started anew since"};
  const double age_s = static_cast<double>(image.heartbeat_age_ns) / kNsPerSecond;
  if (image.heartbeat_age_ns > kStaleNs) {
    return {false, "dead or hanging: its last heartbeat was " + Duration(age_s) + " ago"};
  }
  if (image.io_heartbeat_age_ns > kIoStaleNs) {
    return {false, "an I/O thread hangs: not all have answered for " +
                       Duration(static_cast<double>(image.io_heartbeat_age_ns) / kNsPerSecond)};
  }
  return {true, "alive: its last heartbeat was " + Duration(age_s) + " ago"};
}

Json ErrorsJson(const CountersImage& image) {
  Json rows = Json::array();
  for (const auto& error : image.errors) {
    rows.push_back({{"level", Level(error.level)},
                    {"count", error.count},
                    {"first_unix_ms", error.first_unix_ms},
                    {"last_unix_ms", error.last_unix_ms},
                    {"first", LocalTime(error.first_unix_ms)},
                    {"last", LocalTime(error.last_unix_ms)},
                    {"text", error.text}});
  }
  return rows;
}

Json EventsJson(const CountersImage& image) {
  Json rows = Json::array();
  for (const auto& event : image.events) {
    rows.push_back({{"level", Level(event.level)},
                    {"unix_ms", event.unix_ms},
                    {"time", LocalTime(event.unix_ms)},
                    {"text", event.text}});
  }
  return rows;
}

Json CountersJson(const CountersImage& image) {
  Json counters = Json::object();
  for (const auto& counter : image.counters) counters[counter.name] = counter.value;
  return counters;
}

std::string CountersTable(const CountersImage& image) {
  Json rows = Json::array();
  for (const auto& counter : image.counters) {
    rows.push_back({{"name", counter.name}, {"value", counter.value}});
  }
  return Table(rows, {{"name", "COUNTER"}, {"value", "VALUE", Shape::kNumber}}, "no counters");
}

std::string CountersPath(const Session& session) {
  const std::string& socket = session.client.path();
  return socket.substr(0, socket.rfind('/') + 1) + "counters";
}

}  // namespace

int ShowErrors(Session& session, const std::string& file, bool everything) {
  const std::string path = file.empty() ? CountersPath(session) : file;
  const auto image = ReadCounters(path, MonotonicClock().NowNs());
  if (!image) {
    const ExitCode code = image.error().code == ErrorCode::kPermission ? kRefused : kUnreachable;
    return Report(session, {code, image.error().message});
  }
  const Liveness liveness = LivenessOf(*image);
  if (session.json) {
    PrintJson({{"daemon", liveness.state},
               {"alive", liveness.alive && !image->stopped},
               {"process_id", image->process_id},
               {"instance", fmt::format("{:016x}", image->instance)},
               {"started_unix_ms", image->started_unix_ms},
               {"errors", ErrorsJson(*image)},
               {"errors_dropped", image->errors_dropped},
               {"events", EventsJson(*image)},
               {"counters", CountersJson(*image)}});
    return liveness.alive ? kOk : kFailed;
  }
  fmt::print("sluiced, process {}, started {}: {}\n\n", image->process_id,
             LocalTime(image->started_unix_ms), liveness.state);
  fmt::print("{}", Table(ErrorsJson(*image),
                         {{"level", "LEVEL"},
                          {"count", "COUNT", Shape::kNumber},
                          {"first", "FIRST"},
                          {"last", "LAST"},
                          {"text", "LATEST TEXT"}},
                         "no warnings and no errors"));
  if (image->errors_dropped != 0) fmt::print("and {} of further kinds\n", image->errors_dropped);
  if (everything) {
    fmt::print("\n{}\n{}", CountersTable(*image),
               Table(EventsJson(*image), {{"time", "TIME"}, {"level", "LEVEL"}, {"text", "EVENT"}},
                     "no events"));
  }
  return liveness.alive ? kOk : kFailed;
}

}  // namespace sluice::ctl
