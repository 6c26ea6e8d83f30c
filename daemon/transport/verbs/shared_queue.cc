// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/verbs/shared_queue.h"

#include <numeric>
#include <string>

#include "daemon/transport/verbs/call.h"
#include "shm_proto/base/check.h"

namespace sluice::transport {

Result<std::unique_ptr<SharedQueue>> SharedQueue::Create(const VerbsDevice& device, ibv_pd* domain,
                                                         uint32_t slots, uint32_t slot_bytes,
                                                         uint32_t reserve) {
  std::unique_ptr<SharedQueue> made(new SharedQueue(slots, slot_bytes, reserve));
  if (auto done = made->Make(device, domain); !done) return std::unexpected(done.error());
  return made;
}

Result<> SharedQueue::Make(const VerbsDevice& device, ibv_pd* domain) {
  const auto most = static_cast<uint32_t>(std::max(0, device.attributes().max_srq_wr));
  if (device.attributes().max_srq == 0 || slots_ > most) {
    return Fail(ErrorCode::kUnavailable,
                "rdma.shared_receives: " + device.name() + " shares at most " +
                    std::to_string(device.attributes().max_srq == 0 ? 0 : most) +
                    " receives, not " + std::to_string(slots_));
  }
  const size_t bytes = size_t{slots_} * slot_bytes_;
  memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  region_ = ibv_reg_mr(device.pd(), memory_.get(), bytes, IBV_ACCESS_LOCAL_WRITE);
  if (region_ == nullptr) return FailErrno("registering the memory of shared receives");
  ibv_srq_init_attr init{};
  init.srq_context = &limit_reached_;
  init.attr = {.max_wr = slots_, .max_sge = 1, .srq_limit = 0};
  queue_ = ibv_create_srq(domain, &init);
  if (queue_ == nullptr)
    return FailErrno("ibv_create_srq with " + std::to_string(slots_) + " receives");
  std::vector<uint32_t> all(slots_);
  std::iota(all.begin(), all.end(), 0u);
  if (auto posted = TryPost(all); !posted) return posted;
  return Arm();
}

SharedQueue::~SharedQueue() {
  if (queue_ != nullptr) ibv_destroy_srq(queue_);
  if (region_ != nullptr) ibv_dereg_mr(region_);
}

Result<> SharedQueue::Arm() {
  armed_after_ = limit_reached_.count();
  ibv_srq_attr attr{};
  attr.srq_limit = slots_ / 8;
  return Verbs(ibv_modify_srq(queue_, &attr, IBV_SRQ_LIMIT), "ibv_modify_srq");
}

void SharedQueue::Post(std::span<const uint32_t> slots) {
  if (auto posted = TryPost(slots); !posted) failure_ = posted.error().message;
}

Result<> SharedQueue::TryPost(std::span<const uint32_t> slots) {
  if (slots.empty()) return {};
  SLUICE_CHECK(slots.size() <= slots_, "no more slots are posted than there are");
  for (size_t i = 0; i < slots.size(); ++i) {
    pieces_[i] = {reinterpret_cast<uintptr_t>(Slot(slots[i])), slot_bytes_, region_->lkey};
    work_[i] = {.wr_id = kSlotBit | slots[i],
                .next = i + 1 < slots.size() ? &work_[i + 1] : nullptr,
                .sg_list = &pieces_[i],
                .num_sge = 1};
  }
  ibv_recv_wr* bad = nullptr;
  auto posted = Verbs(ibv_post_srq_recv(queue_, work_.data(), &bad), "ibv_post_srq_recv");
  if (!posted) return posted;
  // The device tells once, until it is asked again.
  return limit_reached_.count() != armed_after_ ? Arm() : Result<>{};
}

}  // namespace sluice::transport
