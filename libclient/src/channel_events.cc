// SPDX-License-Identifier: Apache-2.0
// Polling: what the daemon and the control thread say, turned into the application's events.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "libclient/src/channel.h"
#include "libclient/src/error_text.h"

namespace sluice::client {
namespace {

// The sentence of an error that came as a number only.
const char* TextOf(int32_t error) {
  if (error == 0) return nullptr;
  const char* text = strerrordesc_np(error);
  return text != nullptr ? text : "an error that this system does not know";
}

bool IsOutcome(uint32_t outcome) { return outcome <= static_cast<uint32_t>(Outcome::kUnknown); }

}  // namespace

int Channel::Poll(sluice_event* events, int max) {
  if (events == nullptr || max <= 0) return Refuse(EINVAL, "no room for events");
  if (armed_) Disarm();
  texts_.clear();
  Sink sink{events, events + max};
  if (mailbox_->Pending()) TakeNotices(sink);
  PollRings(sink);
  while (phase_ != Phase::kUp && phase_ != Phase::kAway && !sink.full()) {
    const Phase before = phase_;
    EndEverything(sink);
    if (phase_ == before) break;
    if (phase_ == Phase::kAway) TakeNotices(sink);
  }
  FlushPorts();
  return static_cast<int>(sink.next - events);
}

void Channel::FlushPorts() {
  for (RingPort* port : polled_) {
    port->Flush();
    room_came_ |= port->TakeRoom();
  }
}

// Notices of a later life of the daemon wait until everything of the former has ended.
void Channel::TakeNotices(Sink& sink) {
  Notice notice;
  while ((phase_ == Phase::kUp || phase_ == Phase::kAway) && !sink.full() &&
         mailbox_->Take(notice)) {
    OnNotice(notice, sink);
  }
}

void Channel::OnNotice(Notice& notice, Sink& sink) {
  switch (notice.kind) {
    case Notice::Kind::kRing: return AdoptPort(std::move(notice.port));
    case Notice::Kind::kConnectFailed: return OnConnectFailed(notice, sink);
    case Notice::Kind::kDetached:
      detach_text_ = std::move(notice.text);
      phase_ = Phase::kDraining;
      return;
    case Notice::Kind::kLeftOut: return SayLeftOut(notice, sink);
    case Notice::Kind::kReattached:
      pool_ = std::move(notice.pool);
      away_text_.clear();
      limits_ = client_.limits();
      phase_ = Phase::kUp;
      sluice_event& event = sink.Add(SLUICE_EVENT_REATTACHED);
      event.error = notice.error;
      if (notice.error != 0) event.text = texts_.emplace_back(std::move(notice.text)).c_str();
      return;
  }
}

void Channel::AdoptPort(std::unique_ptr<RingPort> port) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, port->doorbell(), &event) != 0) {
    // Without a doorbell the channel could sleep for ever on a full ring.
    client_.ReportBroken(port->pool(), "the doorbell of a ring pair cannot be waited for");
    port->set_broken();
  }
  auto& place = ports_[port->io_thread()];
  place = std::move(port);
  polled_.push_back(place.get());
}

void Channel::OnConnectFailed(const Notice& notice, Sink& sink) {
  uint64_t name = notice.token;
  for (uint32_t slot = 0; name == 0 && slot < sockets_.slots(); ++slot) {
    const SocketRecord& record = sockets_.at(slot);
    if (record.state == SocketRecord::State::kConnecting && record.request == notice.request) {
      name = sockets_.Name(slot);
    }
  }
  const SocketRecord* record = sockets_.Find(name);
  if (record == nullptr || record->state != SocketRecord::State::kConnecting) return;  // Another's.
  const char* text = notice.text.empty() ? TextOf(notice.error)
                                         : texts_.emplace_back(notice.text).c_str();
  EndConnect(name, SLUICE_FAILED, notice.error, text, sink);
}

void Channel::PollRings(Sink& sink) {
  const size_t count = polled_.size();
  for (size_t i = 0; i < count && !sink.full(); ++i) {
    RingPort& port = *polled_[(next_polled_ + i) % count];
    if (port.broken() || PollRing(port, sink)) continue;
    port.set_broken();
  }
  if (count > 0) next_polled_ = (next_polled_ + 1) % count;
}

// False: the daemon broke the rules. The application is told by what follows: everything ends as if
// it had died.
bool Channel::PollRing(RingPort& port, Sink& sink) {
  RingConsumer& completions = port.completions();
  const char* nonsense = nullptr;
  Descriptor descriptor;
  uint32_t left = port.capacity();
  while (left > 0 && !sink.full() && slab_.Ready(cells_) && completions.Pop(descriptor)) {
    --left;
    sink.flags = (descriptor.flags & kFlagDegraded) != 0 ? SLUICE_EVENT_DEGRADED_TCP : 0;
    nonsense = OnCompletion(port, descriptor, sink);
    if (nonsense != nullptr) break;
  }
  sink.flags = 0;
  popped_ += port.capacity() - left;
  port.ReleaseCompletions();
  if (completions.broken()) nonsense = "a completion ring's counters jumped";
  if (nonsense == nullptr) return true;
  client_.ReportBroken(port.pool(), nonsense);
  return false;
}

