// SPDX-License-Identifier: Apache-2.0
#include "operations.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "values.h"

namespace sluice_ps {
namespace {

constexpr uint32_t kCatchUpRows = 256;  // In one request.

size_t RequestBytes(Op op, size_t rows, size_t dim) {
  return op == Op::kFetch ? FetchRequestBytes(rows) : PushRequestBytes(rows, dim);
}

}  // namespace

Operations::Operations(const WorkloadOptions& options)
    : options_(options),
      rows_(options.shape, options.worker, options.workers),
      sizes_(options.mean_bytes, options.p99_bytes),
      random_(options.seed),
      operations_(options.outstanding),
      queues_(options.shape.shards) {
  for (uint32_t i = options.outstanding; i-- > 0;) {
    operations_[i].subs.resize(options.shape.shards);
    idle_.push_back(i);
  }
}

bool Operations::AskedForOwnRows() const {
  for (uint32_t shard = 0; shard < queues_.size(); ++shard) {
    if (queues_[shard].caught_up_rows < rows_.OwnRows(shard)) {
      return false;
    }
  }
  return true;
}

bool Operations::CaughtUp() const { return AskedForOwnRows() && catching_up_ == 0; }

bool Operations::Begin(uint64_t now_ns) {
  if (idle_.empty()) {
    return false;
  }
  const bool catch_up = !AskedForOwnRows();
  if (!catch_up && catching_up_ > 0) {
    return false;
  }
  const uint32_t index = idle_.back();
  idle_.pop_back();
  Operation& operation = operations_[index];
  const bool push = !catch_up &&
                    std::uniform_real_distribution<>(0, 1)(random_) < options_.push_share;
  operation.active = true;
  operation.catch_up = catch_up;
  operation.op = push ? Op::kPush : Op::kFetch;
  operation.outcome = Outcome::kOk;
  operation.begun_ns = now_ns;
  operation.pending = options_.shape.shards;
  for (uint32_t shard = 0; shard < options_.shape.shards; ++shard) {
    SubRequest& sub = operation.subs[shard];
    sub.request = next_request_++;
    sub.operation = index;
    sub.sent_before = false;
    catch_up ? FillCatchUp(shard, sub) : push ? FillPush(shard, sub) : FillFetch(shard, sub);
    queues_[shard].requests.push_back(&sub);
  }
  catch_up ? ++catching_up_ : ++StatsOf(operation.op).outcomes.begun;
  ++busy_;
  return true;
}

void Operations::FillCatchUp(uint32_t shard, SubRequest& sub) {
  ShardQueue& queue = queues_[shard];
  const uint32_t count = std::min(kCatchUpRows, rows_.OwnRows(shard) - queue.caught_up_rows);
  sub.sequence = 0;
  sub.rows.resize(count);
  sub.versions.assign(count, 0);
  for (uint32_t i = 0; i < count; ++i) {
    sub.rows[i] = rows_.OwnRow(shard, queue.caught_up_rows++);
  }
}

uint32_t Operations::RowsForNextMessage(size_t header_bytes) {
  const size_t row_bytes = sizeof(uint32_t) + options_.shape.dim * sizeof(float);
  const size_t bytes = sizes_.Next(random_);
  const size_t rows = bytes > header_bytes ? (bytes - header_bytes + row_bytes / 2) / row_bytes : 0;
  return static_cast<uint32_t>(std::clamp<size_t>(rows, 1, kMaxRowsPerRequest));
}

void Operations::FillFetch(uint32_t shard, SubRequest& sub) {
  const uint32_t rows_in_shard = options_.shape.RowsIn(shard);
  const uint32_t count = RowsForNextMessage(sizeof(ReplyHeader));
  std::uniform_int_distribution<uint32_t> any(0, rows_in_shard - 1);
  sub.sequence = 0;
  sub.rows.resize(count);
  sub.versions.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    sub.rows[i] = any(random_) * options_.shape.shards + shard;
    sub.versions[i] = rows_.Floor(sub.rows[i]);
  }
}

