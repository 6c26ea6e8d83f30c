// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/core/switch.h"

#include <algorithm>
#include <bit>

#include "p4_scheduler/packet/bytes.h"

namespace sluice::rain {
namespace {

// So that one byte names a slice, and a slice's replicas fit any multicast group.
constexpr uint32_t kMaxSlices = 256;
constexpr size_t kMaxReplicasOfSlice = 64;
constexpr uint32_t kMaxKeys = 65'535;  // Clients, members, replicas: 16 bits, 0 is nobody.

bool IsFrom(uint16_t port, const Endpoint& source, const Destination& where) {
  return port == where.port && source.ip == where.endpoint.ip;
}

std::string CheckConfig(const SwitchConfig& config) {
  const auto power = [](uint32_t value, uint32_t least) {
    return std::has_single_bit(value) && value >= least;
  };
  if (config.slices == 0 || config.slices > kMaxSlices) return "slices must be 1 to 256";
  if (!power(config.task_capacity, 1)) return "task_capacity must be a power of two";
  if (!power(config.token_capacity, 1)) return "token_capacity must be a power of two";
  if (!power(config.slots, 2)) return "slots must be a power of two, 2 at least";
  if (!power(config.slot_bytes, 64) || config.slot_bytes > kMaxRdmaBytes) {
    return "slot_bytes must be a power of two, 64 to " + std::to_string(kMaxRdmaBytes);
  }
  if (uint64_t{config.slices} * std::max(config.task_capacity, config.token_capacity) > 1u << 30) {
    return "slices times capacity must be at most 2^30";
  }
  for (const uint32_t keys :
       {config.max_clients, config.max_members, config.max_replicas, config.max_queue_pairs}) {
    if (keys == 0 || keys > kMaxKeys) return "tables must have 1 to 65535 entries";
  }
  return {};
}

std::string CheckSlice(const SwitchConfig& config, const SliceEntry& entry) {
  if (entry.task_limit > config.task_capacity) {
    return "task_limit is above the capacity of " + std::to_string(config.task_capacity);
  }
  if (entry.token_limit > config.token_capacity) {
    return "token_limit is above the capacity of " + std::to_string(config.token_capacity);
  }
  if (entry.large_limit > config.slots / 2 || entry.large_limit > entry.task_limit) {
    return "large_limit must be at most task_limit and half of the " +
           std::to_string(config.slots) + " slots";
  }
  if (entry.replicas.size() > kMaxReplicasOfSlice) {
    return "at most " + std::to_string(kMaxReplicasOfSlice) + " replicas";
  }
  for (const uint16_t replica : entry.replicas) {
    if (replica == 0 || replica > config.max_replicas) {
      return "replica " + std::to_string(replica) + " is out of range";
    }
  }
  return {};
}

std::string CheckReplica(const SwitchConfig& config, const ReplicaEntry& entry) {
  if (entry.psn_register >= config.max_queue_pairs) return "psn_register is out of range";
  if (entry.queue_pair > kPsnMask) return "queue_pair has more than 24 bits";
  const uint64_t ring_bytes = uint64_t{config.slots} * config.slot_bytes;
  if (entry.base % ring_bytes != 0) {
    return "base must be a multiple of the ring's " + std::to_string(ring_bytes) + " bytes";
  }
  return {};
}

// A NIC's answer to a replica over a reliable connection ends here.
Outcome OutcomeOf(Acknowledgement acknowledgement) {
  switch (acknowledgement) {
    case Acknowledgement::kAck: return Outcome::kRoceAck;
    case Acknowledgement::kNak: return Outcome::kRoceNak;
    case Acknowledgement::kNone: break;
  }
  return Outcome::kUnexpectedKind;
}

}  // namespace

// A packet on its way through.
struct Switch::Packet {
  uint32_t now_ns;
  uint16_t port;
  std::span<std::byte> frame;
  Endpoint source;
  Header header;
};

const char* Name(Outcome outcome) {
  constexpr const char* kNames[] = {"forwarded",
                                    "dispatched_at_once",
                                    "dispatched_from_queue",
                                    "task_waits",
                                    "large_task_waits",
                                    "token_waits",
                                    "replied",
                                    "affine",
                                    "probed",
                                    "reset",
                                    "roce_ack",
                                    "roce_nak",
                                    "rejected_queue_full",
                                    "rejected_large_queue_full",
                                    "rejected_worker_gone",
                                    "rejected_unknown_type",
                                    "rejected_tokens_full",
                                    "malformed",
                                    "unknown_client",
                                    "unknown_member",
                                    "stale_epoch",
                                    "unexpected_kind",
                                    "forbidden"};
  static_assert(std::size(kNames) == static_cast<size_t>(Outcome::kCount_));
  return outcome < Outcome::kCount_ ? kNames[static_cast<size_t>(outcome)] : "unknown";
}

Result<Switch> Switch::Create(const SwitchConfig& config) {
  if (const std::string wrong = CheckConfig(config); !wrong.empty()) {
    return Fail(ErrorCode::kInvalid, "switch: " + wrong);
  }
  return Switch(config);
}

Switch::Switch(const SwitchConfig& config)
    : config_(config),
      types_("type", 0, 256,
             [slices = config.slices](uint16_t, const TypeEntry& entry) {
               return entry.slice < slices ? std::string() : "there is no such slice";
             }),
      slice_table_(
          "slice", 0, config.slices,
          [config](uint16_t, const SliceEntry& entry) { return CheckSlice(config, entry); }),
      clients_("client", 1, config.max_clients,
               [](uint16_t, const ClientEntry&) { return std::string(); }),
      members_("member", 1, config.max_members,
               [slices = config.slices](uint16_t, const MemberEntry& entry) {
                 return entry.slice < slices ? std::string() : "there is no such slice";
               }),
      replicas_(
          "replica", 1, config.max_replicas,
          [config](uint16_t, const ReplicaEntry& entry) { return CheckReplica(config, entry); }),
      tokens_held_(config.max_members + 1),
      psns_(config.max_queue_pairs) {
  queues_.reserve(config.slices);
  for (uint32_t slice = 0; slice < config.slices; ++slice) {
    queues_.emplace_back(config.task_capacity, config.token_capacity, config.first_ticket);
  }
}

Decision Switch::Process(uint64_t now_ns, uint16_t port, std::span<std::byte> frame) {
  UdpFrame udp;
  RainFrame rain;
  Malformed bad = ParseUdp(frame, config_.own.port, udp);
  if (bad == Malformed::kNotRain && ParseUdp(frame, kRoceUdpPort, udp) == Malformed::kNone &&
      udp.destination.ip == config_.own.ip) {
    return Drop(OutcomeOf(ReadAcknowledgement(udp)));
  }
  if (bad == Malformed::kNotRain ||
      (bad == Malformed::kNone && udp.destination.ip != config_.own.ip)) {
    ++counts_[static_cast<size_t>(Outcome::kForwarded)];
    return {.action = Decision::Action::kForward, .outcome = Outcome::kForwarded};
  }
  if (bad == Malformed::kNone) bad = ParseRain(udp, rain);
  if (bad != Malformed::kNone) {
    ++malformed_[static_cast<size_t>(bad)];
    return Drop(Outcome::kMalformed);
  }
  Packet packet{.now_ns = static_cast<uint32_t>(now_ns),
                .port = port,
                .frame = frame,
                .source = rain.source,
                .header = rain.header};
  return Handle(packet);
}

Decision Switch::Handle(Packet& packet) {
  if ((packet.header.flags & kAnswer) != 0) return Drop(Outcome::kUnexpectedKind);
  switch (packet.header.kind) {
    case Kind::kTask: return OnTask(packet);
    case Kind::kToken: return OnToken(packet);
    case Kind::kReply: return OnReply(packet);
    case Kind::kAffine: return OnAffine(packet);
    case Kind::kProbe: return OnProbe(packet);
    case Kind::kReset: return OnReset(packet);
    case Kind::kDispatch:
    case Kind::kReject: break;
  }
  return Drop(Outcome::kUnexpectedKind);
}

Decision Switch::OnTask(Packet& packet) {
  Header& header = packet.header;
  if (!IsClient(packet)) return Drop(Outcome::kUnknownClient);
  const TypeEntry* type = types_.Find(header.type);
  if (type == nullptr) return Reject(packet, RejectReason::kUnknownType);
  header.slice = type->slice;

  const TicketQueue::TaskStep step = queues_[type->slice].OnTask({.request = header.request,
                                                                  .client = header.client,
                                                                  .size = header.size,
                                                                  .data = header.data,
                                                                  .enqueued_ns = packet.now_ns,
                                                                  .type = header.type},
                                                                 TaskLimit(header));
  header.ticket = step.ticket;
  header.queue_tasks = static_cast<uint32_t>(std::max(-step.old_balance, 0));
  header.switch_ns = 0;
  switch (step.verdict) {
    case Verdict::kReject:
      return Reject(
          packet, IsLarge(header.size) ? RejectReason::kLargeQueueFull : RejectReason::kQueueFull);
    case Verdict::kEnqueue: return Hold(packet);
    case Verdict::kDispatch: break;
  }
  const MemberEntry* member = members_.Find(step.token.member);
  if (member == nullptr || member->epoch != step.token.epoch) {
    return Reject(packet, RejectReason::kWorkerGone);
  }
  // Not below 0: after a RESET tokens may still wait that are not counted any more.
  uint32_t& held = tokens_held_[step.token.member];
  if (held > 0) --held;
  header.epoch = step.token.epoch;
  header.member = step.token.member;
  return Dispatch(packet, *member, Outcome::kDispatchedAtOnce);
}

// How many tasks may wait at most for this one to wait too.
uint32_t Switch::TaskLimit(const Header& header) const {
  const SliceEntry* slice = slice_table_.Find(header.slice);
  if (slice == nullptr) return 0;
  if (!IsLarge(header.size)) return slice->task_limit;
  // Only where its payload can be written beforehand.
  const bool fits = kHeaderBytes + PaddedBytes(header.size) <= config_.slot_bytes;
  return fits && !slice->replicas.empty() ? slice->large_limit : 0;
}

Decision Switch::Hold(Packet& packet) {
  if (!IsLarge(packet.header.size)) return Drop(Outcome::kTaskWaits);
  ++counts_[static_cast<size_t>(Outcome::kLargeTaskWaits)];
  EncodeHeader(packet.header, packet.frame.subspan<kHeaderOffset, kHeaderBytes>());
  return {.action = Decision::Action::kReplicate,
          .outcome = Outcome::kLargeTaskWaits,
          .slice = packet.header.slice,
          .bytes = static_cast<uint32_t>(FrameBytes(packet.header))};
}

Decision Switch::OnToken(Packet& packet) {
  const Token token{.epoch = packet.header.epoch, .member = packet.header.member};
  const MemberEntry* member = members_.Find(token.member);
  if (member == nullptr || !member->takes_tokens ||
      !IsFrom(packet.port, packet.source, member->owner)) {
    return Drop(Outcome::kUnknownMember);
  }
  if (member->epoch != token.epoch) return Drop(Outcome::kStaleEpoch);

  const SliceEntry* slice = slice_table_.Find(member->slice);
  const TicketQueue::TokenStep step = queues_[member->slice].OnToken(
      token, slice == nullptr ? 0 : slice->token_limit);
  Header& header = packet.header;
  if (step.verdict == Verdict::kReject) {
    header.slice = member->slice;
    return Reject(packet, RejectReason::kTokensFull);
  }
  if (step.verdict == Verdict::kEnqueue) {
    ++tokens_held_[token.member];
    return Drop(Outcome::kTokenWaits);
  }
  const bool large = IsLarge(step.task.size);
  header = {.flags = static_cast<uint8_t>(large ? kQueued | kPrewritten : kQueued),
            .type = step.task.type,
            .slice = member->slice,
            .fragments = static_cast<uint8_t>(large ? 0 : 1),
            .client = step.task.client,
            .size = step.task.size,
            .request = step.task.request,
            .epoch = token.epoch,
            .member = token.member,
            .ticket = step.ticket,
            .queue_tasks = static_cast<uint32_t>(-step.old_balance),
            .switch_ns = packet.now_ns - step.task.enqueued_ns,
            .data = step.task.data};
  return Dispatch(packet, *member, Outcome::kDispatchedFromQueue);
}

Decision Switch::OnReply(Packet& packet) {
  // The owner answers what it was given before its worker moved, the target what it got since.
  const MemberEntry* member = members_.Find(packet.header.member);
  if (member == nullptr || (!IsFrom(packet.port, packet.source, member->owner) &&
                            !IsFrom(packet.port, packet.source, member->target))) {
    return Drop(Outcome::kUnknownMember);
  }
  const ClientEntry* client = clients_.Find(packet.header.client);
  if (client == nullptr) return Drop(Outcome::kUnknownClient);
  return Send(packet, client->destination, Outcome::kReplied);
}

Decision Switch::OnAffine(Packet& packet) {
  if (!IsClient(packet)) return Drop(Outcome::kUnknownClient);
  const MemberEntry* member = members_.Find(packet.header.member);
  if (member == nullptr || member->epoch != packet.header.epoch) {
    return Reject(packet, RejectReason::kWorkerGone);
  }
  packet.header.slice = member->slice;
  return Send(packet, member->target, Outcome::kAffine);
}

Decision Switch::OnProbe(Packet& packet) {
  const Header& header = packet.header;
  const bool controller = IsController(packet);
  if (header.member == kNobody) {
    if (!controller || header.slice >= config_.slices) return Drop(Outcome::kForbidden);
    return Answer(packet, header.slice, kNobody);
  }
  const MemberEntry* member = members_.Find(header.member);
  if (member == nullptr) return Drop(Outcome::kUnknownMember);
  if (!controller) {
    if (!IsFrom(packet.port, packet.source, member->owner)) return Drop(Outcome::kUnknownMember);
    if (member->epoch != header.epoch) return Drop(Outcome::kStaleEpoch);
  }
  return Answer(packet, member->slice, header.member);
}

Decision Switch::OnReset(Packet& packet) {
  const Header& header = packet.header;
  if (!IsController(packet) || header.slice >= config_.slices ||
      header.member > config_.max_members) {
    return Drop(Outcome::kForbidden);
  }
  if ((header.code & kResetSlice) != 0) queues_[header.slice].Reset(header.ticket);
  if ((header.code & kResetMember) != 0) tokens_held_[header.member] = 0;
  return Answer(packet, header.slice, header.member);
}

bool Switch::IsClient(const Packet& packet) const {
  const ClientEntry* client = clients_.Find(packet.header.client);
  return client != nullptr && IsFrom(packet.port, packet.source, client->destination);
}

bool Switch::IsController(const Packet& packet) const {
  return IsFrom(packet.port, packet.source, config_.controller);
}

Decision Switch::Dispatch(Packet& packet, const MemberEntry& member, Outcome outcome) {
  packet.header.kind = Kind::kDispatch;
  return Send(packet, member.target, outcome);
}

Decision Switch::Reject(Packet& packet, RejectReason reason) {
  packet.header.kind = Kind::kReject;
  packet.header.code = static_cast<uint8_t>(reason);
  const auto outcome = static_cast<Outcome>(static_cast<int>(Outcome::kRejectedQueueFull) +
                                            static_cast<int>(reason) -
                                            static_cast<int>(RejectReason::kQueueFull));
  return Send(packet, {packet.port, packet.source}, outcome);
}

Decision Switch::Answer(Packet& packet, uint8_t slice, uint16_t member) {
  const TicketQueue& queue = queues_[slice];
  Header& header = packet.header;
  header = {.kind = header.kind,
            .flags = kAnswer,
            .code = header.code,
            .slice = slice,
            .epoch = header.epoch,
            .member = member,
            .ticket = queue.tasks_seen(),
            .queue_tasks = queue.waiting_tasks()};
  StoreBigEndian<uint32_t>(header.data.data(), queue.tokens_seen());
  StoreBigEndian<uint32_t>(header.data.data() + 4, tokens_held_[member]);
  return Send(packet, {packet.port, packet.source},
              header.kind == Kind::kProbe ? Outcome::kProbed : Outcome::kReset);
}

Decision Switch::Send(Packet& packet, const Destination& to, Outcome outcome) {
  ++counts_[static_cast<size_t>(outcome)];
  const size_t bytes = FrameBytes(packet.header);
  WriteUdpHeaders(config_.own, to.endpoint, config_.traffic_class, bytes - kHeaderOffset,
                  packet.frame);
  EncodeHeader(packet.header, packet.frame.subspan<kHeaderOffset, kHeaderBytes>());
  return {.action = Decision::Action::kSend,
          .outcome = outcome,
          .port = to.port,
          .slice = packet.header.slice,
          .bytes = static_cast<uint32_t>(bytes)};
}

Decision Switch::Drop(Outcome outcome) {
  ++counts_[static_cast<size_t>(outcome)];
  return {.outcome = outcome};
}

SharedWriteData Switch::ReplicaData(std::span<const std::byte> frame) {
  const size_t size = LoadBigEndian<uint16_t>(frame.data() + kHeaderOffset + 10);
  return {frame.subspan(kHeaderOffset, kHeaderBytes),
          frame.subspan(kBodyOffset, PaddedBytes(size))};
}

uint32_t Switch::TicketIn(std::span<const std::byte> frame) {
  return LoadBigEndian<uint32_t>(frame.data() + kHeaderOffset + 20);
}

std::span<const uint16_t> Switch::ReplicasOf(uint8_t slice) const {
  const SliceEntry* entry = slice_table_.Find(slice);
  return entry == nullptr ? std::span<const uint16_t>() : entry->replicas;
}

Switch::Replica Switch::BuildReplica(uint16_t replica, const SharedWriteData& data, uint32_t ticket,
                                     std::span<std::byte> out) {
  const ReplicaEntry* entry = replicas_.Find(replica);
  if (entry == nullptr) return {};
  uint32_t& psn = psns_[entry->psn_register];
  const Write write{
      .opcode = entry->opcode,
      .wants_ack = entry->opcode == WriteOpcode::kRcWriteOnly,
      .queue_pair = entry->queue_pair,
      .psn = psn,
      .address = entry->base | uint64_t{ticket & (config_.slots - 1)} * config_.slot_bytes,
      .rkey = entry->rkey};
  const auto frame = BuildWrite(config_.own, entry->destination.endpoint, config_.traffic_class,
                                write, data, out);
  if (frame.empty()) return {};
  psn = (psn + 1) & kPsnMask;
  ++replicas_built_;
  replica_bytes_ += frame.size();
  return {.port = entry->destination.port, .frame = frame};
}

uint32_t Switch::TaskLimitOf(uint8_t slice) const {
  const SliceEntry* entry = slice_table_.Find(slice);
  return entry == nullptr ? 0 : entry->task_limit;
}

Result<> Switch::SetPsn(uint16_t psn_register, uint32_t psn) {
  if (psn_register >= psns_.size()) {
    return Fail(ErrorCode::kInvalid,
                "PSN register " + std::to_string(psn_register) + " is out of range");
  }
  psns_[psn_register] = psn & kPsnMask;
  return {};
}

Result<uint32_t> Switch::Psn(uint16_t psn_register) const {
  if (psn_register >= psns_.size()) {
    return Fail(ErrorCode::kInvalid,
                "PSN register " + std::to_string(psn_register) + " is out of range");
  }
  return psns_[psn_register];
}

size_t Switch::MemoryBytes() const {
  size_t bytes = sizeof(*this) + tokens_held_.size() * sizeof(uint32_t) +
                 psns_.size() * sizeof(uint32_t) +
                 types_.keys() * sizeof(std::optional<TypeEntry>) +
                 slice_table_.keys() * sizeof(std::optional<SliceEntry>) +
                 clients_.keys() * sizeof(std::optional<ClientEntry>) +
                 members_.keys() * sizeof(std::optional<MemberEntry>) +
                 replicas_.keys() * sizeof(std::optional<ReplicaEntry>);
  for (const TicketQueue& queue : queues_) bytes += queue.MemoryBytes();
  return bytes;
}

}  // namespace sluice::rain
