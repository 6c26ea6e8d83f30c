// SPDX-License-Identifier: Apache-2.0
#include "shard.h"

#include <array>
#include <cstring>

#include "values.h"

namespace sluice_ps {

Shard::Shard(TableShape shape, uint32_t shard)
    : shape_(shape),
      shard_(shard),
      values_(size_t{shape.RowsIn(shard)} * shape.dim),
      versions_(shape.RowsIn(shard)) {
  for (uint32_t index = 0; index < versions_.size(); ++index) {
    const uint32_t row = index * shape_.shards + shard_;
    FillValues(row, 0, ValuesOf(row));
  }
}

Status Shard::Check(const Request& request) const {
  const RequestHeader& header = request.header;
  if (header.shard != shard_ || header.shards != shape_.shards || header.dim != shape_.dim) {
    return Status::kWrongShard;
  }
  for (uint32_t i = 0; i < header.rows; ++i) {
    const uint32_t row = request.row(i);
    if (row >= shape_.rows || row % shape_.shards != shard_) {
      return Status::kWrongRow;
    }
  }
  return Status::kOk;
}

size_t Shard::ReplyBytes(std::span<const std::byte> message) const {
  const auto request = ParseRequest(message);
  if (!request || request->header.op != Op::kFetch || Check(*request) != Status::kOk) {
    return sizeof(ReplyHeader);
  }
  return FetchReplyBytes(request->header.rows, shape_.dim);
}

size_t Shard::Handle(std::span<const std::byte> message, std::span<std::byte> reply) {
  ReplyHeader header;
  header.shard = shard_;
  size_t reply_bytes = sizeof(header);
  const auto request = ParseRequest(message);
  if (!request) {
    header.status = Status::kMalformed;
  } else {
    WorkerState* worker = nullptr;
    header.op = request->header.op;
    header.rows = request->header.rows;
    header.request = request->header.request;
    header.status = Check(*request);
    if (header.status == Status::kOk) {
      header.status = Admit(request->header, worker);
    }
    if (header.status == Status::kOk && header.op == Op::kPush) {
      header.status = Push(*request, *worker);
    } else if (header.status == Status::kOk) {
      Fetch(*request, reply.subspan(sizeof(header)));
      reply_bytes = FetchReplyBytes(header.rows, shape_.dim);
    }
  }
  counters_.refused += header.status != Status::kOk;
  std::memcpy(reply.data(), &header, sizeof(header));
  return reply_bytes;
}

Status Shard::Admit(const RequestHeader& header, WorkerState*& worker) {
  auto known = workers_.find(header.worker);
  if (known == workers_.end()) {
    if (workers_.size() == kMaxWorkers) {
      return Status::kTooManyWorkers;
    }
    known = workers_.emplace(header.worker, WorkerState{.run = header.run}).first;
  }
  worker = &known->second;
  if (worker->run == header.run) {
    return Status::kOk;
  }
  if (worker->former_run == header.run) {
    return Status::kStaleRun;
  }
  *worker = {.run = header.run, .former_run = worker->run};
  return Status::kOk;
}

void Shard::Fetch(const Request& request, std::span<std::byte> body) {
  const size_t row_bytes = shape_.dim * sizeof(float);
  std::byte* version = body.data();
  std::byte* values = body.data() + request.header.rows * sizeof(uint32_t);
  for (uint32_t i = 0; i < request.header.rows; ++i) {
    const uint32_t row = request.row(i);
    std::memcpy(version + i * sizeof(uint32_t), &versions_[row / shape_.shards], sizeof(uint32_t));
    std::memcpy(values + i * row_bytes, ValuesOf(row).data(), row_bytes);
  }
  ++counters_.fetches;
}

Status Shard::Push(const Request& request, WorkerState& worker) {
  if (request.header.sequence <= worker.last_sequence) {
    ++counters_.pushes_repeated;
    return Status::kOk;
  }
  if (request.header.sequence != worker.last_sequence + 1) {
    return Status::kGap;
  }
  const size_t row_bytes = shape_.dim * sizeof(float);
  std::array<float, kMaxDim> gradient;
  for (uint32_t i = 0; i < request.header.rows; ++i) {
    std::memcpy(gradient.data(), request.gradients.data() + i * row_bytes, row_bytes);
    const auto values = ValuesOf(request.row(i));
    for (uint32_t column = 0; column < shape_.dim; ++column) {
      values[column] += gradient[column];
    }
    ++versions_[request.row(i) / shape_.shards];
  }
  worker.last_sequence = request.header.sequence;
  ++counters_.pushes_applied;
  return Status::kOk;
}

uint32_t Shard::CountWrongRows() const {
  uint32_t wrong = 0;
  for (uint32_t index = 0; index < versions_.size(); ++index) {
    const float* values = &values_[size_t{index} * shape_.dim];
    wrong += FirstWrongColumn(index * shape_.shards + shard_, versions_[index], values,
                              shape_.dim) != shape_.dim;
  }
  return wrong;
}

}  // namespace sluice_ps
