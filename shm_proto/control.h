// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "shm_proto/base/units.h"

// The messages on the daemon's control socket (SOCK_SEQPACKET): one fixed-size struct a packet,
// little endian, padding zero. A request carries the client's own number, which its answer echoes.
// Whatever is truncated, oversized, unknown or out of range is answered with kError and, where the
// state is unclear, ends the connection.
//
// - Attach:      kAttach -> kAttached.
// - Channel:     kOpenChannel -> kChannelOpened. Its rings come later, one pair per I/O thread, on
//                first use. kCloseChannel -> kChannelClosed.
// - Memory:      kRegion (with its memfd; a ring pair also brings its doorbell) -> client maps it
// ->
//                kMapped -> the daemon seals the memfd and only then uses it. A region is an extent
//                of the pool or a ring pair.
// - Send memory: kGrow -> [kRegion -> kMapped ->] kBlocks. kShrink gives blocks back; when a whole
//                extent is unused the daemon sends kUnmap -> client unmaps -> kUnmapped.
// - Sockets:     kListen -> kListening. kConnect -> [kRegion -> kMapped ->] kConnected in the ring,
//                or kConnectFailed here when there is no ring to put it in; never kError.
namespace sluice::control {

constexpr uint32_t kMagic = 0x31434c53;  // "SLC1"
constexpr uint16_t kVersionMin = 1;      // The oldest protocol this build still speaks.
constexpr uint16_t kVersionMax = 1;
constexpr uint64_t
    kBlockBytes = 4 * kMiB;  // What a pool is cut into and what is registered with a NIC.
constexpr uint32_t kMaxHostBytes = 256;
constexpr uint32_t kMaxNameBytes = 64;
constexpr uint32_t kMaxTextBytes = 256;
constexpr uint32_t kMaxIoThreads = 64;
constexpr uint32_t kMaxMessageBytes = 1024;  // No control message is larger.

enum class Type : uint16_t {
  // Client to daemon.
  kAttach = 1,
  kOpenChannel = 2,
  kCloseChannel = 3,
  kMapped = 4,
  kGrow = 5,
  kShrink = 6,
  kUnmapped = 7,
  kListen = 8,
  kUnlisten = 9,
  kConnect = 10,
  // Daemon to client.
  kAttached = 64,
  kError = 65,
  kChannelOpened = 66,
  kRegion = 67,
  kBlocks = 68,
  kUnmap = 69,
  kListening = 70,
  kConnectFailed = 71,
  kDetached = 72,
  kChannelClosed = 73,
};

struct Header {
  uint32_t magic = kMagic;
  Type type{};
  uint16_t bytes = 0;    // Of the whole message, this header included.
  uint32_t request = 0;  // The client's number for it; 0 in messages that answer nothing.
  uint32_t unused = 0;
};

struct Attach {
  Header header;
  uint16_t version_min;
  uint16_t version_max;
  uint32_t unused;
  char name[kMaxNameBytes];  // Shown by sluicectl; zero-terminated. Never an identity.
};

struct Attached {
  Header header;
  uint16_t version;
  uint16_t io_threads;
  uint32_t client;              // The daemon's number for this client.
  uint64_t instance;            // This run of the daemon: changes with every start.
  uint64_t pool_reserve_bytes;  // Address space to reserve: pool offsets stay below it. Equals the
                                // quota.
  uint64_t max_message_bytes;   // Larger sends are refused.
  uint32_t max_channels;
  uint32_t max_sockets;
};

// An answer to a request that was refused.
struct ErrorReply {
  Header header;
  int32_t error;         // errno value.
  uint16_t version_min;  // Of the daemon, so that a version mismatch names both.
  uint16_t version_max;
  char text[kMaxTextBytes];
};

struct OpenChannel {
  Header header;
  // The client's own number, unique among its channels, below Attached::max_channels.
  uint32_t channel;
  uint32_t ring_capacity;  // Entries of each ring; a power of two in [16, 65536].
};

struct ChannelOpened {
  Header header;
  uint32_t channel;
  uint32_t unused;
};

struct CloseChannel {
  Header header;
  uint32_t channel;
  uint32_t unused;
};

// Nothing touches the channel's rings any more, nor the buffers of sends that were under way in it.
// Only then does the client use those buffers or the channel's number again.
struct ChannelClosed {
  Header header;
  uint32_t channel;
  uint32_t unused;
};

enum class RegionKind : uint32_t { kExtent = 1, kRingPair = 2 };

// Descriptors passed along: kExtent [memfd]; kRingPair [memfd, doorbell].
struct Region {
  Header header;
  uint32_t region;  // The daemon's number for it, echoed by kMapped.
  RegionKind kind;
  uint64_t bytes;  // Size of the memfd; map exactly this, at offset 0, shared, read and write.
  uint64_t pool_offset;  // kExtent: where in the reserved range to map it.
  uint32_t channel;      // kRingPair.
  uint32_t io_thread;    // kRingPair.
  uint32_t capacity;  // kRingPair: entries of each ring. Submission ring at 0, completion ring at
                      // RingBytes(capacity).
  uint32_t unused;
};

struct Mapped {
  Header header;
  uint32_t region;
  int32_t error;  // 0, or the errno with which mapping failed.
};

struct Grow {
  Header header;
  uint64_t bytes;  // Contiguous; rounded up to blocks.
};

// These blocks are the client's to send from.
struct Blocks {
  Header header;
  uint64_t pool_offset;
  uint64_t bytes;
};

struct Shrink {
  Header header;
  uint64_t pool_offset;
  uint64_t bytes;
};

struct Unmap {
  Header header;
  uint32_t region;
  uint32_t unused;
};

struct Unmapped {
  Header header;
  uint32_t region;
  uint32_t unused;
};

struct Listen {
  Header header;
  uint64_t token;  // Echoed in CompletionOp::kAccepted.
  uint32_t channel;
  uint32_t service;  // 1 to 65535. Several channels may listen on one service: they take turns.
};

struct Listening {
  Header header;
  uint64_t token;
};

struct Unlisten {
  Header header;
  uint64_t token;
};

struct Connect {
  Header header;
  uint64_t token;  // Echoed in CompletionOp::kConnected.
  uint32_t channel;
  uint32_t service;
  char host[kMaxHostBytes];  // Name or address of the peer's host, optionally with ":port" of its
                             // daemon; zero-terminated.
};

struct ConnectFailed {
  Header header;
  uint64_t token;
  uint32_t channel;
  int32_t error;
  char text[kMaxTextBytes];
};

// The daemon gives this client up; the connection closes next.
struct Detached {
  Header header;
  int32_t error;
  uint32_t unused;
  char text[kMaxTextBytes];
};

static_assert(sizeof(Header) == 16 && std::is_trivially_copyable_v<Header>);
static_assert(sizeof(Attach) == 88 && sizeof(Attached) == 56 && sizeof(ErrorReply) == 280 &&
              sizeof(Region) == 56 && sizeof(Connect) == 288 && sizeof(ConnectFailed) == 288 &&
              sizeof(Detached) == 280);

}  // namespace sluice::control
