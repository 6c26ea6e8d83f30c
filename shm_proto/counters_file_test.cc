// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/counters_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

namespace sluice {
namespace {

using testing::HasSubstr;

class CountersFile : public testing::Test {
 protected:
  CountersFile() {
    char directory[] = "/tmp/sluice-counters-XXXXXX";
    directory_ = mkdtemp(directory);
    path_ = directory_ + "/counters";
  }
  ~CountersFile() override { std::filesystem::remove_all(directory_); }
  CountersWriter Create() {
    auto writer = CountersWriter::Create(path_, 0640, 7);
    EXPECT_TRUE(writer) << writer.error().message;
    return *std::move(writer);
  }
  CountersImage Read(uint64_t now_ns = 0) {
    const auto image = ReadCounters(path_, now_ns);
    EXPECT_TRUE(image) << image.error().message;
    return image.value_or(CountersImage{});
  }
  std::string directory_, path_;
};

TEST_F(CountersFile, GivesBackWhatWasWritten) {
  CountersWriter writer = Create();
  writer.Beat(100);
  writer.BeatIo(90);
  writer.SetCounter("messages", 5);
  writer.SetCounter("bytes", 6);
  writer.SetCounter("messages", 7);
  writer.AddEvent(2, "ready", 1'000);
  const CountersImage image = Read(150);
  EXPECT_EQ(image.instance, 7u);
  EXPECT_EQ(image.process_id, getpid());
  EXPECT_TRUE(image.same_boot);
  EXPECT_FALSE(image.stopped);
  EXPECT_EQ(image.heartbeat_age_ns, 50u);
  EXPECT_EQ(image.io_heartbeat_age_ns, 60u);
  ASSERT_EQ(image.counters.size(), 2u);
  EXPECT_EQ(image.counters[0].name, "messages");
  EXPECT_EQ(image.counters[0].value, 7u);
  ASSERT_EQ(image.events.size(), 1u);
  EXPECT_EQ(image.events[0].text, "ready");
  struct stat status;
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST_F(CountersFile, CountsTheSameErrorOnce) {
  CountersWriter writer = Create();
  writer.AddError(4, "dial", "dial peer=a", 10);
  writer.AddError(3, "other", "other", 15);
  writer.AddError(4, "dial", "dial peer=b", 20);
  const CountersImage image = Read();
  ASSERT_EQ(image.errors.size(), 2u);
  EXPECT_EQ(image.errors[0].count, 2u);
  EXPECT_EQ(image.errors[0].first_unix_ms, 10);
  EXPECT_EQ(image.errors[0].last_unix_ms, 20);
  EXPECT_EQ(image.errors[0].text, "dial peer=b");
}

TEST_F(CountersFile, StaysWithinItsBounds) {
  CountersWriter writer = Create();
  for (size_t i = 0; i < 1'000; ++i) {
    const std::string name = std::to_string(i) + std::string(1'000, 'x');
    writer.SetCounter(name, i);
    writer.AddError(4, name, name, 0);
    writer.AddEvent(2, name, static_cast<int64_t>(i));
  }
  const CountersImage image = Read();
  EXPECT_EQ(image.counters.size(), kMaxCounters);
  EXPECT_EQ(image.errors.size(), kMaxDistinctErrors);
  EXPECT_EQ(image.errors_dropped, 1'000 - kMaxDistinctErrors);
  ASSERT_EQ(image.events.size(), kMaxEvents);
  EXPECT_EQ(image.events.front().unix_ms, 1'000 - static_cast<int64_t>(kMaxEvents));
  EXPECT_EQ(image.events.back().unix_ms, 999);
  EXPECT_EQ(image.events.back().text.size(), sizeof(EventEntry::text) - 1);
}

TEST_F(CountersFile, CanBeReadAfterItsWriterWasKilled) {
  const pid_t child = fork();
  if (child == 0) {
    auto writer = CountersWriter::Create(path_, 0600, 9);
    writer->AddError(4, "last words", "last words", 1);
    kill(getpid(), SIGKILL);
  }
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const CountersImage image = Read();
  EXPECT_EQ(image.process_id, child);
  EXPECT_FALSE(image.stopped);
  ASSERT_EQ(image.errors.size(), 1u);
  EXPECT_EQ(image.errors[0].text, "last words");
}

TEST_F(CountersFile, KeepsThatOfTheRunBefore) {
  Create().SetCounter("old", 1);
  Create().SetCounter("new", 1);
  EXPECT_EQ(Read().counters.at(0).name, "new");
  const auto previous = ReadCounters(path_ + ".previous", 0);
  ASSERT_TRUE(previous);
  EXPECT_EQ(previous->counters.at(0).name, "old");
}

TEST_F(CountersFile, RefusesWhatItIsNot) {
  EXPECT_EQ(ReadCounters(path_, 0).error().code, ErrorCode::kNotFound);
  std::ofstream(path_) << "rubbish";
  EXPECT_EQ(ReadCounters(path_, 0).error().code, ErrorCode::kVersion);
  std::ofstream(path_) << std::string(sizeof(CountersLayout), '\xff');
  EXPECT_EQ(ReadCounters(path_, 0).error().code, ErrorCode::kVersion);
  EXPECT_FALSE(ReadCounters("/dev/zero", 0));
}

TEST_F(CountersFile, SurvivesAnyContents) {
  Create();
  std::string bytes(sizeof(CountersLayout), '\xff');
  std::ifstream(path_).read(bytes.data(),
                            16);  // Magic, version and size are right; nothing else is.
  std::ofstream(path_) << bytes;
  const CountersImage image = Read();
  EXPECT_LE(image.counters.size(), kMaxCounters);
  EXPECT_LE(image.errors.size(), kMaxDistinctErrors);
  EXPECT_LE(image.events.size(), kMaxEvents);
}

TEST_F(CountersFile, NeverShowsHalfAnEvent) {
  CountersWriter writer = Create();
  std::atomic<bool> done = false;
  std::thread reader([&] {
    while (!done) {
      for (const auto& event : Read().events) {
        ASSERT_EQ(event.text.find_first_not_of(event.text[0]), std::string::npos);
        ASSERT_EQ(event.unix_ms, event.text[0]);
      }
    }
  });
  for (int i = 0; i < 200'000; ++i) {
    const char letter = static_cast<char>('a' + i % 26);
    writer.AddEvent(2, std::string(1 + static_cast<size_t>(i % 200), letter), letter);
  }
  done = true;
  reader.join();
}

}  // namespace
}  // namespace sluice
