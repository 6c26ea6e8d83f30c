// SPDX-License-Identifier: Apache-2.0
#include "libclient/src/fork_guard.h"

#include <sys/mman.h>

#include <new>

namespace sluice::client {
namespace {

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

Result<> ForkGuard::Start() {
  void* page = mmap(nullptr, PageBytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                    0);
  if (page == MAP_FAILED) return FailErrno("cannot map a page to tell forked children apart");
  page_ = new (page) std::atomic<int>(1);
  if (madvise(page, PageBytes(), MADV_WIPEONFORK) != 0) owner_ = getpid();
  return {};
}

ForkGuard::~ForkGuard() {
  if (page_ != nullptr) munmap(page_, PageBytes());
}

}  // namespace sluice::client
