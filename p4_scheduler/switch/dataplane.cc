// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/switch/dataplane.h"

#include <rte_ethdev.h>
#include <rte_mbuf.h>

namespace sluice::rain {
namespace {

std::span<std::byte> BytesOf(rte_mbuf* packet) {
  return {rte_pktmbuf_mtod(packet, std::byte*), rte_pktmbuf_data_len(packet)};
}

}  // namespace

Dataplane::Dataplane(Switch rain, const DpdkPorts& ports)
    : rain_(std::move(rain)), pool_(ports.pool()) {
  for (const uint16_t id : ports.ids()) {
    ports_.push_back({.id = id});
    ports_.back().out.reserve(kBurst);
  }
}

Dataplane::~Dataplane() {
  for (Port& port : ports_) {
    for (rte_mbuf* packet : port.out) rte_pktmbuf_free(packet);
  }
}

size_t Dataplane::PollOnce(uint64_t now_ns) {
  size_t handled = 0;
  for (uint16_t number = 0; number < ports_.size(); ++number) {
    Port& port = ports_[number];
    rte_mbuf* burst[kBurst];
    const uint16_t count = rte_eth_rx_burst(port.id, 0, burst, kBurst);
    port.counts.received_packets += count;
    for (uint16_t i = 0; i < count; ++i) {
      port.counts.received_bytes += rte_pktmbuf_pkt_len(burst[i]);
      Handle(now_ns, number, burst[i]);
    }
    handled += count;
  }
  for (Port& port : ports_) {
    if (!port.out.empty()) Flush(port);
  }
  return handled;
}

void Dataplane::Handle(uint64_t now_ns, uint16_t port, rte_mbuf* packet) {
  // Our buffers hold any frame of Rain; what came in several is not one.
  if (packet->nb_segs > 1) return Forward(port, packet);
  const Decision decision = rain_.Process(now_ns, port, BytesOf(packet));
  switch (decision.action) {
    case Decision::Action::kDrop: return rte_pktmbuf_free(packet);
    case Decision::Action::kForward: return Forward(port, packet);
    case Decision::Action::kSend:
      rte_pktmbuf_trim(packet,
                       static_cast<uint16_t>(rte_pktmbuf_data_len(packet) - decision.bytes));
      return Enqueue(decision.port, packet);
    case Decision::Action::kReplicate: return Replicate(decision, packet);
  }
}

void Dataplane::Forward(uint16_t port, rte_mbuf* packet) {
  const std::span<std::byte> frame = BytesOf(packet);
  if (frame.size() < kEthernetBytes) return rte_pktmbuf_free(packet);
  addresses_.Learn(SourceOf(frame), port);
  if (AnswerArp(rain_.config().own, frame)) return Enqueue(port, packet);
  const Mac destination = DestinationOf(frame);
  if (destination == rain_.config().own.mac) return rte_pktmbuf_free(packet);
  const std::optional<uint16_t> to = addresses_.Find(destination);
  if (IsMulticast(destination) || !to) return Flood(port, packet);
  if (*to == port) return rte_pktmbuf_free(packet);
  Enqueue(*to, packet);
}

void Dataplane::Flood(uint16_t from, rte_mbuf* packet) {
  ++flooded_;
  // Nobody writes to a packet that is to be sent, so all ports may have the same one.
  rte_mbuf_refcnt_update(packet, static_cast<int16_t>(ports_.size() - 1));
  for (uint16_t number = 0; number < ports_.size(); ++number) {
    if (number != from) Enqueue(number, packet);
  }
  rte_pktmbuf_free(packet);
}

void Dataplane::Replicate(const Decision& decision, rte_mbuf* packet) {
  const std::span<std::byte> frame = BytesOf(packet);
  const SharedWriteData data = Switch::ReplicaData(frame);
  const uint32_t ticket = Switch::TicketIn(frame);
  const auto bytes = static_cast<uint16_t>(kWriteDataOffset + data.bytes() + kIcrcBytes);
  for (const uint16_t number : rain_.ReplicasOf(decision.slice)) {
    rte_mbuf* copy = rte_pktmbuf_alloc(pool_);
    auto* out = copy == nullptr ? nullptr
                                : reinterpret_cast<std::byte*>(rte_pktmbuf_append(copy, bytes));
    const Switch::Replica replica = out == nullptr
                                        ? Switch::Replica{}
                                        : rain_.BuildReplica(number, data, ticket, {out, bytes});
    if (replica.frame.empty()) {
      ++no_buffer_drops_;
      rte_pktmbuf_free(copy);
      continue;
    }
    Enqueue(replica.port, copy);
  }
  rte_pktmbuf_free(packet);
}

void Dataplane::Enqueue(uint16_t number, rte_mbuf* packet) {
  if (number >= ports_.size()) {
    ++no_port_drops_;
    return rte_pktmbuf_free(packet);
  }
  Port& port = ports_[number];
  port.out.push_back(packet);
  if (port.out.size() == kBurst) Flush(port);
}

void Dataplane::Flush(Port& port) {
  const auto count = static_cast<uint16_t>(port.out.size());
  // A packet belongs to the device once it is sent, so its length is read before.
  uint32_t bytes[kBurst];
  for (uint16_t i = 0; i < count; ++i) bytes[i] = rte_pktmbuf_pkt_len(port.out[i]);
  const uint16_t sent = rte_eth_tx_burst(port.id, 0, port.out.data(), count);
  for (uint16_t i = 0; i < sent; ++i) port.counts.sent_bytes += bytes[i];
  for (uint16_t i = sent; i < count; ++i) rte_pktmbuf_free(port.out[i]);
  port.counts.sent_packets += sent;
  port.counts.full_drops += static_cast<uint64_t>(count - sent);
  port.out.clear();
}

void Dataplane::Read(uint64_t now_ns, Snapshot& snapshot) const {
  snapshot.at_ns = now_ns;
  for (size_t i = 0; i < snapshot.outcomes.size(); ++i) {
    snapshot.outcomes[i] = rain_.count(static_cast<Outcome>(i));
  }
  for (size_t i = 0; i < snapshot.malformed.size(); ++i) {
    snapshot.malformed[i] = rain_.malformed(static_cast<Malformed>(i));
  }
  snapshot.slices.resize(rain_.config().slices);
  for (uint32_t slice = 0; slice < rain_.config().slices; ++slice) {
    const TicketQueue& queue = rain_.queue(static_cast<uint8_t>(slice));
    snapshot.slices[slice] = {.waiting_tasks = queue.waiting_tasks(),
                              .waiting_tokens = queue.waiting_tokens(),
                              .task_limit = rain_.TaskLimitOf(static_cast<uint8_t>(slice))};
  }
  snapshot.ports.resize(ports_.size());
  for (size_t i = 0; i < ports_.size(); ++i) snapshot.ports[i] = ports_[i].counts;
  snapshot.replicas = rain_.replicas_built();
  snapshot.replica_bytes = rain_.replica_bytes();
  snapshot.flooded = flooded_;
  snapshot.no_buffer_drops = no_buffer_drops_;
  snapshot.no_port_drops = no_port_drops_;
  snapshot.memory_bytes = rain_.MemoryBytes();
}

}  // namespace sluice::rain
