// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

// Numbers in network byte order at any address. The caller has checked that the bytes are there.
namespace sluice::rain {

template <typename T>
T LoadBigEndian(const std::byte* from) {
  static_assert(std::is_unsigned_v<T>);
  T value;
  std::memcpy(&value, from, sizeof(value));
  if constexpr (sizeof(T) > 1 && std::endian::native == std::endian::little) {
    value = std::byteswap(value);
  }
  return value;
}

template <typename T>
void StoreBigEndian(std::byte* to, std::type_identity_t<T> value) {
  static_assert(std::is_unsigned_v<T>);
  if constexpr (sizeof(T) > 1 && std::endian::native == std::endian::little) {
    value = std::byteswap(value);
  }
  std::memcpy(to, &value, sizeof(value));
}

}  // namespace sluice::rain
