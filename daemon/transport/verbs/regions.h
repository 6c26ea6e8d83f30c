// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "daemon/transport/transport.h"

namespace sluice::transport {

// Finds what the NIC knows a piece of memory by. A thread mostly asks for the extent it asked for
// last, so that is looked at first.
// Thread: its transport's. Allocates: never.
class RegionLookup {
 public:
  void Set(std::shared_ptr<const Regions> regions) {
    regions_ = std::move(regions);
    last_ = nullptr;
  }

  // Null: not all of it lies in one region.
  const Region* Find(const std::byte* address, uint64_t bytes) {
    if (last_ != nullptr && Holds(*last_, address, bytes)) return last_;
    if (!regions_) return nullptr;
    auto above = std::upper_bound(
        regions_->begin(), regions_->end(), address,
        [](const std::byte* at, const Region& region) { return at < region.address; });
    if (above == regions_->begin() || !Holds(*--above, address, bytes)) return nullptr;
    return last_ = &*above;
  }

  static bool Holds(const Region& region, const std::byte* address, uint64_t bytes) {
    if (address < region.address) return false;
    const auto offset = static_cast<uint64_t>(address - region.address);
    return offset <= region.bytes && bytes <= region.bytes - offset;
  }

 private:
  std::shared_ptr<const Regions> regions_;
  const Region* last_ = nullptr;
};

}  // namespace sluice::transport