// A run of own rows from a random start: no row twice in one push.
void Operations::FillPush(uint32_t shard, SubRequest& sub) {
  const uint32_t own = rows_.OwnRows(shard);
  const uint32_t count = std::min(RowsForNextMessage(sizeof(RequestHeader)), own);
  uint32_t index = std::uniform_int_distribution<uint32_t>(0, own - 1)(random_);
  sub.sequence = queues_[shard].next_sequence++;
  sub.rows.resize(count);
  sub.versions.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    sub.rows[i] = rows_.OwnRow(shard, index);
    sub.versions[i] = rows_.Issue(sub.rows[i]);
    index = index + 1 == own ? 0 : index + 1;
  }
}

size_t Operations::NextBytes(uint32_t shard) const {
  const ShardQueue& queue = queues_[shard];
  if (queue.sent == queue.requests.size()) {
    return 0;
  }
  const SubRequest& sub = *queue.requests[queue.sent];
  return RequestBytes(operations_[sub.operation].op, sub.rows.size(), options_.shape.dim);
}

void Operations::EncodeNext(uint32_t shard, std::span<std::byte> message) const {
  const ShardQueue& queue = queues_[shard];
  const SubRequest& sub = *queue.requests[queue.sent];
  RequestHeader header;
  header.op = operations_[sub.operation].op;
  header.dim = static_cast<uint16_t>(options_.shape.dim);
  header.shard = shard;
  header.shards = options_.shape.shards;
  header.rows = static_cast<uint32_t>(sub.rows.size());
  header.worker = options_.worker;
  header.run = options_.run;
  header.request = sub.request;
  header.sequence = sub.sequence;
  std::memcpy(message.data(), &header, sizeof(header));
  std::byte* at = message.data() + sizeof(header);
  std::memcpy(at, sub.rows.data(), sub.rows.size() * sizeof(uint32_t));
  if (header.op == Op::kFetch) {
    return;
  }
  at += sub.rows.size() * sizeof(uint32_t);
  std::array<float, kMaxDim> gradient;
  for (size_t i = 0; i < sub.rows.size(); ++i) {
    FillGradient(sub.rows[i], sub.versions[i], std::span(gradient).first(options_.shape.dim));
    std::memcpy(at, gradient.data(), options_.shape.dim * sizeof(float));
    at += options_.shape.dim * sizeof(float);
  }
}

void Operations::MarkSent(uint32_t shard) {
  const size_t bytes = NextBytes(shard);
  ShardQueue& queue = queues_[shard];
  SubRequest& sub = *queue.requests[queue.sent++];
  StatsOf(operations_[sub.operation].op).bytes += bytes;
  stats_.pushes_resent += sub.sent_before;
  sub.sent_before = true;
}

ReplyVerdict Operations::OnReply(uint32_t shard, std::span<const std::byte> message,
                                 uint64_t now_ns) {
  const auto reply = ParseReply(message, options_.shape.dim);
  if (!reply) {
    Complain("shard " + std::to_string(shard) + ": a reply of " + std::to_string(message.size()) +
             " bytes that is none of this protocol");
    return ReplyVerdict::kGiveUp;
  }
  ShardQueue& queue = queues_[shard];
  const auto sent_end = queue.requests.begin() + static_cast<std::ptrdiff_t>(queue.sent);
  const auto is_asked = [&](const SubRequest* sub) {
    return sub->request == reply->header.request;
  };
  const auto asked = std::find_if(queue.requests.begin(), sent_end, is_asked);
  if (asked == sent_end) {
    ++stats_.stray_replies;
    Complain("shard " + std::to_string(shard) + ": a reply to request " +
             std::to_string(reply->header.request) + ", which is not outstanding");
    return ReplyVerdict::kResetPath;
  }
  if (asked != queue.requests.begin()) {
    ++stats_.unordered_replies;
    Complain("shard " + std::to_string(shard) + ": reply to request " +
             std::to_string(reply->header.request) + " came before that to " +
             std::to_string(queue.requests.front()->request));
  }
  SubRequest& sub = **asked;
  const Op op = operations_[sub.operation].op;
  if (reply->header.status == Status::kGap) {
    const auto is_push = [&](const SubRequest* s) {
      return operations_[s->operation].op == Op::kPush;
    };
    if (std::any_of(queue.requests.begin(), asked, is_push)) {
      return ReplyVerdict::kResetPath;  // An earlier push did not get through: send again, in
                                        // order.
    }
    Complain("shard " + std::to_string(shard) +
             ": the server has lost pushes that it had acknowledged (restarted?)");
    return ReplyVerdict::kGiveUp;
  }
  if (reply->header.status != Status::kOk || reply->header.op != op ||
      reply->header.rows != sub.rows.size()) {
    Complain("shard " + std::to_string(shard) +
             ": the server refused a request: " + StatusName(reply->header.status));
    return ReplyVerdict::kGiveUp;
  }
  StatsOf(op).bytes += message.size();
  if (op == Op::kFetch) {
    CheckFetched(shard, sub, *reply);
  } else {
    for (size_t i = 0; i < sub.rows.size(); ++i) {
      rows_.RaiseFloor(sub.rows[i], sub.versions[i]);
    }
  }
  queue.requests.erase(asked);
  --queue.sent;
  EndSubRequest(sub, Outcome::kOk, now_ns);
  return ReplyVerdict::kFine;
}

