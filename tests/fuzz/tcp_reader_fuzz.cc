// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/transport/grant_table.h"
#include "daemon/transport/tcp/reader.h"
#include "daemon/transport/work_queue.h"
#include "shm_proto/base/check.h"
#include "tests/fuzz/fuzz.h"

// Feeds the reader of the TCP transport whatever a peer may send, cut up in every way. The
// sanitizers see bytes that leave their landing; the checks below see what else must hold.
//
// Input: pairs of a control byte and what it announces.
//   0x00..0x7f  that many bytes + 1 of the stream follow
//   0x80..0xbf  as many bytes go straight to where Landing() says, out of the stream
//   0xc0..0xdf  post receives      0xe0..0xef  withdraw a grant      0xf0..0xff  expose a grant
namespace sluice::transport {
namespace {

constexpr QueuePairLimits kLimits{
    .send_queue_depth = 1, .receive_queue_depth = 8, .receive_bytes = 64};
constexpr uint32_t kGrants = 4;

class Session {
 public:
  Session() { completions_.Reserve(1 + 2 * kLimits.receive_queue_depth); }

  void PostReceives(size_t count) {
    for (size_t i = 0; i < count && receives_.size() < kLimits.receive_queue_depth; ++i) {
      memory_.push_back(std::make_unique<std::byte[]>(kLimits.receive_bytes));
      const ReceiveRequest request{.id = posted_++,
                                   .address = memory_.back().get(),
                                   .length = kLimits.receive_bytes,
                                   .local_key = 0};
      SLUICE_CHECK(receives_.Post({&request, 1}).has_value(), "there is room for a receive");
    }
  }

  void Expose(uint32_t id, size_t pieces) {
    std::vector<LandingSegment> segments;
    std::vector<std::unique_ptr<std::byte[]>> memory;
    for (size_t i = 0; i < pieces; ++i) {
      const uint64_t bytes = 1 + 7 * i;
      memory.push_back(std::make_unique<std::byte[]>(bytes));
      segments.push_back({memory.back().get(), bytes, 0});
    }
    std::array<RemoteSlice, kMaxSlices> slices;
    if (grants_.Expose(id, segments, slices)) landings_[id] = std::move(memory);
  }

  void Withdraw(uint32_t id) {
    reader_.Withdraw(id);
    grants_.Withdraw(id);
    landings_[id].clear();
  }

  bool Consume(std::span<const std::byte> stream) {
    // A copy of its own size, so that reading behind it is seen.
    const std::vector<std::byte> bytes(stream.begin(), stream.end());
    bool referenced = false;
    const bool fine = reader_.Consume(bytes, referenced).has_value();
    Reap(bytes, referenced);
    return fine;
  }

  bool Land(std::span<const std::byte>& stream, size_t limit) {
    std::array<iovec, TcpReader::kLandingPieces> pieces;
    const auto plan = reader_.Landing(std::min(limit, stream.size()), pieces);
    SLUICE_CHECK(plan.bytes <= limit && plan.pieces <= pieces.size(), "a plan keeps its limits");
    uint64_t total = 0;
    for (size_t i = 0; i < plan.pieces; ++i) {
      std::memcpy(pieces[i].iov_base, stream.data() + total, pieces[i].iov_len);
      total += pieces[i].iov_len;
    }
    SLUICE_CHECK(total == plan.bytes, "a plan's pieces make its bytes");
    const bool fine = reader_.Landed(total).has_value();
    stream = stream.subspan(total);
    Reap({}, false);
    return fine;
  }

 private:
  void Reap(std::span<const std::byte> bytes, bool referenced) {
    std::array<Completion, 4> out;
    size_t count = 0;
    do {
      completions_.Begin(out);
      count = completions_.End();
      for (const Completion& completion : std::span(out).first(count)) {
        SLUICE_CHECK(completion.id == completed_++, "receives are used up in order");
        if (completion.kind != CompletionKind::kReceived) continue;
        SLUICE_CHECK(completion.bytes <= kLimits.receive_bytes, "no SEND exceeds a receive");
        const std::byte* posted = memory_[completion.id].get();
        const bool here = referenced && completion.data >= bytes.data() &&
                          completion.data + completion.bytes <= bytes.data() + bytes.size();
        SLUICE_CHECK(completion.data == posted || here, "a SEND lies where it may");
      }
    } while (count > 0);
  }

