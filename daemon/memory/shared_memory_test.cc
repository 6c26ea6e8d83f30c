// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "shm_proto/base/units.h"

namespace sluice::memory {
namespace {

constexpr uint64_t kBytes = 64 * kKiB;

void* MapAsClient(int fd) {
  return mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

TEST(SharedMemory, BothSidesSeeTheSameZeroedBytes) {
  auto memory = SharedMemory::Create("test", kBytes, nullptr);
  ASSERT_TRUE(memory) << memory.error().message;
  auto* client = static_cast<std::byte*>(MapAsClient(memory->client_fd()));
  ASSERT_NE(client, MAP_FAILED);
  EXPECT_EQ(client[kBytes - 1], std::byte{0});
  memory->base()[17] = std::byte{42};
  EXPECT_EQ(client[17], std::byte{42});
  munmap(client, kBytes);
}

TEST(SharedMemory, AClientCannotResizeItEvenBeforeTheFinalSeals) {
  auto memory = SharedMemory::Create("test", kBytes, nullptr);
  ASSERT_TRUE(memory);
  EXPECT_EQ(ftruncate(memory->client_fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(memory->client_fd(), 2 * kBytes), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(SharedMemory, AfterSealingAClientCanWriteItsMappingButNothingElse) {
  auto memory = SharedMemory::Create("test", kBytes, nullptr);
  ASSERT_TRUE(memory);
  const int fd = memory->client_fd();
  auto* client = static_cast<char*>(MapAsClient(fd));
  ASSERT_NE(client, MAP_FAILED);
  ASSERT_TRUE(memory->Seal());

  client[5] = 'x';
  EXPECT_EQ(memory->base()[5], std::byte{'x'});
  EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(madvise(client, 4096, MADV_REMOVE), -1);
  EXPECT_EQ(ftruncate(fd, 4096), -1);
  EXPECT_EQ(write(fd, "y", 1), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(MapAsClient(fd), MAP_FAILED);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
  munmap(client, kBytes);
}

TEST(SharedMemory, HolesPunchedBeforeSealingAreNoticed) {
  auto memory = SharedMemory::Create("test", kBytes, nullptr);
  ASSERT_TRUE(memory);
  ASSERT_EQ(fallocate(memory->client_fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096),
            0);
  EXPECT_EQ(memory->Seal().error().code, ErrorCode::kProtocol);
}

TEST(SharedMemory, AClientThatSealsItselfIsNoticed) {
  auto memory = SharedMemory::Create("test", kBytes, nullptr);
  ASSERT_TRUE(memory);
  ASSERT_EQ(fcntl(memory->client_fd(), F_ADD_SEALS, F_SEAL_SEAL), 0);
  EXPECT_EQ(memory->Seal().error().code, ErrorCode::kProtocol);
}

TEST(SharedMemory, KnowsWhetherAnybodyElseStillHoldsIt) {
  auto memory = SharedMemory::Create("test", kBytes, nullptr);
  ASSERT_TRUE(memory);
  const int fd = dup(memory->client_fd());
  memory->TakeClientFd();
  EXPECT_TRUE(memory->HeldElsewhere()) << "by the descriptor";
  void* client = MapAsClient(fd);
  ASSERT_NE(client, MAP_FAILED);
  close(fd);
  EXPECT_TRUE(memory->HeldElsewhere()) << "by the mapping alone";
  munmap(client, kBytes);
  EXPECT_FALSE(memory->HeldElsewhere());
}

TEST(SharedMemory, UnmappingLeavesReservedAddressesReserved) {
  std::byte* reserved = ReserveAddresses(4 * kBytes);
  ASSERT_NE(reserved, nullptr);
  {
    auto memory = SharedMemory::Create("test", kBytes, reserved + kBytes);
    ASSERT_TRUE(memory);
    EXPECT_EQ(memory->base(), reserved + kBytes);
    memory->base()[0] = std::byte{1};
  }
  unsigned char resident[4 * kBytes / 4096];
  EXPECT_EQ(mincore(reserved, 4 * kBytes, resident), 0) << "one gapless range, ENOMEM otherwise";
  ReleaseAddresses(reserved, 4 * kBytes);
}

}  // namespace
}  // namespace sluice::memory
