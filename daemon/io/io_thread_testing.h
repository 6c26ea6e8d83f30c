// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/io/io_thread.h"
#include "daemon/transport/local/local_transport.h"
#include "shm_proto/base/units.h"

// What the tests of an I/O thread share: the thread, turned by hand, and clients that say to it
// whatever they like.
namespace sluice::io::testing {

constexpr uint64_t kReserveBytes = 64 * kMiB;
constexpr uint64_t kMaxMessageBytes = 8 * kMiB;
constexpr uint32_t kCapacity = 64;
constexpr uint64_t kSendBytes = 32 * kMiB;  // The pool's first extent; the second is to receive.
constexpr PeerId kDialer = 1, kListener = 2;
constexpr uint16_t kService = 7;

class ManualClock final : public Clock {
 public:
  uint64_t NowNs() const override { return now_ns; }
  uint64_t now_ns = 1'000 * kNsPerSecond;
};

// A client as the control thread and the application make one: a pool and one ring pair.
class TestClient {
 public:
  TestClient(IoThread& thread, ClientId client, uint32_t capacity, uint64_t max_message_bytes)
      : id(client), thread_(thread), capacity_(capacity), rings_(2 * RingBytes(capacity) + 64) {
    void* base = mmap(nullptr, kReserveBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(base, MAP_FAILED);
    pool = static_cast<std::byte*>(base);
    std::array<int, 2> ends;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    doorbell_.Reset(ends[1]);
    InitializeRing(submissions(), 0);
    InitializeRing(completions(), 0);
    requests = std::make_unique<RingProducer>(submissions());
    answers = std::make_unique<RingConsumer>(completions());
    Post(AddClient{id, pool, kReserveBytes, max_message_bytes, "client"});
    Post(AddExtent{id, 0, kSendBytes});
    Post(AddExtent{id, kSendBytes, kReserveBytes - kSendBytes});
    Post(AddPort{id, 0, submissions(), completions(), Fd(ends[0])});
  }
  ~TestClient() { munmap(pool, kReserveBytes); }

  RingMemory submissions() { return {Base(), capacity_}; }
  RingMemory completions() { return {Base() + RingBytes(capacity_), capacity_}; }

  void Connect(uint64_t token) { Post(OpenSocket{id, 0, token, kDialer, kService}); }
  void Send(uint32_t socket, uint64_t token, uint64_t length) {
    Descriptor request{};
    request.op = static_cast<uint8_t>(SubmitOp::kSend);
    request.socket = socket;
    request.token = token;
    request.region.length = length;
    Submit(request);
  }
  void Close(uint32_t socket) {
    Descriptor request{};
    request.op = static_cast<uint8_t>(SubmitOp::kClose);
    request.socket = socket;
    Submit(request);
  }
  void Submit(const Descriptor& request) {
    ASSERT_TRUE(requests->Stage(request));
    requests->Publish();
  }
  // What the application has not taken yet.
  std::vector<Descriptor> Take() {
    std::vector<Descriptor> taken;
    for (Descriptor one; answers->Pop(one);) taken.push_back(one);
    answers->Release();
    return taken;
  }
  template <typename Message>
  void Post(Message message) {
    thread_.mailbox().Post(std::move(message));
  }

  const ClientId id;
  std::byte* pool;
  std::unique_ptr<RingProducer> requests;
  std::unique_ptr<RingConsumer> answers;

 private:
  std::byte* Base() {
    return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(rings_.data()) + 63) &
                                        ~uintptr_t{63});
  }
  IoThread& thread_;
  const uint32_t capacity_;
  std::vector<std::byte> rings_;
  Fd doorbell_;
};

inline bool Is(const Descriptor& answer, CompletionOp op) {
  return answer.op == static_cast<uint8_t>(op);
}

// One I/O thread and a dialing and a listening client on it, of one host.
class IoThreadTest : public ::testing::Test {
 protected:
  IoThreadTest() {
    auto wire = transport::LocalTransport::Create();
    auto loop = transport::LocalTransport::Create();
    const auto make_loop = [local = loop->get()](const transport::QueuePairLimits& limits,
                                                 void* context_a, void* context_b) {
      return local->CreatePair(limits, context_a, limits, context_b);
    };
    const AdoptConnection adopt =
        [](Fd, const transport::QueuePairLimits&,
           void*) -> sluice::Result<std::unique_ptr<transport::QueuePair>> {
      return Fail(ErrorCode::kUnavailable, "no other hosts here");
    };
    Configure settings{};
    settings.idle = IdlePolicy::kSpin;
    thread = std::make_unique<IoThread>(
        IoThread::Options{0, LocalLimits{}, settings}, clock,
        Networks{std::move(*wire), adopt, std::move(*loop), make_loop}, control);
  }

  void Begin(uint64_t listener_max_bytes = kMaxMessageBytes) {
    dialer = std::make_unique<TestClient>(*thread, 1, kCapacity, kMaxMessageBytes);
    listener = std::make_unique<TestClient>(*thread, 2, kCapacity, listener_max_bytes);
    thread->mailbox().Post(LinkSelf{kDialer, kListener, "this host", 5});
    Settle();
  }

  // One turn of the loop, and of the control thread that answers it.
  bool Turn() {
    const bool busy = thread->PollOnce(clock.now_ns);
    for (FromIo message; control.Take(message);) {
      if (const auto* incoming = std::get_if<IncomingSocket>(&message)) {
        thread->mailbox().Post(AcceptSocket{incoming->peer, incoming->socket, listener->id, 0, 99});
      } else if (const auto* need = std::get_if<NeedReceiveBlocks>(&message)) {
        Grant(*need);
      }
      told.push_back(std::move(message));
    }
    return busy;
  }
  void Settle() {
    for (int idle = 0, turn = 0; idle < 4; ++turn) {
      ASSERT_LT(turn, 100'000) << "the thread never comes to rest";
      idle = Turn() ? 0 : idle + 1;
      if (idle > 0) clock.now_ns += Tunables{}.ack_delay_ns;  // What waits for company goes alone.
    }
  }
  void Grant(const NeedReceiveBlocks& need) {
    AddReceiveBlocks answer{need.client, 0, 0};
    if (!deny) {
      answer = {need.client, kSendBytes + granted_bytes[need.client], need.bytes};
      granted_bytes[need.client] += need.bytes;
    }
    thread->mailbox().Post(answer);
  }
  template <typename T>
  size_t Told() const {
    size_t count = 0;
    for (const FromIo& message : told) count += std::holds_alternative<T>(message);
    return count;
  }

  // A socket from the dialer to the listener: the dialer's and the listener's name of it.
  std::pair<uint32_t, uint32_t> OpenPair() {
    dialer->Connect(1);
    Settle();
    std::pair<uint32_t, uint32_t> names{0, 0};
    for (const Descriptor& event : dialer->Take()) {
      if (Is(event, CompletionOp::kConnected)) names.first = event.socket;
    }
    for (const Descriptor& event : listener->Take()) {
      if (Is(event, CompletionOp::kAccepted)) names.second = event.socket;
    }
    EXPECT_NE(names.first, 0u);
    EXPECT_NE(names.second, 0u);
    return names;
  }

  ManualClock clock;
  Mailbox<FromIo> control;
  std::vector<FromIo> told;
  bool deny = false;
  std::map<ClientId, uint64_t> granted_bytes;
  std::unique_ptr<IoThread> thread;
  std::unique_ptr<TestClient> dialer, listener;
};

}  // namespace sluice::io::testing
