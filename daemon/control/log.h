// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <source_location>
#include <string>
#include <string_view>
#include <variant>

// Structured events on standard error: LogInfo("peer up", {{"peer", name}, {"epoch", 3}}).
// Each place in the program may log so many events a second; the rest is counted and told with the
// next one. Writing is done by a thread of its own with a bounded queue, so a reader that stalls
// never stalls the daemon (the oldest events are lost then). Never for a message's data path.
// Thread: any.
namespace sluice {

enum class LogLevel : uint8_t { kTrace, kDebug, kInfo, kWarning, kError };

// What a field can hold; converts from what callers have.
class LogValue {
 public:
  LogValue(std::string_view text) : value_(text) {}
  LogValue(const char* text) : value_(std::string_view(text)) {}
  LogValue(const std::string& text) : value_(std::string_view(text)) {}
  LogValue(std::same_as<bool> auto flag) : value_(flag) {}
  LogValue(double number) : value_(number) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) LogValue(T number) {
    if constexpr (std::is_signed_v<T>) {
      value_ = static_cast<int64_t>(number);
    } else {
      value_ = static_cast<uint64_t>(number);
    }
  }

  using Variant = std::variant<bool, int64_t, uint64_t, double, std::string_view>;
  const Variant& get() const { return value_; }

 private:
  Variant value_;  // Borrows text: a field lives as long as the call that logs it.
};

struct LogField {
  std::string_view key;
  LogValue value;
};
using LogFields = std::initializer_list<LogField>;

struct LogSettings {
  LogLevel level = LogLevel::kInfo;
  bool json = false;
  uint32_t rate_per_s = 10;  // Of each place in the program; 0: no limit.
};

// Starts the writing thread. Before, and in programs that never call it, events of level warning
// and above are written by the caller's thread.
void StartLog(const LogSettings& settings);
void SetLog(const LogSettings& settings);  // Live.
void StopLog();                            // Writes what is queued.

// Told of every event from kInfo on, also of those the rate limit suppresses. Called on the logging
// thread; must not log. nullptr: nobody.
using LogObserver = std::function<void(LogLevel level, std::string_view event,
                                       const std::string& text)>;
void SetLogObserver(LogObserver observer);

// For tests: takes the finished lines instead of standard error; nullptr restores it.
void SetLogWriter(std::function<void(LogLevel level, const std::string& line)> writer);

// "info" and the like. An unknown name is kInfo: the configuration has checked it.
LogLevel ParseLogLevel(std::string_view name);
std::string_view LogLevelName(LogLevel level);

namespace log_internal {
extern std::atomic<LogLevel> level;
void Write(LogLevel level, std::string_view event, LogFields fields, std::source_location where);
}  // namespace log_internal

inline void Log(LogLevel level, std::string_view event, LogFields fields,
                std::source_location where = std::source_location::current()) {
  if (level < log_internal::level.load(std::memory_order_relaxed)) return;  // A hint: no order.
  log_internal::Write(level, event, fields, where);
}

inline void LogDebug(std::string_view event, LogFields fields = {},
                     std::source_location where = std::source_location::current()) {
  Log(LogLevel::kDebug, event, fields, where);
}
inline void LogInfo(std::string_view event, LogFields fields = {},
                    std::source_location where = std::source_location::current()) {
  Log(LogLevel::kInfo, event, fields, where);
}
inline void LogWarning(std::string_view event, LogFields fields = {},
                       std::source_location where = std::source_location::current()) {
  Log(LogLevel::kWarning, event, fields, where);
}
inline void LogError(std::string_view event, LogFields fields = {},
                     std::source_location where = std::source_location::current()) {
  Log(LogLevel::kError, event, fields, where);
}

}  // namespace sluice
