// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/handshake.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "shm_proto/base/check.h"

namespace sluice::handshake {
namespace {

constexpr char kReplyLabel[] = "sluice handshake 1: the listener's reply";
constexpr char kProofLabel[] = "sluice handshake 1: the dialer's proof";
constexpr char kAcceptLabel[] = "sluice handshake 1: the listener's acceptance";

const char* TypeText(Type type) {
  switch (type) {
    case Type::kHello: return "Hello";
    case Type::kReply: return "Reply";
    case Type::kProof: return "Proof";
    case Type::kAccept: return "Accept";
    case Type::kRefuse: return "Refuse";
  }
  return "unknown message";
}

// Text of another party: up to its zero byte or the end of the field, and nothing a terminal would
// act on.
template <size_t N>
std::string Printable(const char (&field)[N]) {
  std::string text(field, strnlen(field, N));
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return text;
}

template <size_t N>
void CopyText(char (&field)[N], const std::string& text) {
  std::memset(field, 0, N);
  std::memcpy(field, text.data(), std::min(text.size(), N - 1));
}

std::string FeaturesText(uint32_t missing) {
  char bits[16];
  std::snprintf(bits, sizeof(bits), "%#x", missing);
  return std::string("one end requires features that the other lacks (bits ") + bits + ")";
}

std::string Range(uint32_t low, uint32_t high) {
  return low == high ? std::to_string(low) : std::to_string(low) + " to " + std::to_string(high);
}

Limits WireLimits(const LocalLimits& limits) {
  return {limits.receive_depth, limits.receive_bytes, limits.message_window};
}

bool Within(uint32_t value, uint32_t low, uint32_t high) { return value >= low && value <= high; }

Authentication ModeOf(const Settings& settings) {
  return settings.key == nullptr ? Authentication::kNone : Authentication::kHmacSha256;
}

template <typename Message>
std::span<const std::byte> BytesOf(const Message& message) {
  return std::as_bytes(std::span(&message, 1));
}

}  // namespace

// --- the two beginnings ---

Handshake::Handshake(const Settings& settings, bool dialer, Random& random)
    : settings_(&settings), dialer_(dialer) {
  SLUICE_CHECK(settings.instance != 0, "this daemon has an instance id");
  for (size_t i = 0; i < kNonceBytes; i += sizeof(uint64_t)) {
    const uint64_t value = random.Next();
    std::memcpy(&nonce_[i], &value, sizeof(value));
  }
}

Handshake Handshake::Dial(const Settings& settings, const Wish& wish, Random& random,
                          uint64_t now_ns) {
  Handshake handshake(settings, true, random);
  handshake.wish_ = wish;
  handshake.SendHello();
  handshake.Expect(Type::kReply, now_ns);
  return handshake;
}

Handshake Handshake::Listen(const Settings& settings, Random& random, uint64_t now_ns) {
  Handshake handshake(settings, false, random);
  handshake.Expect(Type::kHello, now_ns);
  return handshake;
}

// --- bytes ---

size_t Handshake::WantedBytes() const {
  return phase_ == Phase::kExchanging ? message_bytes_ - in_bytes_ : 0;
}

void Handshake::OnBytes(std::span<const std::byte> bytes, uint64_t now_ns) {
  SLUICE_CHECK(bytes.size() <= WantedBytes(), "the owner reads no more than the handshake wants");
  if (bytes.empty()) return;
  std::memcpy(&in_[in_bytes_], bytes.data(), bytes.size());
  in_bytes_ += bytes.size();
  if (in_bytes_ < message_bytes_) return;
  if (message_bytes_ == sizeof(Prefix)) {
    OnPrefix();  // Every message is longer, so more bytes are wanted now, or all is over.
  } else {
    OnMessage(now_ns);
  }
}

void Handshake::OnWritten(size_t bytes) {
  SLUICE_CHECK(bytes <= out_bytes_ - written_, "no more was written than there was");
  written_ += bytes;
  if (written_ == out_bytes_) written_ = out_bytes_ = 0;
}

void Handshake::OnTime(uint64_t now_ns) {
  if (phase_ != Phase::kExchanging || now_ns < deadline_ns_) return;
  End(RefuseReason::kBusy, std::string("no ") + TypeText(expected_) + " came within " +
                               std::to_string(settings_->step_timeout_ns / kNsPerMs) + " ms");
  failure_.code = ErrorCode::kTimeout;
}

void Handshake::Expect(Type type, uint64_t now_ns) {
  expected_ = type;
  in_bytes_ = 0;
  message_bytes_ = sizeof(Prefix);
  deadline_ns_ = now_ns + settings_->step_timeout_ns;
}

void Handshake::OnPrefix() {
  const auto prefix = Received<Prefix>();
  if (prefix.magic != kMagic)
    return End(RefuseReason::kProtocol, "what connected is not a sluiced", false);
  if (prefix.type == Type::kRefuse && prefix.bytes == sizeof(Refuse)) {
    message_bytes_ = prefix.bytes;
    return;
  }
  if (prefix.type != expected_) {
    return End(RefuseReason::kProtocol, std::string("a ") + TypeText(prefix.type) +
                                            " came where a " + TypeText(expected_) + " is due");
  }
  if (expected_ == Type::kHello) return OnHelloPrefix(prefix);
  const size_t due = expected_ == Type::kReply   ? sizeof(Reply)
                     : expected_ == Type::kProof ? sizeof(Proof)
                                                 : sizeof(Accept);
  if (prefix.bytes != due) {
    return End(RefuseReason::kProtocol, std::string(TypeText(expected_)) + " has " +
                                            std::to_string(prefix.bytes) + " bytes instead of " +
                                            std::to_string(due));
  }
  message_bytes_ = due;
}

void Handshake::OnHelloPrefix(const Prefix& prefix) {
  const uint16_t highest = std::min(prefix.version_max, settings_->version_max);
  if (prefix.version_min > prefix.version_max || highest < prefix.version_min ||
      highest < settings_->version_min) {
    return End(RefuseReason::kVersion, "no common protocol version: the dialer speaks " +
                                           Range(prefix.version_min, prefix.version_max) +
                                           ", the listener " +
                                           Range(settings_->version_min, settings_->version_max));
  }
  if (prefix.bytes < sizeof(Hello) || prefix.bytes > kMaxMessageBytes) {
    return End(RefuseReason::kProtocol, "Hello has " + std::to_string(prefix.bytes) + " bytes; " +
                                            Range(sizeof(Hello), kMaxMessageBytes) +
                                            " are possible");
  }
  message_bytes_ = prefix.bytes;
}

void Handshake::OnMessage(uint64_t now_ns) {
  if (Received<Prefix>().type == Type::kRefuse) return OnRefuse();
  switch (expected_) {
    case Type::kHello: return OnHello(now_ns);
    case Type::kReply: return OnReply();
    case Type::kProof: return OnProof();
    default: return OnAccept();
  }
}

template <typename Message>
Message Handshake::Received() const {
  Message message;
  std::memcpy(&message, in_.data(), sizeof(message));
  return message;
}

void Handshake::Remember(std::span<const std::byte> message) {
  SLUICE_CHECK(message.size() <= transcript_.size() - transcript_bytes_,
               "the transcript holds one message of each type");
  std::memcpy(&transcript_[transcript_bytes_], message.data(), message.size());
  transcript_bytes_ += message.size();
}

void Handshake::Queue(std::span<const std::byte> message) {
  SLUICE_CHECK(message.size() <= out_.size() - out_bytes_,
               "a message and a Refuse fit into the output");
  std::memcpy(&out_[out_bytes_], message.data(), message.size());
  out_bytes_ += message.size();
}

template <typename Message>
void Handshake::SetPrefix(Message& message, Type type) const {
  message.prefix = {kMagic, type, sizeof(Message), settings_->version_min, settings_->version_max};
}

// Every proof is the last field of its message and covers all that went before, on both sides.
template <typename Message>
bool Handshake::SendProven(Message& message, const char* label) {
  const auto bytes = BytesOf(message);
  if (settings_->key != nullptr) {
    const auto mac = settings_->key->Compute(label,
                                             {std::span(transcript_).first(transcript_bytes_),
                                              bytes.first(sizeof(Message) - kMacBytes)});
    if (!mac) {
      End(RefuseReason::kBusy, mac.error().message);
      return false;
    }
    std::copy(mac->begin(), mac->end(), message.mac);
  }
  Remember(bytes);
  Queue(bytes);
  return true;
}

template <typename Message>
bool Handshake::VerifyProven(const Message& message, const char* label) {
  Mac due{};  // Without authentication: zero.
  const auto bytes = BytesOf(message);
  if (settings_->key != nullptr) {
    const auto mac = settings_->key->Compute(label,
                                             {std::span(transcript_).first(transcript_bytes_),
                                              bytes.first(sizeof(Message) - kMacBytes)});
    if (!mac) {
      End(RefuseReason::kBusy, mac.error().message);
      return false;
    }
    due = *mac;
  }
  if (!SameMac(due, message.mac)) {
    End(RefuseReason::kBadProof, std::string("the ") + (dialer_ ? "listener" : "dialer") +
                                     " does not hold the cluster key of the " +
                                     (dialer_ ? "dialer" : "listener") +
                                     "; both daemons must read the same key file");
    return false;
  }
  Remember(bytes);
  return true;
}

// --- the messages, in their order ---

void Handshake::SendHello() {
  Hello hello{};
  SetPrefix(hello, Type::kHello);
  hello.instance = settings_->instance;
  std::copy(nonce_.begin(), nonce_.end(), hello.nonce);
  hello.authentication = ModeOf(*settings_);
  hello.features_offered = settings_->features_offered;
  hello.features_required = settings_->features_required;
  hello.lane = wish_.lane;
  hello.listen_port = settings_->listen_port;
  hello.resume_session = wish_.resume_session;
  hello.path_epoch = wish_.path_epoch;
  hello.limits = WireLimits(settings_->limits);
  CopyText(hello.name, settings_->name);
  Remember(BytesOf(hello));
  Queue(BytesOf(hello));
}

void Handshake::OnHello(uint64_t now_ns) {
  const auto hello = Received<Hello>();
  Remember(std::span(in_).first(in_bytes_));
  if (!CheckAuthentication(hello.authentication)) return;
  if (!TakePeer(hello.instance, hello.listen_port, hello.limits, hello.name)) return;
  if (hello.lane >= kMaxLanes) {
    return End(RefuseReason::kProtocol,
               "lane " + std::to_string(hello.lane) + " is not below " + std::to_string(kMaxLanes));
  }
  if ((hello.resume_session == 0) != (hello.path_epoch == 0)) {
    return End(RefuseReason::kProtocol,
               "a path epoch goes with a session to resume, and only with one");
  }
  const uint32_t features = hello.features_offered & settings_->features_offered;
  const uint32_t required = hello.features_required | settings_->features_required;
  if ((required & ~features) != 0) {
    return End(RefuseReason::kFeatures, FeaturesText(required & ~features));
  }
  peer_.lane = hello.lane;
  peer_.resume_session = hello.resume_session;
  peer_.path_epoch = hello.path_epoch;
  const auto version = std::min(hello.prefix.version_max, settings_->version_max);
  SendReply(version, features, now_ns);
}

void Handshake::SendReply(uint16_t version, uint32_t features, uint64_t now_ns) {
  Reply reply{};
  SetPrefix(reply, Type::kReply);
  reply.instance = settings_->instance;
  std::copy(nonce_.begin(), nonce_.end(), reply.nonce);
  reply.authentication = ModeOf(*settings_);
  reply.features = parameters_.features = features;
  reply.version = parameters_.version = version;
  reply.listen_port = settings_->listen_port;
  reply.limits = WireLimits(settings_->limits);
  CopyText(reply.name, settings_->name);
  if (SendProven(reply, kReplyLabel)) Expect(Type::kProof, now_ns);
}

void Handshake::OnReply() {
  const auto reply = Received<Reply>();
  if (!CheckAuthentication(reply.authentication) || !VerifyProven(reply, kReplyLabel)) return;
  if (!TakePeer(reply.instance, reply.listen_port, reply.limits, reply.name)) return;
  if (reply.version < settings_->version_min || reply.version > settings_->version_max) {
    return End(RefuseReason::kVersion, "the listener chose protocol version " +
                                           std::to_string(reply.version) + ", the dialer speaks " +
                                           Range(settings_->version_min, settings_->version_max));
  }
  if ((reply.features & ~settings_->features_offered) != 0 ||
      (settings_->features_required & ~reply.features) != 0) {
    return End(RefuseReason::kFeatures,
               FeaturesText(reply.features ^ settings_->features_required));
  }
  if (reply.instance == settings_->instance)
    return End(RefuseReason::kSelf, "the daemon reached itself");
  peer_.lane = wish_.lane;
  parameters_.version = reply.version;
  parameters_.features = reply.features;
  phase_ = Phase::kDeciding;
}

void Handshake::Proceed(uint64_t now_ns) {
  SLUICE_CHECK(dialer_ && phase_ == Phase::kDeciding,
               "the dialer goes on once the listener has proven itself");
  Proof proof{};
  SetPrefix(proof, Type::kProof);
  phase_ = Phase::kExchanging;
  if (SendProven(proof, kProofLabel)) Expect(Type::kAccept, now_ns);
}

void Handshake::OnProof() {
  if (!VerifyProven(Received<Proof>(), kProofLabel)) return;
  if (peer_.instance == settings_->instance)
    return End(RefuseReason::kSelf, "the daemon reached itself");
  phase_ = Phase::kDeciding;
}

void Handshake::Grant(const Decision& decision) {
  SLUICE_CHECK(!dialer_ && phase_ == Phase::kDeciding,
               "the listener grants what has proven itself");
  SLUICE_CHECK(decision.session != 0 && decision.path_epoch != 0,
               "a session and its epochs start at one");
  Accept accept{};
  SetPrefix(accept, Type::kAccept);
  accept.session = parameters_.session = decision.session;
  accept.path_epoch = parameters_.path_epoch = decision.path_epoch;
  accept.resumed = decision.resumed ? 1 : 0;
  parameters_.resumed = decision.resumed;
  if (SendProven(accept, kAcceptLabel)) phase_ = Phase::kDone;
}

void Handshake::OnAccept() {
  const auto accept = Received<Accept>();
  if (!VerifyProven(accept, kAcceptLabel)) return;
  const bool resumed = accept.resumed == 1;
  const bool sound = resumed ? accept.session == wish_.resume_session &&
                                   peer_.instance == wish_.resume_instance &&
                                   accept.path_epoch >= wish_.path_epoch
                             : accept.resumed == 0 && accept.path_epoch == 1 &&
                                   accept.session != wish_.resume_session;
  if (!sound || accept.session == 0) {
    return End(RefuseReason::kProtocol, "the listener accepts another session than was asked for");
  }
  parameters_.session = accept.session;
  parameters_.path_epoch = accept.path_epoch;
  parameters_.resumed = resumed;
  phase_ = Phase::kDone;
}

void Handshake::Reject(RefuseReason reason, const std::string& text) {
  if (phase_ != Phase::kDone && phase_ != Phase::kFailed) End(reason, text);
}

void Handshake::Abandon(const std::string& text) {
  End(RefuseReason::kBusy, text, false);
  failure_.code = ErrorCode::kUnavailable;
}

void Handshake::OnRefuse() {
  const auto refuse = Received<Refuse>();
  failure_.reason = refuse.reason;
  failure_.code = CodeOf(refuse.reason);
  failure_.definite = IsDefinite(refuse.reason);
  failure_.by_peer = true;
  failure_.text = "the peer refuses: " + Printable(refuse.text);
  if (refuse.reason == RefuseReason::kVersion) {  // Its numbers, whatever its sentence says.
    failure_.text = "no common protocol version: this daemon speaks " +
                    Range(settings_->version_min, settings_->version_max) + ", the peer " +
                    Range(refuse.prefix.version_min, refuse.prefix.version_max);
  }
  phase_ = Phase::kFailed;
}

// --- shared ---

bool Handshake::CheckAuthentication(Authentication theirs) {
  if (theirs == ModeOf(*settings_)) return true;
  const char* other = dialer_ ? "listener" : "dialer";
  const char* self = dialer_ ? "dialer" : "listener";
  if (settings_->key == nullptr) {
    End(RefuseReason::kAuthentication,
        std::string("the ") + other + " wants proof of a cluster key, the " + self +
            " runs with authentication off; give both the same key file");
  } else if (theirs == Authentication::kNone) {
    End(RefuseReason::kAuthentication,
        std::string("the ") + self + " wants proof of the cluster key, the " + other +
            " runs with authentication off; give both the same key file");
  } else {
    End(RefuseReason::kAuthentication,
        std::string("the ") + other + " uses an unknown kind of authentication");
  }
  return false;
}

bool Handshake::TakePeer(uint64_t instance, uint16_t listen_port, const Limits& limits,
                         const char (&name)[kNameBytes]) {
  if (instance == 0 || !Within(limits.receive_depth, kMinReceiveDepth, kMaxReceiveDepth) ||
      !Within(limits.receive_bytes, kMinReceiveBytes, kMaxReceiveBytes) ||
      !Within(limits.message_window, kMinMessageWindow, kMaxMessageWindow)) {
    End(RefuseReason::kProtocol, "the instance id or a limit of the " +
                                     std::string(dialer_ ? "listener" : "dialer") +
                                     " is out of range");
    return false;
  }
  peer_.instance = parameters_.peer_instance = instance;
  peer_.listen_port = listen_port;
  std::memcpy(peer_name_, name, sizeof(peer_name_));
  parameters_.local_instance = settings_->instance;
  parameters_.peer_receive_depth = limits.receive_depth;
  parameters_.peer_receive_bytes = limits.receive_bytes;
  parameters_.peer_message_window = limits.message_window;
  return true;
}

SessionParameters Handshake::Parameters() const {
  SLUICE_CHECK(phase_ == Phase::kDone, "parameters hold once both ends agreed");
  SessionParameters parameters = parameters_;
  parameters.peer_name = Printable(peer_name_);
  return parameters;
}

std::string Handshake::PeerName() const { return Printable(peer_name_); }

void Handshake::End(RefuseReason reason, const std::string& text, bool tell_peer) {
  failure_ = {reason, CodeOf(reason), IsDefinite(reason), false, text};
  phase_ = Phase::kFailed;
  if (!tell_peer) return;
  Refuse refuse{};
  SetPrefix(refuse, Type::kRefuse);
  refuse.reason = reason;
  CopyText(refuse.text, text);
  Queue(BytesOf(refuse));
}

}  // namespace sluice::handshake
