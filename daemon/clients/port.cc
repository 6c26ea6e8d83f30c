// SPDX-License-Identifier: Apache-2.0
#include "daemon/clients/port.h"

#include <sys/socket.h>

#include <utility>

#include "shm_proto/base/check.h"

namespace sluice {

Port::Port(ClientView& client, uint32_t channel, RingMemory submissions, RingMemory completions,
           Fd doorbell, size_t max_waiting_events)
    : client_(&client),
      channel_(channel),
      max_operations_(completions.capacity / 2),
      max_waiting_events_(max_waiting_events),
      submissions_(submissions),
      completions_(completions),
      doorbell_(std::move(doorbell)) {}

bool Port::Take(Descriptor& request) {
  if (reserved_ >= max_operations_ || !completions_.HasRoom(reserved_ + 1)) return false;
  if (!submissions_.Pop(request)) return false;
  if (submissions_.Release()) RingDoorbell();  // The client waits for room.
  ++reserved_;
  ++submitted;
  return true;
}

void Port::Answer(const Descriptor& answer) {
  SLUICE_CHECK(reserved_ > 0, "only a taken operation is answered");
  --reserved_;
  ++completed;
  if (removing_) return;
  SLUICE_CHECK(completions_.Stage(answer), "a taken operation's answer has a place");
  unpublished_ = true;
}

bool Port::Deliver(const Descriptor& message) {
  if (removing_ || !waiting_events_.empty() || !HasRoomForMessage()) return false;
  completions_.Stage(message);
  ++completed;
  unpublished_ = true;
  return true;
}

void Port::Tell(const Descriptor& event) {
  if (removing_ || Deliver(event)) return;
  overflowed_ |= waiting_events_.size() >= max_waiting_events_;
  if (!overflowed_) waiting_events_.push_back({event});
}

bool Port::TellWaiting() {
  while (!waiting_events_.empty() && HasRoomForMessage()) {
    completions_.Stage(waiting_events_.front().event);
    ++completed;
    unpublished_ = true;
    ended_ += waiting_events_.front().ends;
    waiting_events_.pop_front();
  }
  return waiting_events_.empty();
}

// Events go out in order: once the last of those that wait now is out, so is the socket's.
bool Port::EndSocket() {
  if (waiting_events_.empty()) return true;
  ++waiting_events_.back().ends;
  return false;
}

void Port::Remove() {
  removing_ = true;
  for (const WaitingEvent& waiting : waiting_events_) ended_ += waiting.ends;
  waiting_events_.clear();
}

const char* Port::fault() const {
  if (submissions_.broken()) return "the submission ring's index jumped beyond its capacity";
  if (completions_.broken()) return "the completion ring's index went back or beyond what is there";
  if (overflowed_) return "it left more events of its sockets untaken than it may have sockets";
  return nullptr;
}

void Port::Publish() {
  if (!unpublished_ || removing_) return;
  unpublished_ = false;
  if (completions_.Publish()) RingDoorbell();
}

void Port::RingDoorbell() {
  ++doorbells;
  // Full or closed at the other end: it has been rung already, or nobody is there to hear.
  const char ring = 1;
  [[maybe_unused]] const ssize_t sent = send(doorbell_.get(), &ring, 1,
                                             MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool Port::Arm() {
  submissions_.Arm();
  const bool stalled = !completions_.HasRoom(reserved_ + 1);
  if (!stalled && reserved_ < max_operations_ && submissions_.Available() > 0) return false;
  if (!waiting_events_.empty() || !waiting_sockets.empty() || stalled)
    return completions_.WaitForRoom(reserved_ + 1);
  return true;
}

void Port::DrainDoorbell() {
  char rings[16];
  for (int i = 0; i < 64 && recv(doorbell_.get(), rings, sizeof(rings), MSG_DONTWAIT) > 0; ++i) {
  }
}

}  // namespace sluice