const char* Channel::OnCompletion(RingPort& port, const Descriptor& descriptor, Sink& sink) {
  switch (static_cast<CompletionOp>(descriptor.op)) {
    case CompletionOp::kSent: return OnSent(port, descriptor, sink);
    case CompletionOp::kMessage: return OnMessage(port, descriptor, sink);
    case CompletionOp::kConnected: return OnConnected(port, descriptor, sink);
    case CompletionOp::kAccepted: return OnAccepted(port, descriptor, sink);
    case CompletionOp::kClosed: return OnClosed(port, descriptor, sink);
  }
  return "an unknown completion";
}

const char* Channel::OnSent(RingPort& port, const Descriptor& descriptor, Sink& sink) {
  Operation operation;
  if (!IsOutcome(descriptor.result.outcome)) return "a send ended in an unknown way";
  if (!port.operations().End(descriptor.token, operation))
    return "a send ended that is not under way";
  EndOperation(port, operation, descriptor.result.outcome, descriptor.result.error,
               TextOf(descriptor.result.error), sink);
  return nullptr;
}

void Channel::EndOperation(RingPort& port, const Operation& operation, uint32_t outcome,
                           int32_t error, const char* text, Sink& sink) {
  const bool keeps = (operation.flags & SLUICE_SEND_KEEP) != 0;
  if (SocketRecord* record = sockets_.Find(operation.socket)) --record->sends_under_way;
  if (operation.buffer != nullptr) {
    if (keeps) {
      PutBack(port, operation.buffer);
    } else {
      FreeSent(port, operation.buffer);
    }
  }
  if (outcome == SLUICE_OK && (operation.flags & SLUICE_SEND_SILENT) != 0) {
    room_came_ = true;
    return;
  }
  sluice_event& event = sink.Add(SLUICE_EVENT_SENT);
  event.outcome = outcome;
  event.error = error;
  event.text = text;
  event.socket = operation.socket;
  event.user_data = operation.user_data;
  event.data = keeps ? operation.buffer : nullptr;
}

const char* Channel::OnMessage(RingPort& port, const Descriptor& descriptor, Sink& sink) {
  const uint64_t name = port.names().Find(descriptor.socket);
  const SocketRecord* record = sockets_.Find(name);
  if (record == nullptr) return "a message came for a socket that is not there";
  void* data = nullptr;
  uint64_t length = 0;
  if ((descriptor.flags & kFlagInline) != 0) {
    length = descriptor.inline_bytes;
    if (length > kInlineBytes) return "an inline message is too long";
    data = slab_.Take(cells_);
    std::memcpy(data, descriptor.inline_data, length);
  } else {
    length = descriptor.region.length;
    if (!port.pool().AcceptReceived(descriptor.region.offset, length, port.io_thread())) {
      return "a message lies where no message can";
    }
    data = port.pool().At(descriptor.region.offset);
  }
  if (record->hidden) {
    Free(data);
    return nullptr;
  }
  sluice_event& event = sink.Add(SLUICE_EVENT_MESSAGE);
  event.socket = name;
  event.user_data = record->user_data;
  event.data = data;
  event.length = length;
  event.trace_id = descriptor.trace_id;
  return nullptr;
}

const char* Channel::OnConnected(RingPort& port, const Descriptor& descriptor, Sink& sink) {
  SocketRecord* record = sockets_.Find(descriptor.token);
  if (record == nullptr || record->state != SocketRecord::State::kConnecting) {
    return "a connect ended that is not under way";
  }
  const uint32_t outcome = descriptor.result.outcome;
  const int32_t error = descriptor.result.error;
  if (!IsOutcome(outcome)) return "a connect ended in an unknown way";
  if (outcome != SLUICE_OK) {
    EndConnect(descriptor.token, outcome, error, TextOf(error), sink);
    return nullptr;
  }
  if (port.names().Find(descriptor.socket) != 0) return "two sockets got one name";
  port.names().Insert(descriptor.socket, descriptor.token);
  record->io_thread = port.io_thread();
  record->daemon_name = descriptor.socket;
  if (record->close_requested) {
    record->state = SocketRecord::State::kClosing;
    port.StageClose(descriptor.socket);
    return nullptr;
  }
  record->state = SocketRecord::State::kOpen;
  sluice_event& event = sink.Add(SLUICE_EVENT_CONNECTED);
  event.outcome = SLUICE_OK;
  event.socket = descriptor.token;
  event.user_data = record->user_data;
  return nullptr;
}

