// SPDX-License-Identifier: Apache-2.0
// An authenticated peer that breaks every rule of the wire protocol: the engine neither crashes nor
// touches memory that is not its own, every send ends exactly once, and when the session is over
// nothing is left.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "daemon/engine/engine.h"
#include "daemon/transport/local/local_transport.h"
#include "shm_proto/base/check.h"
#include "shm_proto/base/clock.h"
#include "shm_proto/base/units.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace sluice;
using wire::FrameHeader;
using wire::FrameType;

constexpr uint64_t kPoolBytes = 8 * kMiB;
constexpr uint32_t kReceiveDepth = 16;
constexpr uint32_t kReceiveBytes = 4'096;
constexpr size_t kMaxSockets = 64;
constexpr size_t kMaxOperations = 256;  // Of one input: bounds its time.

// The input, taken byte by byte; zeros when it is used up.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : rest_(data, size) {}
  bool empty() const { return rest_.empty(); }
  uint8_t Next() {
    if (rest_.empty()) return 0;
    const uint8_t byte = rest_.front();
    rest_ = rest_.subspan(1);
    return byte;
  }
  std::span<const uint8_t> Take(size_t count) {
    const auto taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  // Small numbers mostly, and every kind of large one.
  uint64_t Number() {
    constexpr uint64_t kLarge[] = {0xff,     0x1000,     0xffff,     0x10000,       1 << 20,
                                   64 << 20, 0x7fffffff, 0xffffffff, 0x1'0000'0000, ~uint64_t{0}};
    const uint8_t byte = Next();
    return byte < 0xe0 ? byte % 32 : kLarge[byte % std::size(kLarge)];
  }

 private:
  std::span<const uint8_t> rest_;
};

// The applications behind the engine. Checks what it is told.
class Applications final : public EngineHost {
 public:
  std::optional<PoolBuffer> Allocate(Socket&, uint64_t bytes) override {
    if (bytes > kPoolBytes - used_bytes_) return std::nullopt;
    used_bytes_ += bytes;
    auto memory = std::make_unique<std::byte[]>(std::max<uint64_t>(bytes, 1));
    const PoolBuffer buffer{memory.get(), next_offset_ += 64, bytes};
    buffers_[memory.get()] = std::move(memory);
    return buffer;
  }
  void Free(Socket&, const PoolBuffer& buffer) override {
    SLUICE_CHECK(buffers_.erase(buffer.address) == 1, "a buffer is freed once");
    used_bytes_ -= buffer.bytes;
  }
  bool Hold(Socket&, uint64_t) override { return true; }
  void Unhold(Socket&, uint64_t) override {}
  uint64_t LargestBuffer(Socket&) override { return kPoolBytes; }
  bool Deliver(Socket& socket, const Delivery& message) override {
    if (++deliveries_ % 7 == 0) return false;  // No completion slot just now.
    if (message.inline_data == nullptr) {
      SLUICE_CHECK(message.length <= message.buffer.bytes, "a message lies in its buffer");
      Free(socket, message.buffer);
    }
    return true;
  }
  void SendOver(Socket&, const SendOperation& operation, Outcome, int) override {
    SLUICE_CHECK(sending_.erase(operation.token) == 1, "an operation ends once");
  }
  void Connected(Socket& socket, Outcome, int) override {
    SLUICE_CHECK(connected_.insert(socket.id).second, "a connect ends once");
  }
  void Incoming(Socket& socket) override { incoming_.push_back(socket.id); }
  void Closed(Socket& socket, int) override {
    SLUICE_CHECK(closed_.insert(socket.id).second, "a socket is closed once");
  }
  void Gone(Socket& socket) override {
    connected_.erase(socket.id);
    closed_.erase(socket.id);
  }
  void PathLost(Engine&, bool, const std::string& reason) override {
    SLUICE_CHECK(!reason.empty(), "a lost path has a reason");
  }

  uint64_t used_bytes_ = 0, next_offset_ = 0, deliveries_ = 0;
  std::map<std::byte*, std::unique_ptr<std::byte[]>> buffers_;
  std::set<uint64_t> sending_;
  std::set<uint32_t> connected_, closed_;
  std::vector<uint32_t> incoming_;
};

// The engine, and the peer that the input plays.
class Match {
 public:
  Match()
      : wire_(std::move(*transport::LocalTransport::Create())),
        engine_(std::make_unique<Engine>(1, "peer", sockets_, applications_, limits_, Tunables{})) {
    Connect(1);
    OpenSocket();
  }

