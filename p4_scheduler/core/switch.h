// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "p4_scheduler/core/tables.h"
#include "p4_scheduler/core/ticket_queue.h"
#include "p4_scheduler/packet/frame.h"
#include "p4_scheduler/packet/roce.h"
#include "shm_proto/base/result.h"

namespace sluice::rain {

// What is fixed for a switch's life.
struct SwitchConfig {
  Endpoint own = {};  // Packets for this address are the switch's; all it sends comes from it.
  Destination controller = {};  // Who may RESET and PROBE everything: port and IPv4 address.
  uint32_t slices = 8;
  uint32_t task_capacity = 1u << 14;  // Of each slice, like the following; all powers of two.
  uint32_t token_capacity = 1u << 12;
  uint32_t slots = 1u << 11;
  uint32_t slot_bytes = kMaxRdmaBytes;
  uint32_t max_clients = 1024;
  uint32_t max_members = 1024;
  uint32_t max_replicas = 256;
  uint32_t max_queue_pairs = 256;
  uint8_t traffic_class = kDefaultTrafficClass;
  uint32_t first_ticket = 0;
};

// Why a packet ended as it did; each is counted.
enum class Outcome : uint8_t {
  kForwarded,  // Not for the switch.
  kDispatchedAtOnce,
  kDispatchedFromQueue,
  kTaskWaits,
  kLargeTaskWaits,
  kTokenWaits,
  kReplied,
  kAffine,
  kProbed,
  kReset,
  kRoceAck,  // A NIC took a replica (reliable connections only) ...
  kRoceNak,  // ... or not: its queue pair and the PSN register disagree.
  kRejectedQueueFull,
  kRejectedLargeQueueFull,
  kRejectedWorkerGone,
  kRejectedUnknownType,
  kRejectedTokensFull,
  kMalformed,
  kUnknownClient,   // Not registered, or the packet does not come from where it is.
  kUnknownMember,   // As above.
  kStaleEpoch,      // A token or probe of a membership that has ended.
  kUnexpectedKind,  // Only switches send these.
  kForbidden,       // A RESET or PROBE that is not the sender's to ask.
  kCount_,
};
const char* Name(Outcome outcome);

// What to do with a packet.
struct Decision {
  enum class Action : uint8_t {
    kDrop,       // Nothing more; also when it was taken in.
    kForward,    // As it is, wherever layer 2 says.
    kSend,       // It has been rewritten in place; send its first `bytes` to `port`.
    kReplicate,  // It has been rewritten in place; build and send one WRITE for each replica.
  };
  Action action = Action::kDrop;
  Outcome outcome = Outcome::kMalformed;
  uint16_t port = 0;
  uint8_t slice = 0;
  uint32_t bytes = 0;
};

// The Rain switch as one pure function of its state, a packet and the time: the software switch,
// simulations and the differential tests of the P4 programs run this very code. It does what one
// pass through a feed-forward pipeline can do: each table and each register is used at most once
// for a packet, in a fixed order, and the packet is rewritten in place and never gets longer,
// except for replicas, which are made from it as an egress pipeline does.
//
// Invariant: those of its queues; tokens held for a member are those of its present epoch that wait
// in its slice. Thread: one. Allocates: in Create() and when a slice's replicas are programmed.
class Switch {
 public:
  static Result<Switch> Create(const SwitchConfig& config);

  // A packet came in at `port`. `frame` is changed for kSend and kReplicate only.
  Decision Process(uint64_t now_ns, uint16_t port, std::span<std::byte> frame);

  // For kReplicate: what the replicas of the rewritten frame have in common, and each of them, in
  // any order. Building one takes its queue pair's next PSN.
  static SharedWriteData ReplicaData(std::span<const std::byte> frame);
  std::span<const uint16_t> ReplicasOf(uint8_t slice) const;
  struct Replica {
    uint16_t port = 0;
    std::span<std::byte> frame;  // Empty: `out` is too short, or the replica is not there.
  };
  Replica BuildReplica(uint16_t replica, const SharedWriteData& data, uint32_t ticket,
                       std::span<std::byte> out);
  static uint32_t TicketIn(std::span<const std::byte> frame);

  // The tables that the controller programs.
  Table<TypeEntry>& types() { return types_; }
  Table<SliceEntry>& slice_table() { return slice_table_; }
  Table<ClientEntry>& clients() { return clients_; }
  Table<MemberEntry>& members() { return members_; }
  Table<ReplicaEntry>& replicas() { return replicas_; }
  Result<> SetPsn(uint16_t psn_register, uint32_t psn);
  Result<uint32_t> Psn(uint16_t psn_register) const;

  const SwitchConfig& config() const { return config_; }
  const TicketQueue& queue(uint8_t slice) const { return queues_[slice]; }
  uint32_t TaskLimitOf(uint8_t slice) const;
  uint32_t tokens_held(uint16_t member) const { return tokens_held_[member]; }
  uint64_t count(Outcome outcome) const { return counts_[static_cast<size_t>(outcome)]; }
  uint64_t malformed(Malformed reason) const { return malformed_[static_cast<size_t>(reason)]; }
  uint64_t replicas_built() const { return replicas_built_; }
  uint64_t replica_bytes() const { return replica_bytes_; }
  size_t MemoryBytes() const;  // Of queues, tables and registers.

 private:
  struct Packet;

  explicit Switch(const SwitchConfig& config);

  Decision Handle(Packet& packet);
  Decision OnTask(Packet& packet);
  Decision OnToken(Packet& packet);
  Decision OnReply(Packet& packet);
  Decision OnAffine(Packet& packet);
  Decision OnProbe(Packet& packet);
  Decision OnReset(Packet& packet);
  uint32_t TaskLimit(const Header& header) const;
  Decision Hold(Packet& packet);
  bool IsClient(const Packet& packet) const;
  bool IsController(const Packet& packet) const;
  Decision Dispatch(Packet& packet, const MemberEntry& member, Outcome outcome);
  Decision Reject(Packet& packet, RejectReason reason);
  Decision Answer(Packet& packet, uint8_t slice, uint16_t member);
  Decision Send(Packet& packet, const Destination& to, Outcome outcome);
  Decision Drop(Outcome outcome);

  SwitchConfig config_;
  Table<TypeEntry> types_;
  Table<SliceEntry> slice_table_;
  Table<ClientEntry> clients_;
  Table<MemberEntry> members_;
  Table<ReplicaEntry> replicas_;
  std::vector<TicketQueue> queues_;    // By slice.
  std::vector<uint32_t> tokens_held_;  // By member.
  std::vector<uint32_t> psns_;         // By PSN register.
  std::array<uint64_t, static_cast<size_t>(Outcome::kCount_)> counts_{};
  std::array<uint64_t, static_cast<size_t>(Malformed::kCount_)> malformed_{};
  uint64_t replicas_built_ = 0;
  uint64_t replica_bytes_ = 0;
};

}  // namespace sluice::rain
