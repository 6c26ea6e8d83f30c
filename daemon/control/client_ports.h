// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "daemon/control/client_host.h"

namespace sluice::control {

// One client's channels, and the ring pair that each has with every I/O thread it uses.
//
// A ring pair, on first use: made by the worker -> kRegion with its doorbell -> kMapped -> sealed
// -> AddPort. When the channel closes: RemovePort -> PortRemoved -> gone when the client has
// unmapped it too. Invariant: a port is ready exactly while its I/O thread was told of it and not
// told to remove it. Thread: control. Owns: the ring pairs' memory; a doorbell until its I/O thread
// gets it.
class ClientPorts {
 public:
  using ReadyCallback = std::move_only_function<void(Result<>)>;
  static constexpr uint32_t kMinRingCapacity = 16;
  static constexpr uint32_t kMaxRingCapacity = 65'536;

  explicit ClientPorts(ClientHost& host) : host_(host) {}
  ~ClientPorts();

  Result<> Open(uint32_t channel, uint32_t ring_capacity);
  // Answered with kChannelClosed once no I/O thread touches its rings.
  Result<> Close(uint32_t request, uint32_t channel);
  bool IsOpen(uint32_t channel) const;

  // Calls `ready` when the channel has a ring pair with this thread, or cannot get one; at once or
  // later, exactly once.
  void Ensure(uint32_t channel, uint32_t io_thread, ReadyCallback ready);
  // False: the region is none of these.
  bool OnMapped(uint32_t region, int error);
  void OnPortRemoved(const io::PortRemoved& removed);

  // The client leaves: whoever waits is refused.
  void Abandon();
  // For disposal once no I/O thread touches it.
  std::vector<memory::SharedMemory> TakeMemory();

  size_t channel_count() const { return channels_.size(); }
  size_t port_count() const;
  uint64_t ring_bytes() const {
    return ring_bytes_;
  }  // Rings in use, and those the client has not let go of.

 private:
  enum class PortState : uint8_t { kMaking, kOffered, kReady, kRemoving };
  struct Waiter {
    uint64_t deadline_ns;
    ReadyCallback ready;
  };
  struct Port {
    PortState state = PortState::kMaking;
    uint32_t region = 0;
    memory::SharedMemory memory;
    Fd doorbell;  // The daemon's end.
    std::vector<Waiter> waiters;
  };
  struct Channel {
    uint32_t capacity = 0;
    bool closing = false;
    uint32_t close_request = 0;
    std::map<uint32_t, Port> ports;  // By I/O thread.
  };

  void Make(uint32_t channel, uint32_t io_thread, Port& port, uint32_t capacity);
  void OnMade(uint32_t channel, uint32_t io_thread, uint32_t region,
              Result<memory::SharedMemory> memory);
  Result<> Offer(uint32_t channel, uint32_t io_thread, Port& port, uint32_t capacity);
  void Drop(uint32_t channel, uint32_t io_thread, const Error& error);
  Port* FindPort(uint32_t channel, uint32_t io_thread);
  void Retire(memory::SharedMemory memory);
  void FinishClose(uint32_t channel);
  void OnDeadline();
  void ArmDeadline(uint64_t deadline_ns);

  ClientHost& host_;
  std::map<uint32_t, Channel> channels_;
  uint64_t ring_bytes_ = 0;
  EventLoop::TimerId deadline_timer_ = 0;
  bool abandoned_ = false;
};

}  // namespace sluice::control
