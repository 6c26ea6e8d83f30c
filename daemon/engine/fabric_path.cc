// SPDX-License-Identifier: Apache-2.0
// The second path: how two engines that talk over TCP move to a fabric both have, and back when it
// fails. One end, the initiator, drives; everything but the probe is said on the wire path.
//
//   initiator                                  other end
//   Offer (its endpoint)           ------->    makes and connects its queue pair
//   connects                       <-------    Answer (its endpoint)
//   Probe, on the fabric           =======>
//                                  <=======    Probe, on the fabric: data gets through both ways
//   Path n: its last word here     ------->    Path n: its last word here, resumes on the fabric
//   resumes on the fabric          <-------
//
// Falling back needs no agreement: whoever sees the fabric fail destroys its queue pair, says
// Path 0 on the wire and resumes there; so does the other end when it hears that. What was still on
// its way on the wire when an end changed its mind is void: the resume tells what arrived.
#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/engine/engine.h"
#include "shm_proto/base/clock.h"

namespace sluice {
namespace {

constexpr uint64_t kJoinTimeoutNs = 2 * kNsPerSecond;
constexpr uint64_t kLongestSettleNs = 30 * kNsPerSecond;
constexpr uint64_t kNever = ~uint64_t{0};

}  // namespace

bool Engine::MayUseFabric() const { return (session_.features & kFeatureFabric) != 0; }

// The lower instance drives, so that offers never cross.
bool Engine::IsFabricInitiator() const {
  return MayUseFabric() && session_.local_instance < session_.peer_instance;
}

void Engine::OnFabricChanged(uint64_t now_ns) {
  now_ns_ = now_ns;
  settle_ns_ = tunables_.fabric_settle_ns;
  if (fabric_step_ == FabricStep::kNone) next_fabric_ns_ = now_ns;
}

void Engine::LeaveFabric(const std::string& reason, uint64_t now_ns) {
  now_ns_ = now_ns;
  if (!fabric_.queue_pair) return;
  fabric_.Break(reason);
  LoseFabric();
}

// Whatever is due: to offer, or to give up waiting for the other end.
void Engine::StepFabric() {
  next_fabric_ns_ = kNever;
  if (fabric_step_ == FabricStep::kUp) return;
  if (fabric_step_ != FabricStep::kNone) return fabric_.Break("the peer did not join it in time");
  if (!IsFabricInitiator() || !host_.fabric() || goodbye_) return;
  if (!wire_.usable() || resuming_ || awaiting_marker_) {
    next_fabric_ns_ = now_ns_ + tunables_.fabric_settle_ns;
    return;
  }
  auto made = MakeFabricQueuePair();
  if (!made) return DropFabric(made.error().message);
  ++fabric_attempt_;
  fabric_step_ = FabricStep::kOffered;
  next_fabric_ns_ = now_ns_ + kJoinTimeoutNs;
  wire_.Say(wire::FrameType::kFabricOffer, fabric_.returns.lent(), fabric_attempt_,
            std::as_bytes(std::span(&*made, 1)));
}

Result<transport::Endpoint> Engine::MakeFabricQueuePair() {
  auto prepared = fabric_.Prepare(session_.peer_receive_depth, host_.fabric()->shared_receives());
  if (!prepared) return std::unexpected(prepared.error());
  const transport::QueuePairLimits limits{limits_.send_queue_depth, limits_.receive_depth,
                                          limits_.receive_bytes};
  auto made = host_.fabric()->Create(limits, fabric_.memory(), this);
  if (!made) return std::unexpected(made.error());
  joining_ = made->get();
  fabric_.queue_pair = std::move(*made);
  if (auto posted = fabric_.PostReceives(); !posted) return std::unexpected(posted.error());
  return joining_->local_endpoint();
}

// What the peer lends of its receives to begin with; 0: all of them.
Result<> Engine::TakeFabricCredits(uint64_t credits) {
  const uint32_t depth = session_.peer_receive_depth;
  if (credits != 0 && (credits < SharedReceives::kSmallestReserve || credits > depth)) {
    return Fail(ErrorCode::kProtocol, "the peer lends " + std::to_string(credits) +
                                          " receives on a fabric; allowed are " +
                                          std::to_string(SharedReceives::kSmallestReserve) +
                                          " to " + std::to_string(depth));
  }
  if (credits != 0) fabric_.credits = SendCredits(depth, static_cast<uint32_t>(credits));
  return {};
}

// Some time on the wire before the next try; longer each time it did not last.
void Engine::SettleFabric() {
  fabric_step_ = FabricStep::kNone;
  joining_ = nullptr;
  early_.clear();
  if (now_ns_ - fabric_up_ns_ > 10 * kNsPerSecond) settle_ns_ = tunables_.fabric_settle_ns;
  next_fabric_ns_ = now_ns_ + settle_ns_;
  settle_ns_ = std::min(2 * settle_ns_, std::max(kLongestSettleNs, tunables_.fabric_settle_ns));
}

// --- what the peer says about paths ---

void Engine::OnPathFrame(Path& path, const wire::FrameHeader& header,
                         std::span<const std::byte> payload) {
  if (!MayUseFabric()) return path.Break("the peer speaks of a fabric that was not agreed upon");
  const bool probe = header.type == wire::FrameType::kFabricProbe;
  if (probe != (&path == &fabric_)) return path.Break("the peer speaks of a path on the wrong one");
  transport::Endpoint peer;
  const bool names_endpoint = payload.size() == sizeof(peer);
  if (names_endpoint) std::memcpy(&peer, payload.data(), sizeof(peer));
  if (names_endpoint && peer.size > peer.bytes.size())
    return path.Break("the peer names an endpoint longer than endpoints are");
  switch (header.type) {
    case wire::FrameType::kFabricOffer:
      if (!names_endpoint) return path.Break("the peer offers a fabric without an endpoint");
      return OnFabricOffer(header.argument, peer, header.sequence);
    case wire::FrameType::kFabricAnswer:
      return OnFabricAnswer(header.argument, names_endpoint ? &peer : nullptr, header.sequence);
    case wire::FrameType::kFabricProbe: return OnFabricProbe();
    default: return OnPathMark(header.argument);
  }
}

void Engine::OnFabricOffer(uint32_t attempt, const transport::Endpoint& peer, uint64_t credits) {
  if (IsFabricInitiator() || path_ == &fabric_)
    return wire_.Break("the peer offers a fabric out of turn");
  if (fabric_.queue_pair) DropFabric("the peer began anew");
  fabric_attempt_ = attempt;
  auto refuse = [&](std::string reason) {
    DropFabric(std::move(reason));
    wire_.Say(wire::FrameType::kFabricAnswer, 0, attempt);
  };
  if (!host_.fabric()) return refuse("this daemon has no fabric device in use");
  auto made = MakeFabricQueuePair();
  if (!made) return refuse(made.error().message);
  if (auto taken = TakeFabricCredits(credits); !taken) return wire_.Break(taken.error().message);
  if (auto joined = joining_->Connect(peer); !joined) return refuse(joined.error().message);
  fabric_step_ = FabricStep::kAnswered;
  next_fabric_ns_ = now_ns_ + kJoinTimeoutNs;
  wire_.Say(wire::FrameType::kFabricAnswer, fabric_.returns.lent(), attempt,
            std::as_bytes(std::span(&*made, 1)));
}

void Engine::OnFabricAnswer(uint32_t attempt, const transport::Endpoint* peer, uint64_t credits) {
  if (fabric_step_ != FabricStep::kOffered || attempt != fabric_attempt_) return;  // Given up.
  if (peer == nullptr) return fabric_.Break("the peer has no fabric device that fits");
  if (auto taken = TakeFabricCredits(credits); !taken) return fabric_.Break(taken.error().message);
  if (auto joined = joining_->Connect(*peer); !joined) return fabric_.Break(joined.error().message);
  fabric_step_ = FabricStep::kProbing;
  fabric_.Say(wire::FrameType::kFabricProbe, 0, fabric_attempt_);
}

void Engine::OnFabricProbe() {
  if (fabric_step_ == FabricStep::kAnswered)
    return fabric_.Say(wire::FrameType::kFabricProbe, 0, fabric_attempt_);
  if (fabric_step_ != FabricStep::kProbing)
    return fabric_.Break("the peer probes a path that is in use");
  // From here on nothing more goes out on the wire; what is queued is told anew on the fabric.
  control_.clear();
  wire_.Say(wire::FrameType::kPath, 0, fabric_attempt_);
  fabric_step_ = FabricStep::kSwitching;
}

void Engine::OnPathMark(uint32_t attempt) {
  if (attempt == 0) {
    if (std::exchange(awaiting_marker_, false)) return;  // We fell, and so has the peer by now.
    if (path_ != &fabric_ && fabric_step_ != FabricStep::kSwitching) return;
    fabric_.Break("the peer left it");
    LoseFabric();
    awaiting_marker_ = false;  // This was it.
    return;
  }
  if (awaiting_marker_) return;  // Said before the peer heard that we fell.
  const bool meant = attempt == fabric_attempt_;
  if (meant && fabric_step_ == FabricStep::kUp) return;  // A new wire, and the same fabric.
  if (meant && fabric_step_ == FabricStep::kSwitching) return SwitchToFabric();
  if (meant && fabric_step_ == FabricStep::kAnswered) {
    wire_.Say(wire::FrameType::kPath, 0, attempt);
    return SwitchToFabric();
  }
  // It died here while the peer was on its way to it.
  DropFabric("the peer took a path that is not here");
  FallToWire();
}

// --- from one path to the other ---

// The peer's last word on the wire is in: nothing lands from there any more.
void Engine::SwitchToFabric() {
  fabric_step_ = FabricStep::kUp;
  fabric_up_ns_ = now_ns_;
  next_fabric_ns_ = kNever;
  fabric_.last_heard_ns = now_ns_;
  fabric_.next_keepalive_ns = now_ns_ + tunables_.keepalive_interval_ns;
  ++counters_.fabric_paths;
  LeavePath(wire_.queue_pair.get());
  path_ = &fabric_;
  fabric_.reason.clear();
  host_.PathChanged(*this);
  StartResume(false);
  for (const transport::Completion& early : std::exchange(early_, {})) Receive(fabric_, early);
}

// Destroying the queue pair is the fence: what the peer writes late no longer reaches our memory.
void Engine::LoseFabric() {
  const bool in_use = path_ == &fabric_ || fabric_step_ == FabricStep::kSwitching;
  DropFabric(fabric_.reason);
  if (!in_use) return;
  ++counters_.fabric_failures;
  FallToWire();
}

// The queue pair alone; the caller looks after whom it carried messages for.
void Engine::DropFabric(std::string reason) {
  fabric_.TakeDown([this](const ChainSlot& slot) { ReleaseSlot(slot, true); });
  fabric_.reason = std::move(reason);
  SettleFabric();
}

void Engine::FallToWire() {
  LeavePath(wire_.queue_pair.get());
  path_ = &wire_;
  host_.PathChanged(*this);
  if (!wire_.queue_pair) return PathsGone();  // OnPathUp() goes on.
  wire_.Say(wire::FrameType::kPath, 0, 0);
  awaiting_marker_ = true;
  StartResume(false);
}

// What only the path understood that carried the messages until now. `living` is the queue pair
// where the peer may still try to write into what was exposed.
void Engine::LeavePath(transport::QueuePair* living) {
  resuming_ = true;  // Nothing is to be said below; StartResume() comes, or PathsGone() ends it.
  control_.clear();
  first_ack_ns_ = 0;
  for (Path* path : {&wire_, &fabric_}) {
    path->bundle = nullptr;
    path->bundle_slot = nullptr;
  }
  for (Socket* socket = all_.Front(); socket != nullptr;) {
    Socket* next = all_.Next(*socket);
    ForgetPathState(*socket, living);
    FinishAcknowledged(*socket);
    MaybeRetire(*socket);
    socket = next;
  }
}

}  // namespace sluice
