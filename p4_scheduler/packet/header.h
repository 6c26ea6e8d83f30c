// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

// The Rain header: what clients, workers, the switch and the controller say to each other. It has
// one fixed layout for all kinds, so that a switch parses it in one step; docs/rain-protocol.md
// says who sets which field. Codec only: nothing allocates, nothing is kept.
namespace sluice::rain {

constexpr uint8_t kVersion = 1;
constexpr uint16_t kUdpPort = 17000;
constexpr size_t kHeaderBytes = 40;

// What one entry of a switch's task queue holds (paper 4). A task of up to so many bytes lies in
// the header itself; a larger one follows the header, and its digest takes this place.
constexpr size_t kDataBytes = 8;
// Header and payload together fill one RDMA packet of the largest MTU at most (paper 6.2).
constexpr size_t kMaxRdmaBytes = 4096;
constexpr size_t kMaxPayloadBytes = kMaxRdmaBytes - kHeaderBytes;
// Follows a large payload: room for a RoCEv2 packet's ICRC, since a switch cannot append.
constexpr size_t kTrailerBytes = 4;
constexpr size_t kPaddingBytes = 4;  // A large payload is padded to a multiple of so many bytes.

enum class Kind : uint8_t {
  kTask = 1,      // Client to switch: schedule this.
  kToken = 2,     // Agent to switch: this worker takes one more task.
  kDispatch = 3,  // Switch to agent: a task that met a token.
  kReply = 4,     // Agent to switch to client.
  kReject = 5,    // Switch to the sender of a task or token that was not taken; `code` says why.
  kAffine = 6,    // Client to switch to agent: a later packet of a request; it is not scheduled.
  kProbe = 7,     // Agent or controller to switch, and its answer.
  kReset = 8,     // Controller to switch, and its answer.
};

enum Flags : uint8_t {
  kQueued = 1,      // DISPATCH: the task waited in the switch.
  kPrewritten = 2,  // DISPATCH: the payload lies in the agent's pre-write ring, not in this packet.
  kAnswer = 4,      // PROBE, RESET: from the switch.
};

// `code` of a REJECT.
enum class RejectReason : uint8_t {
  kQueueFull = 1,       // The slice has as many waiting tasks as it may.
  kLargeQueueFull = 2,  // As above, for tasks whose payload must be written beforehand.
  kWorkerGone = 3,      // It met a token of, or names, a worker that is not there any more.
  kUnknownType = 4,     // No slice takes tasks of this type.
  kTokensFull = 5,      // A token: the slice has as many as it may.
};

// Clients and members are numbered from 1.
constexpr uint16_t kNobody = 0;

// `code` of a RESET: what to reset, one or both.
enum ResetWhat : uint8_t {
  kResetSlice = 1,   // Queue and tokens of `slice`; both ticket counters continue at `ticket`.
  kResetMember = 2,  // The count of tokens held for `member`.
};

// In host byte order.
struct Header {
  Kind kind = Kind::kTask;
  uint8_t flags = 0;
  uint8_t code = 0;
  uint8_t type = 0;   // Of the task; the switch maps it to a slice.
  uint8_t slice = 0;  // Set by the switch; RESET and the controller's PROBE name it.
  uint8_t fragment = 0;
  uint8_t fragments = 0;     // Packets of the request, 1 to 255; see ValidateHeader().
  uint16_t client = 0;       // Given by the controller, like `member`.
  uint16_t size = 0;         // Bytes of payload, wherever they are.
  uint32_t request = 0;      // The client's own number of the request.
  uint16_t epoch = 0;        // Of the membership; see `member`.
  uint16_t member = 0;       // One worker's membership in one slice: whose token it is.
  uint32_t ticket = 0;       // Given by the switch: the task's number in its slice.
  uint32_t queue_tasks = 0;  // Tasks that waited in the slice when this one was dispatched.
  uint32_t switch_ns = 0;    // How long the task waited in the switch.
  std::array<std::byte, kDataBytes> data = {};

  bool operator==(const Header&) const = default;
};

enum class Malformed : uint8_t {
  kNone,
  kNotRain,    // Some other packet, perhaps a good one: not for this code.
  kTruncated,  // Ends within a header, or earlier than its lengths say.
  kIpv4,       // A fragment, or the header's checksum is wrong.
  kVersion,    // Another version of Rain.
  kKind,       // No such kind.
  kFlags,      // A flag that this kind does not have.
  kCode,       // A code that this kind does not have.
  kSize,       // A payload that this kind does not have, or one too large.
  kFragment,   // Not a packet of a request.
  kLength,     // UDP and IPv4 lengths do not fit `size`.
  kCount_,
};
const char* Name(Malformed reason);

constexpr bool IsLarge(size_t payload_bytes) { return payload_bytes > kDataBytes; }
constexpr size_t PaddedBytes(size_t payload_bytes) {
  return (payload_bytes + kPaddingBytes - 1) / kPaddingBytes * kPaddingBytes;
}
// What follows the header in a packet: nothing, or padded payload and trailer.
constexpr size_t BodyBytes(const Header& header) {
  const bool follows = IsLarge(header.size) && (header.flags & kPrewritten) == 0;
  return follows ? PaddedBytes(header.size) + kTrailerBytes : 0;
}

// Reads 40 bytes and checks them by themselves. `header` is defined only for kNone.
[[nodiscard]] Malformed DecodeHeader(std::span<const std::byte, kHeaderBytes> bytes,
                                     Header& header);
void EncodeHeader(const Header& header, std::span<std::byte, kHeaderBytes> bytes);

// Whether this kind may have these flags, code, size and fragment numbers.
[[nodiscard]] Malformed ValidateHeader(const Header& header);

// Digest of a large payload, which lies in `data` (big endian: CRC-32C, then the length).
struct PayloadDigest {
  uint32_t crc32c = 0;
  uint32_t bytes = 0;
  bool operator==(const PayloadDigest&) const = default;
};
PayloadDigest DigestOf(std::span<const std::byte> payload);
PayloadDigest DigestIn(const Header& header);

// Sets `size` and `data`: the payload itself, or its digest. Requires <= kMaxPayloadBytes.
void SetPayload(Header& header, std::span<const std::byte> payload);

// Whether a slot of the pre-write ring holds the task that this descriptor (a kPrewritten DISPATCH)
// speaks of. Its payload's digest must be checked too: a WRITE's tail may land after its head.
bool DescribesSameTask(const Header& descriptor, const Header& slot);

}  // namespace sluice::rain
