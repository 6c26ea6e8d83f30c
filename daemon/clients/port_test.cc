// SPDX-License-Identifier: Apache-2.0
#include "daemon/clients/port.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <vector>

#include "daemon/clients/client_view.h"
#include "shm_proto/base/units.h"

namespace sluice {
namespace {

constexpr uint32_t kCapacity = 16;
constexpr uint64_t kReserveBytes = 64 * kMiB;

// A ring in ordinary memory.
struct Ring {
  Ring() {
    const auto address = (reinterpret_cast<uintptr_t>(bytes.data()) + 63) & ~uintptr_t{63};
    memory = {reinterpret_cast<std::byte*>(address), kCapacity};
    InitializeRing(memory, 0xfffffff8u);
  }
  std::vector<std::byte> bytes = std::vector<std::byte>(RingBytes(kCapacity) + 64);
  RingMemory memory;
};

class PortTest : public testing::Test {
 protected:
  PortTest() {
    std::array<int, 2> ends;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    client_end_.Reset(ends[1]);
    port_ = std::make_unique<Port>(view_, 1, submissions_.memory, completions_.memory, Fd(ends[0]));
  }

  bool Rung() {
    char byte;
    return recv(client_end_.get(), &byte, 1, MSG_DONTWAIT) == 1;
  }

  std::vector<std::byte> pool_ = std::vector<std::byte>(64);
  ClientView view_{1, "client", pool_.data(), kReserveBytes, kReserveBytes / 4};
  Ring submissions_, completions_;
  RingProducer requests_{submissions_.memory};
  RingConsumer answers_{completions_.memory};
  Fd client_end_;
  std::unique_ptr<Port> port_;
};

TEST_F(PortTest, TakesNoMoreThanItCanAnswer) {
  Descriptor item{};
  for (uint32_t i = 0; i < kCapacity; ++i) ASSERT_TRUE(requests_.Stage(item));
  requests_.Publish();
  uint32_t taken = 0;
  while (port_->Take(item)) ++taken;
  EXPECT_EQ(taken, kCapacity / 2);
  while (port_->Deliver(item)) {
  }
  for (uint32_t i = 0; i < taken; ++i) port_->Answer(item);
  port_->Publish();
  EXPECT_EQ(answers_.Available(), kCapacity) << "answers had their places kept";
}

TEST_F(PortTest, AClientThatWaitsForRoomIsRungWhenThereIsSome) {
  Descriptor item{};
  while (requests_.Stage(item)) {
  }
  requests_.Publish();
  ASSERT_TRUE(requests_.WaitForRoom(1));
  ASSERT_TRUE(port_->Take(item));
  EXPECT_TRUE(Rung());
  ASSERT_TRUE(port_->Take(item));
  EXPECT_FALSE(Rung()) << "once is enough";
}

TEST_F(PortTest, EventsWaitForRoomInTheirOrder) {
  Descriptor item{};
  while (port_->Deliver(item)) {
  }
  for (uint64_t token = 1; token <= 3; ++token) {
    item.token = token;
    port_->Tell(item);
  }
  EXPECT_FALSE(port_->TellWaiting());
  port_->Publish();
  while (answers_.Pop(item)) {
  }
  answers_.Release();
  EXPECT_TRUE(port_->TellWaiting());
  port_->Publish();
  for (uint64_t token = 1; token <= 3; ++token) {
    ASSERT_TRUE(answers_.Pop(item));
    EXPECT_EQ(item.token, token);
  }
}

TEST_F(PortTest, EndlessEventsThatNobodyTakesAreTheClientsFault) {
  Port port(view_, 1, submissions_.memory, completions_.memory, Fd(), 3);
  Descriptor item{};
  while (port.Deliver(item)) {
  }
  for (int i = 0; i < 3; ++i) port.Tell(item);
  EXPECT_EQ(port.fault(), nullptr);
  port.Tell(item);
  EXPECT_NE(port.fault(), nullptr);
}

class ClientViewTest : public testing::Test {
 protected:
  ClientViewTest() { view_.AddExtent(0, 32 * kMiB); }

