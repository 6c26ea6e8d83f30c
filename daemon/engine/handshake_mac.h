// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>

#include "daemon/engine/handshake_wire.h"
#include "shm_proto/base/result.h"

struct evp_mac_ctx_st;  // OpenSSL's EVP_MAC_CTX.

namespace sluice::handshake {

constexpr size_t kMinKeyBytes = 32;
constexpr size_t kMaxKeyBytes = 4096;

using Mac = std::array<uint8_t, kMacBytes>;

// HMAC-SHA256 under the cluster's key.
// Invariant: holds a key of kMinKeyBytes to kMaxKeyBytes, which leaves it only as a MAC and is
// wiped with it. Thread: one, the control thread. Owns: the key and OpenSSL's context.
class MacKey {
 public:
  // kInvalid when the key has a wrong size; kSystem when OpenSSL has no HMAC-SHA256.
  static Result<std::unique_ptr<MacKey>> Create(std::span<const std::byte> key);

  // Over `label`, one zero byte and the parts in order. The label keeps the roles apart: a proof of
  // one role is none of another.
  Result<Mac> Compute(std::string_view label,
                      std::initializer_list<std::span<const std::byte>> parts) const;

 private:
  struct Deleter {
    void operator()(evp_mac_ctx_st* context) const;
  };
  explicit MacKey(evp_mac_ctx_st* keyed) : keyed_(keyed) {}
  std::unique_ptr<evp_mac_ctx_st, Deleter> keyed_;
};

// Takes the same time wherever the two differ.
bool SameMac(std::span<const uint8_t, kMacBytes> a, std::span<const uint8_t, kMacBytes> b);

}  // namespace sluice::handshake