  void Play(Bytes& input) {
    for (size_t i = 0; i < kMaxOperations && !input.empty(); ++i) {
      switch (input.Next() % 8) {
        case 0:
        case 1:
        case 2: SendFrames(input); break;
        case 3: input.Next() < 0xe0 ? UseApplication(input) : SendRaw(input); break;
        case 4: Write(input); break;
        case 5: UseApplication(input); break;
        case 6: Wait(input); break;
        case 7: Connect(input.Next() % 4); break;
      }
      Step();
      if (engine_->state() != Engine::State::kUp && i % 4 == 3) Connect(input.Next() % 4);
    }
    Finish();
  }

 private:
  void Connect(uint32_t epoch) {
    if (engine_->state() == Engine::State::kUp) return;
    const transport::QueuePairLimits queue{limits_.send_queue_depth, kReceiveDepth, kReceiveBytes};
    auto [ours, theirs] = wire_->CreatePair(queue, engine_.get(), queue, this);
    SessionParameters session;
    session.session = 9;
    session.path_epoch = std::max(epoch, 1u) + epochs_++;
    session.resumed = engine_->session_alive();
    session.peer_receive_depth = kReceiveDepth;
    session.peer_receive_bytes = kReceiveBytes;
    session.peer_message_window = 4;
    if (!engine_->OnPathUp(std::move(ours), session, now_ns_)) return;
    peer_ = std::move(theirs);
    for (uint32_t i = 0; i < kReceiveDepth; ++i) PostReceive(i);
    if (session.resumed && epoch % 4 != 3) ResumeHonestly();
  }

  // What a peer in good order says first on the next path of a session.
  void ResumeHonestly() {
    std::vector<std::byte> bytes;
    const auto add = [&bytes](FrameType type, const Socket* socket) {
      FrameHeader header{};
      header.type = type;
      if (socket != nullptr) {
        header.socket = socket->id;
        header.sequence = socket->peer_placed;
        header.argument = socket->remote_id;
      }
      const auto* start = reinterpret_cast<const std::byte*>(&header);
      bytes.insert(bytes.end(), start, start + sizeof(header));
    };
    for (uint32_t place = 0; place < 8; ++place) {
      const Socket* socket = sockets_.Find(1u << 20 | place);
      if (socket != nullptr) add(FrameType::kResume, socket);
    }
    add(FrameType::kResumed, nullptr);
    Send(bytes, ++sends_);
  }

  void PostReceive(uint64_t id) {
    const transport::ReceiveRequest request{id, receive_memory_.data() + id * kReceiveBytes,
                                            kReceiveBytes, 0};
    (void)peer_->PostReceive(std::span(&request, 1));
  }

  void Send(const std::vector<std::byte>& bytes, uint64_t id) {
    outgoing_[id % std::size(outgoing_)] = bytes;
    const auto& kept = outgoing_[id % std::size(outgoing_)];
    transport::SendRequest request{};
    request.id = id;
    request.opcode = transport::Opcode::kSend;
    request.signalled = true;
    request.segment_count = 1;
    request.segments[0] = {kept.data(), static_cast<uint32_t>(kept.size()), 0};
    if (peer_) peer_->PostSend(std::span(&request, 1));
  }

  // The engine's names of its sockets follow a pattern; most frames should name one that exists.
  uint32_t SocketName(uint8_t byte) const {
    if (byte >= 0xf0) return byte * 0x01010101u;
    return (byte < 0xc0 ? 1u : 2u) << 20 | (byte & 3);
  }

  // Mostly what an honest peer would say next, or else nothing would get past the first check.
  uint64_t Sequence(const FrameHeader& header, Bytes& input) const {
    const uint8_t byte = input.Next();
    const Socket* socket = sockets_.Find(header.socket);
    if (socket == nullptr || byte >= 0xe0) return input.Number();
    switch (header.type) {
      case FrameType::kMessage:
      case FrameType::kWriteRequest: return socket->expected + (byte >= 0xc0 ? byte % 4 : 0);
      case FrameType::kAck:
        return socket->next_sequence - std::min<uint64_t>(socket->next_sequence, byte % 4);
      case FrameType::kWriteResponse: return socket->peer_placed + byte % 4;
      default: return byte % 4;
    }
  }

