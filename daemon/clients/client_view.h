// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/clients/port.h"
#include "shm_proto/base/result.h"
#include "shm_proto/bemalloc/heap.h"

namespace sluice {

// Who has a received buffer, kept with the heap, in private memory.
enum class BufferState : uint8_t {
  kDaemon = 0,         // Landing, or on its way to the client.
  kHeld = 1,           // The client's.
  kInFlight = 2,       // The client sends it on.
  kFreeAfterSend = 3,  // The client freed it meanwhile: goes back when the send is over.
};

// One attached client as one I/O thread knows it: which parts of the pool exist, and the blocks
// this thread receives into. Nothing here is shared with the client but the payload. Invariant:
// every byte a transport may touch lies in an extent with users > 0, or in a live buffer of the
// heap. Thread: its I/O thread's.
struct ClientView {
  ClientView(uint32_t id, std::string name, std::byte* pool_base, uint64_t reserve_bytes,
             uint64_t max_message_bytes);

  void AddExtent(uint64_t offset, uint64_t bytes);
  // Empty: no such extent, or it is still in use (then it goes when it is not: see ExtentDone).
  bool RemoveExtent(uint64_t offset);

  // Checks a range that the client wants to send and marks it in use. `data` may be freed or reused
  // after ReleaseSend().
  Result<const std::byte*> AcquireSend(uint64_t offset, uint64_t length);
  // Returns the offset of an extent that is to be removed and now may, if any.
  std::optional<uint64_t> ReleaseSend(const std::byte* data);

  // The client gives a received buffer back.
  Result<> FreeReceived(uint64_t offset);

  const uint32_t id;
  const std::string name;
  std::byte* const pool_base;
  const uint64_t reserve_bytes;
  const uint64_t max_message_bytes;  // Both ways: its library takes a longer one for our fault.
  Heap heap;                         // Receive blocks of this thread.
  std::vector<std::unique_ptr<Port>> ports;
  std::vector<uint32_t> waiting_sockets;  // That wait for memory.
  uint32_t sockets = 0;
  uint64_t held_bytes = 0;        // Messages that engines keep since the pool is full.
  bool asked_for_blocks = false;  // NeedReceiveBlocks is unanswered.
  bool denied = false;            // The last answer was no: not asked again for a while.
  uint64_t denied_pause_ns = 0;   // How long that is; 0 after a grant.
  uint64_t ask_again_ns = 0;      // Until when it is.
  bool memory_freed = false;      // Look at waiting_sockets.
  bool removing = false;          // No more is taken from it.
  bool gone = false;              // The control thread waits for ClientRemoved.
  uint64_t empty_since_ns = 0;    // Since when the heap has had blocks to spare.

 private:
  struct Extent {
    uint64_t bytes;
    uint32_t users = 0;  // Sends in flight that start in it.
    bool removing = false;
  };
  std::map<uint64_t, Extent>::iterator ExtentOf(uint64_t offset);
  std::map<uint64_t, Extent> extents_;  // By pool offset.
};

}  // namespace sluice
