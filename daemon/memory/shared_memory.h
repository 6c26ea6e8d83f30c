// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "shm_proto/base/fd.h"
#include "shm_proto/base/result.h"

namespace sluice::memory {

// A piece of memory without a name that one client shares with the daemon: a memfd, allocated,
// mapped and prefaulted here, so that neither side can fault on it later.
//
// Seals: SHRINK and GROW from the start; FUTURE_WRITE and SEAL by Seal(), once the client has its
// mapping. From then on nobody can punch holes, map it writable anew, or change the seals. Two open
// file descriptions: ours, and one for the client. Only thus can the kernel tell whether the client
// still holds it (HeldElsewhere), so that a quota never believes a client's word. Thread: one at a
// time. Owns: the descriptors and the mapping.
class SharedMemory {
 public:
  // `bytes`: a multiple of the page size. `address`: inside address space that the caller has
  // reserved with PROT_NONE, to which it returns when unmapped; null: anywhere. Look at the
  // headroom first: a memory cgroup at its limit may answer with the OOM killer instead of an
  // error.
  static Result<SharedMemory> Create(const std::string& name, uint64_t bytes, std::byte* address);

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* base() const { return base_; }  // Null once unmapped.
  uint64_t bytes() const { return bytes_; }
  bool valid() const { return fd_.valid(); }

  // The client's descriptor, to be sent to it and closed.
  Fd TakeClientFd() { return std::move(client_fd_); }
  int client_fd() const { return client_fd_.get(); }

  // The client confirmed its mapping. Fails with kProtocol if the client has tampered with the file
  // before.
  Result<> Seal();

  // Called once, before our mapping is dropped: for whoever else knows the memory, as a NIC does.
  void BeforeUnmap(std::move_only_function<void()> call) { before_unmap_ = std::move(call); }

  // Drops our mapping; the pages stay while anybody maps them or holds a descriptor. Idempotent.
  void Unmap();

  // Whether another process (or a descriptor on its way to one) still holds the file. Only after
  // TakeClientFd().
  bool HeldElsewhere() const;

 private:
  Fd fd_;
  Fd client_fd_;
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  std::move_only_function<void()> before_unmap_;
  bool reserved_ = false;  // Mapped over a reservation, to which the range returns.
};

// Address space without memory behind it, PROT_NONE. Null when there is none.
std::byte* ReserveAddresses(uint64_t bytes);
void ReleaseAddresses(std::byte* base, uint64_t bytes);

}  // namespace sluice::memory
