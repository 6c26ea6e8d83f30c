// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "shm_proto/base/fd.h"
#include "shm_proto/descriptor.h"
#include "shm_proto/ring.h"

namespace sluice {

struct ClientView;

// A ring pair between one app channel and one I/O thread, seen from the daemon.
// Invariant: free completion entries >= reserved_, so an operation once taken can always be
// answered; messages only use what is beyond. Thread: its I/O thread's. Owns the daemon's end of
// the doorbell; borrows the rings' memory.
class Port {
 public:
  // A backstop behind the quota: two events of as many sockets as any client may have.
  static constexpr size_t kMaxWaitingEvents = 2 * 1'048'576;

  Port(ClientView& client, uint32_t channel, RingMemory submissions, RingMemory completions,
       Fd doorbell, size_t max_waiting_events = kMaxWaitingEvents);

  // Takes the next request if its answer has a place. False: nothing there, no place, or the client
  // broke the ring.
  bool Take(Descriptor& request);
  // Looks for mischief that no operation comes upon; for now and then.
  void Inspect() { completions_.Inspect(); }
  // Why the client may not go on; null: it may.
  const char* fault() const;

  // Answers an operation taken with Take(); always succeeds.
  void Answer(const Descriptor& answer);
  // An operation that needs no answer after all.
  void Unreserve() { --reserved_; }
  // A message; false: no place now.
  bool Deliver(const Descriptor& message);
  // A socket's event. Never lost: waits here until there is a place. A socket has at most two (it
  // is there, it is gone) and counts against its client's quota until its last one is out, so the
  // quota bounds what waits.
  void Tell(const Descriptor& event);
  // Events that waited. True: all are out.
  bool TellWaiting();
  // A socket whose last event was told is gone. True: that event is out already; else TakeEnded()
  // counts the socket once it is.
  bool EndSocket();
  // How many such sockets there were since the last call.
  uint32_t TakeEnded() { return std::exchange(ended_, 0); }
  // The channel or the client is gone: the rings are not touched any more, what waits is dropped.
  void Remove();
  // Shows the client what was answered and wakes it if it sleeps.
  void Publish();

  // Before the thread sleeps / after it woke.
  bool Arm();  // False: there is work.
  void Disarm() { submissions_.Disarm(); }
  void DrainDoorbell();

  bool HasRoomForMessage() { return completions_.HasRoom(reserved_ + 1); }

  ClientView& client() const { return *client_; }
  uint32_t channel() const { return channel_; }
  int doorbell() const { return doorbell_.get(); }

  // A request that names memory this thread has not heard of yet, while the control thread has
  // news.
  std::optional<Descriptor> parked;
  // Sockets whose message found no place, each once.
  std::vector<uint32_t> waiting_sockets;
  uint32_t sockets = 0;  // That name this port as their owner.
  uint64_t submitted = 0, completed = 0, rejected = 0, doorbells = 0;
  uint32_t operations_in_flight() const { return reserved_; }
  bool removing() const { return removing_; }

 private:
  void RingDoorbell();

  ClientView* client_;
  uint32_t channel_;
  uint32_t max_operations_;
  size_t max_waiting_events_;
  RingConsumer submissions_;
  RingProducer completions_;
  Fd doorbell_;
  uint32_t reserved_ = 0;
  bool unpublished_ = false;
  bool removing_ = false;
  bool overflowed_ = false;
  struct WaitingEvent {
    Descriptor event;
    uint32_t ends = 0;  // Sockets that are over once this one is out.
  };
  std::deque<WaitingEvent> waiting_events_;
  uint32_t ended_ = 0;
};

}  // namespace sluice
