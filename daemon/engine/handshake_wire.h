// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

// The bytes of the handshake between two daemons: the first bytes on every TCP connection between
// them. Little endian, no padding but what is named. docs/wire-protocol.md describes the same for
// readers without this source.
//
//   dialer                          listener
//   Hello          ---------------->
//                  <----------------  Reply    (version, features and limits are settled; the
//                  listener proves its key)
//   Proof          ---------------->           (the dialer proves its key)
//                  <----------------  Accept   (which session and path this connection is)
//
// Either end may send Refuse in place of its next message and close. After Accept the same
// connection carries frames.
//
// Kept for ever, whatever the version: Prefix, the whole of Refuse, and that a Hello begins with
// the fields of version 1. A later Hello may be longer; an older listener ignores the rest, but the
// proofs cover it.
namespace sluice::handshake {

static_assert(std::endian::native == std::endian::little,
              "wire structs are copied as they lie in memory");

constexpr uint64_t
    kMagic = 0x0a45'4349'554c'530a;  // "\nSLUICE\n": nothing that speaks text sends it.
constexpr uint16_t kVersionMin = 1;  // The oldest protocol this build still speaks.
constexpr uint16_t kVersionMax = 1;
constexpr uint32_t kMaxMessageBytes = 512;
constexpr uint32_t kNonceBytes = 32;
constexpr uint32_t kMacBytes = 32;  // HMAC-SHA256.
constexpr uint32_t kNameBytes = 64;
constexpr uint32_t kTextBytes = 160;
constexpr uint16_t kMaxLanes = 16;

// What a peer may announce about its receives; anything else is a broken peer.
constexpr uint32_t kMinReceiveDepth = 8, kMaxReceiveDepth = 65'536;
constexpr uint32_t kMinReceiveBytes = 512, kMaxReceiveBytes = 1024 * 1024;
constexpr uint32_t kMinMessageWindow = 1, kMaxMessageWindow = 65'536;

enum class Type : uint16_t { kHello = 1, kReply = 2, kProof = 3, kAccept = 4, kRefuse = 5 };

enum class Authentication : uint32_t { kNone = 0, kHmacSha256 = 1 };

// Why one end says no. Numbers are for ever; an unknown one is a plain refusal.
enum class RefuseReason : uint32_t {
  kProtocol = 1,        // A message or field is wrong.
  kVersion = 2,         // No common version; the Prefix names the range of who refuses.
  kFeatures = 3,        // One end requires a feature that the other lacks.
  kAuthentication = 4,  // One end wants proofs and the other sends none.
  kBadProof = 5,        // The keys differ.
  kNotAllowed = 6,      // The address is not in the allow-list.
  kDuplicate = 7,       // Both ends dialled; the other connection is kept. Not an error.
  kShuttingDown = 8,
  kBusy = 9,   // Try again later.
  kSelf = 10,  // The daemon reached itself.
};

struct Prefix {
  uint64_t magic;
  Type type;
  uint16_t bytes;  // Of the whole message, this prefix included.
  uint16_t version_min;
  uint16_t version_max;
};

struct Limits {
  uint32_t receive_depth;
  uint32_t receive_bytes;
  uint32_t message_window;
};

struct Hello {
  Prefix prefix;
  uint64_t instance;  // Of the sender's run; never 0.
  uint8_t nonce[kNonceBytes];
  Authentication authentication;
  uint32_t features_offered;
  uint32_t features_required;
  uint16_t lane;
  uint16_t
      listen_port;  // Where the dialer itself listens, so that it can be dialled back; 0: nowhere.
  uint64_t resume_session;  // 0: none.
  uint32_t path_epoch;      // The next of the session to resume; 0 without one.
  Limits limits;
  char name[kNameBytes];  // For display; zero-terminated.
};

struct Reply {
  Prefix prefix;
  uint64_t instance;
  uint8_t nonce[kNonceBytes];
  Authentication authentication;
  uint32_t features;  // In force: both ends have them.
  uint16_t version;   // In force.
  uint16_t listen_port;
  Limits limits;
  char name[kNameBytes];
  uint8_t mac[kMacBytes];
};

struct Proof {
  Prefix prefix;
  uint8_t mac[kMacBytes];
};

struct Accept {
  Prefix prefix;
  uint64_t session;  // Never 0.
  uint32_t path_epoch;
  uint32_t resumed;  // 1: `session` is the one the dialer wanted to resume.
  uint8_t mac[kMacBytes];
};

struct Refuse {
  Prefix prefix;
  RefuseReason reason;
  char text[kTextBytes];  // Zero-terminated.
  uint32_t unused;
};

static_assert(sizeof(Prefix) == 16 && sizeof(Hello) == 160 && sizeof(Reply) == 176 &&
              sizeof(Proof) == 48 && sizeof(Accept) == 64 && sizeof(Refuse) == 184);
static_assert(std::has_unique_object_representations_v<Hello> &&
                  std::has_unique_object_representations_v<Reply> &&
                  std::has_unique_object_representations_v<Accept> &&
                  std::has_unique_object_representations_v<Refuse>,
              "no unnamed padding goes onto the wire");

}  // namespace sluice::handshake
