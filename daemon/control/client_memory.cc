// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/client_memory.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "daemon/control/packet.h"
#include "shm_proto/base/check.h"

namespace sluice::control {

using memory::Lessee;

void ClientHost::SendError(uint32_t request, int error, const std::string& text) {
  auto reply = MakeMessage<ErrorReply>(Type::kError, request);
  reply.error = error;
  reply.version_min = kVersionMin;
  reply.version_max = kVersionMax;
  CopyText(reply.text, text);
  connection().Send(reply);
}

ClientMemory::ClientMemory(ClientHost& host, std::unique_ptr<memory::ClientPool> pool)
    : host_(host), pool_(std::move(pool)) {}

ClientMemory::~ClientMemory() { Abandon(); }

void ClientMemory::Abandon() {
  abandoned_ = true;
  needs_.clear();
  host_.services().loop.Cancel(std::exchange(idle_timer_, 0));
  host_.services().loop.Cancel(std::exchange(deadline_timer_, 0));
}

std::unique_ptr<memory::ClientPool> ClientMemory::TakePool() { return std::move(pool_); }

// --- needs ---

void ClientMemory::OnGrow(uint32_t request, uint64_t bytes) {
  const auto waiting = std::ranges::count_if(needs_,
                                             [](const Need& need) { return need.from_client; });
  if (bytes == 0 || bytes > pool_->reserve_bytes()) {
    ++host_.services().counters.rejected_requests;
    return host_.SendError(request, bytes == 0 ? EINVAL : ENOMEM,
                           std::to_string(bytes) + " bytes asked for; a pool has 1 to " +
                               std::to_string(pool_->reserve_bytes()));
  }
  if (static_cast<size_t>(waiting) >= kMaxClientNeeds) {
    return host_.SendError(request, EAGAIN, "too many requests for memory wait already");
  }
  Add({true, request, 0, bytes, 0});
}

void ClientMemory::OnNeedReceiveBlocks(const io::NeedReceiveBlocks& need) {
  if (abandoned_) return;
  const auto waiting = std::ranges::count_if(needs_, [&](const Need& other) {
    return !other.from_client && other.io_thread == need.io_thread;
  });
  const Need add{false, 0, need.io_thread, need.bytes, 0};
  if (need.bytes == 0 || need.bytes > pool_->reserve_bytes() ||
      static_cast<size_t>(waiting) >= kMaxReceiveNeedsPerThread) {
    return Refuse(add, {ErrorCode::kNoMemory, "more than the pool can hold"});
  }
  Add(add);
}

void ClientMemory::Add(Need need) {
  need.deadline_ns = host_.services().loop.now_ns() + host_.services().options.mapping_deadline_ns;
  needs_.push_back(need);
  Pump();
  ArmDeadline();
}

bool ClientMemory::TryAnswer(const Need& need) {
  const auto run = pool_->Lease(
      need.bytes, need.from_client ? Lessee::Client() : Lessee::Receiver(need.io_thread));
  if (!run) return false;
  if (need.from_client) {
    auto reply = MakeMessage<Blocks>(Type::kBlocks, need.request);
    reply.pool_offset = run->pool_offset;
    reply.bytes = run->bytes;
    host_.connection().Send(reply);
  } else {
    host_.Tell(need.io_thread, io::AddReceiveBlocks{host_.id(), run->pool_offset, run->bytes});
  }
  return true;
}

void ClientMemory::Refuse(const Need& need, const Error& error) {
  ++host_.services().counters.memory_refused;
  if (need.from_client) {
    host_.SendError(need.request, ToErrno(error.code), error.message);
  } else {
    host_.Tell(need.io_thread, io::AddReceiveBlocks{host_.id(), 0, 0});
  }
}

void ClientMemory::RefuseAll(const Error& error) {
  for (const Need& need : std::exchange(needs_, {})) Refuse(need, error);
}

// Answers what can be answered, then starts making an extent for the first need that is left.
void ClientMemory::Pump() {
  std::erase_if(needs_, [this](const Need& need) { return TryAnswer(need); });
  while (!needs_.empty() && !growing_) {
    const auto plan = pool_->Plan(needs_.front().bytes);
    if (plan) {
      growing_ = true;
      growing_offset_ = plan->pool_offset;
      host_.MakeMemory("sluice-extent", plan->bytes, pool_->base() + plan->pool_offset,
                       [this, offset = plan->pool_offset](Result<memory::SharedMemory> memory) {
                         OnMade(offset, std::move(memory));
                       });
      return;
    }
    // Unused extents of the wrong size or place may be in the way: let them go, and wait for it.
    if (const auto unused = pool_->FindUnused(UINT64_MAX)) {
      BeginLeave(*unused);
      continue;
    }
    if (!leaving_.empty()) return;
    const Need refused = needs_.front();
    needs_.pop_front();
    Refuse(refused, plan.error());
  }
}

void ClientMemory::ArmDeadline() {
  if (deadline_timer_ != 0 || needs_.empty()) return;
  // Needs come in order of their deadlines.
  deadline_timer_ = host_.services().loop.At(needs_.front().deadline_ns, [this] { OnDeadline(); });
}

void ClientMemory::OnDeadline() {
  deadline_timer_ = 0;
  const uint64_t now_ns = host_.services().loop.now_ns();
  while (!needs_.empty() && needs_.front().deadline_ns <= now_ns) {
    const Need late = needs_.front();
    needs_.pop_front();
    Refuse(late, {ErrorCode::kTimeout, "the client has not mapped its new memory in time"});
  }
  ArmDeadline();
}

// --- an extent's way in ---

void ClientMemory::OnMade(uint64_t offset, Result<memory::SharedMemory> memory) {
  if (!memory) {
    pool_->Forget(offset);
    growing_ = false;
    return RefuseAll(memory.error());
  }
  ++host_.services().counters.extents_made;
  pool_->Offer(offset, std::move(*memory));
  if (abandoned_) return;  // Goes with the pool.
  auto region = MakeMessage<Region>(Type::kRegion, 0);
  region.region = host_.NextRegion();
  region.kind = RegionKind::kExtent;
  region.bytes = pool_->memory(offset).bytes();
  region.pool_offset = offset;
  regions_[offset] = region.region;
  std::vector<Fd> fds;
  fds.push_back(pool_->memory(offset).TakeClientFd());
  host_.connection().Send(region, std::move(fds));
}

bool ClientMemory::OnMapped(uint32_t region, int error) {
  const auto known = std::ranges::find_if(
      regions_, [&](const auto& entry) { return entry.second == region; });
  if (known == regions_.end()) return false;
  if (!growing_ || known->first != growing_offset_) {
    host_.Detach(EPROTO, "it confirmed an extent twice");
    return true;
  }
  if (error != 0) {
    DropGrowing({ErrorCode::kNoMemory, "the client could not map its new memory"});
    return true;
  }
  const uint64_t offset = growing_offset_;
  if (Result<> sealed = pool_->memory(offset).Seal(); !sealed) {
    host_.Detach(ToErrno(sealed.error().code), sealed.error().message);
    return true;
  }
  growing_ = false;
  pool_->Activate(offset, host_.services().loop.now_ns());
  const uint64_t bytes = pool_->extents().at(offset).bytes;
  for (const uint32_t io_thread : host_.known_threads()) {
    host_.Tell(io_thread, io::AddExtent{host_.id(), offset, bytes});
  }
  Pump();
  ArmIdleTimer();
  return true;
}

void ClientMemory::DropGrowing(const Error& error) {
  const uint64_t offset = growing_offset_;
  growing_ = false;
  regions_.erase(offset);
  host_.RetireMemory(pool_->TakeMemory(offset), [this, offset] {
    if (pool_ != nullptr) pool_->Forget(offset);
  });
  RefuseAll(error);
}

// --- its way out ---

Result<> ClientMemory::OnShrink(uint64_t pool_offset, uint64_t bytes) {
  const Result<> done = pool_->GiveBack({pool_offset, bytes}, Lessee::Client(),
                                        host_.services().loop.now_ns());
  if (!done) return done;
  Pump();
  ArmIdleTimer();
  return {};
}

void ClientMemory::OnReceiveBlocksIdle(const io::ReceiveBlocksIdle& idle) {
  if (abandoned_) return;
  const Result<> done = pool_->GiveBack({idle.pool_offset, idle.bytes},
                                        Lessee::Receiver(idle.io_thread),
                                        host_.services().loop.now_ns());
  SLUICE_CHECK(done.has_value(), "an I/O thread gives back the blocks it was given");
  Pump();
  ArmIdleTimer();
}

void ClientMemory::ArmIdleTimer() {
  // One unused extent stays: the next need is likely to come.
  if (idle_timer_ != 0 || pool_->CountUnused() < 2) return;
  idle_timer_ = host_.services().loop.After(host_.services().options.extent_idle_ns,
                                            [this] { OnIdleTimer(); });
}

void ClientMemory::OnIdleTimer() {
  idle_timer_ = 0;
  const uint64_t now_ns = host_.services().loop.now_ns();
  const uint64_t idle_ns = host_.services().options.extent_idle_ns;
  while (pool_->CountUnused() > 1) {
    const auto unused = pool_->FindUnused(now_ns - std::min(now_ns, idle_ns));
    if (!unused) break;
    BeginLeave(*unused);
  }
  ArmIdleTimer();
}

void ClientMemory::BeginLeave(uint64_t offset) {
  pool_->Leave(offset);
  const uint64_t bytes = pool_->extents().at(offset).bytes;
  leaving_[offset] = {regions_.at(offset), host_.known_threads().size(), false};
  for (const uint32_t io_thread : host_.known_threads()) {
    host_.Tell(io_thread, io::RemoveExtent{host_.id(), offset, bytes});
  }
  if (leaving_.at(offset).threads_left == 0) SendUnmap(offset);
}

void ClientMemory::OnExtentReleased(const io::ExtentReleased& released) {
  if (abandoned_) return;
  const auto leaving = leaving_.find(released.pool_offset);
  SLUICE_CHECK(leaving != leaving_.end() && leaving->second.threads_left > 0,
               "an I/O thread releases an extent once, when told to");
  if (--leaving->second.threads_left == 0) SendUnmap(released.pool_offset);
}

void ClientMemory::SendUnmap(uint64_t offset) {
  Leaving& leaving = leaving_.at(offset);
  leaving.unmap_sent = true;
  auto message = MakeMessage<Unmap>(Type::kUnmap, 0);
  message.region = leaving.region;
  host_.connection().Send(message);
}

Result<> ClientMemory::OnUnmapped(uint32_t region) {
  const auto leaving = std::ranges::find_if(leaving_, [&](const auto& entry) {
    return entry.second.region == region && entry.second.unmap_sent;
  });
  if (leaving == leaving_.end())
    return Fail(ErrorCode::kNotFound, "this region was not to be unmapped");
  const uint64_t offset = leaving->first;
  leaving->second.unmap_sent = false;  // Once only. It stays in the table until it is gone.
  regions_.erase(offset);
  host_.RetireMemory(pool_->TakeMemory(offset), [this, offset] {
    if (pool_ == nullptr) return;
    ++host_.services().counters.extents_released;
    pool_->Forget(offset);
    leaving_.erase(offset);
    if (!abandoned_) Pump();
  });
  return {};
}

}  // namespace sluice::control
