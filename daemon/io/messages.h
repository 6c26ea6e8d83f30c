// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "daemon/engine/latency.h"
#include "daemon/engine/session.h"
#include "daemon/transport/transport.h"
#include "shm_proto/base/fd.h"
#include "shm_proto/ring.h"

// What the control thread and an I/O thread say to each other. Setting up, tearing down and looking
// only: no message's data ever takes this way. Each I/O thread has one mailbox, the control thread
// has one.
namespace sluice::io {

using ClientId = uint32_t;

// --- control thread -> I/O thread
// ---------------------------------------------------------------------------------

// A client this thread has not met yet. The pool is one contiguous range of addresses, of which
// extents come and go.
struct AddClient {
  ClientId client;
  std::byte* pool_base;
  uint64_t pool_reserve_bytes;
  uint64_t max_message_bytes;  // What the client was told: longer messages neither go out nor come
                               // in.
  std::string name;
};

// An extent of the client's pool, mapped, sealed and registered: descriptors may point into it from
// now on.
struct AddExtent {
  ClientId client;
  uint64_t pool_offset;
  uint64_t bytes;
};

// The extent is about to be unmapped: answered by ExtentReleased once nothing in flight touches it.
struct RemoveExtent {
  ClientId client;
  uint64_t pool_offset;
  uint64_t bytes;
};

// Answers NeedReceiveBlocks: these blocks of the pool are this thread's to receive into. bytes ==
// 0: denied for now (quota or memory); the thread asks again after something was freed, or later
// on.
struct AddReceiveBlocks {
  ClientId client;
  uint64_t pool_offset;
  uint64_t bytes;
};

// A ring pair between one channel of the client and this thread. The doorbell wakes either side.
struct AddPort {
  ClientId client;
  uint32_t channel;
  RingMemory submissions;  // This thread consumes.
  RingMemory completions;  // This thread produces.
  Fd doorbell;
};

// The channel closed: its sockets are closed, its rings no longer touched. Answered by PortRemoved.
struct RemovePort {
  ClientId client;
  uint32_t channel;
};

// The client is gone: everything of it is closed. Answered by ClientRemoved once nothing, not even
// a transfer under way, touches its memory.
struct RemoveClient {
  ClientId client;
};

// An engine for a peer daemon. It has no path yet; sockets may be opened on it and wait.
struct AddPeer {
  PeerId peer;
  std::string name;  // For display: "host:port".
};

// Applications of this very host connect to each other: two engines joined inside the thread, with
// one copy and no network.
struct LinkSelf {
  PeerId dialer;
  PeerId listener;
  std::string name;
  uint64_t session;
};

// A connection to the peer finished its handshake.
struct PathUp {
  PeerId peer;
  Fd connection;  // TCP, non-blocking.
  SessionParameters session;
};

// What reaches peers beside TCP from now on; null: nothing. Engines leave the former one first.
// Answered by FabricSet once it is destroyed.
struct SetFabric {
  std::unique_ptr<transport::Fabric> fabric;
  std::string reason;  // Why the former one goes.
};

// What a fabric's queue pairs may name. Comes before the AddExtent that needs it, and may come from
// another thread than the control thread.
struct SetRegions {
  std::shared_ptr<const transport::Regions> regions;
};

// No connection could be made; the control thread goes on trying. Sockets that wait fail with this
// reason when their time is up, or at once if `definite` (the name does not exist, the peer refuses
// us).
struct PathFailed {
  PeerId peer;
  bool definite;
  int32_t error;
  std::string reason;
};

struct OpenSocket {
  ClientId client;
  uint32_t channel;
  uint64_t token;
  PeerId peer;
  uint16_t service;
};

// Answers IncomingSocket. The channel's port exists by now.
struct AcceptSocket {
  PeerId peer;
  uint32_t socket;
  ClientId client;
  uint32_t channel;
  uint64_t listener;  // Echoed to the client as the token.
};

struct RefuseSocket {
  PeerId peer;
  uint32_t socket;
  int32_t error;
};

enum class IdlePolicy : uint8_t { kSpin, kAdaptive, kEvent };

struct Configure {
  Tunables tunables;
  IdlePolicy idle;
  uint64_t spin_ns;  // kAdaptive: how long to look for work before sleeping.
};

// Says goodbye to every peer, so that both sides' operations end well; then answers Stopped and
// ends the thread's loop.
struct Stop {
  uint64_t deadline_ns;  // CLOCK_MONOTONIC; what is not over then ends as UNKNOWN.
};

struct ThreadSnapshot;
// Fill in what this thread knows and hand it back (called on the I/O thread; `done` must only pass
// it on).
struct Query {
  std::function<void(ThreadSnapshot)> done;
};

using ToIo = std::variant<AddClient, AddExtent, RemoveExtent, AddReceiveBlocks, AddPort, RemovePort,
                          RemoveClient, AddPeer, LinkSelf, PathUp, SetFabric, SetRegions,
                          PathFailed, OpenSocket, AcceptSocket, RefuseSocket, Configure, Stop,
                          Query>;

// --- I/O thread -> control thread
// ---------------------------------------------------------------------------------

// A peer's application wants a socket to a service of this node. Answer with AcceptSocket or
// RefuseSocket.
struct IncomingSocket {
  uint32_t io_thread;
  PeerId peer;
  uint32_t socket;
  uint16_t service;
};

// The receive side of this client is out of memory on this thread. Answer with AddReceiveBlocks.
struct NeedReceiveBlocks {
  uint32_t io_thread;
  ClientId client;
  uint64_t bytes;  // Contiguous, a multiple of the block size.
};

// Blocks that have been empty for a while go back.
struct ReceiveBlocksIdle {
  uint32_t io_thread;
  ClientId client;
  uint64_t pool_offset;
  uint64_t bytes;
};

struct ExtentReleased {
  uint32_t io_thread;
  ClientId client;
  uint64_t pool_offset;
};

struct PortRemoved {
  uint32_t io_thread;
  ClientId client;
  uint32_t channel;
};

struct ClientRemoved {
  uint32_t io_thread;
  ClientId client;
};

// The client broke the ring's rules: detach it.
struct ClientBroken {
  uint32_t io_thread;
  ClientId client;
  std::string reason;
};

// The path is gone: dial again. With session_over the session died too (sockets are closed, owners
// told).
struct PathLost {
  uint32_t io_thread;
  PeerId peer;
  uint64_t session;
  uint32_t path_epoch;
  bool session_over;
  std::string reason;
};

struct FabricSet {
  uint32_t io_thread;
};

// A peer's messages moved to the fabric, or back to TCP with the reason.
struct FabricPath {
  uint32_t io_thread;
  std::string peer;  // "host:port".
  bool on_fabric;
  std::string reason;
};

// A socket of this client is gone, and its last event is in the ring: another may take its place in
// the quota.
struct SocketGone {
  uint32_t io_thread;
  ClientId client;
};

struct Stopped {
  uint32_t io_thread;
};

using FromIo = std::variant<IncomingSocket, NeedReceiveBlocks, ReceiveBlocksIdle, ExtentReleased,
                            PortRemoved, ClientRemoved, ClientBroken, PathLost, FabricSet,
                            FabricPath, SocketGone, Stopped>;

// --- what Query returns
// -------------------------------------------------------------------------------------------

struct EngineSnapshot {
  PeerId peer = 0;
  std::string name;
  std::string state;            // "connecting", "up", "lost"
  std::string transport = {};   // "tcp", ...
  std::string limited_by = {};  // "nothing", "window", "credits", "queue"
  uint64_t session = 0;
  uint64_t peer_instance = 0;
  uint32_t path_epoch = 0;
  uint32_t sockets = 0;
  uint64_t window_bytes = 0;
  uint64_t in_flight_bytes = 0;
  uint32_t credits = 0;
  uint64_t sent_messages = 0, sent_bytes = 0, received_messages = 0, received_bytes = 0;
  uint64_t keepalives_sent = 0, keepalives_received = 0;
  uint64_t window_stalls = 0, credit_stalls = 0, queue_stalls = 0, landing_waits = 0;
  uint64_t grants_used = 0, stale_frames = 0, sessions = 0, paths = 0;
  uint64_t fabric_paths = 0, fabric_failures = 0;
  std::string fabric_reason = {};  // Why not the fabric; empty: it is used, or was never tried.
  uint64_t last_heard_ns_ago = 0;
  uint64_t operations_ok = 0, operations_failed = 0, operations_unknown = 0;
  LatencyCounts operations;  // Of those that ended OK.
};

struct SocketSnapshot {
  uint32_t socket = 0;
  uint32_t remote_socket = 0;
  PeerId peer = 0;
  ClientId client = 0;
  uint32_t channel = 0;
  uint16_t service = 0;
  std::string state;  // "opening", "open", "closing"
  uint64_t queued_messages = 0, sent_messages = 0, received_messages = 0, sent_bytes = 0,
           received_bytes = 0;
};

struct PortSnapshot {
  ClientId client = 0;
  uint32_t channel = 0;
  uint64_t submitted = 0, completed = 0, rejected = 0;
  uint32_t operations_in_flight = 0;
  uint64_t doorbells = 0;
};

struct ReceiveMemorySnapshot {
  ClientId client = 0;
  uint64_t block_bytes = 0;  // Blocks this thread holds.
  uint64_t live_bytes = 0;   // Of them in buffers.
};

struct ThreadSnapshot {
  uint32_t io_thread = 0;
  uint64_t loops = 0, sleeps = 0;
  transport::FabricUse fabric;
  std::vector<EngineSnapshot> engines;
  std::vector<SocketSnapshot> sockets;
  std::vector<PortSnapshot> ports;
  std::vector<ReceiveMemorySnapshot> memory;
};

}  // namespace sluice::io
