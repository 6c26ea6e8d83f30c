// SPDX-License-Identifier: Apache-2.0
// A daemon that runs out of descriptors or memory says so to who asked, and goes on for everybody
// else.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "tests/harness/endpoint.h"
#include "tests/harness/harness.h"

namespace sluice::testing {
namespace {

// A memory cgroup of its own. Owns: the cgroup's folder.
class MemoryCgroup {
 public:
  explicit MemoryCgroup(uint64_t limit_bytes) {
    const bool v2 = std::filesystem::exists("/sys/fs/cgroup/cgroup.controllers");
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    folder_ = root + "/sluice-test-" + std::to_string(getpid());
    if (mkdir(folder_.c_str(), 0755) != 0) return;
    const std::string limit = folder_ + (v2 ? "/memory.max" : "/memory.limit_in_bytes");
    if (!std::filesystem::exists(limit)) return;
    WriteFile(limit, std::to_string(limit_bytes) + "\n", 0644);
    usable_ = true;
  }
  ~MemoryCgroup() {
    WaitUntil([this] { return rmdir(folder_.c_str()) == 0 || errno != EBUSY; });
  }

  bool usable() const { return usable_; }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  bool usable_ = false;
};

class Limits : public ::testing::Test {
 protected:
  void SetUp() override {
    SLUICE_NEED_NETWORK();
    auto network = Network::Create(1);
    ASSERT_TRUE(network) << network.error().message;
    network_ = std::move(*network);
  }
  std::unique_ptr<Network> network_;
};

TEST_F(Limits, WithoutDescriptorsNewClientsAreRefusedAndOldOnesGoOn) {
  Daemon daemon(*network_, 0, {.limits = {{RLIMIT_NOFILE, 64}}});
  ASSERT_TRUE(daemon.Start());
  Endpoint listener(daemon), sender(daemon);
  ASSERT_TRUE(listener.Listen(7));
  const sluice_socket socket = sender.Connected("127.0.0.1:7");
  ASSERT_NE(socket, 0u) << daemon.Log();
  ASSERT_TRUE(Exchange(sender, socket, listener, "before"));
  const Usage before = daemon.usage();
  {
    std::vector<std::unique_ptr<Endpoint>> others;
    do {
      others.push_back(std::make_unique<Endpoint>(daemon));
    } while (others.back()->ok() && others.size() < 64);
    ASSERT_FALSE(others.back()->ok()) << "64 descriptors cannot serve 64 clients";
    const double cpu_before = daemon.usage().cpu_seconds;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(Exchange(sender, socket, listener, "an attached client goes on"));
    WaitUntil([&] { return std::chrono::steady_clock::now() > start + milliseconds(500); });
    EXPECT_LT(daemon.usage().cpu_seconds - cpu_before, 0.25) << "waits, does not spin";
  }
  EXPECT_TRUE(daemon.Running()) << daemon.Log();
  EXPECT_TRUE(daemon.ReturnsTo(before));
  EXPECT_TRUE(Endpoint(daemon).ok()) << "room again, so clients are served again";
}

TEST_F(Limits, InASmallMemoryCgroupAPoolStopsGrowingWithAnErrorAndNobodyIsKilled) {
  MemoryCgroup cgroup(96 << 20);
  if (!cgroup.usable()) GTEST_SKIP() << "needs a memory cgroup that this user may make";
  Daemon daemon(*network_, 0, {.cgroup_folder = cgroup.folder()});
  ASSERT_TRUE(daemon.Start());
  const Usage before = daemon.usage();
  {
    Endpoint client(daemon);
    ASSERT_TRUE(client.ok());
    std::vector<void*> buffers;
    void* buffer = nullptr;
    while (buffers.size() < 256 && (buffer = sluice_alloc(client.channel(), 1 << 20)) != nullptr) {
      memset(buffer, 1, 1 << 20);
      buffers.push_back(buffer);
    }
    EXPECT_EQ(buffer, nullptr) << "256 MiB do not fit into 96 MiB";
    EXPECT_EQ(errno, ENOMEM) << sluice_error_text();
    EXPECT_TRUE(daemon.Running()) << daemon.Log();
    for (void* item : buffers) EXPECT_EQ(sluice_free(client.channel(), item), 0);
  }
  EXPECT_TRUE(daemon.ReturnsTo(before));
  Endpoint next(daemon);
  EXPECT_TRUE(next.ok());
  EXPECT_NE(sluice_alloc(next.channel(), 1 << 20), nullptr)
      << "room again: " << sluice_error_text();
}

TEST_F(Limits, TheNodesPoolLimitIsAnErrorReply) {
  Daemon daemon(*network_, 0,
                {.settings = {{"pool.node_limit_mib", "32"}, {"pool.extent_mib", "4"}}});
  ASSERT_TRUE(daemon.Start());
  Endpoint client(daemon);
  ASSERT_TRUE(client.ok());
  void* buffer = nullptr;
  int count = 0;
  while (count < 64 && (buffer = sluice_alloc(client.channel(), 1 << 20)) != nullptr) ++count;
  EXPECT_EQ(buffer, nullptr);
  EXPECT_EQ(errno, ENOMEM) << sluice_error_text();
  EXPECT_LE(count, 32);
  EXPECT_GE(count, 16) << "most of the limit is usable";
}

}  // namespace
}  // namespace sluice::testing