  void SendFrames(Bytes& input) {
    std::vector<std::byte> bytes;
    for (int frames = input.Next() % 4; frames >= 0; --frames) {
      FrameHeader header{};
      const uint8_t type = input.Next();
      header.type = type >= 0xfa ? FrameType{type}
                    : type == 0  ? FrameType::kMessage
                                 : static_cast<FrameType>((type + 16u) % 17 + 1);
      header.flags = input.Next() % 4;
      header.socket = header.type == FrameType::kOpen ? 0 : SocketName(input.Next());
      header.sequence = Sequence(header, input);
      header.length = input.Number();
      header.argument = input.Next() % 4 == 0 ? last_grant_ : static_cast<uint32_t>(input.Number());
      std::vector<std::byte> payload;
      if (header.type == FrameType::kMessage) {
        payload.resize(std::min<uint64_t>(header.length, 600));
      } else if (header.type == FrameType::kWriteResponse || header.type == FrameType::kGrant) {
        payload.resize(input.Next() % 20 * sizeof(transport::RemoteSlice));
        const auto given = input.Take(payload.size());
        if (!given.empty()) memcpy(payload.data(), given.data(), given.size());
      }
      header.bytes = static_cast<uint32_t>(payload.size() + (input.Next() >= 0xfc ? 1 : 0));
      const auto* start = reinterpret_cast<const std::byte*>(&header);
      bytes.insert(bytes.end(), start, start + sizeof(header));
      bytes.insert(bytes.end(), payload.begin(), payload.end());
    }
    if (bytes.size() > kReceiveBytes) bytes.resize(kReceiveBytes);
    Send(bytes, ++sends_);
  }

  void SendRaw(Bytes& input) {
    const auto taken = std::as_bytes(input.Take(input.Next()));
    Send({taken.begin(), taken.end()}, ++sends_);
  }

  void Write(Bytes& input) {
    static const std::vector<std::byte> source(64 * kKiB);
    transport::SendRequest request{};
    request.id = ++sends_;
    request.opcode = input.Next() % 2 ? transport::Opcode::kWrite
                                      : transport::Opcode::kWriteImmediate;
    request.signalled = true;
    request.immediate = input.Next() % 4 ? last_grant_ : static_cast<uint32_t>(input.Number());
    request.remote_address = last_slice_.address + input.Number();
    request.remote_key = input.Next() % 4 ? last_slice_.key : static_cast<uint32_t>(input.Number());
    request.segment_count = 1;
    request.segments[0] = {
        source.data(), static_cast<uint32_t>(std::min<uint64_t>(input.Number(), source.size())), 0};
    if (peer_) peer_->PostSend(std::span(&request, 1));
  }

  void OpenSocket() {
    if (sockets_.size() < kMaxSockets) engine_->Open(&applications_, ++tokens_, 5, now_ns_);
  }

