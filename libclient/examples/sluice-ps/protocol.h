// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

// What workers and servers say to each other: one request a message, one reply a message, replies
// in the order of the requests of their connection. Little endian, no padding.
//
//   fetch   RequestHeader, rows x uint32 row number    ->  ReplyHeader, rows x uint32 version, rows
//   x dim x float32 push    the same, then rows x dim x float32        ->  ReplyHeader
//
// A reply whose status is not kOk is the header alone.
//
// Pushes of one worker to one shard are numbered from 1 without gaps (`sequence`), and the server
// applies them in that order: a number it has had already is acknowledged and not applied again, so
// a worker that does not know what became of a push sends it once more; a number that is too high
// is refused as kGap and changes nothing. A worker that was started anew says so by another `run`:
// its numbers begin at 1 again, and what its former run left behind is refused.
namespace sluice_ps {

constexpr uint32_t kMagic = 0x31535053;  // "SPS1"
constexpr uint32_t kMaxRowsPerRequest = 1u << 20;

enum class Op : uint16_t { kFetch = 1, kPush = 2 };

enum class Status : uint16_t {
  kOk = 0,
  kMalformed = 1,       // Not a request of this protocol, or its length does not fit its header.
  kWrongShard = 2,      // Worker and server disagree about shard, shards or dim.
  kWrongRow = 3,        // A row that this shard does not hold.
  kGap = 4,             // A push before this one is missing.
  kTooManyWorkers = 5,  // The server remembers the pushes of so many workers and no more.
  kStaleRun = 6,        // From a former run of a worker that has been started anew.
};
const char* StatusName(Status status);

struct RequestHeader {
  uint32_t magic = kMagic;
  Op op = Op::kFetch;
  uint16_t dim = 0;    // Floats in a row.
  uint32_t shard = 0;  // Which of `shards` this is for: row r lives in shard r % shards.
  uint32_t shards = 0;
  uint32_t rows = 0;
  uint32_t worker = 0;    // Whose pushes are numbered.
  uint64_t run = 0;       // Random, of one run of that worker.
  uint64_t request = 0;   // Echoed in the reply.
  uint64_t sequence = 0;  // Of a push, from 1; 0 in a fetch.
};
static_assert(sizeof(RequestHeader) == 48);

struct ReplyHeader {
  uint32_t magic = kMagic;
  Op op = Op::kFetch;
  Status status = Status::kOk;
  uint32_t shard = 0;
  uint32_t rows = 0;
  uint64_t request = 0;
};
static_assert(sizeof(ReplyHeader) == 24);

constexpr size_t FetchRequestBytes(size_t rows) {
  return sizeof(RequestHeader) + rows * sizeof(uint32_t);
}
constexpr size_t FetchReplyBytes(size_t rows, size_t dim) {
  return sizeof(ReplyHeader) + rows * (sizeof(uint32_t) + dim * sizeof(float));
}
constexpr size_t PushRequestBytes(size_t rows, size_t dim) {
  return sizeof(RequestHeader) + rows * (sizeof(uint32_t) + dim * sizeof(float));
}

// A request as received. The spans point into the message; nothing there is aligned.
struct Request {
  RequestHeader header;
  std::span<const std::byte> row_numbers;
  std::span<const std::byte> gradients;  // Empty in a fetch.

  uint32_t row(size_t index) const;
};

// nullopt: malformed.
std::optional<Request> ParseRequest(std::span<const std::byte> message);

struct Reply {
  ReplyHeader header;
  std::span<const std::byte> versions;  // Empty unless an OK fetch.
  std::span<const std::byte> values;

  uint32_t version(size_t index) const;
};

// nullopt: malformed. `dim`: of the table, since the reply does not repeat it.
std::optional<Reply> ParseReply(std::span<const std::byte> message, size_t dim);

}  // namespace sluice_ps
