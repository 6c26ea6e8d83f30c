// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "protocol.h"

namespace sluice_ps {

// How the table is cut: row r lives in shard r % shards.
struct TableShape {
  uint32_t shards = 1;
  uint32_t rows = 0;  // Of the whole table.
  uint32_t dim = 0;   // Floats in a row; at most kMaxDim.

  uint32_t RowsIn(uint32_t shard) const { return rows / shards + (shard < rows % shards ? 1 : 0); }
};

struct ShardCounters {
  uint64_t fetches = 0;
  uint64_t pushes_applied = 0;
  uint64_t pushes_repeated = 0;  // Acknowledged again, not applied again.
  uint64_t refused = 0;
};

// One shard of the table: its rows, how many pushes each has taken, and the last push of each
// worker. Invariant: the pushes 1 .. last_sequence of a worker's run are applied, each once. Pure:
// bytes in, bytes out, no I/O.
class Shard {
 public:
  static constexpr size_t kMaxWorkers = 4096;

  Shard(TableShape shape, uint32_t shard);

  // How long the reply to this request may be.
  size_t ReplyBytes(std::span<const std::byte> request) const;

  // Carries the request out and writes the reply, of which there is room for ReplyBytes(request);
  // returns its length.
  size_t Handle(std::span<const std::byte> request, std::span<std::byte> reply);

  // Rows whose values are not what their version says. 0, unless somebody has a bug.
  uint32_t CountWrongRows() const;

  const ShardCounters& counters() const { return counters_; }
  uint32_t number() const { return shard_; }
  size_t bytes() const { return values_.size() * sizeof(float); }

 private:
  struct WorkerState {
    uint64_t run = 0;
    uint64_t former_run = 0;
    uint64_t last_sequence = 0;
  };

  Status Check(const Request& request) const;
  Status Admit(const RequestHeader& header, WorkerState*& worker);
  Status Push(const Request& request, WorkerState& worker);
  void Fetch(const Request& request, std::span<std::byte> body);
  std::span<float> ValuesOf(uint32_t row) {
    return {&values_[size_t{row / shape_.shards} * shape_.dim], shape_.dim};
  }

  TableShape shape_;
  uint32_t shard_;
  std::vector<float> values_;
  std::vector<uint32_t> versions_;
  std::unordered_map<uint32_t, WorkerState> workers_;
  ShardCounters counters_;
};

}  // namespace sluice_ps
