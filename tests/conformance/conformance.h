// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/transport/transport.h"

// One suite that holds every transport to the contract in daemon/transport/transport.h. A transport
// joins with a Network and one INSTANTIATE_TEST_SUITE_P line.
namespace sluice::transport {

// Two hosts with a transport each (or one transport that is both), made anew for each test.
class Network {
 public:
  virtual ~Network() = default;
  using Pair = std::pair<std::unique_ptr<QueuePair>, std::unique_ptr<QueuePair>>;
  virtual Result<Pair> Connect(QueuePairLimits limits_a, void* context_a, QueuePairLimits limits_b,
                               void* context_b) = 0;
  virtual std::vector<Transport*> transports() = 0;
};

struct TransportUnderTest {
  std::string name;
  std::function<Result<std::unique_ptr<Network>>()> make_network;
  bool waits_for_receives;     // A SEND without a receive waits; else it ends the connection.
  bool discards_stale_writes;  // A WRITE to a withdrawn grant does nothing; else it ends it.
  bool needs_device = false;   // Without it the tests are skipped, with the reason.
  bool tells_the_peer = true;  // Of the end of a connection; else it finds out by sending.
  bool knows_grants = true;    // Else regions are all that is checked: a late WRITE lands, and the
                               // fence is the end of the queue pair.
};

inline std::ostream& operator<<(std::ostream& out, const TransportUnderTest& tested) {
  return out << tested.name;
}

// One end of a connection under test, with all that happened to it.
struct End {
  struct Event {
    Completion completion;
    std::vector<std::byte> data;  // kReceived: a copy of what it pointed to.
  };

  QueuePairLimits limits{};
  std::unique_ptr<QueuePair> queue_pair;
  std::vector<Event> events;
  std::vector<std::vector<std::byte>> receive_memory;

  std::vector<const Event*> Of(CompletionKind kind, Status status = Status::kOk) const;
  size_t Count(CompletionKind kind, Status status = Status::kOk) const {
    return Of(kind, status).size();
  }
  bool disconnected() const { return Count(CompletionKind::kDisconnected, Status::kFlushed) > 0; }

  // Posts `count` receives of full size with ids first_id, first_id + 1, ...
  void PostReceives(size_t count, uint64_t first_id = 0);
  bool Post(const SendRequest& request) { return queue_pair->PostSend({&request, 1}) == 1; }
};

SendRequest MakeSend(uint64_t id, std::span<const std::byte> bytes, bool signalled = true);
SendRequest MakeWrite(uint64_t id, std::span<const std::byte> bytes, const RemoteSlice& slice,
                      uint64_t offset = 0, bool signalled = true);
SendRequest MakeWriteImmediate(uint64_t id, std::span<const std::byte> bytes,
                               const RemoteSlice& slice, uint32_t immediate, uint64_t offset = 0);
// Bytes that differ from seed to seed and from place to place.
std::vector<std::byte> Pattern(size_t bytes, uint32_t seed);

class Conformance : public testing::TestWithParam<TransportUnderTest> {
 protected:
  static constexpr QueuePairLimits kLimits{
      .send_queue_depth = 16, .receive_queue_depth = 16, .receive_bytes = 4096};

  void SetUp() override;
  void TearDown() override;

  void Connect(End& a, End& b, QueuePairLimits limits_a = kLimits,
               QueuePairLimits limits_b = kLimits);
  // Polls every transport once and gives what completed to its End. Returns how many.
  size_t Poll();
  // Polls until `condition`; false when it does not come true in time.
  bool PollUntil(const std::function<bool()>& condition);
  // Polls until nothing has happened for a while.
  void PollUntilQuiet();
  // Exposes `memory` cut into `pieces` at `end`; returns the first slice.
  RemoteSlice Expose(End& end, uint32_t grant, std::span<std::byte> memory, size_t pieces = 1);

  // A message each way, to see that the connection still works.
  void ExpectAlive(End& a, End& b);
  // The peer of `end` is gone: makes sure that it finds out.
  void LetFindOut(End& end);
  // Both ends end, each with exactly one kDisconnected as its last completion.
  void ExpectDead(End& a, End& b);

  std::unique_ptr<Network> network_;
  size_t completions_per_poll_ = 32;
  End a_;
  End b_;
};

}  // namespace sluice::transport
