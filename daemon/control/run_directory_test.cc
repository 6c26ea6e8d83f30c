// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/run_directory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace sluice::control {
namespace {

namespace fs = std::filesystem;

class RunDirectoryTest : public ::testing::Test {
 protected:
  RunDirectoryTest() {
    std::string pattern = ::testing::TempDir() + "runXXXXXX";
    parent_ = mkdtemp(pattern.data());
    dir_ = parent_ + "/run";
  }
  ~RunDirectoryTest() override { fs::remove_all(parent_); }

  static mode_t ModeOf(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
    return status.st_mode & 07777;
  }
  bool CanConnect(const std::string& path) const {
    const Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    return connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }

  std::string parent_, dir_;
};

TEST_F(RunDirectoryTest, IsMadeWithItsModeWhateverTheUmask) {
  const mode_t before = umask(0077);
  EXPECT_TRUE(PrepareRunDirectory(dir_, 0755));
  umask(before);
  EXPECT_EQ(ModeOf(dir_), 0755u);
  EXPECT_TRUE(PrepareRunDirectory(dir_, 0700)) << "a second start finds it there";
  EXPECT_EQ(ModeOf(dir_), 0755u) << "and leaves it as it is";
}

TEST_F(RunDirectoryTest, ADirectoryThatOthersCanWriteToIsRefused) {
  fs::create_directory(dir_);
  fs::permissions(dir_, fs::perms::all);
  const Result<> refused = PrepareRunDirectory(dir_, 0755);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kPermission);
}

TEST_F(RunDirectoryTest, ASymbolicLinkIsRefused) {
  fs::create_directory(parent_ + "/elsewhere");
  fs::create_directory_symlink(parent_ + "/elsewhere", dir_);
  EXPECT_FALSE(PrepareRunDirectory(dir_, 0755));
}

TEST_F(RunDirectoryTest, ASecondDaemonIsToldWhoHoldsTheLock) {
  ASSERT_TRUE(PrepareRunDirectory(dir_, 0755));
  {
    const auto first = InstanceLock::Acquire(dir_);
    ASSERT_TRUE(first);
    const auto second = InstanceLock::Acquire(dir_);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, ErrorCode::kExists);
    EXPECT_NE(second.error().message.find(std::to_string(getpid())), std::string::npos)
        << second.error().message;
    EXPECT_NE(second.error().message.find(dir_), std::string::npos);
  }
  EXPECT_TRUE(InstanceLock::Acquire(dir_)) << "free again once the holder is gone";
}

TEST_F(RunDirectoryTest, AKilledDaemonsLockAndSocketAreNoObstacle) {
  ASSERT_TRUE(PrepareRunDirectory(dir_, 0755));
  const std::string path = dir_ + "/s.sock";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = InstanceLock::Acquire(dir_);
    const auto listener = ListenUnix(path, SOCK_SEQPACKET, 0666, *lock);
    if (!listener || write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_TRUE(CanConnect(path));
  EXPECT_FALSE(InstanceLock::Acquire(dir_));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(CanConnect(path));
  EXPECT_TRUE(fs::exists(path));

  const auto lock = InstanceLock::Acquire(dir_);
  ASSERT_TRUE(lock);
  const auto listener = ListenUnix(path, SOCK_SEQPACKET, 0666, *lock);
  ASSERT_TRUE(listener) << listener.error().message;
  EXPECT_TRUE(CanConnect(path));
  EXPECT_EQ(ModeOf(path), 0666u);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(RunDirectoryTest, WhatIsNotASocketIsLeftAlone) {
  ASSERT_TRUE(PrepareRunDirectory(dir_, 0755));
  std::ofstream(dir_ + "/s.sock") << "precious";
  const auto lock = InstanceLock::Acquire(dir_);
  ASSERT_TRUE(lock);
  EXPECT_EQ(ListenUnix(dir_ + "/s.sock", SOCK_SEQPACKET, 0666, *lock).error().code,
            ErrorCode::kExists);
  EXPECT_TRUE(fs::exists(dir_ + "/s.sock"));
}

TEST_F(RunDirectoryTest, APathTooLongForASocketIsAnErrorThatSaysSo) {
  ASSERT_TRUE(PrepareRunDirectory(dir_, 0755));
  const auto lock = InstanceLock::Acquire(dir_);
  ASSERT_TRUE(lock);
  const auto listener = ListenUnix(dir_ + "/" + std::string(120, 'x'), SOCK_SEQPACKET, 0666, *lock);
  ASSERT_FALSE(listener);
  EXPECT_NE(listener.error().message.find("longer than 107"), std::string::npos)
      << listener.error().message;
}

}  // namespace
}  // namespace sluice::control
