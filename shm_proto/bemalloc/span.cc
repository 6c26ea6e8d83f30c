// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/bemalloc/span.h"

#include <sys/mman.h>

#include <algorithm>

#include "shm_proto/base/check.h"

namespace sluice::bemalloc {

Span* SpanRecords::New() {
  if (Span* span = unused_.first(); span != nullptr) {
    unused_.Remove(span);
    return span;
  }
  if (used_in_slab_ == kSlabSpans) {
    slabs_.push_back(std::make_unique<Span[]>(kSlabSpans));
    used_in_slab_ = 0;
  }
  return &slabs_.back()[used_in_slab_++];
}

void SpanRecords::Delete(Span* span) {
  *span = Span{};
  unused_.Push(span);
}

PageMap::PageMap(uint64_t reserve_bytes)
    : bytes_((reserve_bytes / kPageBytes + 1) * sizeof(Span*)) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  SLUICE_CHECK(memory != MAP_FAILED,
               "no address space for the allocator's page table (1/512 of the reserved pool)");
  entries_ = static_cast<Span**>(memory);
}

Span* PageMap::Nothing() {
  static constinit Span nothing;
  return &nothing;
}

void PageMap::Extend(uint64_t end_page) {
  if (end_page <= end_page_) return;
  Fill(end_page_, end_page - end_page_, Nothing());
  end_page_ = end_page;
}

PageMap::~PageMap() { munmap(entries_, bytes_); }

void PageMap::Fill(uint64_t page, uint64_t pages, Span* span) {
  std::fill_n(entries_ + page, pages, span);
}

}  // namespace sluice::bemalloc
