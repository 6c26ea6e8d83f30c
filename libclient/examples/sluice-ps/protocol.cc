// SPDX-License-Identifier: Apache-2.0
#include "protocol.h"

#include <cstring>

namespace sluice_ps {
namespace {

uint32_t LoadU32(std::span<const std::byte> bytes, size_t index) {
  uint32_t value;
  std::memcpy(&value, bytes.data() + index * sizeof(value), sizeof(value));
  return value;
}

}  // namespace

const char* StatusName(Status status) {
  switch (status) {
    case Status::kOk: return "ok";
    case Status::kMalformed: return "malformed request";
    case Status::kWrongShard: return "wrong shard, shards or dim";
    case Status::kWrongRow: return "row not in this shard";
    case Status::kGap: return "a push before this one is missing";
    case Status::kTooManyWorkers: return "too many workers";
    case Status::kStaleRun: return "another run of this worker has taken over";
  }
  return "unknown status";
}

uint32_t Request::row(size_t index) const { return LoadU32(row_numbers, index); }
uint32_t Reply::version(size_t index) const { return LoadU32(versions, index); }

std::optional<Request> ParseRequest(std::span<const std::byte> message) {
  Request request;
  if (message.size() < sizeof(request.header)) {
    return std::nullopt;
  }
  std::memcpy(&request.header, message.data(), sizeof(request.header));
  const RequestHeader& header = request.header;
  const bool push = header.op == Op::kPush;
  if (header.magic != kMagic || (header.op != Op::kFetch && !push) ||
      header.rows > kMaxRowsPerRequest || push != (header.sequence != 0)) {
    return std::nullopt;
  }
  const size_t bytes = push ? PushRequestBytes(header.rows, header.dim)
                            : FetchRequestBytes(header.rows);
  if (message.size() != bytes) {
    return std::nullopt;
  }
  request.row_numbers = message.subspan(sizeof(header), header.rows * sizeof(uint32_t));
  request.gradients = message.subspan(sizeof(header) + request.row_numbers.size());
  return request;
}

std::optional<Reply> ParseReply(std::span<const std::byte> message, size_t dim) {
  Reply reply;
  if (message.size() < sizeof(reply.header)) {
    return std::nullopt;
  }
  std::memcpy(&reply.header, message.data(), sizeof(reply.header));
  const ReplyHeader& header = reply.header;
  if (header.magic != kMagic || (header.op != Op::kFetch && header.op != Op::kPush) ||
      header.rows > kMaxRowsPerRequest) {
    return std::nullopt;
  }
  const bool has_values = header.op == Op::kFetch && header.status == Status::kOk;
  if (message.size() != (has_values ? FetchReplyBytes(header.rows, dim) : sizeof(header))) {
    return std::nullopt;
  }
  const auto body = message.subspan(sizeof(header));
  if (has_values) {
    reply.versions = body.first(header.rows * sizeof(uint32_t));
    reply.values = body.subspan(reply.versions.size());
  }
  return reply;
}

}  // namespace sluice_ps
