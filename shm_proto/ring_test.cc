// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/ring.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace sluice {
namespace {

// A ring in ordinary memory, with both ends.
struct TestRing {
  TestRing(uint32_t capacity, uint32_t start) : bytes(RingBytes(capacity) + 64) {
    auto address = (reinterpret_cast<uintptr_t>(bytes.data()) + 63) & ~uintptr_t{63};
    memory = {reinterpret_cast<std::byte*>(address), capacity};
    InitializeRing(memory, start);
  }
  std::vector<std::byte> bytes;
  RingMemory memory;
};

Descriptor Numbered(uint64_t number) {
  Descriptor item{};
  item.token = number;
  item.trace_id = ~number;
  return item;
}

class RingWrap : public testing::TestWithParam<uint32_t> {};

TEST_P(RingWrap, GivesEveryEntryOnceAndInOrder) {
  TestRing ring(16, GetParam());
  RingProducer producer(ring.memory);
  RingConsumer consumer(ring.memory);
  uint64_t sent = 0, received = 0;
  for (int round = 0; round < 1000; ++round) {
    for (int i = 0; i < round % 19; ++i) {
      if (producer.Stage(Numbered(sent))) ++sent;
    }
    producer.Publish();
    Descriptor item;
    for (int i = 0; i < round % 13 && consumer.Pop(item); ++i) {
      ASSERT_EQ(item.token, received);
      ASSERT_EQ(item.trace_id, ~received);
      ++received;
    }
    consumer.Release();
  }
  EXPECT_GT(received, 1000u);
  EXPECT_FALSE(consumer.broken());
}

INSTANTIATE_TEST_SUITE_P(AroundWrap, RingWrap,
                         testing::Values(0u, 0x7ffffff8u, 0xfffffff0u, 0xffffffffu));

TEST(Ring, TakesExactlyItsCapacity) {
  TestRing ring(16, 0xfffffff8u);
  RingProducer producer(ring.memory);
  RingConsumer consumer(ring.memory);
  for (uint64_t i = 0; i < 16; ++i) ASSERT_TRUE(producer.Stage(Numbered(i)));
  EXPECT_FALSE(producer.Stage(Numbered(16)));
  producer.Publish();
  EXPECT_EQ(consumer.Available(), 16u);
  Descriptor item;
  ASSERT_TRUE(consumer.Pop(item));
  EXPECT_EQ(producer.Free(), 0u) << "an entry is reusable only after Release()";
  consumer.Release();
  EXPECT_EQ(producer.Free(), 1u);
}

TEST(Ring, StagedEntriesAreInvisibleUntilPublished) {
  TestRing ring(16, 0);
  RingProducer producer(ring.memory);
  RingConsumer consumer(ring.memory);
  producer.Stage(Numbered(1));
  EXPECT_EQ(consumer.Available(), 0u);
  producer.Publish();
  EXPECT_EQ(consumer.Available(), 1u);
}

TEST(Ring, OneSleepGetsOneDoorbell) {
  TestRing ring(16, 0);
  RingProducer producer(ring.memory);
  RingConsumer consumer(ring.memory);
  producer.Stage(Numbered(1));
  EXPECT_FALSE(producer.Publish()) << "the consumer is awake";
  consumer.Arm();
  producer.Stage(Numbered(2));
  EXPECT_TRUE(producer.Publish());
  producer.Stage(Numbered(3));
  EXPECT_FALSE(producer.Publish()) << "it has been rung already";
  consumer.Arm();
  EXPECT_FALSE(producer.Publish()) << "nothing new to tell";
}

TEST(Ring, AJumpingTailBreaksTheRingForGood) {
  TestRing ring(16, 100);
  RingConsumer consumer(ring.memory);
  ring.memory.header()->tail.store(100 + 17, std::memory_order_release);
  EXPECT_EQ(consumer.Available(), 0u);
  EXPECT_TRUE(consumer.broken());
  ring.memory.header()->tail.store(101, std::memory_order_release);
  Descriptor item;
  EXPECT_FALSE(consumer.Pop(item)) << "a ring once broken is never trusted again";
}

TEST(Ring, ATailThatGoesBackBreaksTheRing) {
  TestRing ring(16, 100);
  RingConsumer consumer(ring.memory);
  ring.memory.header()->tail.store(99, std::memory_order_release);
  EXPECT_EQ(consumer.Available(), 0u);
  EXPECT_TRUE(consumer.broken());
}

TEST(Ring, AJumpingHeadOnlyMakesTheRingFull) {
  TestRing ring(16, 0);
  RingProducer producer(ring.memory);
  for (uint64_t i = 0; i < 16; ++i) ASSERT_TRUE(producer.Stage(Numbered(i)));
  producer.Publish();
  ring.memory.header()->head.store(0x80000000u, std::memory_order_release);
  EXPECT_FALSE(producer.broken());
  EXPECT_EQ(producer.Free(), 0u);
  EXPECT_FALSE(producer.Stage(Numbered(16)));
  EXPECT_TRUE(producer.broken());
}

TEST(Ring, AHeadThatGoesBackTakesNoRoomAway) {
  TestRing ring(16, 0);
  RingProducer producer(ring.memory);
  RingConsumer consumer(ring.memory);
  Descriptor item;
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(producer.Stage(Numbered(i)));
    producer.Publish();
    ASSERT_TRUE(consumer.Pop(item));
    consumer.Release();
  }
  ASSERT_TRUE(producer.HasRoom(16));
  producer.Inspect();
  EXPECT_FALSE(producer.broken());
  ring.memory.header()->head.store(4, std::memory_order_release);
  producer.Inspect();
  EXPECT_TRUE(producer.broken());
  EXPECT_FALSE(producer.HasRoom(17));
  EXPECT_TRUE(producer.HasRoom(16)) << "what was free stays free";
}

TEST(Ring, AProducerThatWaitsForRoomIsRungOnce) {
  TestRing ring(16, 0xfffffff8u);
  RingProducer producer(ring.memory);
  RingConsumer consumer(ring.memory);
  EXPECT_FALSE(producer.WaitForRoom(1)) << "there is room";
  for (uint64_t i = 0; i < 16; ++i) ASSERT_TRUE(producer.Stage(Numbered(i)));
  producer.Publish();
  EXPECT_TRUE(producer.WaitForRoom(1));
  Descriptor item;
  ASSERT_TRUE(consumer.Pop(item));
  EXPECT_TRUE(consumer.Release());
  ASSERT_TRUE(consumer.Pop(item));
  EXPECT_FALSE(consumer.Release()) << "it has been rung already";
  EXPECT_TRUE(producer.HasRoom(2));
}

TEST(Ring, TwoThreadsWithSleepsLoseNothing) {
  constexpr uint64_t kItems = 20'000;
  TestRing ring(64, 0xffffff00u);
  std::atomic<int> doorbell{0};
  std::thread writer([&] {
    RingProducer producer(ring.memory);
    for (uint64_t i = 0; i < kItems;) {
      if (producer.Stage(Numbered(i))) ++i;
      if (producer.Publish()) {
        doorbell.fetch_add(1);
        doorbell.notify_one();
      }
    }
  });
  RingConsumer consumer(ring.memory);
  int heard = 0;
  for (uint64_t expected = 0; expected < kItems;) {
    Descriptor item;
    if (consumer.Pop(item)) {
      ASSERT_EQ(item.token, expected++);
      consumer.Release();
      continue;
    }
    consumer.Arm();
    if (consumer.Available() == 0) {
      doorbell.wait(heard);
      heard = doorbell.load();
    }
    consumer.Disarm();
  }
  writer.join();
}

}  // namespace
}  // namespace sluice
