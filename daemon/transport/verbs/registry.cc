// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/verbs/registry.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "shm_proto/base/check.h"

namespace sluice::transport {

Result<> VerbsRegistry::Attach(VerbsDevice& device) {
  std::lock_guard lock(mutex_);
  device_ = &device;
  for (auto& [address, piece] : pieces_) {
    if (auto added = Add(address, piece); !added) {
      for (auto& [each, undone] : pieces_) Remove(undone);
      device_ = nullptr;
      return added;
    }
  }
  PublishAll();
  return {};
}

void VerbsRegistry::Detach() {
  std::lock_guard lock(mutex_);
  for (auto& [address, piece] : pieces_) Remove(piece);
  device_ = nullptr;
}

Result<> VerbsRegistry::Register(std::byte* address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  SLUICE_CHECK(!pieces_.contains(address), "memory is registered once");
  Piece piece{.bytes = bytes};
  if (device_ != nullptr) {
    if (auto added = Add(address, piece); !added) return added;
  }
  pieces_[address] = piece;
  if (device_ != nullptr) PublishAll();
  return {};
}

void VerbsRegistry::Deregister(std::byte* address) {
  std::lock_guard lock(mutex_);
  auto piece = pieces_.find(address);
  if (piece == pieces_.end()) return;
  Remove(piece->second);
  pieces_.erase(piece);
  if (device_ != nullptr) PublishAll();
}

VerbsRegistry::Counters VerbsRegistry::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

Result<> VerbsRegistry::Add(std::byte* address, Piece& piece) {
  const bool relaxed = device_->settings().relaxed_ordering;
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  piece.send = ibv_reg_mr(device_->pd(), address, piece.bytes, 0);
  if (piece.send != nullptr) {
    if (relaxed) {  // Optional for the kernel too; an old one may refuse it all the same.
      piece.landing = ibv_reg_mr(device_->pd(), address, piece.bytes,
                                 static_cast<unsigned>(access | IBV_ACCESS_RELAXED_ORDERING));
    }
    if (piece.landing == nullptr)
      piece.landing = ibv_reg_mr(device_->pd(), address, piece.bytes,
                                 static_cast<unsigned>(access));
  }
  if (piece.landing == nullptr) {
    const int error = errno;
    ++counters_.failed;
    if (piece.send != nullptr) ibv_dereg_mr(std::exchange(piece.send, nullptr));
    // To whoever wants the memory it is memory that cannot be had, whatever the device's reason.
    return Fail(ErrorCode::kNoMemory,
                "registering " + std::to_string(piece.bytes) + " bytes with " + device_->name() +
                    ": " + std::strerror(error) +
                    "; look at the daemon's limit on locked memory (LimitMEMLOCK)");
  }
  counters_.regions += 2;
  counters_.registered += 2;
  counters_.bytes += piece.bytes;
  return {};
}

void VerbsRegistry::Remove(Piece& piece) {
  if (piece.landing == nullptr) return;
  // Fails only while a memory window is bound to it, and none ever is.
  ibv_dereg_mr(std::exchange(piece.landing, nullptr));
  ibv_dereg_mr(std::exchange(piece.send, nullptr));
  counters_.regions -= 2;
  counters_.deregistered += 2;
  counters_.bytes -= piece.bytes;
}

void VerbsRegistry::PublishAll() {
  auto regions = std::make_shared<Regions>();
  regions->reserve(pieces_.size());
  for (const auto& [address, piece] : pieces_) {
    regions->push_back({address, piece.bytes, piece.send->lkey, piece.landing->rkey});
  }
  publish_(std::move(regions));
}

}  // namespace sluice::transport
