// SPDX-License-Identifier: Apache-2.0
#include "shard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "values.h"

namespace sluice_ps {
namespace {

constexpr TableShape kShape{.shards = 4, .rows = 103, .dim = 8};
constexpr uint32_t kShard = 2;

std::vector<std::byte> Encode(const RequestHeader& header, const std::vector<uint32_t>& rows,
                              const std::vector<float>& gradients = {}) {
  std::vector<std::byte> message(sizeof(header) + rows.size() * sizeof(uint32_t) +
                                 gradients.size() * sizeof(float));
  std::memcpy(message.data(), &header, sizeof(header));
  if (!rows.empty()) {
    std::memcpy(message.data() + sizeof(header), rows.data(), rows.size() * sizeof(uint32_t));
  }
  if (!gradients.empty()) {
    std::memcpy(message.data() + sizeof(header) + rows.size() * sizeof(uint32_t), gradients.data(),
                gradients.size() * sizeof(float));
  }
  return message;
}

RequestHeader Header(Op op, size_t rows, uint64_t sequence = 0, uint64_t run = 1) {
  RequestHeader header;
  header.op = op;
  header.dim = kShape.dim;
  header.shard = kShard;
  header.shards = kShape.shards;
  header.rows = static_cast<uint32_t>(rows);
  header.run = run;
  header.request = 99;
  header.sequence = sequence;
  return header;
}

struct Answer {
  std::vector<std::byte> bytes;
  Reply reply;
};

Answer Ask(Shard& shard, const std::vector<std::byte>& message) {
  Answer answer;
  answer.bytes.resize(shard.ReplyBytes(message));
  answer.bytes.resize(shard.Handle(message, answer.bytes));
  const auto reply = ParseReply(answer.bytes, kShape.dim);
  EXPECT_TRUE(reply.has_value());
  answer.reply = *reply;
  return answer;
}

Status Push(Shard& shard, uint32_t row, uint32_t version, uint64_t sequence, uint64_t run = 1) {
  std::vector<float> gradient(kShape.dim);
  FillGradient(row, version, gradient);
  return Ask(shard, Encode(Header(Op::kPush, 1, sequence, run), {row}, gradient))
      .reply.header.status;
}

uint32_t VersionOf(Shard& shard, uint32_t row) {
  const Answer answer = Ask(shard, Encode(Header(Op::kFetch, 1), {row}));
  EXPECT_EQ(FirstWrongColumn(row, answer.reply.version(0), answer.reply.values.data(), kShape.dim),
            kShape.dim);
  return answer.reply.version(0);
}

TEST(Shard, FetchesInitialValuesOfAllItsRows) {
  Shard shard(kShape, kShard);
  std::vector<uint32_t> rows;
  for (uint32_t row = kShard; row < kShape.rows; row += kShape.shards) {
    rows.push_back(row);
  }
  ASSERT_EQ(rows.size(), kShape.RowsIn(kShard));
  const Answer answer = Ask(shard, Encode(Header(Op::kFetch, rows.size()), rows));
  ASSERT_EQ(answer.reply.header.status, Status::kOk);
  EXPECT_EQ(answer.reply.header.request, 99u);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(answer.reply.version(i), 0u);
    const auto* values = answer.reply.values.data() + i * kShape.dim * sizeof(float);
    EXPECT_EQ(FirstWrongColumn(rows[i], 0, values, kShape.dim), kShape.dim);
  }
}

TEST(Shard, AppliesAPushOnceHoweverOftenItIsSent) {
  Shard shard(kShape, kShard);
  EXPECT_EQ(Push(shard, 6, 1, 1), Status::kOk);
  EXPECT_EQ(Push(shard, 6, 1, 1), Status::kOk);
  EXPECT_EQ(Push(shard, 6, 2, 2), Status::kOk);
  EXPECT_EQ(Push(shard, 6, 1, 1), Status::kOk);
  EXPECT_EQ(VersionOf(shard, 6), 2u);
  EXPECT_EQ(shard.counters().pushes_applied, 2u);
  EXPECT_EQ(shard.counters().pushes_repeated, 2u);
  EXPECT_EQ(shard.CountWrongRows(), 0u);
}

TEST(Shard, RefusesAPushWhosePredecessorIsMissingAndChangesNothing) {
  Shard shard(kShape, kShard);
  EXPECT_EQ(Push(shard, 6, 1, 2), Status::kGap);
  EXPECT_EQ(VersionOf(shard, 6), 0u);
}

TEST(Shard, ANewRunOfAWorkerCountsFromOneAndShutsTheFormerOut) {
  Shard shard(kShape, kShard);
  EXPECT_EQ(Push(shard, 6, 1, 1, 1), Status::kOk);
  EXPECT_EQ(Push(shard, 6, 2, 1, 2), Status::kOk);
  EXPECT_EQ(Push(shard, 6, 3, 2, 1), Status::kStaleRun);
  EXPECT_EQ(Ask(shard, Encode(Header(Op::kFetch, 1, 0, 1), {6})).reply.header.status,
            Status::kStaleRun);
  EXPECT_EQ(Push(shard, 6, 3, 2, 2), Status::kOk);
  EXPECT_EQ(shard.CountWrongRows(), 0u);
}

TEST(Shard, SeesAWrongRowInItsTable) {
  Shard shard(kShape, kShard);
  EXPECT_EQ(Push(shard, 6, 9, 1), Status::kOk);  // The gradient of another version.
  EXPECT_EQ(shard.CountWrongRows(), 1u);
}

TEST(Shard, RefusesWhatIsNotARequestOfItsOwn) {
  Shard shard(kShape, kShard);
  const auto status = [&](const RequestHeader& header, const std::vector<uint32_t>& rows) {
    return Ask(shard, Encode(header, rows)).reply.header.status;
  };
  RequestHeader header = Header(Op::kFetch, 1);
  EXPECT_EQ(status(header, {3}), Status::kWrongRow);
  EXPECT_EQ(status(header, {106}), Status::kWrongRow);
  EXPECT_EQ(status(header, {6, 10}), Status::kMalformed);
  EXPECT_EQ(status(header, {}), Status::kMalformed);
  header.shard = 1;
  EXPECT_EQ(status(header, {5}), Status::kWrongShard);
  header = Header(Op::kFetch, 1);
  header.dim = 9;
  EXPECT_EQ(status(header, {6}), Status::kWrongShard);
  header = Header(Op::kFetch, 1);
  header.magic = 1;
  EXPECT_EQ(status(header, {6}), Status::kMalformed);
  header = Header(Op::kFetch, 1, 1);
  EXPECT_EQ(status(header, {6}), Status::kMalformed);
  header = Header(static_cast<Op>(3), 1);
  EXPECT_EQ(status(header, {6}), Status::kMalformed);
  const std::vector<std::byte> tiny(5);
  EXPECT_EQ(Ask(shard, tiny).reply.header.status, Status::kMalformed);
  EXPECT_EQ(Ask(shard, {}).reply.header.status, Status::kMalformed);
  EXPECT_EQ(shard.counters().refused, 11u);
}

TEST(Shard, AFetchOfNoRowsIsFine) {
  Shard shard(kShape, kShard);
  EXPECT_EQ(Ask(shard, Encode(Header(Op::kFetch, 0), {})).reply.header.status, Status::kOk);
}

}  // namespace
}  // namespace sluice_ps
