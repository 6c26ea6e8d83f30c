// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "shard.h"
#include "values.h"

namespace sluice_ps {

enum class Verdict {
  kRight,
  kTooOld,  // Fewer pushes than this worker knows to have been applied.
  kTooNew,  // More pushes than this worker has issued to a row that only it pushes to.
  kWrongValue,
};

inline const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kRight: return "right";
    case Verdict::kTooOld: return "an older version than known to be applied";
    case Verdict::kTooNew: return "a newer version than was ever pushed";
    case Verdict::kWrongValue: return "values that do not belong to its version";
  }
  return "?";
}

// What one worker knows about the versions of all rows. Each row has one worker that pushes to it:
// its version must lie between the pushes acknowledged and the pushes issued. Of the others' rows
// it is known that versions never go back. Either way the values must be exactly those of the
// version. Invariant: floor_[row] <= version at the server <= issued_[row] for own rows, at any
// moment.
class RowKnowledge {
 public:
  RowKnowledge(TableShape shape, uint32_t worker, uint32_t workers)
      : shape_(shape),
        worker_(worker),
        workers_(workers),
        floor_(shape.rows),
        issued_(shape.rows) {}

  bool Owns(uint32_t row) const { return row / shape_.shards % workers_ == worker_; }

  // The rows of a shard that are this worker's: OwnRow(shard, 0) .. OwnRow(shard, OwnRows(shard) -
  // 1).
  uint32_t OwnRows(uint32_t shard) const {
    const uint32_t rows = shape_.RowsIn(shard);
    return rows / workers_ + (worker_ < rows % workers_ ? 1 : 0);
  }
  uint32_t OwnRow(uint32_t shard, uint32_t index) const {
    return (index * workers_ + worker_) * shape_.shards + shard;
  }

  // A push to an own row is about to be issued: the version that it makes.
  uint32_t Issue(uint32_t row) { return ++issued_[row]; }

  // Pushes that the row has certainly taken.
  uint32_t Floor(uint32_t row) const { return floor_[row]; }
  void RaiseFloor(uint32_t row, uint32_t version) {
    floor_[row] = version > floor_[row] ? version : floor_[row];
  }

  // What the server holds when this worker starts: pushes of former runs count.
  Verdict Adopt(uint32_t row, uint32_t version, const void* values) {
    floor_[row] = issued_[row] = version;
    return Check(row, version, version, values);
  }

  // Judges a fetched row; `floor` is Floor(row) from before the fetch was sent. A right one raises
  // the floor.
  Verdict Check(uint32_t row, uint32_t floor, uint32_t version, const void* values) {
    if (version < floor) {
      return Verdict::kTooOld;
    }
    if (Owns(row) && version > issued_[row]) {
      return Verdict::kTooNew;
    }
    if (FirstWrongColumn(row, version, values, shape_.dim) != shape_.dim) {
      return Verdict::kWrongValue;
    }
    RaiseFloor(row, version);
    return Verdict::kRight;
  }

 private:
  TableShape shape_;
  uint32_t worker_;
  uint32_t workers_;
  std::vector<uint32_t> floor_;
  std::vector<uint32_t> issued_;
};

}  // namespace sluice_ps
