// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "daemon/transport/tcp/tcp_transport.h"
#include "daemon/transport/tcp/wire.h"
#include "shm_proto/base/clock.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/sockets.h"

// What only TCP does: its bytes on the wire, and peers that send others.
static std::atomic<uint64_t> allocations{0};

// NOLINTBEGIN: counts what the data path allocates, which must be nothing.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
// NOLINTEND

namespace sluice::transport {
namespace {

constexpr QueuePairLimits kLimits{
    .send_queue_depth = 16, .receive_queue_depth = 16, .receive_bytes = 4096};

WireHeader Header(WireOperation operation, uint32_t length) {
  return {.magic = kWireMagic,
          .operation = static_cast<uint8_t>(operation),
          .following = 0,
          .length = length,
          .immediate = 0,
          .key = 0,
          .address = 0};
}

// A queue pair whose peer is this test with a bare socket.
class TcpPeer : public testing::Test {
 protected:
  void SetUp() override {
    auto transport = TcpTransport::Create();
    ASSERT_TRUE(transport.has_value()) << transport.error().message;
    transport_ = std::move(*transport);
    peer_ = Adopt(end_);
  }

  Fd Adopt(End& end, bool tiny_buffers = false) {
    auto sockets = ConnectedSockets(tiny_buffers);
    EXPECT_TRUE(sockets.has_value()) << sockets.error().message;
    auto adopted = transport_->Adopt(std::move(sockets->first), kLimits, &end);
    EXPECT_TRUE(adopted.has_value()) << adopted.error().message;
    end.limits = kLimits;
    end.queue_pair = std::move(*adopted);
    return std::move(sockets->second);
  }

  void Say(const void* bytes, size_t length) {
    ASSERT_EQ(send(peer_.get(), bytes, length, MSG_NOSIGNAL), static_cast<ssize_t>(length));
  }
  void Say(const WireHeader& header) { Say(&header, sizeof header); }

  void Poll() {
    std::array<Completion, 32> completions;
    const size_t count = transport_->Poll(completions, MonotonicClock().NowNs());
    for (const Completion& completion : std::span(completions).first(count)) {
      End::Event event{.completion = completion, .data = {}};
      if (completion.kind == CompletionKind::kReceived && completion.status == Status::kOk) {
        event.data.assign(completion.data, completion.data + completion.bytes);
      }
      static_cast<End*>(completion.context)->events.push_back(std::move(event));
    }
  }

  bool PollUntil(const std::function<bool()>& condition) {
    const uint64_t deadline_ns = MonotonicClock().NowNs() + 20 * kNsPerSecond;
    while (!condition() && MonotonicClock().NowNs() < deadline_ns) Poll();
    return condition();
  }

  void ExpectDeath(const std::string& reason) {
    ASSERT_TRUE(PollUntil([&] { return end_.disconnected(); }));
    EXPECT_THAT(end_.queue_pair->reason(), testing::HasSubstr(reason));
    EXPECT_EQ(end_.events.back().completion.kind, CompletionKind::kDisconnected);
  }

  RemoteSlice Expose(uint32_t grant, std::span<std::byte> memory) {
    const LandingSegment segment{memory.data(), memory.size(), 0};
    std::array<RemoteSlice, kMaxSlices> slices{};
    EXPECT_TRUE(end_.queue_pair->Expose(grant, {&segment, 1}, slices).has_value());
    return slices[0];
  }

  std::unique_ptr<TcpTransport> transport_;
  End end_;
  Fd peer_;
};

TEST_F(TcpPeer, RequestsOfOnePollMakeOneBatchAsDocumented) {
  const auto text = std::as_bytes(std::span("abc", 3));
  ASSERT_TRUE(end_.Post(MakeSend(1, text)));
  RemoteSlice slice{.address = 0x1122334455667788, .length = 9, .key = 0xaabbccdd};
  ASSERT_TRUE(end_.Post(MakeWriteImmediate(2, text.first(2), slice, 0x01020304)));
  Poll();
  const std::array<uint8_t, 53> expected{0xb5, 1,    1,    0,    3,    0,    0,    0,
                                         0,    0,    0,    0,    0,    0,    0,    0,
                                         0,    0,    0,    0,    0,    0,    0,    0,  //
                                         0xb5, 3,    0,    0,    2,    0,    0,    0,
                                         4,    3,    2,    1,    0xdd, 0xcc, 0xbb, 0xaa,  //
                                         0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
                                         'a',  'b',  'c',  'a',  'b'};
  std::array<uint8_t, 100> got;
  ASSERT_EQ(recv(peer_.get(), got.data(), got.size(), 0), 53);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), got.begin()));
}