  // A received buffer as the client holds it.
  uint64_t Received(uint64_t bytes) {
    const uint64_t offset = view_.heap.Allocate(bytes);
    view_.heap.set_state(offset, static_cast<uint8_t>(BufferState::kHeld));
    return offset;
  }

  std::vector<std::byte> pool_ = std::vector<std::byte>(
      64);  // Never touched: only addresses count.
  ClientView view_{1, "client", pool_.data(), kReserveBytes, kReserveBytes / 4};
};

TEST_F(ClientViewTest, SendsOnlyFromInsideOneExtent) {
  EXPECT_TRUE(view_.AcquireSend(0, 32 * kMiB));
  EXPECT_FALSE(view_.AcquireSend(0, 32 * kMiB + 1));
  EXPECT_FALSE(view_.AcquireSend(32 * kMiB, 1));
  EXPECT_FALSE(view_.AcquireSend(~uint64_t{0}, 2));
  EXPECT_FALSE(view_.AcquireSend(64, ~uint64_t{0}));
}

TEST_F(ClientViewTest, AReceivedBufferIsSentOnByOneAtATimeAndFreedAfterwards) {
  view_.heap.AddBlocks(0, Heap::kBlockBytes);
  const uint64_t offset = Received(1000);
  const auto data = view_.AcquireSend(offset, 1000);
  ASSERT_TRUE(data);
  EXPECT_FALSE(view_.AcquireSend(offset, 1000)) << "it is under way";
  ASSERT_TRUE(view_.FreeReceived(offset));
  EXPECT_FALSE(view_.FreeReceived(offset)) << "freed twice";
  EXPECT_TRUE(view_.heap.Find(offset)) << "the transport still reads it";
  view_.ReleaseSend(*data);
  EXPECT_FALSE(view_.heap.Find(offset));
}

TEST_F(ClientViewTest, ABufferThatIsStillLandingIsNotTheClientsToFreeOrSend) {
  view_.heap.AddBlocks(0, Heap::kBlockBytes);
  const uint64_t offset = view_.heap.Allocate(1000);
  EXPECT_FALSE(view_.FreeReceived(offset));
  EXPECT_FALSE(view_.AcquireSend(offset, 1000));
  EXPECT_FALSE(view_.FreeReceived(offset + 64)) << "not a start";
}

// A client gives a block back while it still sends from it, and the block becomes one to receive
// into.
TEST_F(ClientViewTest, ASendThatOutlivesItsBlockHarmsNothing) {
  const auto empty = view_.AcquireSend(0, 1000);
  ASSERT_TRUE(empty);
  view_.heap.AddBlocks(0, Heap::kBlockBytes);
  view_.ReleaseSend(*empty);
  const auto reused = view_.AcquireSend(4 * kMiB, 1000);
  ASSERT_TRUE(reused);
  view_.heap.AddBlocks(4 * kMiB, Heap::kBlockBytes);
  uint64_t landing = view_.heap.Allocate(Heap::kBlockBytes);
  if (landing != 4 * kMiB) landing = view_.heap.Allocate(Heap::kBlockBytes);
  ASSERT_EQ(landing, 4 * kMiB);
  view_.ReleaseSend(*reused);
  EXPECT_TRUE(view_.heap.Find(landing)) << "the landing buffer is untouched";
  EXPECT_EQ(view_.heap.state(landing), static_cast<uint8_t>(BufferState::kDaemon));
}

TEST_F(ClientViewTest, AnExtentInUseGoesWhenItsLastSendIsOver) {
  const auto data = view_.AcquireSend(128, 100);
  ASSERT_TRUE(data);
  EXPECT_FALSE(view_.RemoveExtent(0));
  EXPECT_FALSE(view_.AcquireSend(128, 100)) << "nothing new from it";
  EXPECT_EQ(view_.ReleaseSend(*data), std::optional<uint64_t>(0));
}

}  // namespace
}  // namespace sluice
