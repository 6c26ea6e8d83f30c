// SPDX-License-Identifier: Apache-2.0
// Whatever a broken daemon writes, the application sees it as the daemon's death and never crashes.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <cstring>

#include "libclient/src/client_fixture_testing.h"

namespace sluice::client {
namespace {

using testing::HasSubstr;

class HostileDaemonTest : public ClientTest {
 protected:
  Descriptor Completion(CompletionOp op) {
    Descriptor descriptor{};
    descriptor.op = static_cast<uint8_t>(op);
    descriptor.socket = 1;
    return descriptor;
  }

  // The next events end the attachment, for a reason that contains `reason`.
  void ExpectDetached(const std::string& reason) {
    sluice_event event;
    do {
      event = Next();
      ASSERT_NE(event.type, 0u);
      ASSERT_NE(event.type, static_cast<uint32_t>(SLUICE_EVENT_MESSAGE));
    } while (event.type != SLUICE_EVENT_DETACHED);
    EXPECT_THAT(event.text, HasSubstr(reason));
    Next(SLUICE_EVENT_REATTACHED);
  }

  void PushAndExpectDetached(const Descriptor& descriptor, const std::string& reason) {
    Begin();
    Connected(1);
    port_->Push(descriptor);
    ExpectDetached(reason);
  }
};

TEST_F(HostileDaemonTest, UnknownCompletion) {
  Descriptor descriptor = Completion(CompletionOp::kSent);
  descriptor.op = 200;
  PushAndExpectDetached(descriptor, "unknown completion");
}

TEST_F(HostileDaemonTest, AnswerToASendThatIsNotUnderWay) {
  for (const uint64_t token : {uint64_t{0}, uint64_t{1} << 32, ~uint64_t{0}, uint64_t{100'000}}) {
    Descriptor descriptor = Completion(CompletionOp::kSent);
    descriptor.token = token;
    PushAndExpectDetached(descriptor, "not under way");
    TearDown();
    channel_ = nullptr;
    client_ = nullptr;
    SetUp();
  }
}

TEST_F(HostileDaemonTest, AnswerThatComesTwice) {
  Begin();
  const sluice_socket socket = Connected(1);
  ASSERT_EQ(sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0), 0);
  const uint64_t token = port_->Next().token;
  port_->Sent(token);
  Next(SLUICE_EVENT_SENT);
  port_->Sent(token);
  ExpectDetached("not under way");
}

TEST_F(HostileDaemonTest, UnknownOutcome) {
  Begin();
  const sluice_socket socket = Connected(1);
  ASSERT_EQ(sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0), 0);
  Descriptor descriptor = Completion(CompletionOp::kSent);
  descriptor.token = port_->Next().token;
  descriptor.result.outcome = 3;
  port_->Push(descriptor);
  EXPECT_EQ(Next(SLUICE_EVENT_SENT).outcome, static_cast<uint32_t>(SLUICE_UNKNOWN));
  ExpectDetached("unknown way");
}

TEST_F(HostileDaemonTest, MessageForASocketThatIsNotThere) {
  Descriptor descriptor = Completion(CompletionOp::kMessage);
  descriptor.socket = 77;
  descriptor.flags = kFlagInline;
  PushAndExpectDetached(descriptor, "not there");
}

TEST_F(HostileDaemonTest, InlineMessageThatIsTooLong) {
  Descriptor descriptor = Completion(CompletionOp::kMessage);
  descriptor.flags = kFlagInline;
  descriptor.inline_bytes = 41;
  PushAndExpectDetached(descriptor, "too long");
}

TEST_F(HostileDaemonTest, MessagesWhereNoneCanBe) {
  const std::pair<uint64_t, uint64_t> places[] = {{0, 10},  // Nothing is mapped there.
                                                  {~uint64_t{0}, 10},
                                                  {~uint64_t{0} - 63, 128},
                                                  {64 * kMiB, 0},
                                                  {64 * kMiB - 64, 128},
                                                  {1ull << 50, 1},
                                                  {0, ~uint64_t{0}}};
  for (const auto& [offset, length] : places) {
    Descriptor descriptor = Completion(CompletionOp::kMessage);
    descriptor.region.offset = offset;
    descriptor.region.length = length;
    PushAndExpectDetached(descriptor, "where no message can");
    TearDown();
    channel_ = nullptr;
    client_ = nullptr;
    SetUp();
  }
}

TEST_F(HostileDaemonTest, MessageInABlockToSendFrom) {
  Begin();
  const sluice_socket socket = Connected(1);
  ASSERT_EQ(sluice_send_copy(channel_, socket, std::string(500, 'x').data(), 500, 0, 0, 0), 0);
  port_->MessageAt(1, port_->Next().region.offset + 64, 10);
  EXPECT_EQ(Next().type, static_cast<uint32_t>(SLUICE_EVENT_SENT));
  ExpectDetached("where no message can");
}

TEST_F(HostileDaemonTest, OneBufferDeliveredTwice) {
  Begin();
  Connected(1);
  const uint64_t offset = daemon_->ReceiveBuffer(100);
  port_->MessageAt(1, offset, 100);
  Next(SLUICE_EVENT_MESSAGE);
  port_->MessageAt(1, offset, 100);
  ExpectDetached("where no message can");
}

TEST_F(HostileDaemonTest, SocketNamedTwice) {
  Begin();
  Connected(1);
  sluice_socket socket;
  ASSERT_EQ(sluice_connect(channel_, "host:7", 0, &socket), 0);
  port_->Connected(daemon_->WaitForConnect().token, 1);
  ExpectDetached("one name");
}

TEST_F(HostileDaemonTest, ConnectThatEndsTwice) {
  Begin();
  sluice_socket socket;
  ASSERT_EQ(sluice_connect(channel_, "host:7", 0, &socket), 0);
  const uint64_t token = daemon_->WaitForConnect().token;
  port_->Connected(token, 1);
  Next(SLUICE_EVENT_CONNECTED);
  port_->Connected(token, 2);
  ExpectDetached("connect ended that is not under way");
}

TEST_F(HostileDaemonTest, CloseOfASocketThatIsNotThere) {
  Descriptor descriptor = Completion(CompletionOp::kClosed);
  descriptor.socket = 9;
  PushAndExpectDetached(descriptor, "not there");
}

TEST_F(HostileDaemonTest, RingCountersThatJump) {
  Begin();
  Connected(1);
  auto* header = reinterpret_cast<RingHeader*>(port_->base() + RingBytes(16));
  header->tail.fetch_add(1000);
  sluice_event event;
  EXPECT_GE(sluice_poll(channel_, &event, 1), 0);
  ExpectDetached("counters jumped");
}

TEST_F(HostileDaemonTest, SubmissionHeadThatJumpsLooksLikeAFullRing) {
  Begin();
  const sluice_socket socket = Connected(1);
  reinterpret_cast<RingHeader*>(port_->base())->head.fetch_add(1000);
  int sent = 0;
  while (sluice_send_copy(channel_, socket, "x", 1, 0, 0, 0) == 0) ++sent;
  EXPECT_LE(sent, 16);
}

// --- on the control socket ---

class HostileControlTest : public HostileDaemonTest {
 protected:
  control::Region Extent(uint64_t offset, uint64_t bytes) {
    control::Region region{};
    region.region = 900;
    region.kind = control::RegionKind::kExtent;
    region.pool_offset = offset;
    region.bytes = bytes;
    return region;
  }
  Fd Memfd(uint64_t bytes) {
    Fd memfd(memfd_create("test", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(memfd.get(), static_cast<off_t>(bytes)), 0);
    return memfd;
  }
};

TEST_F(HostileControlTest, ExtentsThatCannotBe) {
  const std::pair<uint64_t, uint64_t> extents[] = {{1, 4 * kMiB},
                                                   {4 * kMiB, 100},
                                                   {64 * kMiB, 4 * kMiB},
                                                   {60 * kMiB, 8 * kMiB},
                                                   {~uint64_t{0} & ~(4 * kMiB - 1), 4 * kMiB},
                                                   {0, 0}};
  Begin();
  const Fd memfd = Memfd(8 * kMiB);
  for (const auto& [offset, bytes] : extents) {
    daemon_->Send(Extent(offset, bytes), control::Type::kRegion, 0, {memfd.get()});
    ExpectDetached("daemon");
  }
}

TEST_F(HostileControlTest, MemoryThatIsSmallerThanItSaysOrComesWithoutDescriptors) {
  Begin();
  const Fd small = Memfd(kMiB);
  daemon_->Send(Extent(0, 4 * kMiB), control::Type::kRegion, 0, {small.get()});
  ExpectDetached("smaller");
  daemon_->Send(Extent(0, 4 * kMiB), control::Type::kRegion, 0);
  ExpectDetached("descriptors");
  daemon_->Send(Extent(0, 4 * kMiB), control::Type::kRegion, 0, {small.get(), small.get()});
  ExpectDetached("descriptors");
  daemon_->Send(Extent(0, 4 * kMiB), control::Type::kRegion, 0, std::vector<int>(20, small.get()));
  ExpectDetached("descriptors");
}

TEST_F(HostileControlTest, RingPairsThatCannotBe) {
  Begin();
  const Fd memfd = Memfd(8 * kMiB);
  control::Region good{};
  good.region = 901;
  good.kind = control::RegionKind::kRingPair;
  good.bytes = 2 * RingBytes(16);
  good.channel = 0;
  good.io_thread = 1;
  good.capacity = 16;
  const auto refuse = [&](auto change) {
    control::Region region = good;
    change(region);
    daemon_->Send(region, control::Type::kRegion, 0, {memfd.get(), memfd.get()});
    ExpectDetached("cannot be");
  };
  refuse([](auto& region) { region.channel = 50; });
  refuse([](auto& region) { region.io_thread = 2; });
  refuse([](auto& region) { region.capacity = 17; });
  refuse([](auto& region) { region.capacity = 1u << 31; });
  refuse([](auto& region) { region.bytes = 100; });
}

TEST_F(HostileControlTest, BlocksAndUnmapsThatCannotBe) {
  Begin();
  control::Blocks blocks{};
  blocks.pool_offset = 0;
  blocks.bytes = 4 * kMiB;
  daemon_->Send(blocks, control::Type::kBlocks, 0);
  ExpectDetached("cannot be");
  control::Unmap unmap{};
  unmap.region = 5;
  daemon_->Send(unmap, control::Type::kUnmap, 0);
  ExpectDetached("not mapped");
}

TEST_F(HostileControlTest, UnmappingWhatIsInUse) {
  Begin();
  Connected(1);
  const uint64_t offset = daemon_->ReceiveBuffer(100);
  port_->MessageAt(1, offset, 100);
  const sluice_event message = Next(SLUICE_EVENT_MESSAGE);
  control::Unmap unmap{};
  for (unmap.region = 1; unmap.region < 4; ++unmap.region) {
    daemon_->Send(unmap, control::Type::kUnmap, 0);
  }
  ExpectDetached("in use");
  std::memset(message.data, 1, message.length);  // Still there.
  EXPECT_EQ(sluice_free(channel_, message.data), 0);
}

TEST_F(HostileControlTest, MessagesOfEveryTypeCutShortOrUnknown) {
  Begin();
  for (uint16_t type = 64; type < 80; ++type) {
    control::Header header{};
    header.type = static_cast<control::Type>(type);
    header.bytes = sizeof(header);
    daemon_->SendBytes(std::as_bytes(std::span(&header, 1)));
    ExpectDetached("daemon");
  }
  daemon_->SendBytes(std::as_bytes(std::span("short")));
  ExpectDetached("truncated");
  const std::vector<std::byte> long_message(5000);
  daemon_->SendBytes(long_message);
  ExpectDetached("oversized");
}

TEST_F(HostileControlTest, ImpossibleLimits) {
  for (int what = 0; what < 4; ++what) {
    FakeDaemon::Options options;
    if (what == 0) options.io_threads = 0;
    if (what == 1) options.io_threads = 1000;
    if (what == 2) options.pool_bytes = ~uint64_t{0};
    if (what == 3) options.max_message_bytes = 0;
    StartDaemon(options);
    EXPECT_EQ(TryAttach(&client_), -ECONNRESET) << what;
    daemon_->Kill();
  }
}

}  // namespace
}  // namespace sluice::client
