// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/bemalloc/bemalloc.h"

#include <gtest/gtest.h>

#include "shm_proto/bemalloc/anonymous_source.h"

namespace sluice {
namespace {

constexpr uint64_t kReserve = 256 * kMiB;

struct Pool {
  AnonymousBlockSource source{kReserve};
  Bemalloc allocator{source.base(), kReserve, source};
};

TEST(Bemalloc, AllocatesWritesAndFreesEverySize) {
  Pool pool;
  for (uint64_t bytes = 0; bytes < 40 * kMiB; bytes = bytes * 5 / 4 + 1) {
    const Result<void*> buffer = pool.allocator.Allocate(bytes);
    ASSERT_TRUE(buffer) << buffer.error().message;
    const std::span<std::byte> whole = pool.allocator.Find(*buffer);
    ASSERT_EQ(whole.data(), *buffer);
    ASSERT_GE(whole.size(), bytes);
    memset(whole.data(), 7, whole.size());
    ASSERT_TRUE(pool.allocator.Deallocate(*buffer));
    ASSERT_FALSE(pool.allocator.Deallocate(*buffer));
    ASSERT_TRUE(pool.allocator.Find(*buffer).empty());
  }
  EXPECT_EQ(pool.allocator.statistics().live_bytes, 0u);
  pool.allocator.Trim();
  EXPECT_EQ(pool.allocator.statistics().block_bytes, 0u);
}

}  // namespace
}  // namespace sluice
