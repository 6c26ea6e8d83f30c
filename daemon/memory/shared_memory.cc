// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace sluice::memory {
namespace {

// Linux 5.14; older headers lack the name.
constexpr int kMadvisePopulateWrite = 23;

std::string Describe(const std::string& name, uint64_t bytes) {
  return "shared memory " + name + " of " + std::to_string(bytes) + " bytes";
}

// Faults every page in for writing. The pages are allocated already and nobody else has seen them,
// so writing zeroes is harmless and cannot fail for want of memory other than page tables.
Result<> Prefault(std::byte* base, uint64_t bytes, const std::string& what) {
  if (madvise(base, bytes, kMadvisePopulateWrite) == 0) return {};
  if (errno != EINVAL) return FailErrno("prefaulting " + what);
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (uint64_t offset = 0; offset < bytes; offset += page_bytes) {
    *static_cast<volatile std::byte*>(base + offset) = std::byte{0};
  }
  return {};
}

// A second open file description of the same file.
Fd Reopen(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return Fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
}

}  // namespace

std::byte* ReserveAddresses(uint64_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

void ReleaseAddresses(std::byte* base, uint64_t bytes) { munmap(base, bytes); }

Result<SharedMemory> SharedMemory::Create(const std::string& name, uint64_t bytes,
                                          std::byte* address) {
  const std::string what = Describe(name, bytes);
  Fd made(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made.valid()) return FailErrno("creating " + what);

  SharedMemory memory;
  memory.bytes_ = bytes;
  // The description that memfd_create() gives does not count as a writer in the kernel's books,
  // which HeldElsewhere() reads; reopened ones do.
  memory.fd_ = Reopen(made.get());
  if (!memory.fd_.valid()) return FailErrno("reopening " + what + " through /proc/self/fd");
  memory.client_fd_ = Reopen(made.get());
  if (!memory.client_fd_.valid()) return FailErrno("reopening " + what + " through /proc/self/fd");
  made.Reset();

  if (ftruncate(memory.fd_.get(), static_cast<off_t>(bytes)) != 0)
    return FailErrno("sizing " + what);
  if (fallocate(memory.fd_.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
    return FailErrno("allocating " + what);
  if (fcntl(memory.fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return FailErrno("sealing " + what);

  const int flags = MAP_SHARED | (address != nullptr ? MAP_FIXED : 0);
  void* base = mmap(address, bytes, PROT_READ | PROT_WRITE, flags, memory.fd_.get(), 0);
  if (base == MAP_FAILED) return FailErrno("mapping " + what);
  memory.base_ = static_cast<std::byte*>(base);
  memory.reserved_ = address != nullptr;
  madvise(base, bytes, MADV_DONTFORK);  // Only a hint: the daemon does not fork.
  if (Result<> done = Prefault(memory.base_, bytes, what); !done)
    return std::unexpected(done.error());
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      client_fd_(std::move(other.client_fd_)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      before_unmap_(std::exchange(other.before_unmap_, nullptr)),
      reserved_(other.reserved_) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    Unmap();
    fd_ = std::move(other.fd_);
    client_fd_ = std::move(other.client_fd_);
    base_ = std::exchange(other.base_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    before_unmap_ = std::exchange(other.before_unmap_, nullptr);
    reserved_ = other.reserved_;
  }
  return *this;
}

SharedMemory::~SharedMemory() { Unmap(); }

Result<> SharedMemory::Seal() {
  if (fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return Fail(ErrorCode::kProtocol, "the client sealed its shared memory itself");
  }
  // Before the seals it could punch holes; a later touch there would allocate, perhaps beyond the
  // cgroup's limit.
  struct stat status;
  if (fstat(fd_.get(), &status) != 0) return FailErrno("looking at a client's shared memory");
  constexpr uint64_t kStatBlockBytes = 512;
  if (static_cast<uint64_t>(status.st_blocks) * kStatBlockBytes < bytes_) {
    return Fail(ErrorCode::kProtocol, "the client punched holes into its shared memory");
  }
  return {};
}

void SharedMemory::Unmap() {
  if (base_ == nullptr) return;
  if (before_unmap_) std::exchange(before_unmap_, nullptr)();
  if (reserved_) {
    // In one step: between an munmap and a new reservation another thread's mapping could slip into
    // the gap.
    mmap(base_, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  } else {
    munmap(base_, bytes_);
  }
  base_ = nullptr;
}

bool SharedMemory::HeldElsewhere() const {
  if (!fd_.valid()) return false;
  // A write lease is granted to the only holder of a file. Mappings and descriptors under way hold
  // it too.
  if (fcntl(fd_.get(), F_SETLEASE, F_WRLCK) == 0) {
    fcntl(fd_.get(), F_SETLEASE, F_UNLCK);
    return false;
  }
  return errno == EAGAIN;  // Anything else: leases are switched off here, and there is no telling.
}

}  // namespace sluice::memory