void Operations::CheckFetched(uint32_t shard, const SubRequest& sub, const Reply& reply) {
  const size_t row_bytes = options_.shape.dim * sizeof(float);
  for (size_t i = 0; i < sub.rows.size(); ++i) {
    const uint32_t version = reply.version(i);
    const auto* values = reply.values.data() + i * row_bytes;
    const Verdict verdict = operations_[sub.operation].catch_up
                                ? rows_.Adopt(sub.rows[i], version, values)
                                : rows_.Check(sub.rows[i], sub.versions[i], version, values);
    if (verdict == Verdict::kRight) {
      ++stats_.rows_verified;
      stats_.values_verified += options_.shape.dim;
      continue;
    }
    ++stats_.rows_wrong;
    Complain("shard " + std::to_string(shard) + ", request " + std::to_string(sub.request) +
             ", row " + std::to_string(sub.rows[i]) + ", version " + std::to_string(version) +
             " (known: " + std::to_string(sub.versions[i]) + "): " + VerdictName(verdict));
  }
}

void Operations::OnPathLost(uint32_t shard, uint64_t now_ns) {
  ShardQueue& queue = queues_[shard];
  std::deque<SubRequest*> kept;
  for (size_t i = 0; i < queue.requests.size(); ++i) {
    SubRequest& sub = *queue.requests[i];
    if (i < queue.sent && operations_[sub.operation].op == Op::kFetch) {
      EndSubRequest(sub, Outcome::kUnknown, now_ns);
    } else {
      kept.push_back(&sub);
    }
  }
  queue.requests = std::move(kept);
  queue.sent = 0;
}

void Operations::Abandon(uint64_t now_ns) {
  for (ShardQueue& queue : queues_) {
    for (SubRequest* sub : queue.requests) {
      EndSubRequest(*sub, Outcome::kUnknown, now_ns);
    }
    queue.requests.clear();
    queue.sent = 0;
  }
}

void Operations::EndSubRequest(SubRequest& sub, Outcome outcome, uint64_t now_ns) {
  Operation& operation = operations_[sub.operation];
  OperationStats& stats = StatsOf(operation.op);
  if (!operation.active || operation.pending == 0) {
    ++stats.outcomes.duplicated;
    return;
  }
  operation.outcome = std::max(operation.outcome, outcome);
  if (--operation.pending > 0) {
    return;
  }
  operation.active = false;
  idle_.push_back(sub.operation);
  --busy_;
  if (operation.catch_up) {
    --catching_up_;
    if (operation.outcome != Outcome::kOk) {
      std::ranges::for_each(queues_, [](ShardQueue& queue) { queue.caught_up_rows = 0; });
    }
    return;
  }
  stats.outcomes.CountEnd(operation.outcome);
  if (operation.outcome != Outcome::kOk) {
    return;
  }
  stats.latency.Add(now_ns - operation.begun_ns);
  recent_.Add(now_ns - operation.begun_ns);
  if (stats_.last_ok_ns != 0) {
    stats_.longest_gap_ns = std::max(stats_.longest_gap_ns, now_ns - stats_.last_ok_ns);
  }
  stats_.last_ok_ns = now_ns;
}

void Operations::Complain(const std::string& text) {
  if (stats_.complaints.size() < kMaxComplaints) {
    stats_.complaints.push_back(text);
  }
}

}  // namespace sluice_ps
