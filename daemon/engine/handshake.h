// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "daemon/engine/handshake_mac.h"
#include "daemon/engine/handshake_reason.h"
#include "daemon/engine/handshake_wire.h"
#include "daemon/engine/session.h"
#include "shm_proto/base/clock.h"
#include "shm_proto/base/random.h"
#include "shm_proto/base/result.h"

namespace sluice::handshake {

// What this daemon says of itself in every handshake. Outlives the handshakes that use it.
struct Settings {
  uint64_t instance = 0;        // Never 0.
  const MacKey* key = nullptr;  // Null: no authentication, by explicit setting only.
  uint16_t version_min = kVersionMin;
  uint16_t version_max = kVersionMax;
  uint32_t features_offered = 0;
  uint32_t features_required = 0;  // A subset of those offered.
  uint16_t listen_port = 0;
  std::string name;
  LocalLimits limits;
  uint64_t step_timeout_ns = 2 * kNsPerSecond;  // For each message of the peer.
};

// What the dialer wants of a connection.
struct Wish {
  uint16_t lane = 0;
  uint64_t resume_session = 0;   // 0: none.
  uint64_t resume_instance = 0;  // The peer's, in that session.
  uint32_t path_epoch = 0;       // The next of that session.
};

// The other end, as its Hello or Reply says; to be believed once the phase is kDeciding.
struct PeerClaims {
  uint64_t instance = 0;
  uint16_t lane = 0;
  uint16_t listen_port = 0;
  uint64_t resume_session = 0;  // What a dialer wants to resume; 0: nothing.
  uint32_t path_epoch = 0;
};

// What the listener made of it.
struct Decision {
  uint64_t session;  // Never 0.
  uint32_t path_epoch;
  bool resumed;
};

struct Failure {
  RefuseReason reason = RefuseReason::kProtocol;
  ErrorCode code = ErrorCode::kProtocol;
  bool definite = false;  // Trying again changes nothing until somebody changes a setting.
  bool by_peer = false;   // The peer refused us.
  std::string text;       // A sentence; printable whatever the peer sent.
};

enum class Phase : uint8_t {
  kExchanging,  // Read WantedBytes(), write Output().
  kDeciding,  // The peer has proven itself. The owner calls Proceed() (dialer), Grant() (listener)
              // or Reject().
  kDone,    // Write the rest of Output(); then Parameters() hold and the connection carries frames.
  kFailed,  // Write the rest of Output(), a Refuse to the peer, as far as it goes; then close.
};

// One handshake, either end: bytes in, bytes out. No system call, no clock, and before the peer has
// proven itself nothing beyond this object's fixed buffers, whatever the peer sends. Invariant:
// never asks for a byte beyond the message it waits for, so that frames behind the last one stay in
// the socket. Thread: one, the control thread. Borrows: the settings.
class Handshake {
 public:
  static Handshake Dial(const Settings& settings, const Wish& wish, Random& random,
                        uint64_t now_ns);
  static Handshake Listen(const Settings& settings, Random& random, uint64_t now_ns);

  Phase phase() const { return phase_; }
  bool dialer() const { return dialer_; }

  size_t WantedBytes() const;  // How many to read at most; 0: none now.
  void OnBytes(std::span<const std::byte> bytes,
               uint64_t now_ns);  // Requires size <= WantedBytes().
  std::span<const std::byte> Output() const {
    return std::span(out_).subspan(written_, out_bytes_ - written_);
  }
  void OnWritten(size_t bytes);  // Requires bytes <= Output().size().

  // The peer's next message is due by then; a slow trickle of bytes moves it not.
  uint64_t deadline_ns() const { return deadline_ns_; }
  void OnTime(uint64_t now_ns);  // Fails once the deadline has passed.

  void Proceed(uint64_t now_ns);         // Dialer in kDeciding: the connection is wanted.
  void Grant(const Decision& decision);  // Listener in kDeciding.
  void Reject(RefuseReason reason, const std::string& text);  // Any time before the end.

  // The connection is dead: fails without a word, at any time.
  void Abandon(const std::string& text);

  const PeerClaims& peer() const { return peer_; }     // kDeciding and later.
  const Failure& failure() const { return failure_; }  // kFailed.
  std::string PeerName() const;                        // kDeciding and later; printable.
  SessionParameters Parameters() const;                // kDone.

 private:
  Handshake(const Settings& settings, bool dialer, Random& random);
  void SendHello();
  void SendReply(uint16_t version, uint32_t features, uint64_t now_ns);
  void OnPrefix();
  void OnMessage(uint64_t now_ns);
  void OnHello(uint64_t now_ns);
  void OnReply();
  void OnProof();
  void OnAccept();
  void OnRefuse();
  void OnHelloPrefix(const Prefix& prefix);
  bool CheckAuthentication(Authentication theirs);
  bool TakePeer(uint64_t instance, uint16_t listen_port, const Limits& limits,
                const char (&name)[kNameBytes]);
  void Expect(Type type, uint64_t now_ns);
  template <typename Message>
  Message Received() const;
  template <typename Message>
  void SetPrefix(Message& message, Type type) const;
  template <typename Message>
  bool SendProven(Message& message, const char* label);
  template <typename Message>
  bool VerifyProven(const Message& message, const char* label);
  void Remember(std::span<const std::byte> message);
  void Queue(std::span<const std::byte> message);
  void End(RefuseReason reason, const std::string& text, bool tell_peer = true);

  const Settings* settings_;
  bool dialer_;
  Phase phase_ = Phase::kExchanging;
  Type expected_ = Type::kHello;
  uint64_t deadline_ns_ = 0;

  std::array<std::byte, kMaxMessageBytes> in_{};
  size_t in_bytes_ = 0;
  size_t message_bytes_ = sizeof(Prefix);  // Grows to the whole message once its prefix is there.
  std::array<std::byte, kMaxMessageBytes> out_{};
  size_t out_bytes_ = 0;
  size_t written_ = 0;
  // Every message so far, as it went over the wire: what the proofs cover.
  std::array<std::byte, kMaxMessageBytes + sizeof(Reply) + sizeof(Proof) + sizeof(Accept)>
      transcript_{};
  size_t transcript_bytes_ = 0;

  std::array<uint8_t, kNonceBytes> nonce_{};
  Wish wish_;
  PeerClaims peer_;
  char peer_name_[kNameBytes] = {};
  SessionParameters parameters_;
  Failure failure_;
};

}  // namespace sluice::handshake
