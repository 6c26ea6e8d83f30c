// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace sluice {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

// Collects finished lines.
class Log : public testing::Test {
 protected:
  Log() {
    SetLogWriter([this](LogLevel, const std::string& line) { lines_.push_back(line); });
    SetLog({.level = LogLevel::kInfo, .json = false, .rate_per_s = 0});
  }
  ~Log() override {
    SetLogObserver(nullptr);
    SetLogWriter(nullptr);
    SetLog({.level = LogLevel::kWarning});
  }
  std::vector<std::string> lines_;
};

TEST_F(Log, WritesFieldsBehindTheEvent) {
  LogInfo("peer up", {{"peer", "b:4500"}, {"epoch", 3}, {"why", "two words"}, {"ok", true}});
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0], HasSubstr("info"));
  EXPECT_THAT(lines_[0], EndsWith("peer up peer=b:4500 epoch=3 why=\"two words\" ok=true"));
}

TEST_F(Log, KeepsAnotherPartysTextOnOneLine) {
  const std::string evil("x\n<0>fake\x1b[31m\0", 15);
  LogInfo("client attached", {{"name", evil}});
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0].find_first_of(std::string("\n\x1b\0", 3)), std::string::npos);
  SetLog({.json = true, .rate_per_s = 0});
  LogInfo("client attached", {{"name", "\xff\"\n"}});
  EXPECT_EQ(lines_[1].find('\n'), std::string::npos);
  EXPECT_TRUE(nlohmann::json::accept(lines_[1]));
}

TEST_F(Log, ClipsLongText) {
  LogInfo("event", {{"text", std::string(1 << 20, 'x')}});
  EXPECT_LT(lines_[0].size(), 2'000u);
}

TEST_F(Log, WritesJsonWithTypes) {
  SetLog({.json = true, .rate_per_s = 0});
  LogWarning("low", {{"bytes", uint64_t{1} << 63}, {"delta", -1}, {"name", "a"}});
  const auto line = nlohmann::json::parse(lines_[0]);
  EXPECT_EQ(line["level"], "warning");
  EXPECT_EQ(line["event"], "low");
  EXPECT_EQ(line["bytes"], uint64_t{1} << 63);
  EXPECT_EQ(line["delta"], -1);
}

TEST_F(Log, ObeysItsLevelAtOnce) {
  LogDebug("hidden");
  SetLog({.level = LogLevel::kDebug, .rate_per_s = 0});
  LogDebug("seen");
  SetLog({.level = LogLevel::kError, .rate_per_s = 0});
  LogWarning("hidden");
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0], EndsWith("seen"));
}

TEST_F(Log, LimitsEachPlaceByItselfAndTellsWhatItSuppressed) {
  SetLog({.rate_per_s = 3});
  const auto noisy = [] { LogInfo("noisy"); };
  // All within one second, or the count starts anew: so it is checked by the sum, not by a time.
  for (int i = 0; i < 100; ++i) noisy();
  LogInfo("other");
  EXPECT_LT(lines_.size(), 100u);
  EXPECT_THAT(lines_.back(), EndsWith("other"));
  SetLog({.rate_per_s = 0});
  const size_t written = lines_.size() - 1;
  noisy();
  EXPECT_THAT(lines_.back(), HasSubstr("suppressed=" + std::to_string(100 - written)));
}

TEST_F(Log, TellsItsObserverAlsoWhatIsSuppressed) {
  int seen = 0;
  SetLogObserver([&](LogLevel level, std::string_view event, const std::string& text) {
    EXPECT_EQ(level, LogLevel::kError);
    EXPECT_EQ(event, "failed");
    EXPECT_EQ(text, "failed code=7");
    ++seen;
  });
  SetLog({.rate_per_s = 1});
  for (int i = 0; i < 10; ++i) LogError("failed", {{"code", 7}});
  EXPECT_EQ(seen, 10);
}

TEST(LogThread, WritesToStandardErrorAndStopsCleanly) {
  testing::internal::CaptureStderr();
  StartLog({.level = LogLevel::kInfo, .rate_per_s = 0});
  for (int i = 0; i < 100; ++i) LogInfo("line", {{"number", i}});
  StopLog();
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("line number=0\n"));
  EXPECT_THAT(text, HasSubstr("line number=99\n"));
  SetLog({.level = LogLevel::kWarning});
}

TEST(LogLevels, HaveNamesThatReadBack) {
  for (const char* name : {"trace", "debug", "info", "warning", "error"}) {
    EXPECT_EQ(LogLevelName(ParseLogLevel(name)), name);
  }
}

}  // namespace
}  // namespace sluice
