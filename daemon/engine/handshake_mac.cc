// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/handshake_mac.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

namespace sluice::handshake {

void MacKey::Deleter::operator()(evp_mac_ctx_st* context) const { EVP_MAC_CTX_free(context); }

Result<std::unique_ptr<MacKey>> MacKey::Create(std::span<const std::byte> key) {
  if (key.size() < kMinKeyBytes || key.size() > kMaxKeyBytes) {
    return Fail(ErrorCode::kInvalid, "the cluster key has " + std::to_string(key.size()) +
                                         " bytes; it must have " + std::to_string(kMinKeyBytes) +
                                         " to " + std::to_string(kMaxKeyBytes));
  }
  EVP_MAC* hmac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  EVP_MAC_CTX* context = hmac == nullptr ? nullptr : EVP_MAC_CTX_new(hmac);
  EVP_MAC_free(hmac);  // The context keeps its own reference.
  if (context == nullptr) return Fail(ErrorCode::kSystem, "OpenSSL offers no HMAC");
  std::unique_ptr<MacKey> made(new MacKey(context));
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_end()};
  if (EVP_MAC_init(context, reinterpret_cast<const unsigned char*>(key.data()), key.size(),
                   parameters) != 1) {
    return Fail(ErrorCode::kSystem, "OpenSSL offers no HMAC-SHA256");
  }
  return made;
}

Result<Mac> MacKey::Compute(std::string_view label,
                            std::initializer_list<std::span<const std::byte>> parts) const {
  std::unique_ptr<evp_mac_ctx_st, Deleter> context(EVP_MAC_CTX_dup(keyed_.get()));
  if (context == nullptr) return Fail(ErrorCode::kNoMemory, "OpenSSL cannot copy an HMAC context");
  const unsigned char zero = 0;
  bool ok = EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(label.data()),
                           label.size()) == 1 &&
            EVP_MAC_update(context.get(), &zero, 1) == 1;
  for (const auto part : parts) {
    ok = ok && EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(part.data()),
                              part.size()) == 1;
  }
  Mac mac{};
  size_t bytes = 0;
  ok = ok && EVP_MAC_final(context.get(), mac.data(), &bytes, mac.size()) == 1 &&
       bytes == mac.size();
  if (!ok) return Fail(ErrorCode::kSystem, "OpenSSL failed to compute an HMAC");
  return mac;
}

bool SameMac(std::span<const uint8_t, kMacBytes> a, std::span<const uint8_t, kMacBytes> b) {
  return CRYPTO_memcmp(a.data(), b.data(), kMacBytes) == 0;
}

}  // namespace sluice::handshake
