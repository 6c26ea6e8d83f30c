// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/verbs/queue_pair.h"

#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "daemon/transport/verbs/call.h"
#include "shm_proto/base/check.h"
#include "shm_proto/base/clock.h"

namespace sluice::transport {
namespace {

constexpr uint32_t k24Bits = 0xff'ffff;
constexpr uint64_t kDrainNs = 500 * kNsPerMs;
constexpr uint8_t kRnrTimer = 12;        // 0.64 ms. Credits keep it from ever being needed,
constexpr uint8_t kRnrRetryForEver = 7;  // and what is late is no reason to give up.
constexpr uint8_t kHopLimit = 64;

ibv_mtu Mtu(uint32_t bytes) { return static_cast<ibv_mtu>(std::countr_zero(bytes) - 7); }

uint64_t Number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

VerbsQueuePair::VerbsQueuePair(VerbsFabric& fabric, const QueuePairLimits& limits,
                               std::span<std::byte> own_memory, void* context)
    : fabric_(fabric),
      limits_(limits),
      own_memory_(own_memory),
      context_(context),
      sends_(limits.send_queue_depth),
      receives_(limits.receive_queue_depth),
      receive_addresses_(limits.receive_queue_depth),
      shared_(fabric.shared_),
      slots_(limits.receive_queue_depth),
      send_work_(limits.send_queue_depth),
      send_pieces_(size_t{limits.send_queue_depth} * kMaxSegments),
      receive_work_(limits.receive_queue_depth),
      receive_pieces_(limits.receive_queue_depth) {
  slots_to_post_.reserve(limits.receive_queue_depth);
}

Result<std::unique_ptr<FabricQueuePair>> VerbsQueuePair::Create(VerbsFabric& fabric,
                                                                const QueuePairLimits& limits,
                                                                std::span<std::byte> own_memory,
                                                                void* context) {
  std::unique_ptr<VerbsQueuePair> made(new VerbsQueuePair(fabric, limits, own_memory, context));
  if (auto done = made->Make(); !done) return std::unexpected(done.error());
  return made;
}

Result<> VerbsQueuePair::Make() {
  if (shared_ && limits_.receive_bytes > shared_->slot_bytes()) {
    return Fail(ErrorCode::kInvalid, "receives of " + std::to_string(limits_.receive_bytes) +
                                         " bytes are wanted, those shared have " +
                                         std::to_string(shared_->slot_bytes()));
  }
  // Each queue has one place more than the engine uses: for its beacon. The places for shared
  // receives were reserved with them.
  const size_t receives = shared_ ? 0 : limits_.receive_queue_depth;
  const size_t completions = size_t{limits_.send_queue_depth} + receives + 2;
  if (auto reserved = fabric_.Reserve(completions); !reserved) return reserved;
  reserved_completions_ = completions;
  own_region_ = ibv_reg_mr(fabric_.device_.pd(), own_memory_.data(), own_memory_.size(),
                           IBV_ACCESS_LOCAL_WRITE);
  if (own_region_ == nullptr) return FailErrno("registering a queue pair's own memory");
  own_ = {own_memory_.data(), own_memory_.size(), own_region_->lkey, 0};

  if (auto created = CreateInDevice(); !created) return created;
  fabric_.queue_pairs_[number_] = this;
  first_psn_ = static_cast<uint32_t>(fabric_.random_.Next()) & k24Bits;

  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = fabric_.device_.settings().port;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  return Verbs(ibv_modify_qp(queue_pair_, &attr,
                             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
               "ibv_modify_qp to INIT");
}

// How much a device takes inline cannot be asked for: it refuses the queue pair instead.
Result<> VerbsQueuePair::CreateInDevice() {
  ibv_pd* domain = fabric_.parent_domain_ != nullptr ? fabric_.parent_domain_
                                                     : fabric_.device_.pd();
  ibv_qp_init_attr init{};
  for (uint32_t inline_bytes = kInlineBytes; queue_pair_ == nullptr; inline_bytes /= 2) {
    init = {};
    init.send_cq = init.recv_cq = fabric_.queue_;
    init.qp_type = IBV_QPT_RC;
    init.qp_context = &last_receive_;
    if (shared_) init.srq = shared_->queue();
    init.cap = {.max_send_wr = limits_.send_queue_depth + 1,
                .max_recv_wr = shared_ ? 0 : limits_.receive_queue_depth + 1,
                .max_send_sge = kMaxSegments,
                .max_recv_sge = 1,
                .max_inline_data = inline_bytes};
    queue_pair_ = ibv_create_qp(domain, &init);
    if (queue_pair_ == nullptr && inline_bytes == 0) {
      return FailErrno("ibv_create_qp with " + std::to_string(init.cap.max_send_wr) + " sends of " +
                       std::to_string(kMaxSegments) + " pieces and " +
                       std::to_string(init.cap.max_recv_wr) + " receives (" +
                       fabric_.device_.name() + " allows " +
                       std::to_string(fabric_.device_.attributes().max_qp) + " queue pairs of " +
                       std::to_string(fabric_.device_.attributes().max_qp_wr) + " requests)");
    }
  }
  inline_bytes_ = std::min(init.cap.max_inline_data, kInlineBytes);
  number_ = queue_pair_->qp_num;
  return {};
}

VerbsQueuePair::~VerbsQueuePair() {
  Destroy();
  if (own_region_ != nullptr) ibv_dereg_mr(own_region_);
  fabric_.Forget(this);
  if (!shared_) return;
  // Not before: what was received lies there, and its owner may be reading it.
  for (; !slots_.empty(); slots_.ReleaseUpTo(slots_.first())) {
    const auto slot = static_cast<uint32_t>(slots_.at(slots_.first()));
    shared_->Post({&slot, 1});
  }
  fabric_.ReleaseShared(std::move(shared_), !connected_ || last_receive_seen_);
}

// Returns when the NIC touches nothing of it any more.
void VerbsQueuePair::Destroy() {
  if (queue_pair_ == nullptr) return;
  fabric_.TakeAll();
  ibv_destroy_qp(std::exchange(queue_pair_, nullptr));
  fabric_.DropCompletions(number_, shared_.get());
}

Endpoint VerbsQueuePair::local_endpoint() const {
  VerbsEndpoint endpoint;
  endpoint.link_layer = fabric_.device_.link_layer();
  endpoint.lid = fabric_.device_.lid();
  endpoint.queue_pair = number_;
  endpoint.first_psn = first_psn_;
  endpoint.path_mtu = fabric_.device_.path_mtu();
  endpoint.gid = fabric_.device_.gid();
  return Pack(endpoint);
}

Result<> VerbsQueuePair::Connect(const Endpoint& endpoint) {
  if (!reason_.empty()) return Fail(ErrorCode::kUnavailable, "the queue pair is dead: " + reason_);
  auto peer = Unpack(endpoint);
  if (!peer) return std::unexpected(peer.error());
  if (peer->link_layer != fabric_.device_.link_layer())
    return Fail(ErrorCode::kUnavailable, "the peer's RDMA port is of another kind of network");
  if (auto ready = ToReadyToReceive(*peer); !ready) return ready;
  connected_ = true;
  return ToReadyToSend();
}

Result<> VerbsQueuePair::ToReadyToReceive(const VerbsEndpoint& peer) {
  const VerbsSettings& settings = fabric_.device_.settings();
  auto gid_index = fabric_.device_.GidIndex();  // Indexes move: looked up each time.
  if (!gid_index) return std::unexpected(gid_index.error());
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = Mtu(std::min(peer.path_mtu, fabric_.device_.path_mtu()));
  attr.dest_qp_num = peer.queue_pair;
  attr.rq_psn = peer.first_psn;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = kRnrTimer;
  attr.ah_attr.port_num = settings.port;
  attr.ah_attr.sl = settings.service_level;
  attr.ah_attr.dlid = peer.lid;
  attr.ah_attr.is_global = 1;
  std::memcpy(attr.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  attr.ah_attr.grh.sgid_index = *gid_index;
  attr.ah_attr.grh.hop_limit = kHopLimit;
  attr.ah_attr.grh.traffic_class = settings.traffic_class;
  return Verbs(ibv_modify_qp(queue_pair_, &attr,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
               "ibv_modify_qp to RTR (is there a route to the peer's RDMA address?)");
}

Result<> VerbsQueuePair::ToReadyToSend() {
  const VerbsSettings& settings = fabric_.device_.settings();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = first_psn_;
  attr.timeout = settings.timeout;
  attr.retry_cnt = settings.retries;
  attr.rnr_retry = kRnrRetryForEver;
  attr.max_rd_atomic = 1;
  const int mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                   IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  if (auto done = Verbs(ibv_modify_qp(queue_pair_, &attr, mask), "ibv_modify_qp to RTS"); !done)
    return done;
  // Providers have been seen to take other values in silence.
  ibv_qp_attr read{};
  ibv_qp_init_attr init{};
  const int read_mask = mask | IBV_QP_MIN_RNR_TIMER;
  if (auto done = Verbs(ibv_query_qp(queue_pair_, &read, read_mask, &init), "ibv_query_qp"); !done)
    return done;
  if (read.rnr_retry != kRnrRetryForEver || read.retry_cnt != settings.retries ||
      read.timeout != settings.timeout || read.min_rnr_timer != kRnrTimer) {
    return Fail(ErrorCode::kUnavailable,
                "the provider did not take the timeouts and retry counts that were set");
  }
  return {};
}

// --- posting ---

const Region* VerbsQueuePair::Find(const std::byte* address, uint64_t bytes) {
  if (RegionLookup::Holds(own_, address, bytes)) return &own_;
  return fabric_.regions_.Find(address, bytes);
}

// False: it names memory that the NIC does not know. Empty pieces are left out: to some NICs a
// length of 0 means 2 GiB.
bool VerbsQueuePair::Fill(const SendRequest& request, ibv_send_wr& work, ibv_sge*& piece) {
  SLUICE_CHECK(request.segment_count <= kMaxSegments,
               "a send request has at most kMaxSegments pieces");
  work = {};
  work.sg_list = piece;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < request.segment_count; ++i) {
    const Segment& segment = request.segments[i];
    if (segment.length == 0) continue;
    const Region* region = Find(segment.address, segment.length);
    if (region == nullptr) return false;
    *piece++ = {Number(segment.address), segment.length, region->local_key};
    bytes += segment.length;
  }
  work.num_sge = static_cast<int>(piece - work.sg_list);
  if (request.signalled) work.send_flags |= IBV_SEND_SIGNALED;
  if (bytes <= inline_bytes_) work.send_flags |= IBV_SEND_INLINE;
  work.opcode = request.opcode == Opcode::kSend    ? IBV_WR_SEND
                : request.opcode == Opcode::kWrite ? IBV_WR_RDMA_WRITE
                                                   : IBV_WR_RDMA_WRITE_WITH_IMM;
  work.imm_data = htonl(request.immediate);
  work.wr.rdma.remote_addr = request.remote_address;
  work.wr.rdma.rkey = request.remote_key;
  return true;
}

size_t VerbsQueuePair::PostSend(std::span<const SendRequest> requests) {
  if (!reason_.empty()) return 0;
  const size_t count = std::min(requests.size(), sends_.room());
  if (count == 0) return 0;
  const uint64_t begin = sends_.end();
  ibv_sge* piece = send_pieces_.data();
  for (size_t i = 0; i < count; ++i) {
    if (!Fill(requests[i], send_work_[i], piece)) {
      sends_.Truncate(begin);
      Die("a request names memory that is not registered");
      return 0;
    }
    send_work_[i].wr_id = sends_.Push(requests[i].id);
    send_work_[i].next = i + 1 < count ? &send_work_[i + 1] : nullptr;
  }
  ibv_send_wr* bad = nullptr;
  auto posted = Verbs(ibv_post_send(queue_pair_, send_work_.data(), &bad), "ibv_post_send");
  if (posted) return count;
  // Those before the bad one are posted; if none is named all are, and the device was not told.
  const size_t taken = bad != nullptr ? static_cast<size_t>(bad - send_work_.data()) : count;
  sends_.Truncate(begin + taken);
  Die(posted.error().message);
  return taken;
}

Result<> VerbsQueuePair::PostReceive(std::span<const ReceiveRequest> requests) {
  if (!reason_.empty()) return Fail(ErrorCode::kUnavailable, "the queue pair is dead: " + reason_);
  if (requests.size() > receives_.room()) {
    return Fail(ErrorCode::kInvalid, "more receives posted than the receive queue is deep (" +
                                         std::to_string(limits_.receive_queue_depth) + ")");
  }
  if (!shared_) return PostOwn(requests);
  PostShared(requests);
  if (!shared_->failure().empty()) Die(shared_->failure());
  return {};
}

Result<> VerbsQueuePair::PostOwn(std::span<const ReceiveRequest> requests) {
  const uint64_t begin = receives_.end();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!RegionLookup::Holds(own_, requests[i].address, requests[i].length) ||
        requests[i].length < limits_.receive_bytes) {
      receives_.Truncate(begin);
      return Fail(ErrorCode::kInvalid,
                  "a posted receive is too small or outside the queue pair's own memory");
    }
    const uint64_t position = receives_.Push(requests[i].id);
    receive_addresses_[position % receive_addresses_.size()] = requests[i].address;
    receive_pieces_[i] = {Number(requests[i].address), requests[i].length, own_.local_key};
    receive_work_[i] = {.wr_id = kReceiveBit | position,
                        .next = i + 1 < requests.size() ? &receive_work_[i + 1] : nullptr,
                        .sg_list = &receive_pieces_[i],
                        .num_sge = 1};
  }
  if (requests.empty()) return {};
  ibv_recv_wr* bad = nullptr;
  auto posted = Verbs(ibv_post_recv(queue_pair_, receive_work_.data(), &bad), "ibv_post_recv");
  if (!posted) Die(posted.error().message);
  return posted;
}

// Only names are posted at first; later ones bring back the slots of those that completed.
void VerbsQueuePair::PostShared(std::span<const ReceiveRequest> requests) {
  slots_to_post_.clear();
  for (const ReceiveRequest& request : requests) {
    receives_.Push(request.id);
    if (slots_.empty()) continue;
    slots_to_post_.push_back(static_cast<uint32_t>(slots_.at(slots_.first())));
    slots_.ReleaseUpTo(slots_.first());
  }
  shared_->Post(slots_to_post_);
}

Result<size_t> VerbsQueuePair::Expose(uint32_t, std::span<const LandingSegment> segments,
                                      std::span<RemoteSlice, kMaxSlices> slices) {
  if (!reason_.empty()) return Fail(ErrorCode::kUnavailable, "the queue pair is dead: " + reason_);
  if (segments.size() > slices.size())
    return Fail(ErrorCode::kInvalid, "a landing buffer of too many pieces");
  for (size_t i = 0; i < segments.size(); ++i) {
    const Region* region = fabric_.regions_.Find(segments[i].address, segments[i].length);
    if (region == nullptr)
      return Fail(ErrorCode::kInvalid, "a landing buffer lies in memory that is not registered");
    slices[i] = {Number(segments[i].address), segments[i].length, region->remote_key};
  }
  return segments.size();
}

// --- completions ---

void VerbsQueuePair::OnCompletion(const ibv_wc& completion, uint64_t now_ns) {
  const bool receive = (completion.wr_id & kReceiveBit) != 0;
  const bool beacon = (completion.wr_id & kBeaconBit) != 0;
  if (beacon) {
    (receive ? receives_drained_ : sends_drained_) = true;
    return;
  }
  if (receive && shared_) TakeSlot(SharedQueue::SlotOf(completion.wr_id));
  if (completion.status != IBV_WC_SUCCESS) {
    // All that is outstanding is flushed together, at the end.
    if (reason_.empty()) Die(std::string("RDMA: ") + ibv_wc_status_str(completion.status));
    return;
  }
  last_heard_ns_ = now_ns;
  receive ? OnReceived(completion) : OnSent(completion.wr_id);
}

// With it until as many receives were posted again; a peer that takes too many is found by the
// names, which are as many.
void VerbsQueuePair::TakeSlot(uint32_t slot) {
  if (slots_.room() == 0) return shared_->Post({&slot, 1});
  slots_.Push(slot);
}

void VerbsQueuePair::OnReceived(const ibv_wc& completion) {
  if (receives_.empty()) return Die("the peer sends more than there are receives for it");
  const bool written = completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
  if (!written && completion.byte_len > limits_.receive_bytes)
    return Die("the peer sends more bytes at once than agreed upon");
  const uint64_t position = receives_.first();
  Completion out{};
  out.id = receives_.at(position);
  out.context = context_;
  out.status = Status::kOk;
  out.bytes = completion.byte_len;
  if (written) {
    out.kind = CompletionKind::kWritten;
    out.immediate = ntohl(completion.imm_data);
  } else {
    out.kind = CompletionKind::kReceived;
    out.data = shared_ ? shared_->Slot(SharedQueue::SlotOf(completion.wr_id))
                       : receive_addresses_[position % receive_addresses_.size()];
  }
  SLUICE_CHECK(shared_ || (completion.wr_id & ~kReceiveBit) == position,
               "receives complete in the order they were posted");
  receives_.ReleaseUpTo(position);
  fabric_.completions_.Push(this, out);
}

void VerbsQueuePair::OnSent(uint64_t position) {
  SLUICE_CHECK(position >= sends_.first() && position < sends_.end(),
               "a send completes after it was posted, and once");
  Completion out{};
  out.id = sends_.at(position);
  out.context = context_;
  out.kind = CompletionKind::kSent;
  out.status = Status::kOk;
  sends_.ReleaseUpTo(position);
  fabric_.completions_.Push(this, out);
}

// --- the end ---

void VerbsQueuePair::Die(std::string reason) {
  if (!reason_.empty()) return;
  reason_ = std::move(reason);
  fabric_.dying_.push_back(this);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  if (ibv_modify_qp(queue_pair_, &attr, IBV_QP_STATE) == 0) return PostBeacons();
  Destroy();  // It does not even do that.
  sends_drained_ = receives_drained_ = true;
}

// Flushed behind everything else, they tell that nothing more comes.
void VerbsQueuePair::PostBeacons() {
  ibv_send_wr send{};
  ibv_send_wr* bad_send;
  send.wr_id = kBeaconBit;
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_SIGNALED;
  sends_drained_ = ibv_post_send(queue_pair_, &send, &bad_send) != 0;
  if (shared_) {  // The device says instead that it took its last.
    receives_drained_ = !connected_;
    return;
  }
  ibv_recv_wr receive{};
  ibv_recv_wr* bad_receive;
  receive.wr_id = kBeaconBit | kReceiveBit;
  receives_drained_ = ibv_post_recv(queue_pair_, &receive, &bad_receive) != 0;
}

// Of shared receives the event comes before the completions have been looked at.
bool VerbsQueuePair::ReceivesDrained() {
  if (receives_drained_ || !shared_) return receives_drained_;
  if (last_receive_seen_) return receives_drained_ = fabric_.Emptied();
  last_receive_seen_ = last_receive_.count() > 0;
  return false;
}

bool VerbsQueuePair::FinishDying(uint64_t now_ns) {
  // From the first look on: nobody may have polled for long before the end.
  if (drain_deadline_ns_ == 0) drain_deadline_ns_ = now_ns + kDrainNs;
  const bool drained = ReceivesDrained() && sends_drained_;
  if (!drained && now_ns < drain_deadline_ns_) return false;
  Destroy();
  Completion out{};
  out.context = context_;
  out.status = Status::kFlushed;
  out.kind = CompletionKind::kSent;
  for (; !sends_.empty(); sends_.ReleaseUpTo(sends_.first())) {
    out.id = sends_.at(sends_.first());
    fabric_.completions_.Push(this, out);
  }
  out.kind = CompletionKind::kReceived;
  for (; !receives_.empty(); receives_.ReleaseUpTo(receives_.first())) {
    out.id = receives_.at(receives_.first());
    fabric_.completions_.Push(this, out);
  }
  out.id = 0;
  out.kind = CompletionKind::kDisconnected;
  fabric_.completions_.Push(this, out);
  return true;
}

}  // namespace sluice::transport