  ReceiveQueue receives_{kLimits};
  GrantTable grants_;
  CompletionQueue completions_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::array<std::vector<std::unique_ptr<std::byte[]>>, kGrants> landings_;
  uint64_t posted_ = 0;
  uint64_t completed_ = 0;
  TcpReader reader_{{.owner = nullptr,
                     .context = nullptr,
                     .receive_bytes = kLimits.receive_bytes,
                     .receives = receives_,
                     .grants = grants_,
                     .completions = completions_}};
};

void Run(std::span<const std::byte> input) {
  Session session;
  session.PostReceives(4);
  session.Expose(0, 3);
  while (!input.empty()) {
    const auto control = static_cast<uint8_t>(input[0]);
    input = input.subspan(1);
    if (control < 0x80) {
      const size_t length = std::min<size_t>(control + 1, input.size());
      if (!session.Consume(input.first(length))) return;
      input = input.subspan(length);
    } else if (control < 0xc0) {
      if (!session.Land(input, control - 0x80u + 1)) return;
    } else if (control < 0xe0) {
      session.PostReceives(control - 0xc0u);
    } else if (control < 0xf0) {
      session.Withdraw(control % kGrants);
    } else {
      session.Expose(control % kGrants, 1 + control % kMaxSlices);
    }
  }
}

std::string Header(WireOperation operation, uint32_t length, uint16_t following = 0,
                   uint64_t address = 0) {
  const WireHeader header{.magic = kWireMagic,
                          .operation = static_cast<uint8_t>(operation),
                          .following = following,
                          .length = length,
                          .immediate = 7,
                          .key = 0,
                          .address = address};
  return {reinterpret_cast<const char*>(&header), sizeof header};
}

// Announces bytes of the stream to Consume(), `step` at a time.
std::string Consumed(const std::string& stream, size_t step = 128) {
  std::string input;
  for (size_t at = 0; at < stream.size(); at += step) {
    const std::string part = stream.substr(at, step);
    input += static_cast<char>(part.size() - 1);
    input += part;
  }
  return input;
}

// Announces bytes of the stream that go straight to their landing.
std::string Landed(const std::string& stream) {
  return static_cast<char>(0x80 + stream.size() - 1) + stream;
}

}  // namespace
}  // namespace sluice::transport

std::vector<std::string> sluice::fuzz::Seeds() {
  using namespace sluice::transport;
  constexpr auto kSend = WireOperation::kSend;
  constexpr auto kWrite = WireOperation::kWrite;
  constexpr auto kWriteImmediate = WireOperation::kWriteImmediate;
  const std::string batch = Header(kSend, 3, 2) + Header(kWrite, 24, 1) +
                            Header(kWriteImmediate, 0);
  std::string many;
  for (int i = 0; i < 6; ++i) many += "\xc4" + Consumed(Header(kSend, 1) + "a");
  return {
      Consumed(Header(kSend, 5) + "hello"),
      Consumed(Header(kSend, 0)),
      Consumed(Header(kSend, 5) + "hello", 1),
      Consumed(Header(kSend, 40)) + Landed(std::string(40, 'x')),
      Consumed(Header(kWriteImmediate, 20, 0, 2)) + Landed(std::string(20, 'y')),
      Consumed(batch) + Landed(std::string(27, 'z')),
      "\xe0" + Consumed(Header(kWrite, 30) + std::string(30, 'w')) + "\xf0",
      Consumed(Header(kWrite, 24)) + Landed("before") + "\xe0" + Consumed(std::string(18, 'v')),
      Consumed(Header(kWrite, 25)),
      many,
  };
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::transport::Run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
