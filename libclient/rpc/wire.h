// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>

// What the two ends of an RPC say to each other: one of these a message of the transport, then the
// payload. Little endian, no padding. Every header begins with a Prefix that says how long the
// header is, so that a later version may lengthen one; what it does not know a reader skips. The
// trace id travels in the transport's own header, through both daemons.
namespace sluice::rpc {

constexpr uint16_t kMagic = 0x5253;  // "SR"
constexpr uint8_t kVersion = 1;
constexpr uint32_t kPingMethod = 0;  // Answered by the server itself.

enum class Kind : uint8_t {
  kRequest = 1,
  kReply = 2,
  kCancel = 3,
  kHello = 4,  // From the server, once, when a connection begins; `call` is its instance.
};

enum RequestFlags : uint8_t {
  kMayHaveRun = 1,  // An earlier attempt may have reached the server that `instance` names.
};

enum ReplyFlags : uint8_t {
  kMoreFollows = 1,  // A part of a streamed reply, and not the last.
};

struct Prefix {
  uint16_t magic = kMagic;
  uint8_t version = kVersion;
  Kind kind = Kind::kRequest;
  uint8_t flags = 0;
  uint8_t attempt = 0;        // Of this call, from 0; a reply repeats the request's.
  uint16_t header_bytes = 0;  // Where the payload begins.
  uint64_t call = 0;          // The client's name for the call; a reply repeats it.
};
static_assert(sizeof(Prefix) == 16);

struct RequestHeader {
  Prefix prefix;
  uint32_t method = 0;
  uint32_t remaining_us = 0;  // Until the deadline, when the request was sent; never 0.
  uint64_t client = 0;        // With `sequence` the idempotency token.
  uint64_t sequence = 0;      // 0: no token.
  // All calls with a token below sequence - incomplete_span have ended: nobody asks for them again.
  uint32_t incomplete_span = 0;
  uint32_t instance = 0;  // With kMayHaveRun: as that server's hello said; 0: it had not said.
};
static_assert(sizeof(RequestHeader) == 48);

struct ReplyHeader {
  Prefix prefix;
  uint32_t code = 0;  // enum class Code of rpc.hpp.
  uint32_t part = 0;  // Of a streamed reply, from 0.
};
static_assert(sizeof(ReplyHeader) == 24);

struct ShortHeader {  // kCancel, kHello.
  Prefix prefix;
};
static_assert(sizeof(ShortHeader) == 16);

// What a message says. The payload is the rest of it.
struct Parsed {
  std::variant<RequestHeader, ReplyHeader, ShortHeader> header;
  size_t payload_offset = 0;

  const Prefix& prefix() const;
};

// nullopt: not a message of this protocol, or one cut short.
std::optional<Parsed> Parse(std::span<const std::byte> message);

// Fills in header_bytes, and the kind unless it is a ShortHeader, and writes the header at the
// start of `room`, which must hold it.
void Write(RequestHeader header, std::span<std::byte> room);
void Write(ReplyHeader header, std::span<std::byte> room);
void Write(ShortHeader header, std::span<std::byte> room);

}  // namespace sluice::rpc
