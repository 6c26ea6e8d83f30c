// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "daemon/transport/transport.h"

// What two engines say to each other. Every SEND is a row of frames; large payloads travel beside
// them by WRITE. The page docs/wire-protocol.md is the prose to this header.
namespace sluice::wire {

constexpr uint16_t kVersion = 1;

enum class FrameType : uint8_t {
  kOpen = 1,           // socket 0, argument: the opener's socket, sequence: the service.
  kOpened = 2,         // socket: the opener's, argument: the acceptor's.
  kRefused = 3,        // socket: the opener's, argument: errno.
  kMessage = 4,        // A whole message: `length` bytes follow.
  kWriteRequest = 5,   // A message of `length` bytes is to be written. With kUsesGrant: into grant
                       // `argument`.
  kWriteResponse = 6,  // Where message `sequence` may be written: grant `argument`, its slices
                       // follow.
  kGrant = 7,   // A landing buffer of `length` bytes for any message to come: grant `argument`,
                // slices follow.
  kAck = 8,     // Messages below `sequence` are in the receiver's pool, those below `length` were
                // handed on.
  kCredit = 9,  // argument: receives posted again.
  kKeepalive = 10,  // sequence rises.
  kClose = 11,      // I send nothing more on this socket; argument: errno or 0.
  kClosed = 12,     // Answers kClose: I write nothing more into your grants.
  kRecall = 13,     // Give grant `argument` back.
  kReturned = 14,   // Grant `argument` will not be written, or has been already.
  kResume = 15,   // New path: I have all messages below `sequence` of socket `socket`; my name for
                  // it: argument.
  kResumed = 16,  // New path: those were all my sockets.
  kGoodbye = 17,  // This daemon shuts down: the session ends.
  // About the paths themselves (fabric_path.cc), with kFeatureFabric only. argument: the attempt.
  kFabricOffer = 18,   // My endpoint follows.
  kFabricAnswer = 19,  // My endpoint follows; nothing: no.
  kFabricProbe = 20,   // On the fabric itself.
  kPath = 21,          // All I say about messages from here on is on that fabric; 0: here.
};

enum FrameFlags : uint8_t { kUsesGrant = 1 };

// Little endian, as it lies in memory; `bytes` bytes follow before the next frame.
struct FrameHeader {
  FrameType type;
  uint8_t flags;
  uint8_t traffic_class;
  uint8_t unused;
  uint32_t socket;  // The receiver's name of the socket.
  uint64_t sequence;
  uint64_t trace_id;
  uint64_t length;
  uint32_t argument;
  uint32_t bytes;
};
static_assert(sizeof(FrameHeader) == 40 && std::is_trivially_copyable_v<FrameHeader>);
static_assert(sizeof(transport::RemoteSlice) == 24);

// Walks the frames of one SEND. Bytes come from a peer: nothing is believed.
class FrameReader {
 public:
  explicit FrameReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  // False: the end, or the bytes are no frames (then malformed()).
  bool Next(FrameHeader& header, std::span<const std::byte>& payload) {
    if (rest_.empty()) return false;
    if (rest_.size() < sizeof(FrameHeader)) return Malformed();
    std::memcpy(&header, rest_.data(), sizeof(header));
    rest_ = rest_.subspan(sizeof(header));
    if (header.bytes > rest_.size()) return Malformed();
    payload = rest_.first(header.bytes);
    rest_ = rest_.subspan(header.bytes);
    return true;
  }

  bool malformed() const { return malformed_; }

 private:
  bool Malformed() {
    malformed_ = true;
    return false;
  }

  std::span<const std::byte> rest_;
  bool malformed_ = false;
};

}  // namespace sluice::wire
