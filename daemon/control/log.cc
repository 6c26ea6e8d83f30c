// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/log.h"

#include <fmt/format.h>
#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <time.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "shm_proto/base/clock.h"

namespace sluice {
namespace {

constexpr size_t kQueueLines = 8'192;
constexpr size_t kMaxTextBytes = 1'024;  // Of one value.

// Events of one place in the program within the running second.
struct Site {
  uint64_t window_start_ns = 0;
  uint32_t in_window = 0;
  uint64_t suppressed = 0;
};

// All that logging shares. Guarded by its mutex: logging is off the data path.
struct State {
  std::mutex mutex;
  LogSettings settings{.level = LogLevel::kWarning};
  bool to_journal = std::getenv("JOURNAL_STREAM") != nullptr;
  std::map<std::pair<const char*, uint32_t>, Site> sites;  // Bounded by the program's text.
  std::shared_ptr<spdlog::logger> logger;
  LogObserver observer;
  std::function<void(LogLevel, const std::string&)> writer;
};

State& GetState() {
  static State* state = new State;  // Never destroyed: threads may log until the very end.
  return *state;
}

// The syslog severity that journald reads from the start of a line.
int Severity(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
    case LogLevel::kDebug: return 7;
    case LogLevel::kInfo: return 6;
    case LogLevel::kWarning: return 4;
    case LogLevel::kError: return 3;
  }
  return 3;
}

std::string WallTime() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);  // For people to read; nothing is decided by it.
  tm utc;
  gmtime_r(&now.tv_sec, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", utc.tm_year + 1900,
                     utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                     now.tv_nsec / 1'000);
}

std::string_view Clipped(std::string_view text) { return text.substr(0, kMaxTextBytes); }

// One line, whatever another party put into the text.
void AppendText(std::string& out, std::string_view text, bool quote_spaces) {
  text = Clipped(text);
  const bool plain = text.find_first_of(" =\"\\") == std::string_view::npos && !text.empty();
  const bool quote = quote_spaces && !plain;
  if (quote) out += '"';
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      if (quote && (c == '"' || c == '\\')) out += '\\';
      out += c;
    }
  }
  if (quote) out += '"';
}

std::string FieldsAsText(std::string_view event, LogFields fields, uint64_t suppressed) {
  std::string out;
  AppendText(out, event, false);
  for (const LogField& field : fields) {
    out += ' ';
    AppendText(out, field.key, false);
    out += '=';
    std::visit(
        [&](const auto& value) {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string_view>) {
            AppendText(out, value, true);
          } else {
            out += fmt::format("{}", value);
          }
        },
        field.value.get());
  }
  if (suppressed != 0) out += fmt::format(" suppressed={}", suppressed);
  return out;
}

std::string AsJson(LogLevel level, std::string_view event, LogFields fields, uint64_t suppressed) {
  nlohmann::ordered_json line;
  line["time"] = WallTime();
  line["level"] = LogLevelName(level);
  line["event"] = Clipped(event);
  for (const LogField& field : fields) {
    std::visit(
        [&](const auto& value) {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string_view>) {
            line[std::string(field.key)] = Clipped(value);
          } else {
            line[std::string(field.key)] = value;
          }
        },
        field.value.get());
  }
  if (suppressed != 0) line["suppressed"] = suppressed;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Whether this event may be written; counts it either way.
bool Admit(Site& site, uint32_t rate_per_s, uint64_t now_ns) {
  if (rate_per_s == 0) return true;
  if (site.window_start_ns == 0 || now_ns - site.window_start_ns >= kNsPerSecond) {
    site.window_start_ns = now_ns;
    site.in_window = 0;
  }
  if (site.in_window < rate_per_s) {
    ++site.in_window;
    return true;
  }
  ++site.suppressed;
  return false;
}

void WriteLine(State& state, LogLevel level, const std::string& line) {
  if (state.writer) {
    state.writer(level, line);
  } else if (state.logger) {
    state.logger->log(spdlog::level::info, line);
  } else {
    fmt::print(stderr, "{}\n", line);
  }
}

}  // namespace

namespace log_internal {

std::atomic<LogLevel> level{LogLevel::kWarning};

void Write(LogLevel level, std::string_view event, LogFields fields, std::source_location where) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  if (state.observer && level >= LogLevel::kInfo) {
    state.observer(level, event, FieldsAsText(event, fields, 0));
  }
  Site& site = state.sites[{where.file_name(), where.line()}];
  if (!Admit(site, state.settings.rate_per_s, MonotonicClock().NowNs())) return;
  const uint64_t suppressed = std::exchange(site.suppressed, 0);
  if (state.settings.json) {
    WriteLine(state, level, AsJson(level, event, fields, suppressed));
  } else if (state.to_journal) {
    WriteLine(state, level,
              fmt::format("<{}>{}", Severity(level), FieldsAsText(event, fields, suppressed)));
  } else {
    WriteLine(state, level,
              fmt::format("{} {:7} {}", WallTime(), LogLevelName(level),
                          FieldsAsText(event, fields, suppressed)));
  }
}

}  // namespace log_internal

void StartLog(const LogSettings& settings) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  if (!state.logger) {
    spdlog::init_thread_pool(kQueueLines, 1);
    state.logger = std::make_shared<spdlog::async_logger>(
        "sluiced", std::make_shared<spdlog::sinks::stderr_sink_mt>(), spdlog::thread_pool(),
        spdlog::async_overflow_policy::overrun_oldest);
    state.logger->set_pattern("%v");
    state.logger->set_level(spdlog::level::trace);
    state.logger->flush_on(spdlog::level::trace);
  }
  state.settings = settings;
  log_internal::level.store(settings.level, std::memory_order_relaxed);
}

void SetLog(const LogSettings& settings) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  state.settings = settings;
  log_internal::level.store(settings.level, std::memory_order_relaxed);
}

void StopLog() {
  State& state = GetState();
  std::shared_ptr<spdlog::logger> logger;
  {
    std::lock_guard lock(state.mutex);
    logger = std::move(state.logger);
    state.logger = nullptr;
  }
  if (logger) spdlog::shutdown();  // Joins the writing thread after it has emptied its queue.
}

void SetLogObserver(LogObserver observer) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  state.observer = std::move(observer);
}

void SetLogWriter(std::function<void(LogLevel, const std::string&)> writer) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  state.writer = std::move(writer);
  state.sites.clear();
}

LogLevel ParseLogLevel(std::string_view name) {
  for (const LogLevel level : {LogLevel::kTrace, LogLevel::kDebug, LogLevel::kInfo,
                               LogLevel::kWarning, LogLevel::kError}) {
    if (LogLevelName(level) == name) return level;
  }
  return LogLevel::kInfo;
}

std::string_view LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace: return "trace";
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
  }
  return "info";
}

}  // namespace sluice