TEST_F(TcpPeer, AStreamInSingleBytesIsUnderstood) {
  std::vector<std::byte> landing(100);
  Expose(7, landing);
  end_.PostReceives(2);
  const auto bytes = Pattern(60, 1);
  std::array<WireHeader, 3> headers{Header(WireOperation::kSend, 10),
                                    Header(WireOperation::kWriteImmediate, 40),
                                    Header(WireOperation::kWrite, 10)};
  headers[0].following = 2;
  headers[1].following = 1;
  headers[1].key = headers[2].key = 7;
  headers[1].address = 5;
  headers[2].address = 90;
  std::vector<std::byte> stream(sizeof headers + bytes.size());
  std::memcpy(stream.data(), headers.data(), sizeof headers);
  std::copy(bytes.begin(), bytes.end(), stream.begin() + sizeof headers);
  for (const std::byte byte : stream) {
    Say(&byte, 1);
    Poll();
  }
  ASSERT_TRUE(PollUntil([&] { return landing[99] == bytes[59]; }));
  ASSERT_EQ(end_.events.size(), 2u);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + 10, end_.events[0].data.begin()));
  EXPECT_EQ(end_.events[1].completion.kind, CompletionKind::kWritten);
  EXPECT_TRUE(std::equal(bytes.begin() + 10, bytes.begin() + 50, landing.begin() + 5));
}

TEST_F(TcpPeer, GarbageEndsTheConnection) {
  const std::string garbage = "GET / HTTP/1.1\r\nHost: example\r\n\r\n";
  Say(garbage.data(), garbage.size());
  ExpectDeath("no header");
}

TEST_F(TcpPeer, EveryWrongHeaderFieldEndsTheConnection) {
  std::vector<WireHeader> wrong(5, Header(WireOperation::kWrite, 0));
  wrong[0].magic = 0;
  wrong[1].operation = 0;
  wrong[2].operation = 4;
  wrong[3].following = kMaxBatch;
  wrong[4].following = 0xffff;
  for (const WireHeader& header : wrong) {
    end_.queue_pair.reset();
    end_.events.clear();
    peer_ = Adopt(end_);
    Say(header);
    ExpectDeath("no header");
  }
}

TEST_F(TcpPeer, HeadersOutOfSequenceEndTheConnection) {
  WireHeader header = Header(WireOperation::kWrite, 0);
  header.following = 5;
  Say(header);
  header.following = 5;
  Say(header);
  ExpectDeath("no header");
}

TEST_F(TcpPeer, AnEndInTheMiddleOfAHeaderIsToldAsSuch) {
  const WireHeader header = Header(WireOperation::kSend, 0);
  Say(&header, 23);
  peer_.Reset();
  ExpectDeath("in the middle of a message");
}

TEST_F(TcpPeer, AnEndInTheMiddleOfASendDeliversNothing) {
  end_.PostReceives(1);
  Say(Header(WireOperation::kSend, 100));
  Say("half", 4);
  peer_.Reset();
  ExpectDeath("in the middle of a message");
  EXPECT_EQ(end_.Count(CompletionKind::kReceived), 0u);
}

