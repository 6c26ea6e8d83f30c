// SPDX-License-Identifier: Apache-2.0
// Opening, closing, listening, connecting, waiting.
#include "libclient/src/channel.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "libclient/src/address.h"
#include "libclient/src/error_text.h"

namespace sluice::client {

int RefuseFree(Pool::Freed freed) {
  if (freed == Pool::Freed::kUnderWay) {
    return Refuse(EINVAL, "the buffer is being sent: it is yours again with SLUICE_EVENT_SENT");
  }
  return Refuse(EINVAL, "not the start of a buffer of this client, or freed already");
}

Channel::Channel(Client& client, Client::OpenedChannel opened)
    : client_(client),
      number_(opened.number),
      mailbox_(std::move(opened.mailbox)),
      pool_(std::move(opened.pool)),
      limits_(opened.limits),
      slab_(client.slab()),
      sockets_(opened.number) {}

Channel::~Channel() {
  for (RingPort* port : polled_) port->Flush();
  std::vector<std::unique_ptr<RingPort>> ports;
  for (auto& port : ports_) {
    if (port != nullptr) ports.push_back(std::move(port));
  }
  Notice notice;
  while (mailbox_->Take(notice)) {
    if (notice.port != nullptr) ports.push_back(std::move(notice.port));
  }
  for (auto& port : ports) AbandonCells(*port);
  slab_.ReturnAll(cells_);
  client_.CloseChannel(number_, std::move(ports));
}

// Small messages that sends kept are private memory: nobody but the ended operation holds them.
void Channel::AbandonCells(RingPort& port) {
  port.operations().ForEachBusy([this, &port](Operation& operation) {
    if (operation.buffer == nullptr || !slab_.Contains(operation.buffer)) return;
    FreeSent(port, operation.buffer);
    operation.buffer = nullptr;
  });
}

Result<> Channel::Start() {
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return FailErrno("cannot make an epoll descriptor for a channel");
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, mailbox_->fd(), &event) != 0) {
    return FailErrno("cannot watch a channel's eventfd");
  }
  return {};
}

int Channel::Listen(uint16_t service, uint64_t user_data, sluice_listener* listener) {
  if (service == 0 || listener == nullptr)
    return Refuse(EINVAL, "a service is a number from 1 to 65535");
  const Answer<uint64_t> token = client_.Listen(number_, service);
  if (!token) return Refuse(token.error());
  listeners_.push_back({*token, service, user_data});
  *listener = *token;
  return 0;
}

int Channel::Unlisten(sluice_listener listener) {
  const auto removed = std::erase_if(listeners_,
                                     [&](const auto& own) { return own.token == listener; });
  if (removed == 0) return Refuse(EINVAL, "this channel has no such listener");
  client_.Unlisten(listener);
  return 0;
}

int Channel::Connect(const char* text, uint64_t user_data, sluice_socket* socket) {
  if (text == nullptr || socket == nullptr)
    return Refuse(EINVAL, "no address, or no place for the socket");
  const Result<Address> address = ParseAddress(text);
  if (!address) return RefuseWith(EINVAL, address.error().message);
  if (phase_ != Phase::kUp) return Refuse(ENOTCONN, AwayText());
  const uint64_t name = sockets_.count() < limits_.max_sockets
                            ? sockets_.Add(SocketRecord::State::kConnecting, user_data)
                            : 0;
  if (name == 0) return Refuse(ENOMEM, "all sockets that the daemon allows are open: close one");
  const Answer<uint32_t> request = client_.Connect(number_, name, address->host, address->service);
  if (!request) {
    sockets_.Remove(name);
    return Refuse(request.error());
  }
  sockets_.Find(name)->request = *request;
  *socket = name;
  return 0;
}

int Channel::SetUserData(sluice_socket socket, uint64_t user_data) {
  SocketRecord* record = sockets_.Find(socket);
  if (record == nullptr) return Refuse(EINVAL, "this channel has no such socket");
  record->user_data = user_data;
  return 0;
}

int Channel::Close(sluice_socket socket) {
  SocketRecord* record = sockets_.Find(socket);
  if (record == nullptr || record->hidden) return Refuse(EINVAL, "this channel has no such socket");
  if (record->state == SocketRecord::State::kConnecting) {
    record->close_requested = true;  // There is nothing to close until the daemon has named it.
  } else if (record->state == SocketRecord::State::kOpen) {
    record->state = SocketRecord::State::kClosing;
    RingPort* port = PortOf(*record);
    port->StageClose(record->daemon_name);
    port->Flush();
  }
  return 0;
}

bool Channel::SomethingToDo() {
  if (mailbox_->Pending() || (phase_ != Phase::kUp && phase_ != Phase::kAway)) return true;
  return std::any_of(polled_.begin(), polled_.end(), [](RingPort* port) {
    if (port->broken()) return false;
    return port->completions().Available() > 0 || port->completions().broken() ||
           port->pool().HasReturns(port->io_thread());
  });
}

int Channel::Arm() {
  mailbox_->DrainEvent();
  for (RingPort* port : polled_) {
    if (!port->DrainDoorbell() && !port->broken()) {
      // It never rings again but would keep the event descriptor readable; the control thread
      // learns of the daemon's end on its own.
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, port->doorbell(), nullptr);
    }
    port->Flush();
    port->completions().Arm();
  }
  armed_ = true;
  const bool room = std::any_of(polled_.begin(), polled_.end(), [](RingPort* port) {
    return !port->broken() && !port->WaitForRoom();
  });
  if (!room && !SomethingToDo()) return 0;
  Disarm();
  return 1;
}

void Channel::Disarm() {
  for (RingPort* port : polled_) port->completions().Disarm();
  armed_ = false;
}

int Channel::Wait(sluice_event* events, int max, int timeout_ms) {
  const MonotonicClock clock;
  const uint64_t end_ns = timeout_ms < 0
                              ? UINT64_MAX
                              : clock.NowNs() + static_cast<uint64_t>(timeout_ms) * kNsPerMs;
  bool fruitless = false;
  for (;;) {
    const uint64_t popped_before = popped_;
    const int count = Poll(events, max);
    if (count != 0) return count;
    if (wants_room_ && room_came_) {  // The caller's next send may find a place. Said once.
      wants_room_ = false;
      return 0;
    }
    const uint64_t now_ns = clock.NowNs();
    if (now_ns >= end_ns) return 0;
    uint64_t sleep_ns = end_ns - now_ns;
    if (Arm() == 1) {
      // Something came in between. Should it be there and yet not be taken twice in a row (there is
      // no room for another small message), look again a little later.
      const bool again = fruitless && popped_ == popped_before;
      fruitless = popped_ == popped_before;
      if (!again) continue;
      sleep_ns = std::min(sleep_ns, kNsPerMs);
    }
    pollfd waited{epoll_.get(), POLLIN, 0};
    const timespec left{static_cast<time_t>(sleep_ns / kNsPerSecond),
                        static_cast<long>(sleep_ns % kNsPerSecond)};
    if (ppoll(&waited, 1, &left, nullptr) < 0) return 0;  // A signal.
  }
}

}  // namespace sluice::client
