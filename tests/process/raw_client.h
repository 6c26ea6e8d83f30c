// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shm_proto/base/fd.h"
#include "shm_proto/control.h"
#include "shm_proto/ring.h"
#include "tests/harness/harness.h"

// A client that speaks the protocol itself, so that a test can break it anywhere.
namespace sluice::testing {

// Memory that the daemon sent, mapped.
class Mapping {
 public:
  Mapping(int memfd, uint64_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  uint64_t bytes_;
};

struct Packet {
  std::vector<std::byte> bytes;
  std::vector<Fd> descriptors;

  control::Type type() const;
  template <typename Message>
  Message As() const {
    Message message{};
    std::memcpy(&message, bytes.data(), std::min(bytes.size(), sizeof(message)));
    return message;
  }
};

// Thread: one. Owns: the control connection and everything mapped.
class RawClient {
 public:
  // Connects to the control socket and says nothing.
  static std::unique_ptr<RawClient> Connect(const Daemon& daemon);

  // Any bytes and descriptors as one packet; false: the daemon has hung up.
  bool SendBytes(std::span<const std::byte> bytes, std::span<const int> descriptors = {});
  template <typename Message>
  bool Send(Message message, control::Type type) {
    message.header.type = type;
    message.header.bytes = sizeof(message);
    message.header.request = ++request_;
    return SendBytes(std::as_bytes(std::span(&message, 1)));
  }

  // The next packet; empty: none came, or the daemon hung up, which hung_up() tells.
  std::optional<Packet> Receive(milliseconds timeout = kPatience);
  bool hung_up() const { return hung_up_; }
  bool WaitHangUp();  // Reads and drops packets until then.

  // The protocol, as a good client follows it. Regions that come along are mapped and confirmed.
  std::optional<Packet> Await(control::Type type, milliseconds timeout = kPatience);
  bool Attach();
  bool OpenChannel(uint32_t capacity = 64);
  bool Listen(uint16_t service, uint64_t token = 1);
  bool Grow(uint64_t bytes);  // Afterwards pool_offset() .. are ours.
  bool ConnectTo(const std::string& host,
                 uint16_t service);  // Afterwards there are rings and a socket().

  // The rings, once there are.
  RingMemory submissions() const { return {rings_->data(), capacity_}; }
  RingMemory completions() const { return {rings_->data() + RingBytes(capacity_), capacity_}; }
  bool has_rings() const { return rings_ != nullptr; }
  void Submit(const Descriptor& descriptor);  // And rings the doorbell. Waits for room.
  std::optional<Descriptor> Complete(milliseconds timeout = kPatience);
  void Ring();

  uint64_t pool_offset() const { return pool_offset_; }
  std::byte* memory() const;  // What lies at pool_offset().
  uint64_t reserve_bytes() const { return attached_.pool_reserve_bytes; }
  uint32_t socket() const { return socket_; }

 private:
  bool OnRegion(Packet& packet);

  Fd control_;
  Fd doorbell_;
  bool hung_up_ = false;
  uint32_t request_ = 0;
  control::Attached attached_{};
  std::map<uint64_t, std::unique_ptr<Mapping>> extents_;  // By pool offset.
  std::unique_ptr<Mapping> rings_;
  std::unique_ptr<RingProducer> producer_;
  std::unique_ptr<RingConsumer> consumer_;
  uint32_t capacity_ = 0;
  uint32_t socket_ = 0;
  uint64_t pool_offset_ = 0;
};

}  // namespace sluice::testing
