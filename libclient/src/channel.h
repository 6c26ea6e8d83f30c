// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "libclient/include/sluice/sluice.h"
#include "libclient/src/client.h"
#include "libclient/src/inline_slab.h"
#include "libclient/src/mailbox.h"
#include "libclient/src/pool.h"
#include "libclient/src/ring_port.h"
#include "libclient/src/sockets.h"

namespace sluice::client {

// The sentence for a buffer that cannot be freed.
int RefuseFree(Pool::Freed freed);

// Where one thread submits and polls: its sockets and its ring pairs with the daemon's I/O threads.
// In steady state it touches the rings and private memory only: no lock, no allocation, no system
// call but the doorbell of a sleeper. When the daemon dies it first takes what the old rings still
// hold, then ends what is under way as UNKNOWN, then its sockets, and then says DETACHED; each of
// these goes on over as many polls as the application's event arrays need. Invariant: every
// operation and every socket gets exactly one last event. Thread: one at a time. Owns: its ring
// ports until it closes.
class Channel {
 public:
  Channel(Client& client, Client::OpenedChannel opened);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel();

  Result<> Start();  // The event descriptor.

  const Client& client() const { return client_; }

  // As in sluice.h: 0 or a count, or a negative errno value with its sentence recorded.
  void* Allocate(size_t length, int* error);
  int Free(void* buffer);
  int Listen(uint16_t service, uint64_t user_data, sluice_listener* listener);
  int Unlisten(sluice_listener listener);
  int Connect(const char* address, uint64_t user_data, sluice_socket* socket);
  int SetUserData(sluice_socket socket, uint64_t user_data);
  int Close(sluice_socket socket);
  struct Message {
    const void* data;
    size_t length;
    uint32_t flags;
    uint64_t user_data;
    uint64_t trace_id;
  };
  int Send(sluice_socket socket, const Message& message) {
    return NoteRoom(SendBuffer(socket, message));
  }
  int SendCopy(sluice_socket socket, const Message& message) {
    return NoteRoom(CopyAndSend(socket, message));
  }
  int Poll(sluice_event* events, int max);
  int Wait(sluice_event* events, int max, int timeout_ms);
  int Arm();
  int event_fd() const { return epoll_.get(); }

 private:
  enum class Phase {
    kUp,
    kDraining,  // The daemon is gone: what its rings still hold comes first,
    kFailing,   // then what is under way ends as UNKNOWN,
    kClosing,   // then the sockets end,
    kAway,      // and DETACHED was said.
  };
  struct ListenerRecord {
    uint64_t token;
    uint16_t service;
    uint64_t user_data;
  };
  // Where Poll() puts events.
  struct Sink {
    sluice_event* next;
    sluice_event* end;
    uint32_t flags = 0;  // Of the events to come: enum sluice_event_flags.
    bool full() const { return next == end; }
    sluice_event& Add(sluice_event_type type) {
      *next = sluice_event{};
      next->type = static_cast<uint32_t>(type);
      next->flags = flags;
      return *next++;
    }
  };

  // channel_send.cc
  RingPort* PortOf(const SocketRecord& record) { return ports_[record.io_thread].get(); }
  int CheckSend(sluice_socket socket, const Message& message, RingPort** port,
                uint32_t* daemon_name);
  int TakeBuffer(RingPort& port, const Message& message, void** start);
  int ExplainBuffer(const void* data, size_t length);
  void PutBack(RingPort& port, void* start);
  int SendBuffer(sluice_socket socket, const Message& message);
  int CopyAndSend(sluice_socket socket, const Message& message);
  int Submit(RingPort& port, uint32_t daemon_name, sluice_socket socket, const Message& message,
             void* buffer);
  void FreeSent(RingPort& port, void* buffer);
  void RouteReturn(Pool& pool, uint32_t io_thread, uint64_t offset);

  // channel_events.cc
  void TakeNotices(Sink& sink);
  void OnNotice(Notice& notice, Sink& sink);
  void AdoptPort(std::unique_ptr<RingPort> port);
  void OnConnectFailed(const Notice& notice, Sink& sink);
  void PollRings(Sink& sink);
  bool PollRing(RingPort& port, Sink& sink);
  bool RingsEmpty();
  const char* OnCompletion(RingPort& port, const Descriptor& descriptor, Sink& sink);
  const char* OnSent(RingPort& port, const Descriptor& descriptor, Sink& sink);
  const char* OnMessage(RingPort& port, const Descriptor& descriptor, Sink& sink);
  const char* OnConnected(RingPort& port, const Descriptor& descriptor, Sink& sink);
  const char* OnAccepted(RingPort& port, const Descriptor& descriptor, Sink& sink);
  const char* OnClosed(RingPort& port, const Descriptor& descriptor, Sink& sink);
  void EndOperation(RingPort& port, const Operation& operation, uint32_t outcome, int32_t error,
                    const char* text, Sink& sink);
  void EndConnect(sluice_socket socket, uint32_t outcome, int32_t error, const char* text,
                  Sink& sink);
  void EndEverything(Sink& sink);
  void EndSockets(Sink& sink);
  void DropPorts();
  void SayDetached(Sink& sink);
  void SayLeftOut(Notice& notice, Sink& sink);
  void FlushPorts();
  // Why there is no new work now.
  const char* AwayText() const {
    return away_text_.empty() ? "the daemon is away: wait for SLUICE_EVENT_REATTACHED"
                              : away_text_.c_str();
  }
  int NoteRoom(int result) {
    wants_room_ = result == -EAGAIN;
    room_came_ = false;
    return result;
  }
  bool SomethingToDo();
  void AbandonCells(RingPort& port);
  void Disarm();

  Client& client_;
  const uint32_t number_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<Pool> pool_;
  Limits limits_;
  InlineSlab& slab_;
  InlineSlab::Cache cells_;
  SocketTable sockets_;
  std::vector<ListenerRecord> listeners_;
  std::array<std::unique_ptr<RingPort>, control::kMaxIoThreads> ports_;  // By I/O thread.
  std::vector<RingPort*> polled_;                                        // Those that are there.
  size_t next_polled_ = 0;
  Fd epoll_;
  bool armed_ = false;
  uint64_t popped_ = 0;      // Completions taken so far.
  bool wants_room_ = false;  // The last send was refused with EAGAIN,
  bool room_came_ = false;   // and since then something ended that gives no event.
  Phase phase_ = Phase::kUp;
  std::string detach_text_;
  std::string away_text_;          // The daemon is back without this channel: why.
  std::deque<std::string> texts_;  // Sentences of the events of the last poll.
};

}  // namespace sluice::client
