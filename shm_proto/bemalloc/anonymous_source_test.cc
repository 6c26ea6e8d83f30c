// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/bemalloc/anonymous_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "shm_proto/base/units.h"

namespace sluice {
namespace {

using testing::HasSubstr;

constexpr uint64_t kBlock = 4 * kMiB;

// What the kernel says of a page's memory policy: with kMode how it is bound, with kNode where it
// lies; negative: why that cannot be told.
constexpr unsigned long kMode = 2, kNode = 1 | 2;  // MPOL_F_ADDR, with MPOL_F_NODE.
int PolicyOf(void* address, unsigned long what) {
  int answer = -1;
  return syscall(SYS_get_mempolicy, &answer, nullptr, 0, address, what) == 0 ? answer : -errno;
}

// The flags of the mapping that holds the address, as the kernel lists them.
std::string MappingFlags(const std::byte* address) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
      inside = reinterpret_cast<uintptr_t>(address) >= begin &&
               reinterpret_cast<uintptr_t>(address) < end;
    if (inside && line.starts_with("VmFlags:")) return line + " ";
  }
  return "";
}

TEST(AnonymousSource, BlocksAreThereBeforeTheyAreTouched) {
  AnonymousBlockSource source(8 * kBlock);
  const auto blocks = source.Acquire(2 * kBlock);
  ASSERT_TRUE(blocks.has_value()) << blocks.error().message;
  std::vector<unsigned char> resident(2 * kBlock / 4096);
  ASSERT_EQ(mincore(source.base() + blocks->offset, 2 * kBlock, resident.data()), 0);
  for (const unsigned char page : resident) ASSERT_EQ(page & 1, 1);
}

TEST(AnonymousSource, GivesNoMoreThanItsQuotaAndHasItBackAfterARelease) {
  AnonymousBlockSource source(8 * kBlock, {.quota_bytes = 2 * kBlock});
  const auto first = source.Acquire(kBlock);
  ASSERT_TRUE(first.has_value());
  EXPECT_THAT(source.Acquire(2 * kBlock).error().message, HasSubstr("quota of 8388608 bytes"));
  ASSERT_TRUE(source.Acquire(kBlock).has_value());
  source.Release(first->offset, kBlock);
  EXPECT_TRUE(source.Acquire(kBlock).has_value());
}

TEST(AnonymousSource, SaysWhenNoAdjoiningBlocksAreLeft) {
  AnonymousBlockSource source(4 * kBlock);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(source.Acquire(kBlock).has_value());
  source.Release(0, kBlock);
  source.Release(2 * kBlock, kBlock);
  EXPECT_THAT(source.Acquire(2 * kBlock).error().message, HasSubstr("adjoining"));
  EXPECT_TRUE(source.Acquire(kBlock).has_value());
}

TEST(AnonymousSource, GivesMoreAtOnceTheMoreItGaveAndLessWhereThatIsTooMuch) {
  AnonymousBlockSource source(100 * kBlock, {.quota_bytes = 51 * kBlock});
  for (int i = 0; i < 48; ++i) EXPECT_EQ(source.Acquire(kBlock)->bytes, kBlock);
  EXPECT_EQ(source.Acquire(kBlock)->bytes, 2 * kBlock);
  EXPECT_EQ(source.Acquire(kBlock)->bytes, kBlock) << "all that the quota leaves";
  EXPECT_THAT(source.Acquire(kBlock).error().message, HasSubstr("quota"));
}

TEST(AnonymousSource, AsksForHugePagesAndForgetsThemWithTheBlocks) {
  if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0)
    GTEST_SKIP() << "the kernel has no transparent huge pages";
  AnonymousBlockSource source(4 * kBlock, {.huge_pages = true});
  const auto blocks = source.Acquire(kBlock);
  ASSERT_TRUE(blocks.has_value()) << blocks.error().message;
  std::memset(source.base() + blocks->offset, 1, kBlock);
  EXPECT_THAT(MappingFlags(source.base() + blocks->offset), HasSubstr(" hg "));
  source.Release(blocks->offset, kBlock);
  EXPECT_THAT(MappingFlags(source.base() + blocks->offset), testing::Not(HasSubstr(" hg ")));
}

TEST(AnonymousSource, BindsToTheNodeItWasTold) {
  AnonymousBlockSource source(4 * kBlock, {.numa_node = 0});
  const auto blocks = source.Acquire(kBlock);
  ASSERT_TRUE(blocks.has_value()) << blocks.error().message;
  std::byte* memory = source.base() + blocks->offset;
  const int mode = PolicyOf(memory, kMode);
  if (mode < 0) GTEST_SKIP() << "the kernel does not tell policies: " << std::strerror(-mode);
  constexpr int kBind = 2;  // MPOL_BIND.
  EXPECT_EQ(mode, kBind);
  EXPECT_EQ(PolicyOf(memory, kNode), 0);
  source.Release(blocks->offset, kBlock);
  EXPECT_NE(PolicyOf(memory, kMode), kBind) << "what comes here next lies where it likes";
}

TEST(AnonymousSource, SaysWhichNodeDoesNotExist) {
  for (const int node : {1000, 5000}) {
    AnonymousBlockSource source(4 * kBlock, {.numa_node = node});
    const auto blocks = source.Acquire(kBlock);
    ASSERT_FALSE(blocks.has_value());
    EXPECT_THAT(blocks.error().message, HasSubstr("NUMA node " + std::to_string(node)));
  }
}

}  // namespace
}  // namespace sluice
