// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/core/switch_testing.h"

#include "p4_scheduler/packet/bytes.h"
#include "shm_proto/base/check.h"

namespace sluice::rain {

Endpoint SwitchEndpoint() { return {{2, 0, 0, 0, 0, 0xfe}, 0x0a4d00fe, kUdpPort}; }

Endpoint At(uint16_t port) {
  return {{2, 0, 0, 0, 1, static_cast<uint8_t>(port)},
          0x0a4d0100u + port,
          static_cast<uint16_t>(port > 10 ? kUdpPort : kUdpPort + port)};
}

SwitchConfig Rack::DefaultConfig() {
  return {.own = SwitchEndpoint(),
          .controller = {.port = kControllerPort, .endpoint = At(kControllerPort)},
          .slices = 4,
          .task_capacity = 16,
          .token_capacity = 8,
          .slots = 16,
          .slot_bytes = 512,
          .max_clients = 16,
          .max_members = 64,
          .max_replicas = 16,
          .max_queue_pairs = 4};
}

Rack::Rack(const SwitchConfig& config) : rain(std::move(*Switch::Create(config))) {
  bool ok = rain.types().Insert(kType, {.slice = kSlice}).has_value();
  for (uint16_t port = 1; port <= 2; ++port) {
    ok &= rain.clients().Insert(port, {{.port = port, .endpoint = At(port)}}).has_value();
    const auto agent = static_cast<uint16_t>(port + 10);
    ok &= rain.replicas()
              .Insert(port, {.destination = {.port = agent, .endpoint = At(agent)},
                             .queue_pair = 0x100u + port,
                             .psn_register = port,
                             .rkey = 0xabc0u + port,
                             .base = uint64_t{port} << 32})
              .has_value();
  }
  SLUICE_CHECK(ok, "the rack's tables are accepted");
  SetLimits(config.task_capacity, config.slots / 2, config.token_capacity);
}

void Rack::AddMember(uint16_t member, uint16_t port, uint8_t slice, uint16_t epoch) {
  const Destination agent{.port = port, .endpoint = At(port)};
  SLUICE_CHECK(
      rain.members()
          .Insert(member, {.slice = slice, .epoch = epoch, .owner = agent, .target = agent})
          .has_value(),
      "a member is accepted");
}

void Rack::ModifyMember(uint16_t member, const MemberEntry& entry) {
  SLUICE_CHECK(rain.members().Modify(member, entry).has_value(), "a member is accepted");
}

void Rack::SetLimits(uint32_t tasks, uint32_t large, uint32_t tokens, uint8_t slice) {
  const SliceEntry entry{
      .task_limit = tasks, .large_limit = large, .token_limit = tokens, .replicas = {1, 2}};
  auto& table = rain.slice_table();
  const auto done = table.Find(slice) == nullptr ? table.Insert(slice, entry)
                                                 : table.Modify(slice, entry);
  SLUICE_CHECK(done.has_value(), "limits are accepted");
}

Rack::Result Rack::ProcessFrame(uint16_t port, std::vector<std::byte> frame, uint64_t now_ns) {
  Result result;
  result.decision = rain.Process(now_ns, port, frame);
  result.frame = std::move(frame);
  if (result.decision.action == Decision::Action::kSend) {
    const uint16_t to = LoadBigEndian<uint16_t>(&result.frame[kUdpOffset + 2]);
    SLUICE_CHECK(ParseFrame(std::span(result.frame).first(result.decision.bytes), to,
                            result.rain) == Malformed::kNone,
                 "what the switch sends is well formed");
  }
  if (result.decision.action == Decision::Action::kReplicate) {
    const SharedWriteData data = Switch::ReplicaData(result.frame);
    for (const uint16_t replica : rain.ReplicasOf(result.decision.slice)) {
      std::vector<std::byte> out(kMaxWriteFrameBytes);
      const auto built = rain.BuildReplica(replica, data, Switch::TicketIn(result.frame), out);
      out.resize(built.frame.size());
      result.replicas[built.port] = out;
    }
  }
  return result;
}

Rack::Result Rack::Process(uint16_t port, const Header& header, std::span<const std::byte> payload,
                           uint64_t now_ns) {
  std::vector<std::byte> frame(FrameBytes(header));
  BuildFrame(At(port), SwitchEndpoint(), header, payload, frame);
  return ProcessFrame(port, std::move(frame), now_ns);
}

Rack::Result Rack::Task(uint16_t client, uint32_t request, std::span<const std::byte> payload,
                        uint64_t now_ns, uint8_t type) {
  Header header{.type = type, .fragments = 1, .client = client, .request = request};
  SetPayload(header, payload);
  return Process(client, header, payload, now_ns);
}

Rack::Result Rack::SendToken(uint16_t member, uint64_t now_ns) {
  const MemberEntry entry = Member(member);
  return Process(entry.owner.port, {.kind = Kind::kToken, .epoch = entry.epoch, .member = member},
                 {}, now_ns);
}

Rack::State Rack::Probe(uint16_t member, uint8_t slice) {
  const Result result = Process(kControllerPort,
                                {.kind = Kind::kProbe, .slice = slice, .member = member});
  SLUICE_CHECK(result.decision.outcome == Outcome::kProbed, "the controller is answered");
  const Header& answer = result.rain.header;
  return {answer.ticket, LoadBigEndian<uint32_t>(answer.data.data()),
          LoadBigEndian<uint32_t>(answer.data.data() + 4), answer.queue_tasks};
}

std::vector<std::byte> Payload(size_t bytes, uint8_t first) {
  std::vector<std::byte> payload(bytes);
  for (size_t i = 0; i < bytes; ++i) payload[i] = static_cast<std::byte>(first + i);
  return payload;
}

}  // namespace sluice::rain
