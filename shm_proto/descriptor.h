// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace sluice {

// What a client asks for. A descriptor whose op is none of these is answered as a failed operation.
enum class SubmitOp : uint8_t {
  kSend = 1,   // Send a message on `socket`; completes with CompletionOp::kSent carrying the same
               // token.
  kFree = 2,   // Give received buffers back: inline_bytes / 8 pool offsets in `free_offsets`. No
               // completion.
  kClose = 3,  // Close `socket`; completes with CompletionOp::kClosed.
};

// What the daemon tells a client.
enum class CompletionOp : uint8_t {
  kSent = 1,       // The send with this token is over: `result.outcome`, `result.error`.
  kMessage = 2,    // A message came in on `socket`: inline, or in the pool at `region`. The client
                   // owns that buffer now.
  kConnected = 3,  // The connect with this token is over; on success `socket` is its name from now
                   // on.
  kAccepted = 4,   // A peer's application connected to listener `token`: `socket` is new.
  kClosed = 5,     // `socket` is gone; nothing comes for it any more.
};

// How an operation ended (decisions: exactly once, and truthfully).
enum class Outcome : uint32_t {
  kOk = 0,       // The peer daemon has the whole message in the receiver's pool.
  kFailed = 1,   // Certainly not delivered.
  kUnknown = 2,  // The peer or our daemon died, or the path was lost, before the answer came.
};

enum DescriptorFlags : uint8_t {
  kFlagInline = 1,    // The payload is `inline_data`, not `region`.
  kFlagDegraded = 2,  // Every completion of a socket: its messages take TCP at present although
                      // both daemons are for RDMA (`degraded_tcp`).
};

constexpr size_t kInlineBytes = 40;
constexpr size_t kFreesPerDescriptor = kInlineBytes / sizeof(uint64_t);

// One cache line, the same shape in both directions. All fields come from the other side and are
// checked after copying.
struct alignas(64) Descriptor {
  uint8_t op;             // SubmitOp or CompletionOp.
  uint8_t flags;          // DescriptorFlags.
  uint8_t traffic_class;  // Carried end to end; reserved for classes of service.
  uint8_t inline_bytes;   // Bytes used of the union's bytes; at most kInlineBytes.
  uint32_t socket;        // The daemon's name of the socket, unique within its I/O thread.
  uint64_t token;         // The submitter's own name of the operation or listener, echoed.
  uint64_t trace_id;      // Carried end to end.
  union {
    struct {
      uint64_t offset;  // Where in the pool, bytes; of a kMessage a multiple of 64.
      uint64_t length;  // Bytes.
      uint64_t unused[3];
    } region;
    struct {
      uint32_t outcome;  // Outcome.
      int32_t error;     // 0 or an errno value saying why.
      uint32_t service;  // kAccepted: the listener's service.
      uint64_t unused[3];
    } result;
    uint64_t free_offsets[kFreesPerDescriptor];
    uint8_t inline_data[kInlineBytes];
  };
};
static_assert(sizeof(Descriptor) == 64);
static_assert(std::is_trivially_copyable_v<Descriptor>);

}  // namespace sluice
