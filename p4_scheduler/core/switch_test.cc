// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/core/switch.h"

#include <gtest/gtest.h>

#include "p4_scheduler/core/switch_testing.h"
#include "p4_scheduler/packet/bytes.h"
#include "p4_scheduler/packet/golden_testing.h"

namespace sluice::rain {
namespace {

std::vector<std::byte> Bytes(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

void ExpectSentTo(const Rack::Result& result, uint16_t port) {
  EXPECT_EQ(result.decision.action, Decision::Action::kSend);
  EXPECT_EQ(result.decision.port, port);
  EXPECT_EQ(result.rain.destination, At(port));
  EXPECT_EQ(result.rain.source, SwitchEndpoint()) << "all it sends comes from itself";
}

TEST(Switch, ATaskGoesToTheWorkerWhoseTokenWaitsLongestWithItsPayload) {
  Rack rack;
  rack.AddMember(5, 11);
  rack.AddMember(6, 12);
  EXPECT_EQ(rack.SendToken(6).decision.outcome, Outcome::kTokenWaits);
  EXPECT_EQ(rack.SendToken(5).decision.outcome, Outcome::kTokenWaits);
  for (const size_t bytes : {5, 200}) {
    const auto payload = Payload(bytes);
    const auto result = rack.Task(1, 77, payload, 1'000);
    EXPECT_EQ(result.decision.outcome, Outcome::kDispatchedAtOnce);
    ExpectSentTo(result, bytes == 5 ? 12 : 11);
    const Header& header = result.rain.header;
    EXPECT_EQ(header.kind, Kind::kDispatch);
    EXPECT_EQ(header.flags, 0);
    EXPECT_EQ(header.type, kType);
    EXPECT_EQ(header.slice, kSlice);
    EXPECT_EQ(header.member, bytes == 5 ? 6 : 5);
    EXPECT_EQ(header.epoch, 1);
    EXPECT_EQ(header.client, 1);
    EXPECT_EQ(header.request, 77u);
    EXPECT_EQ(header.switch_ns, 0u);
    EXPECT_EQ(header.queue_tasks, 0u);
    EXPECT_EQ(Bytes(result.rain.Payload()), payload);
  }
}

TEST(Switch, ASmallTaskWaitsInTheSwitchAndTheNextTokenGetsItWithInt) {
  Rack rack;
  rack.AddMember(5, 11);
  const auto payload = Payload(7);
  EXPECT_EQ(rack.Task(1, 77, payload, 1'000).decision.outcome, Outcome::kTaskWaits);
  EXPECT_EQ(rack.Task(2, 78, Payload(0), 1'500).decision.outcome, Outcome::kTaskWaits);
  const auto first = rack.SendToken(5, 3'000);
  EXPECT_EQ(first.decision.outcome, Outcome::kDispatchedFromQueue);
  ExpectSentTo(first, 11);
  EXPECT_EQ(first.rain.header.flags, kQueued);
  EXPECT_EQ(first.rain.header.switch_ns, 2'000u);
  EXPECT_EQ(first.rain.header.queue_tasks, 2u) << "itself included";
  EXPECT_EQ(first.rain.header.client, 1);
  EXPECT_EQ(first.rain.header.request, 77u);
  EXPECT_EQ(first.rain.header.type, kType);
  EXPECT_EQ(Bytes(first.rain.Payload()), payload);
  const auto second = rack.SendToken(5, 3'000);
  EXPECT_EQ(second.rain.header.request, 78u);
  EXPECT_EQ(second.rain.header.queue_tasks, 1u);
  EXPECT_EQ(second.rain.header.ticket, first.rain.header.ticket + 1);
}

TEST(Switch, TheTimeInTheSwitchIsRightAcrossTheWrapOf32Bits) {
  Rack rack;
  rack.AddMember(5, 11);
  rack.Task(1, 77, Payload(1), 0x1'ffff'ff00);
  EXPECT_EQ(rack.SendToken(5, 0x2'0000'0100).rain.header.switch_ns, 0x200u);
}

TEST(Switch, ALargeTaskThatWaitsIsWrittenToEveryAgentOfTheSlice) {
  SwitchConfig config = Rack::DefaultConfig();
  config.first_ticket = 0xfffffffe;
  Rack rack(config);
  rack.AddMember(5, 11);
  rack.Task(1, 76, Payload(3));
  const auto payload = Payload(101);
  const auto waits = rack.Task(1, 77, payload, 1'000);
  EXPECT_EQ(waits.decision.outcome, Outcome::kLargeTaskWaits);
  ASSERT_EQ(waits.replicas.size(), 2u);
  Header slot;
  for (const uint16_t replica : {uint16_t{1}, uint16_t{2}}) {
    ParsedWrite write;
    const auto port = static_cast<uint16_t>(10 + replica);
    ASSERT_EQ(ParseWrite(waits.replicas.at(port), write), BadWrite::kNone);
    EXPECT_EQ(write.source.ip, SwitchEndpoint().ip) << "rxe drops what comes from elsewhere";
    EXPECT_EQ(write.destination.ip, At(port).ip);
    EXPECT_EQ(write.destination.mac, At(port).mac);
    EXPECT_EQ(write.write.opcode, WriteOpcode::kUcWriteOnly);
    EXPECT_EQ(write.write.queue_pair, 0x100u + replica);
    EXPECT_EQ(write.write.rkey, 0xabc0u + replica);
    EXPECT_EQ(write.write.psn, 0u);
    EXPECT_EQ(write.write.address, (uint64_t{replica} << 32) + (0xffffffff & 15) * 512);
    ASSERT_EQ(DecodeHeader(write.data.first<kHeaderBytes>(), slot), Malformed::kNone);
    EXPECT_EQ(Bytes(write.data.subspan(kHeaderBytes, payload.size())), payload);
    EXPECT_EQ(write.data.size(), kHeaderBytes + PaddedBytes(payload.size()));
    EXPECT_EQ(slot.queue_tasks, 1u);
  }
  rack.SendToken(5);
  const auto descriptor = rack.SendToken(5, 2'500);
  EXPECT_EQ(descriptor.rain.header.flags, kQueued | kPrewritten);
  EXPECT_EQ(descriptor.rain.header.size, payload.size());
  EXPECT_EQ(descriptor.rain.header.ticket, 0xffffffffu);
  EXPECT_EQ(descriptor.decision.bytes, kBodyOffset) << "no payload";
  EXPECT_TRUE(DescribesSameTask(descriptor.rain.header, slot));
  EXPECT_EQ(DigestIn(descriptor.rain.header), DigestOf(payload));
}

TEST(Switch, ReplicasCountTheirQueuePairsPsnAcrossItsWrap) {
  Rack rack;
  ASSERT_TRUE(rack.rain.SetPsn(1, 0xffffff));
  for (const uint32_t psn : {0xffffffu, 0u, 1u}) {
    ParsedWrite write;
    ASSERT_EQ(ParseWrite(rack.Task(1, 1, Payload(9)).replicas.at(11), write), BadWrite::kNone);
    EXPECT_EQ(write.write.psn, psn);
  }
  EXPECT_EQ(rack.rain.Psn(1).value(), 2u);
  EXPECT_EQ(rack.rain.Psn(2).value(), 3u);
  EXPECT_FALSE(rack.rain.SetPsn(4, 0));
  EXPECT_FALSE(rack.rain.Psn(4));
}

TEST(Switch, AReplicaIsTheGoldenFrameBitForBit) {
  // The rack of rain_packets.json: its large task waits as ticket 0xfffffffe.
  const GoldenPacket& task = GoldenPacketNamed("large task");
  const GoldenWrite& golden = GoldenWriteNamed("replica of the large task");
  const uint64_t slot_offset = uint64_t{0xfffffffe & 1023} * 4096;
  SwitchConfig config{.own = golden.source,
                      .slices = 4,
                      .task_capacity = 64,
                      .slots = 1024,
                      .first_ticket = 0xfffffffe - 12};
  auto made = Switch::Create(config);
  ASSERT_TRUE(made);
  Switch& rain = *made;
  const Destination client{.port = 1, .endpoint = task.source};
  ASSERT_TRUE(rain.types().Insert(task.header.type, {.slice = 2}));
  ASSERT_TRUE(rain.clients().Insert(task.header.client, {client}));
  ASSERT_TRUE(rain.slice_table().Insert(
      2, {.task_limit = 64, .large_limit = 64, .token_limit = 8, .replicas = {1}}));
  ASSERT_TRUE(rain.replicas().Insert(1, {.destination = {.port = 9, .endpoint = golden.destination},
                                         .opcode = golden.write.opcode,
                                         .queue_pair = golden.write.queue_pair,
                                         .psn_register = 3,
                                         .rkey = golden.write.rkey,
                                         .base = 0x00007f1200000000}));
  ASSERT_TRUE(rain.SetPsn(3, golden.write.psn));
  for (int i = 0; i < 12; ++i) {
    std::vector<std::byte> small = GoldenPacketNamed("small task").frame;
    ASSERT_EQ(rain.Process(0, 1, small).outcome, Outcome::kTaskWaits);
  }
  std::vector<std::byte> frame = task.frame;
  ASSERT_EQ(rain.Process(0, 1, frame).outcome, Outcome::kLargeTaskWaits);
  std::vector<std::byte> out(kMaxWriteFrameBytes);
  const auto replica = rain.BuildReplica(1, Switch::ReplicaData(frame), Switch::TicketIn(frame),
                                         out);
  EXPECT_EQ(replica.port, 9);
  std::vector<std::byte> want(kMaxWriteFrameBytes);
  Write write = golden.write;
  write.address = 0x00007f1200000000 + slot_offset;
  const SharedWriteData data(golden.data, {});
  const auto built = BuildWrite(golden.source, golden.destination, kDefaultTrafficClass, write,
                                data, want);
  EXPECT_EQ(Bytes(replica.frame), Bytes(built));
}

TEST(Switch, AFullQueueIsToldToTheClientWithItsTask) {
  Rack rack;
  rack.SetLimits(2, 1, 8);
  rack.Task(1, 1, Payload(8));
  const auto payload = Payload(40);
  const auto large = rack.Task(1, 2, payload);
  EXPECT_EQ(large.decision.outcome, Outcome::kRejectedLargeQueueFull);
  ExpectSentTo(large, 1);
  EXPECT_EQ(large.rain.header.kind, Kind::kReject);
  EXPECT_EQ(large.rain.header.code, static_cast<uint8_t>(RejectReason::kLargeQueueFull));
  EXPECT_EQ(large.rain.header.request, 2u);
  EXPECT_EQ(Bytes(large.rain.Payload()), payload);
  rack.Task(1, 3, Payload(8));
  const auto small = rack.Task(2, 4, Payload(8));
  EXPECT_EQ(small.decision.outcome, Outcome::kRejectedQueueFull);
  ExpectSentTo(small, 2);
}

TEST(Switch, ALargeTaskWaitsOnlyWhereItCanBeWrittenBeforehand) {
  Rack rack;
  EXPECT_EQ(rack.Task(1, 1, Payload(512 - kHeaderBytes)).decision.outcome,
            Outcome::kLargeTaskWaits);
  EXPECT_EQ(rack.Task(1, 2, Payload(513 - kHeaderBytes)).decision.outcome,
            Outcome::kRejectedLargeQueueFull)
      << "larger than a slot";
  ASSERT_TRUE(rack.rain.slice_table().Modify(
      kSlice, {.task_limit = 8, .large_limit = 8, .token_limit = 8, .replicas = {}}));
  EXPECT_EQ(rack.Task(1, 3, Payload(9)).decision.outcome, Outcome::kRejectedLargeQueueFull)
      << "no agent";
  rack.AddMember(5, 11);
  rack.SendToken(5);
  rack.SendToken(5);
  EXPECT_EQ(rack.Task(1, 4, Payload(kMaxPayloadBytes)).decision.outcome, Outcome::kDispatchedAtOnce)
      << "with a token at hand any size goes";
}

// A slot is written again only when as many tasks as may be large have been dispatched since.
TEST(Switch, ASlotIsSafeFromReuseForAsLongAsPromised) {
  Rack rack;  // 16 slots, 8 large tasks at most.
  rack.AddMember(5, 11);
  std::map<uint64_t, uint32_t> last_ticket;  // By slot address.
  uint32_t dispatched = 0;
  for (int i = 0; i < 2'000; ++i) {
    if (i % 3 != 2) {
      const auto result = rack.Task(1, 1, Payload(i % 5 == 0 ? 4 : 20));
      if (result.decision.action != Decision::Action::kReplicate) continue;
      ParsedWrite write;
      ASSERT_EQ(ParseWrite(result.replicas.at(11), write), BadWrite::kNone);
      const uint32_t ticket = Switch::TicketIn(result.frame);
      const auto [place, fresh] = last_ticket.emplace(write.write.address, ticket);
      if (!fresh) {
        ASSERT_GE(dispatched, place->second + 1 + 8) << "its task and 8 after it are gone";
      }
      place->second = ticket;
    } else if (rack.SendToken(5).decision.outcome == Outcome::kDispatchedFromQueue) {
      ++dispatched;
    }
  }
  EXPECT_EQ(last_ticket.size(), 16u);
}

TEST(Switch, TasksOfUnknownTypeAreRejected) {
  Rack rack;
  const auto result = rack.Task(1, 1, Payload(4), 0, kType + 1);
  EXPECT_EQ(result.decision.outcome, Outcome::kRejectedUnknownType);
  ExpectSentTo(result, 1);
}

TEST(Switch, ATokenBeyondTheLimitIsReturnedAndNotHeld) {
  Rack rack;
  rack.SetLimits(4, 4, 2);
  rack.AddMember(5, 11);
  rack.SendToken(5);
  rack.SendToken(5);
  const auto result = rack.SendToken(5);
  EXPECT_EQ(result.decision.outcome, Outcome::kRejectedTokensFull);
  ExpectSentTo(result, 11);
  EXPECT_EQ(result.rain.header.member, 5);
  EXPECT_EQ(rack.rain.tokens_held(5), 2u);
}

TEST(Switch, TheTokensOfADeadWorkerRejectTasksInsteadOfLosingThem) {
  Rack rack;
  rack.AddMember(5, 11);
  rack.AddMember(6, 12);
  rack.SendToken(5);
  rack.SendToken(6);
  MemberEntry dead = rack.Member(5);
  ++dead.epoch;
  rack.ModifyMember(5, dead);
  EXPECT_EQ(rack.Task(1, 1, Payload(4)).decision.outcome, Outcome::kRejectedWorkerGone);
  EXPECT_EQ(rack.Task(1, 1, Payload(4)).rain.header.member, 6) << "the next token is good";
  const Header old{.kind = Kind::kToken, .epoch = 1, .member = 5};
  EXPECT_EQ(rack.Process(11, old).decision.outcome, Outcome::kStaleEpoch);
  EXPECT_EQ(rack.SendToken(5).decision.outcome, Outcome::kTokenWaits) << "in its new life";
  ASSERT_TRUE(rack.rain.members().Delete(5));
  EXPECT_EQ(rack.Task(1, 1, Payload(4)).decision.outcome, Outcome::kRejectedWorkerGone);
}

TEST(Switch, TheTokensOfAWorkerThatMovedGoToItsTarget) {
  Rack rack;
  rack.AddMember(5, 11);
  rack.AddMember(6, 12);
  rack.SendToken(5);
  MemberEntry moved = rack.Member(5);
  moved.target = rack.Member(6).target;
  moved.takes_tokens = false;
  rack.ModifyMember(5, moved);
  rack.AddMember(7, 11, 1);  // Its new membership, in slice 1.
  EXPECT_EQ(rack.SendToken(5).decision.outcome, Outcome::kUnknownMember);
  const auto result = rack.Task(1, 9, Payload(4));
  ExpectSentTo(result, 12);
  EXPECT_EQ(result.rain.header.member, 5);
  EXPECT_EQ(rack.rain.tokens_held(5), 0u);
  // Both may answer: the one what it got before it moved, the other what it gets now.
  for (const uint16_t port : {uint16_t{11}, uint16_t{12}}) {
    const Header reply{.kind = Kind::kReply, .fragments = 1, .client = 1, .member = 5};
    const auto sent = rack.Process(port, reply);
    EXPECT_EQ(sent.decision.outcome, Outcome::kReplied);
    ExpectSentTo(sent, 1);
  }
}

TEST(Switch, SlicesDoNotSeeEachOther) {
  Rack rack;
  rack.SetLimits(4, 4, 4, 1);
  ASSERT_TRUE(rack.rain.types().Insert(9, {.slice = 1}));
  rack.AddMember(5, 11, 1);
  rack.SendToken(5);
  EXPECT_EQ(rack.Task(1, 1, Payload(4)).decision.outcome, Outcome::kTaskWaits);
  EXPECT_EQ(rack.Task(1, 2, Payload(4), 0, 9).decision.outcome, Outcome::kDispatchedAtOnce);
  ASSERT_TRUE(rack.rain.types().Modify(kType, {.slice = 1}));
  rack.SendToken(5);
  EXPECT_EQ(rack.Task(1, 3, Payload(4)).decision.outcome, Outcome::kDispatchedAtOnce);
}

TEST(Switch, AReplyReachesItsClientAsItIs) {
  Rack rack;
  rack.AddMember(5, 11);
  Header header{.kind = Kind::kReply,
                .slice = 2,
                .fragment = 1,
                .fragments = 2,
                .client = 2,
                .request = 8,
                .epoch = 1,
                .member = 5,
                .ticket = 4,
                .switch_ns = 77};
  const auto payload = Payload(300);
  SetPayload(header, payload);
  const auto result = rack.Process(11, header, payload);
  ExpectSentTo(result, 2);
  EXPECT_EQ(result.rain.header, header);
  EXPECT_EQ(Bytes(result.rain.Payload()), payload);
}

TEST(Switch, LaterPacketsOfARequestFollowTheFirstWithoutBeingScheduled) {
  Rack rack;
  rack.AddMember(5, 11);
  Header header{.kind = Kind::kAffine,
                .type = kType,
                .fragment = 1,
                .fragments = 2,
                .client = 1,
                .request = 8,
                .epoch = 1,
                .member = 5};
  SetPayload(header, Payload(50));
  const auto result = rack.Process(1, header, Payload(50));
  EXPECT_EQ(result.decision.outcome, Outcome::kAffine);
  ExpectSentTo(result, 11);
  EXPECT_EQ(result.rain.header.kind, Kind::kAffine);
  EXPECT_EQ(rack.rain.queue(kSlice).tasks_seen(), 0u);
  header.epoch = 2;
  const auto late = rack.Process(1, header, Payload(50));
  EXPECT_EQ(late.decision.outcome, Outcome::kRejectedWorkerGone);
  ExpectSentTo(late, 1);
  EXPECT_EQ(late.rain.header.fragment, 1);
}

TEST(Switch, AProbeTellsWhatTheSwitchHolds) {
  Rack rack;
  rack.AddMember(5, 11);
  rack.SendToken(5);
  rack.SendToken(5);
  rack.Task(1, 1, Payload(4));
  const auto own = rack.Process(11, {.kind = Kind::kProbe, .epoch = 1, .member = 5});
  ExpectSentTo(own, 11);
  EXPECT_EQ(own.rain.header.flags, kAnswer);
  EXPECT_EQ(own.rain.header.slice, kSlice);
  EXPECT_EQ(rack.Probe(5),
            (Rack::State{.tasks_seen = 1, .tokens_seen = 2, .held = 1, .waiting = 0}));
  rack.Task(1, 2, Payload(4));
  rack.Task(1, 3, Payload(4));
  EXPECT_EQ(rack.Probe(0),
            (Rack::State{.tasks_seen = 3, .tokens_seen = 2, .held = 0, .waiting = 1}));
}

TEST(Switch, AResetEmptiesASliceAndNoOther) {
  Rack rack;
  rack.SetLimits(4, 4, 4, 1);
  rack.AddMember(5, 11);
  rack.AddMember(6, 12, 1);
  rack.SendToken(5);
  rack.SendToken(6);
  const auto answer = rack.Process(kControllerPort, {.kind = Kind::kReset,
                                                     .code = kResetSlice | kResetMember,
                                                     .slice = kSlice,
                                                     .member = 5,
                                                     .ticket = 0xfffffff0});
  EXPECT_EQ(answer.decision.outcome, Outcome::kReset);
  ExpectSentTo(answer, kControllerPort);
  EXPECT_EQ(answer.rain.header.ticket, 0xfffffff0);
  EXPECT_EQ(answer.rain.header.code, kResetSlice | kResetMember);
  EXPECT_EQ(rack.Probe(5), (Rack::State{0xfffffff0, 0xfffffff0, 0, 0}));
  EXPECT_EQ(rack.Probe(6).held, 1u);
  EXPECT_EQ(rack.Task(1, 1, Payload(4)).decision.outcome, Outcome::kTaskWaits);
}

TEST(Switch, ACountThatWasResetUnderWaitingTokensDoesNotWrap) {
  Rack rack;
  rack.AddMember(5, 11);
  rack.SendToken(5);
  rack.Process(kControllerPort, {.kind = Kind::kReset, .code = kResetMember, .member = 5});
  EXPECT_EQ(rack.Task(1, 1, Payload(4)).decision.outcome, Outcome::kDispatchedAtOnce);
  EXPECT_EQ(rack.rain.tokens_held(5), 0u);
}

TEST(Switch, SpoofedPacketsAreCountedAndChangeNothing) {
  Rack rack;
  rack.AddMember(5, 11);
  const Header token{.kind = Kind::kToken, .epoch = 1, .member = 5};
  const Header probe{.kind = Kind::kProbe, .epoch = 1, .member = 5};
  const Header reply{.kind = Kind::kReply, .fragments = 1, .client = 1, .member = 5};
  const Header reset{.kind = Kind::kReset, .code = kResetSlice, .slice = kSlice};
  const Header task{.type = kType, .fragments = 1, .client = 1};
  const auto outcome = [&](uint16_t port, Header header, auto change) {
    change(header);
    return rack.Process(port, header).decision.outcome;
  };
  const auto as_is = [](Header&) {};
  EXPECT_EQ(outcome(12, token, as_is), Outcome::kUnknownMember) << "another agent's";
  EXPECT_EQ(outcome(11, token, [](Header& h) { h.member = 9; }), Outcome::kUnknownMember);
  EXPECT_EQ(outcome(11, token, [](Header& h) { h.member = kNobody; }), Outcome::kUnknownMember);
  EXPECT_EQ(outcome(11, token, [](Header& h) { h.member = 0xffff; }), Outcome::kUnknownMember);
  EXPECT_EQ(outcome(11, token, [](Header& h) { h.epoch = 2; }), Outcome::kStaleEpoch);
  EXPECT_EQ(outcome(12, probe, as_is), Outcome::kUnknownMember);
  EXPECT_EQ(outcome(11, probe, [](Header& h) { h.epoch = 0; }), Outcome::kStaleEpoch);
  EXPECT_EQ(outcome(11, probe, [](Header& h) { h.member = kNobody; }), Outcome::kForbidden);
  EXPECT_EQ(outcome(13, reply, as_is), Outcome::kUnknownMember);
  EXPECT_EQ(outcome(11, reply, [](Header& h) { h.client = 7; }), Outcome::kUnknownClient);
  EXPECT_EQ(outcome(2, task, as_is), Outcome::kUnknownClient) << "another client's";
  EXPECT_EQ(outcome(1, task, [](Header& h) { h.client = kNobody; }), Outcome::kUnknownClient);
  EXPECT_EQ(outcome(11, reset, as_is), Outcome::kForbidden);
  EXPECT_EQ(outcome(0, reset, [](Header& h) { h.slice = 4; }), Outcome::kForbidden);
  EXPECT_EQ(outcome(0, reset, [](Header& h) { h.member = 65; }), Outcome::kForbidden);
  EXPECT_EQ(outcome(1, task, [](Header& h) { h.kind = Kind::kDispatch; }),
            Outcome::kUnexpectedKind);
  EXPECT_EQ(outcome(11, probe, [](Header& h) { h.flags = kAnswer; }), Outcome::kUnexpectedKind);
  // The right port with somebody else's address.
  std::vector<std::byte> frame(FrameBytes(token));
  BuildFrame(At(12), SwitchEndpoint(), token, {}, frame);
  EXPECT_EQ(rack.ProcessFrame(11, frame).decision.outcome, Outcome::kUnknownMember);
  // The right address from somebody else's port.
  BuildFrame(At(11), SwitchEndpoint(), token, {}, frame);
  EXPECT_EQ(rack.ProcessFrame(12, frame).decision.outcome, Outcome::kUnknownMember);
  EXPECT_EQ(rack.Probe(5), (Rack::State{0, 0, 0, 0}));
}

TEST(Switch, MalformedPacketsAreCountedByReasonAndOtherTrafficIsForwarded) {
  Rack rack;
  Header header{.type = kType, .fragments = 1, .client = 1};
  std::vector<std::byte> frame(FrameBytes(header));
  BuildFrame(At(1), SwitchEndpoint(), header, {}, frame);
  frame[kHeaderOffset] = std::byte{9};
  const auto bad = rack.ProcessFrame(1, frame);
  EXPECT_EQ(bad.decision.action, Decision::Action::kDrop);
  EXPECT_EQ(bad.frame, frame) << "untouched";
  EXPECT_EQ(rack.rain.malformed(Malformed::kVersion), 1u);
  EXPECT_EQ(rack.rain.count(Outcome::kMalformed), 1u);
  BuildFrame(At(1), At(2), header, {}, frame);
  const std::vector<std::byte> before = frame;
  StoreBigEndian<uint16_t>(&frame[kUdpOffset + 2], kUdpPort);  // Rain, but for another host.
  EXPECT_EQ(rack.ProcessFrame(1, frame).decision.action, Decision::Action::kForward);
  EXPECT_EQ(rack.ProcessFrame(1, before).decision.action, Decision::Action::kForward);
  EXPECT_EQ(rack.ProcessFrame(1, before).frame, before);
  EXPECT_EQ(rack.ProcessFrame(1, {}).decision.action, Decision::Action::kForward);
}

TEST(Switch, AcknowledgementsOfReplicasEndInTheSwitch) {
  Rack rack;
  const auto acknowledge = [&](uint8_t opcode, uint8_t syndrome) {
    std::vector<std::byte> frame(kBthOffset + kBthBytes + 4 + kIcrcBytes);
    Endpoint to = SwitchEndpoint();
    to.port = kRoceUdpPort;
    WriteUdpHeaders(At(11), to, 0, frame.size() - kBthOffset, frame);
    frame[kBthOffset] = static_cast<std::byte>(opcode);
    frame[kBthOffset + kBthBytes] = static_cast<std::byte>(syndrome);
    return rack.ProcessFrame(11, frame).decision.outcome;
  };
  EXPECT_EQ(acknowledge(0x11, 0x1f), Outcome::kRoceAck);
  EXPECT_EQ(acknowledge(0x11, 0x60), Outcome::kRoceNak) << "PSN sequence error";
  EXPECT_EQ(acknowledge(0x11, 0x20), Outcome::kRoceNak) << "receiver not ready";
  EXPECT_EQ(acknowledge(0x0a, 0), Outcome::kUnexpectedKind) << "nobody writes to a switch";
}

TEST(SwitchTables, RefuseWhatDoesNotFitAndSayWhy) {
  Rack rack;
  const auto message = [](const sluice::Result<>& result) {
    return result ? "accepted" : result.error().message;
  };
  EXPECT_EQ(message(rack.rain.types().Insert(9, {.slice = 4})), "type 9: there is no such slice");
  EXPECT_EQ(message(rack.rain.types().Insert(kType, {.slice = 0})),
            "type 3: is there already; modify it");
  EXPECT_EQ(message(rack.rain.types().Modify(9, {.slice = 0})), "type 9: is not there; insert it");
  EXPECT_EQ(message(rack.rain.types().Delete(9)), "type 9: is not there");
  EXPECT_EQ(message(rack.rain.clients().Insert(0, {})),
            "client 0: is out of range; keys are 1 to 16");
  EXPECT_EQ(message(rack.rain.clients().Insert(17, {})),
            "client 17: is out of range; keys are 1 to 16");
  EXPECT_EQ(message(rack.rain.members().Insert(1, {.slice = 4})),
            "member 1: there is no such slice");
  const auto replica = [&](auto change) {
    ReplicaEntry entry{.base = 0x10000};
    change(entry);
    return message(rack.rain.replicas().Insert(3, entry));
  };
  EXPECT_EQ(replica([](ReplicaEntry& e) { e.base += 4096; }),
            "replica 3: base must be a multiple of the ring's 8192 bytes");
  EXPECT_EQ(replica([](ReplicaEntry& e) { e.queue_pair = 1 << 24; }),
            "replica 3: queue_pair has more than 24 bits");
  EXPECT_EQ(replica([](ReplicaEntry& e) { e.psn_register = 4; }),
            "replica 3: psn_register is out of range");
  const auto slice = [&](const SliceEntry& entry) {
    return rack.rain.slice_table().Insert(1, entry).has_value();
  };
  EXPECT_FALSE(slice({.task_limit = 17}));
  EXPECT_FALSE(slice({.token_limit = 9}));
  EXPECT_FALSE(slice({.task_limit = 16, .large_limit = 9})) << "more than half of the slots";
  EXPECT_FALSE(slice({.task_limit = 4, .large_limit = 5}));
  EXPECT_FALSE(slice({.task_limit = 4, .replicas = {0}}));
  EXPECT_FALSE(slice({.task_limit = 4, .replicas = std::vector<uint16_t>(65, 1)}));
  EXPECT_TRUE(slice({.task_limit = 16, .large_limit = 8, .token_limit = 8, .replicas = {1}}));
}

TEST(SwitchTables, AConfigurationThatCannotWorkIsRefused) {
  for (auto change :
       {+[](SwitchConfig& c) { c.slices = 0; }, +[](SwitchConfig& c) { c.slices = 257; },
        +[](SwitchConfig& c) { c.task_capacity = 12; },
        +[](SwitchConfig& c) { c.token_capacity = 0; }, +[](SwitchConfig& c) { c.slots = 1; },
        +[](SwitchConfig& c) { c.slot_bytes = 8192; }, +[](SwitchConfig& c) { c.slot_bytes = 32; },
        +[](SwitchConfig& c) { c.task_capacity = 1u << 30; },
        +[](SwitchConfig& c) { c.max_members = 65'536; },
        +[](SwitchConfig& c) { c.max_clients = 0; }}) {
    SwitchConfig config = Rack::DefaultConfig();
    change(config);
    EXPECT_FALSE(Switch::Create(config));
  }
}

TEST(Switch, ASliceWithoutAnEntryTakesNothing) {
  Rack rack;
  ASSERT_TRUE(rack.rain.types().Insert(9, {.slice = 1}));
  EXPECT_EQ(rack.Task(1, 1, Payload(4), 0, 9).decision.outcome, Outcome::kRejectedQueueFull);
  rack.AddMember(5, 11, 1);
  EXPECT_EQ(rack.SendToken(5).decision.outcome, Outcome::kRejectedTokensFull);
}

}  // namespace
}  // namespace sluice::rain
