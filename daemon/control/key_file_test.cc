// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/key_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace sluice::control {
namespace {

using ::testing::HasSubstr;

class KeyFileTest : public ::testing::Test {
 protected:
  KeyFileTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-key-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ + "/cluster.key";
  }
  ~KeyFileTest() override { std::filesystem::remove_all(folder_); }

  void Write(size_t bytes, mode_t mode = 0600) {
    std::ofstream(path_, std::ios::binary) << std::string(bytes, 'k');
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
  }

  std::string folder_, path_;
};

TEST_F(KeyFileTest, AKeyOfAnyAllowedSizeIsRead) {
  for (const size_t bytes : {32, 33, 4'096}) {
    Write(bytes);
    EXPECT_TRUE(ReadKeyFile(path_)) << bytes;
  }
}

TEST_F(KeyFileTest, TheWholeFileIsTheKey) {
  Write(100);
  const std::string same(100, 'k'), shorter(99, 'k');
  const auto read = std::move(ReadKeyFile(path_).value());
  const auto mac = read->Compute("label", {}).value();
  EXPECT_EQ(mac, handshake::MacKey::Create(std::as_bytes(std::span(same)))
                     .value()
                     ->Compute("label", {})
                     .value());
  EXPECT_NE(mac, handshake::MacKey::Create(std::as_bytes(std::span(shorter)))
                     .value()
                     ->Compute("label", {})
                     .value());
}

TEST_F(KeyFileTest, AMissingKeySaysHowToMakeOne) {
  const auto key = ReadKeyFile(path_);
  ASSERT_FALSE(key);
  EXPECT_EQ(key.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(key.error().message, HasSubstr("head -c 32 /dev/urandom > " + path_));
  EXPECT_THAT(key.error().message, HasSubstr("chmod 600"));
}

TEST_F(KeyFileTest, AKeyOfAWrongSizeNamesItsSizeAndTheLimits) {
  for (const size_t bytes : {0, 31, 4'097, 100'000}) {
    Write(bytes);
    const auto key = ReadKeyFile(path_);
    ASSERT_FALSE(key) << bytes;
    EXPECT_EQ(key.error().code, ErrorCode::kInvalid);
    EXPECT_THAT(key.error().message, HasSubstr("32 to 4096"));
    EXPECT_THAT(key.error().message,
                HasSubstr(bytes > 4'096 ? "more than 4096" : std::to_string(bytes)));
  }
}

TEST_F(KeyFileTest, AKeyThatOthersMayReadOrWriteIsRefused) {
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610, 0644, 0666}) {
    Write(32, mode);
    const auto key = ReadKeyFile(path_);
    ASSERT_FALSE(key) << mode;
    EXPECT_EQ(key.error().code, ErrorCode::kPermission);
    EXPECT_THAT(key.error().message, HasSubstr("chmod 600"));
  }
  Write(32, 0400);
  EXPECT_TRUE(ReadKeyFile(path_));
}

TEST_F(KeyFileTest, AKeyOfAnotherUserNamesTheOneItMustBelongTo) {
  constexpr uid_t kNobody = 65'534;
  Write(32, 0);
  const bool root = geteuid() == 0;
  ASSERT_TRUE(!root || seteuid(kNobody) == 0);
  const uid_t reader = geteuid();
  const auto key = ReadKeyFile(path_);
  ASSERT_TRUE(!root || seteuid(0) == 0);
  ASSERT_FALSE(key);
  EXPECT_EQ(key.error().code, ErrorCode::kPermission);
  EXPECT_THAT(key.error().message, HasSubstr("uid " + std::to_string(reader)));
  EXPECT_THAT(key.error().message, HasSubstr("chown sluice " + path_));
}

TEST_F(KeyFileTest, WhatIsNoRegularFileIsRefusedWithoutWaitingForIt) {
  EXPECT_EQ(ReadKeyFile(folder_).error().code, ErrorCode::kInvalid);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(ReadKeyFile(path_).error().code, ErrorCode::kInvalid);
}

}  // namespace
}  // namespace sluice::control
