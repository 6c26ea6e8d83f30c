// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/headroom.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "daemon/memory/shared_memory.h"

namespace sluice::memory {
namespace {

namespace fs = std::filesystem;

// A made-up /proc and /sys.
class HeadroomTest : public ::testing::Test {
 protected:
  HeadroomTest() {
    std::string pattern = ::testing::TempDir() + "headroomXXXXXX";
    root_ = mkdtemp(pattern.data());
    Write("/proc/meminfo", "MemTotal: 900000 kB\nMemAvailable: 100000 kB\n");
  }
  ~HeadroomTest() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void UseV2(const std::string& path) {
    Write("/proc/self/mountinfo",
          "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
    Write("/proc/self/cgroup", "0::" + path + "\n");
  }
  uint64_t Available(uint64_t keep_free_bytes = 0) const {
    return Headroom(root_, keep_free_bytes).AvailableBytes();
  }

  std::string root_;
};

TEST_F(HeadroomTest, WithoutCgroupsTheMachineIsTheLimit) {
  EXPECT_EQ(Available(), 100000ull * 1024);
  EXPECT_EQ(Available(24), 100000ull * 1024 - 24);
}

TEST_F(HeadroomTest, TheTightestLevelUpTheTreeCounts) {
  UseV2("/a/b");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/b/memory.current", "500\n");
  Write("/sys/fs/cgroup/a/memory.max", "9000\n");
  Write("/sys/fs/cgroup/a/memory.current", "2000\n");
  EXPECT_EQ(Available(), 7000u);
  Write("/sys/fs/cgroup/a/b/memory.high", "600\n");
  EXPECT_EQ(Available(), 100u) << "beyond memory.high the kernel throttles";
}

TEST_F(HeadroomTest, CacheThatCanBeDroppedIsNotInTheWay) {
  UseV2("/a");
  Write("/sys/fs/cgroup/a/memory.max", "9000\n");
  Write("/sys/fs/cgroup/a/memory.current", "8900\n");
  Write("/sys/fs/cgroup/a/memory.stat", "anon 100\ninactive_file 4000\n");
  EXPECT_EQ(Available(), 4100u);
}

TEST_F(HeadroomTest, UsageAboveTheLimitIsNothingLeftNotALot) {
  UseV2("/a");
  Write("/sys/fs/cgroup/a/memory.max", "9000\n");
  Write("/sys/fs/cgroup/a/memory.current", "9500\n");
  EXPECT_EQ(Available(), 0u);
  EXPECT_EQ(Available(100), 0u);
}

TEST_F(HeadroomTest, ReadsTheFirstVersionsFilesToo) {
  Write("/proc/self/mountinfo",
        "35 20 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  Write("/proc/self/cgroup", "4:cpu,memory:/job\n3:pids:/other\n");
  Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n");
  Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1500\n");
  Write("/sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 500\n");
  EXPECT_EQ(Available(), 4000u);
}

TEST_F(HeadroomTest, AContainersMountShowsOnlyItsOwnPart) {
  Write("/proc/self/mountinfo",
        "30 20 0:26 /kubepods/pod1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/proc/self/cgroup", "0::/kubepods/pod1/inner\n");
  Write("/sys/fs/cgroup/inner/memory.max", "3000\n");
  Write("/sys/fs/cgroup/inner/memory.current", "1000\n");
  EXPECT_EQ(Available(), 2000u);
  Write("/proc/self/cgroup", "0::/../outside\n");
  Write("/sys/fs/cgroup/memory.max", "1500\n");
  Write("/sys/fs/cgroup/memory.current", "1000\n");
  EXPECT_EQ(Available(), 500u);
}

TEST_F(HeadroomTest, ARefusalNamesTheLimit) {
  UseV2("/a");
  Write("/sys/fs/cgroup/a/memory.max", "9000\n");
  Write("/sys/fs/cgroup/a/memory.current", "8000\n");
  const Headroom headroom(root_, 0);
  EXPECT_TRUE(headroom.Check(1000));
  const Result<> refused = headroom.Check(1001);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNoMemory);
  EXPECT_NE(refused.error().message.find("/a/memory.max"), std::string::npos)
      << refused.error().message;
}

// The memory hierarchy's mount on this machine, and its files' names.
struct Controller {
  std::string root, limit_file;
};
std::optional<Controller> FindController() {
  if (fs::exists("/sys/fs/cgroup/memory/memory.limit_in_bytes")) {
    return Controller{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"};
  }
  std::ifstream enabled("/sys/fs/cgroup/cgroup.subtree_control");
  for (std::string name; enabled >> name;) {
    if (name == "memory") return Controller{"/sys/fs/cgroup", "memory.max"};
  }
  return std::nullopt;
}

TEST(Headroom, ASmallCgroupEndsGrowthWithAnErrorInsteadOfAKill) {
  const auto controller = FindController();
  if (!controller) GTEST_SKIP() << "no memory controller is mounted here";
  const fs::path group = controller->root + "/sluice-headroom-" + std::to_string(getpid());
  std::error_code error;
  if (!fs::create_directory(group, error))
    GTEST_SKIP() << "cannot make " << group << ": " << error.message();
  constexpr uint64_t kLimitBytes = 64ull << 20;
  std::ofstream(group / controller->limit_file) << kLimitBytes;

  const pid_t child = fork();
  if (child == 0) {
    std::ofstream(group / "cgroup.procs") << getpid() << std::flush;
    const Headroom headroom("", 8ull << 20);
    std::vector<SharedMemory> extents;
    while (extents.size() < 32 && headroom.Check(4ull << 20)) {
      auto memory = SharedMemory::Create("test", 4ull << 20, nullptr);
      if (!memory) _exit(2);
      extents.push_back(std::move(*memory));
    }
    _exit(extents.empty() ? 3 : extents.size() < 16 ? 0 : 4);
  }
  int status = 0;
  waitpid(child, &status, 0);
  fs::remove(group, error);
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0)
      << "2: a failed allocation, 3: nothing was allowed, 4: more than the limit";
}

TEST(Headroom, ThisMachineHasSome) { EXPECT_GT(Headroom().AvailableBytes(), 0u); }

}  // namespace
}  // namespace sluice::memory