  void UseApplication(Bytes& input) {
    static const std::vector<std::byte> payload(200'000, std::byte{0x42});
    Socket* socket = sockets_.Find(SocketName(input.Next()));
    const uint8_t action = input.Next() % 8;
    if (socket == nullptr || action == 0) return OpenSocket();
    if (socket->state == SocketState::kIncoming) {
      if (action == 1) engine_->Refuse(*socket, ECONNREFUSED);
      return;
    }
    if (socket->owner == nullptr || socket->silent) return;
    if (action == 1) {
      engine_->Abort(*socket);
    } else if (action == 2) {
      engine_->Close(*socket);
    } else if (action == 3) {
      engine_->RecallGrants(*socket);
    } else {
      const uint64_t length = std::min<uint64_t>(input.Number() * 700, payload.size());
      if (applications_.sending_.size() >= 64) return;
      const uint64_t token = ++tokens_;
      applications_.sending_.insert(token);
      if (!engine_->Send(*socket, {payload.data(), length, token, 0, 0, length <= kInlineBytes})) {
        applications_.sending_.erase(token);
      }
    }
  }

  void Wait(Bytes& input) {
    now_ns_ += (uint64_t{1} << input.Next() % 34);
    engine_->Tick(now_ns_);
  }

  void Step() {
    now_ns_ += kNsPerUs;
    std::array<transport::Completion, 32> completions;
    const size_t count = wire_->Poll(completions, now_ns_);
    for (size_t i = 0; i < count; ++i) {
      if (completions[i].context == engine_.get()) {
        engine_->OnCompletion(completions[i], now_ns_);
      } else {
        OnPeerCompletion(completions[i]);
      }
    }
    engine_->Flush(now_ns_);
    for (const uint32_t id : std::exchange(applications_.incoming_, {})) {
      Socket* socket = sockets_.Find(id);
      if (socket != nullptr && id % 4 != 3) engine_->Accept(*socket, &applications_, 77);
    }
    // Slots have become free for whom had none.
    for (uint32_t place = 0; place < 4; ++place) {
      Socket* socket = sockets_.Find(1u << 20 | place);
      if (socket != nullptr && socket->owner != nullptr) engine_->Retry(*socket);
    }
  }

  // Remembers what a hostile peer would use: grants and where they lie.
  void OnPeerCompletion(const transport::Completion& completion) {
    if (completion.status != transport::Status::kOk ||
        completion.kind != transport::CompletionKind::kReceived)
      return;
    wire::FrameReader reader({completion.data, completion.bytes});
    FrameHeader header;
    std::span<const std::byte> payload;
    while (reader.Next(header, payload)) {
      if (header.type != FrameType::kGrant && header.type != FrameType::kWriteResponse) continue;
      last_grant_ = header.argument;
      if (payload.size() >= sizeof(last_slice_))
        memcpy(&last_slice_, payload.data(), sizeof(last_slice_));
    }
    SLUICE_CHECK(!reader.malformed(), "the engine itself sends whole frames");
    if (peer_) PostReceive(completion.id);
  }

  void Finish() {
    engine_->EndSession(ECONNRESET, "the test is over", now_ns_);
    for (int i = 0; i < 8; ++i) Step();
    SLUICE_CHECK(applications_.sending_.empty(), "every send ends when its session does");
    engine_.reset();
    peer_.reset();
  }

  const LocalLimits limits_{.send_queue_depth = 16,
                            .receive_depth = kReceiveDepth,
                            .receive_bytes = kReceiveBytes,
                            .message_window = 4};
  std::unique_ptr<transport::LocalTransport> wire_;
  Applications applications_;
  SocketTable sockets_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<transport::QueuePair> peer_;
  std::vector<std::byte> receive_memory_ = std::vector<std::byte>(kReceiveDepth * kReceiveBytes);
  std::array<std::vector<std::byte>, 64> outgoing_;
  uint64_t now_ns_ = kNsPerSecond, sends_ = 0, tokens_ = 0;
  uint32_t epochs_ = 0, last_grant_ = 0;
  transport::RemoteSlice last_slice_{};
};

}  // namespace

std::vector<std::string> sluice::fuzz::Seeds() {
  // Single operations as Match::Play() reads them; whoever drives this strings them together.
  using namespace std::string_literals;
  const std::string opened = "\x00\x00\x02\x00\x00\x00\x00\x01\x05\x00"s;
  return {
      opened,
      opened + "\x05\x00\x05\x01"s +
          "\x00\x00\x08\x00\x00\x00\x01\x01\x00\x00"s,  // A small send, acknowledged.
      opened + "\x05\x00\x05\x1f"s,                     // A large one, which asks for a landing.
      "\x00\x00\x06\x00\x00\x00\xe4\x01\x01\x01"s + std::string(24, '\0') +
          "\x00"s,  // A landing for it.
      "\x00\x00\x07\x00\x00\x00\xe4\x01\x02\x01"s + std::string(24, '\0') +
          "\x00"s,                                  // Granted ahead.
      "\x00\x00\x01\x00\x05\x00\x01\x09\x00"s,      // The peer opens a socket.
      "\x00\x00\x04\x00\x00\x00\x08\x01\x00\x00"s,  // It sends a small message,
      "\x00\x00\x05\x00\x00\x00\xe1\x01\x00\x00"s,  // announces a large one,
      "\x04\x00\x01\x00\x01\xe1"s,                  // and writes it.
      "\x00\x00\x0b\x00\x00\x00\x00\x01\x00\x00"s,  // Closes.
      "\x00\x00\x0c\x00\x00\x00\x00\x01\x00\x00"s,
      "\x00\x00\x0d\x00\x00\x00\x00\x00\x00"s,  // Recalls and returns a grant.
      "\x00\x00\x0e\x00\x00\x00\x00\x00\x00"s,
      "\x00\x00\x09\x00\x00\x00\x00\x01\x04\x00"s,  // Gives credit.
      "\x05\x00\x00"s,
      "\x05\x00\x01"s,
      "\x05\x00\x02"s,
      "\x06\x14"s,
      "\x06\x20"s,  // Applications; time.
      "\x07\x01"s,
      "\x00\x01\x0f\x00\x00\x00\x00\x01\x01\x00\x10\x00\x00\x00\x00\x01\x00\x00"s,  // Resumes on a
                                                                                    // new path.
  };
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes input(data, size);
  auto match = std::make_unique<Match>();
  match->Play(input);
  return 0;
}