// A connect that did not end in a connection; the socket's name goes with it.
void Channel::EndConnect(sluice_socket socket, uint32_t outcome, int32_t error, const char* text,
                         Sink& sink) {
  const SocketRecord record = *sockets_.Find(socket);
  sockets_.Remove(socket);
  sluice_event& event = sink.Add(record.close_requested ? SLUICE_EVENT_CLOSED
                                                        : SLUICE_EVENT_CONNECTED);
  event.socket = socket;
  event.user_data = record.user_data;
  if (record.close_requested) return;
  event.outcome = outcome;
  event.error = error;
  event.text = text;
}

const char* Channel::OnAccepted(RingPort& port, const Descriptor& descriptor, Sink& sink) {
  if (port.names().Find(descriptor.socket) != 0) return "two sockets got one name";
  const auto listener = std::find_if(listeners_.begin(), listeners_.end(), [&](const auto& own) {
    return own.token == descriptor.token;
  });
  const uint64_t name = sockets_.Add(SocketRecord::State::kOpen, 0);
  if (name == 0) return "more sockets were accepted than there are names";
  port.names().Insert(descriptor.socket, name);
  SocketRecord& record = *sockets_.Find(name);
  record.io_thread = port.io_thread();
  record.daemon_name = descriptor.socket;
  if (listener == listeners_.end()) {  // It was closed while the peer connected.
    record.hidden = true;
    record.state = SocketRecord::State::kClosing;
    port.StageClose(descriptor.socket);
    return nullptr;
  }
  sluice_event& event = sink.Add(SLUICE_EVENT_ACCEPTED);
  event.socket = name;
  event.listener = listener->token;
  event.user_data = listener->user_data;
  return nullptr;
}

const char* Channel::OnClosed(RingPort& port, const Descriptor& descriptor, Sink& sink) {
  const uint64_t name = port.names().Find(descriptor.socket);
  const SocketRecord* record = sockets_.Find(name);
  if (record == nullptr) return "a socket was closed that is not there";
  port.names().Remove(descriptor.socket);
  if (!record->hidden) {
    sluice_event& event = sink.Add(SLUICE_EVENT_CLOSED);
    event.error = descriptor.result.error;
    event.text = TextOf(event.error);
    event.socket = name;
    event.user_data = record->user_data;
  }
  sockets_.Remove(name);
  return nullptr;
}

bool Channel::RingsEmpty() {
  return std::all_of(polled_.begin(), polled_.end(), [](RingPort* port) {
    return port->broken() || port->completions().Available() == 0;
  });
}

// One step of the daemon's death; Poll() goes on while steps are made and events fit.
void Channel::EndEverything(Sink& sink) {
  switch (phase_) {
    case Phase::kDraining:
      PollRings(sink);
      if (RingsEmpty()) phase_ = Phase::kFailing;
      return;
    case Phase::kFailing:
      for (RingPort* port : polled_) {
        Operation operation;
        while (!sink.full() && port->operations().EndAny(operation)) {
          EndOperation(*port, operation, SLUICE_UNKNOWN, ENOTCONN,
                       "the daemon went away before it told how the send ended", sink);
        }
        if (port->operations().busy() > 0) return;
      }
      phase_ = Phase::kClosing;
      return;
    case Phase::kClosing:
      EndSockets(sink);
      if (sockets_.count() > 0 || sink.full()) return;
      DropPorts();
      SayDetached(sink);
      phase_ = Phase::kAway;
      return;
    case Phase::kUp:
    case Phase::kAway: return;
  }
}

void Channel::SayLeftOut(Notice& notice, Sink& sink) {
  away_text_ = std::move(notice.text);
  sluice_event& event = sink.Add(SLUICE_EVENT_REATTACHED);
  event.error = notice.error;
  event.text = texts_.emplace_back(away_text_).c_str();
}

void Channel::SayDetached(Sink& sink) {
  sluice_event& event = sink.Add(SLUICE_EVENT_DETACHED);
  event.error = ENOTCONN;
  event.text = texts_.emplace_back(std::move(detach_text_)).c_str();
}

void Channel::EndSockets(Sink& sink) {
  constexpr const char* kText = "the daemon went away";
  for (uint32_t slot = 0; slot < sockets_.slots() && !sink.full(); ++slot) {
    const SocketRecord record = sockets_.at(slot);
    if (record.state == SocketRecord::State::kFree) continue;
    const uint64_t name = sockets_.Name(slot);
    if (record.state == SocketRecord::State::kConnecting) {
      EndConnect(name, SLUICE_UNKNOWN, ENOTCONN, kText, sink);
      continue;
    }
    sockets_.Remove(name);
    if (record.hidden) continue;
    sluice_event& event = sink.Add(SLUICE_EVENT_CLOSED);
    event.error = ENOTCONN;
    event.text = kText;
    event.socket = name;
    event.user_data = record.user_data;
  }
}

// Out of the epoll set by hand: a forked child may hold the descriptor open.
void Channel::DropPorts() {
  for (RingPort* port : polled_) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, port->doorbell(), nullptr);
    port->Abandon();
    ports_[port->io_thread()].reset();
  }
  polled_.clear();
  next_polled_ = 0;
}

}  // namespace sluice::client