TEST_F(TcpPeer, ASendOfFourGigabytesEndsTheConnection) {
  end_.PostReceives(1);
  Say(Header(WireOperation::kSend, 0xffff'ffff));
  ExpectDeath("longer than the posted receives");
}

TEST_F(TcpPeer, AWriteOfFourGigabytesIntoASmallGrantEndsTheConnection) {
  std::vector<std::byte> landing(100);
  Expose(0, landing);
  Say(Header(WireOperation::kWrite, 0xffff'ffff));
  ExpectDeath("leaves grant 0");
}

TEST_F(TcpPeer, AMessageTooManyInABatchEndsTheConnectionAfterTheGoodOnes) {
  end_.PostReceives(1);
  WireHeader first = Header(WireOperation::kSend, 3);
  first.following = 1;
  Say(first);
  Say(Header(WireOperation::kSend, 3));
  Say("abcdef", 6);
  ExpectDeath("more messages than receives");
  EXPECT_EQ(end_.Count(CompletionKind::kReceived), 1u);
}

TEST_F(TcpPeer, AHalfClosedConnectionEndsAfterItsLastMessage) {
  end_.PostReceives(1);
  Say(Header(WireOperation::kSend, 4));
  Say("last", 4);
  shutdown(peer_.get(), SHUT_WR);
  ExpectDeath("the peer closed the connection");
  ASSERT_EQ(end_.Count(CompletionKind::kReceived), 1u);
}

TEST_F(TcpPeer, AResetEndsTheConnectionWithItsReason) {
  const linger at_once{1, 0};
  setsockopt(peer_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  peer_.Reset();
  ExpectDeath("reset by peer");
}

TEST_F(TcpPeer, LastWordsAreReadEvenWhenOurOwnWritesFail) {
  end_.PostReceives(1);
  Say(Header(WireOperation::kSend, 4));
  Say("last", 4);
  const linger at_once{1, 0};
  setsockopt(peer_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  peer_.Reset();
  const auto bytes = Pattern(100, 1);
  ASSERT_TRUE(end_.Post(MakeSend(1, bytes)));
  ExpectDeath("the connection broke");
  EXPECT_EQ(end_.Count(CompletionKind::kReceived), 1u);
  EXPECT_EQ(end_.Count(CompletionKind::kSent, Status::kFlushed), 1u);
}

TEST_F(TcpPeer, APeerThatStopsReadingHoldsUpItsOwnRequestsOnly) {
  End stuck;
  Fd deaf = Adopt(stuck, true);
  const auto bytes = Pattern(1'000'000, 1);
  ASSERT_TRUE(stuck.Post(MakeWrite(1, bytes, RemoteSlice{})));
  for (int i = 0; i < 100; ++i) Poll();
  EXPECT_EQ(stuck.Count(CompletionKind::kSent), 0u);
  EXPECT_TRUE(transport_->Arm()) << "a blocked connection must not keep the thread awake";

  end_.PostReceives(1);
  Say(Header(WireOperation::kSend, 0));
  ASSERT_TRUE(PollUntil([&] { return end_.Count(CompletionKind::kReceived) == 1; }));
  EXPECT_EQ(stuck.Count(CompletionKind::kSent), 0u);

  std::vector<std::byte> sink(64 * 1024);
  ASSERT_TRUE(PollUntil([&] {
    while (recv(deaf.get(), sink.data(), sink.size(), MSG_DONTWAIT) > 0) {
    }
    return stuck.Count(CompletionKind::kSent) == 1;
  }));
  stuck.queue_pair.reset();
}

TEST_F(TcpPeer, ASendIsNotDoneBeforeThePeersKernelHasIt) {
  End stuck;
  Fd deaf = Adopt(stuck, true);
  const auto bytes = Pattern(400, 1);
  uint64_t quiet_since_ns = MonotonicClock().NowNs();
  while (MonotonicClock().NowNs() - quiet_since_ns < 100 * kNsPerMs) {
    if (stuck.Post(MakeWrite(1, bytes, RemoteSlice{}))) quiet_since_ns = MonotonicClock().NowNs();
    Poll();
  }
  int arrived = 0;  // Nothing was read, so it is all still there.
  ASSERT_EQ(ioctl(deaf.get(), FIONREAD, &arrived), 0);
  EXPECT_GT(stuck.Count(CompletionKind::kSent), 0u);
  EXPECT_LE(stuck.Count(CompletionKind::kSent) * (sizeof(WireHeader) + bytes.size()),
            static_cast<size_t>(arrived));
  stuck.queue_pair.reset();
}

TEST_F(TcpPeer, AFloodOnOneConnectionLeavesTheOthersTheirTurn) {
  End flooded;
  Fd flood = Adopt(flooded);
  const auto write = Header(WireOperation::kWrite, 0);
  const std::vector<WireHeader> writes(10'000, write);
  end_.PostReceives(16);
  for (int round = 0; round < 16; ++round) {
    while (send(flood.get(), writes.data(), writes.size() * sizeof write,
                MSG_DONTWAIT | MSG_NOSIGNAL) ==
           static_cast<ssize_t>(writes.size() * sizeof write)) {
    }
    Say(Header(WireOperation::kSend, 0));
    const size_t before = end_.Count(CompletionKind::kReceived);
    pollfd arrived{transport_->fd(), POLLIN, 0};
    ASSERT_EQ(poll(&arrived, 1, 5000), 1);
    for (int i = 0; i < 2; ++i) Poll();
    EXPECT_EQ(end_.Count(CompletionKind::kReceived), before + 1) << round;
    if (flooded.disconnected()) break;  // The flood was cut in the middle of a header.
  }
  flooded.queue_pair.reset();
}

TEST_F(TcpPeer, MemoryThatIsGoneEndsTheConnectionAndNothingElse) {
  constexpr size_t kBytes = 1 << 16;
  void* mapped = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const std::span<std::byte> gone(static_cast<std::byte*>(mapped), kBytes);
  ASSERT_TRUE(end_.Post(MakeSend(1, gone)));
  ExpectDeath("Bad address");

  end_.queue_pair.reset();
  end_.events.clear();
  peer_ = Adopt(end_);
  Expose(0, gone);
  Say(Header(WireOperation::kWrite, kBytes));
  for (int i = 0; i < 10; ++i) Poll();
  const std::vector<std::byte> payload(kBytes);
  Say(payload.data(), payload.size());
  ExpectDeath("Bad address");
  munmap(mapped, kBytes);
}

TEST_F(TcpPeer, WhatIsNoTcpConnectionIsRefused) {
  std::array<int, 2> sockets;
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0);
  const Fd other(sockets[1]);
  const auto adopted = transport_->Adopt(Fd(sockets[0]), kLimits, nullptr);
  ASSERT_FALSE(adopted.has_value());
  EXPECT_THAT(adopted.error().message, testing::HasSubstr("TCP_NODELAY"));
}

TEST_F(TcpPeer, TheDataPathAllocatesNothing) {
  std::vector<std::byte> landing(50'000);
  const RemoteSlice slice = Expose(1, landing);
  end_.PostReceives(1);
  const ReceiveRequest receive{.id = 0,
                               .address = end_.receive_memory[0].data(),
                               .length = kLimits.receive_bytes,
                               .local_key = 0};
  std::vector<std::byte> message(sizeof(WireHeader) + 30'000);
  WireHeader header = Header(WireOperation::kWriteImmediate, 30'000);
  header.key = slice.key;
  std::memcpy(message.data(), &header, sizeof header);
  std::vector<std::byte> sink(100'000);
  std::array<Completion, 32> completions;
  const auto exchange = [&] {
    Say(message.data(), message.size());
    ASSERT_TRUE(end_.Post(MakeWrite(1, landing, slice)));
    bool sent = false;
    bool written = false;
    while (!sent || !written) {
      const size_t count = transport_->Poll(completions, MonotonicClock().NowNs());
      for (const Completion& completion : std::span(completions).first(count)) {
        ASSERT_EQ(completion.status, Status::kOk);
        sent |= completion.kind == CompletionKind::kSent;
        written |= completion.kind == CompletionKind::kWritten;
      }
      while (recv(peer_.get(), sink.data(), sink.size(), MSG_DONTWAIT) > 0) {
      }
    }
    ASSERT_TRUE(end_.queue_pair->PostReceive({&receive, 1}).has_value());
  };
  exchange();
  const uint64_t before = allocations;
  for (int i = 0; i < 100; ++i) exchange();
  EXPECT_EQ(allocations, before);
}

}  // namespace
}  // namespace sluice::transport
