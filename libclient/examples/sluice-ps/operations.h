// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "latency.h"
#include "ledger.h"
#include "protocol.h"
#include "row_knowledge.h"
#include "size_model.h"

namespace sluice_ps {

struct WorkloadOptions {
  TableShape shape;
  uint32_t worker = 0;  // Which of `workers` this is.
  uint32_t workers = 1;
  uint64_t run = 0;           // Random.
  uint32_t outstanding = 16;  // Operations at a time.
  double push_share = 0.5;    // Of the operations.
  double mean_bytes = 20'000;
  double p99_bytes = 50'000;
  uint64_t seed = 1;
};

// One kind of operation, as seen by the worker.
struct OperationStats {
  OutcomeCounts outcomes;
  LatencyHistogram latency;  // Of those that ended OK.
  uint64_t bytes = 0;        // Of its requests as sent and its replies as received.
};

struct WorkloadStats {
  uint64_t bytes() const { return fetch.bytes + push.bytes; }

  OperationStats fetch;
  OperationStats push;
  uint64_t rows_verified = 0;
  uint64_t values_verified = 0;
  uint64_t rows_wrong = 0;
  uint64_t stray_replies = 0;  // Replies to nothing that is outstanding.
  uint64_t unordered_replies = 0;
  uint64_t pushes_resent = 0;
  uint64_t last_ok_ns = 0;              // When an operation last ended OK; 0: never.
  uint64_t longest_gap_ns = 0;          // Between two of those.
  std::vector<std::string> complaints;  // The first kMaxComplaints wrong things, in words.
};

enum class ReplyVerdict {
  kFine,
  kResetPath,  // Close the connection, connect again: what is outstanding there is sent again or
               // given up.
  kGiveUp,     // Worker and server do not fit together.
};

// The worker's workload without its sockets. An operation fetches from, or pushes to, all shards at
// once: one request to each, over when the last reply is in. Requests of a shard wait in one queue,
// sent ones first; replies must come in that order. When a path is lost the fetches sent on it end
// as UNKNOWN, while pushes stay and are sent again. The first operations, not counted, fetch the
// worker's own rows: the server may have them from a former run. Invariant: every begun operation
// is in operations_ until it is counted as ended, once.
class Operations {
 public:
  static constexpr size_t kMaxComplaints = 20;

  explicit Operations(const WorkloadOptions& options);

  // Begins one operation; false: not now, as many are outstanding as may be.
  bool Begin(uint64_t now_ns);
  uint64_t outstanding() const { return busy_; }

  // Whether all own rows are known; only then do counted operations begin.
  bool CaughtUp() const;

  // The next request for this shard: its size (0: none), its bytes, and that it has been sent.
  size_t NextBytes(uint32_t shard) const;
  void EncodeNext(uint32_t shard, std::span<std::byte> message) const;
  void MarkSent(uint32_t shard);

  ReplyVerdict OnReply(uint32_t shard, std::span<const std::byte> message, uint64_t now_ns);
  void OnPathLost(uint32_t shard, uint64_t now_ns);

  // The run is over: what is still outstanding ends as UNKNOWN.
  void Abandon(uint64_t now_ns);

  const WorkloadStats& stats() const { return stats_; }
  LatencyHistogram& recent() {
    return recent_;
  }  // Of both kinds; the progress line reads and clears it.

 private:
  struct SubRequest {
    uint64_t request = 0;
    uint64_t sequence = 0;   // Of a push.
    uint32_t operation = 0;  // Index in operations_.
    bool sent_before = false;
    std::vector<uint32_t> rows;
    std::vector<uint32_t>
        versions;  // Push: that it makes. Fetch: the floors from before it was sent.
  };
  struct Operation {
    bool active = false;
    bool catch_up = false;
    Op op = Op::kFetch;
    Outcome outcome = Outcome::kOk;
    uint64_t begun_ns = 0;
    uint32_t pending = 0;
    std::vector<SubRequest> subs;  // One a shard.
  };
  struct ShardQueue {
    std::deque<SubRequest*> requests;  // The first `sent` of them are on their way.
    size_t sent = 0;
    uint64_t next_sequence = 1;
    uint32_t caught_up_rows = 0;  // Own rows asked for at the start.
  };

  bool AskedForOwnRows() const;
  void FillCatchUp(uint32_t shard, SubRequest& sub);
  void FillFetch(uint32_t shard, SubRequest& sub);
  void FillPush(uint32_t shard, SubRequest& sub);
  uint32_t RowsForNextMessage(size_t header_bytes);
  void CheckFetched(uint32_t shard, const SubRequest& sub, const Reply& reply);
  void EndSubRequest(SubRequest& sub, Outcome outcome, uint64_t now_ns);
  OperationStats& StatsOf(Op op) { return op == Op::kFetch ? stats_.fetch : stats_.push; }
  void Complain(const std::string& text);

  WorkloadOptions options_;
  RowKnowledge rows_;
  SizeModel sizes_;
  std::mt19937_64 random_;
  std::vector<Operation> operations_;
  std::vector<uint32_t> idle_;
  std::vector<ShardQueue> queues_;
  uint64_t next_request_ = 1;
  uint64_t busy_ = 0;
  uint64_t catching_up_ = 0;  // Operations.
  WorkloadStats stats_;
  LatencyHistogram recent_;
};

}  // namespace sluice_ps
