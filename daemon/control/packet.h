// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "shm_proto/base/fd.h"
#include "shm_proto/control.h"

// Packets on a SEQPACKET control socket, as they come and go. Nothing here knows a client's state.
namespace sluice::control {

constexpr size_t kMaxPacketFds = 2;  // The most that any message carries.

struct Packet {
  alignas(8) std::array<std::byte, kMaxMessageBytes> bytes;
  size_t size = 0;
  bool truncated = false;      // It was longer than any message; the rest is lost.
  bool fds_truncated = false;  // It carried more descriptors than could be taken (or our limit was
                               // reached).
  std::vector<Fd> fds;  // Whatever it carried; closed with the packet unless somebody takes them.
};

enum class ReceiveStatus : uint8_t { kPacket, kNothing, kHangUp };

// Takes one packet without blocking. Every ancillary message is parsed, so that no descriptor sent
// to us can leak.
ReceiveStatus ReceivePacket(int socket, Packet& packet);

enum class SendStatus : uint8_t { kSent, kFull, kBroken };

SendStatus SendPacket(int socket, std::span<const std::byte> bytes, std::span<const int> fds);

// A message of type T with its header filled in and everything else zero.
template <typename T>
T MakeMessage(Type type, uint32_t request) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kMaxMessageBytes);
  T message;
  std::memset(static_cast<void*>(&message), 0, sizeof(message));  // Padding too: it is sent.
  message.header.magic = kMagic;
  message.header.type = type;
  message.header.bytes = sizeof(T);
  message.header.request = request;
  return message;
}

template <size_t N>
void CopyText(char (&to)[N], std::string_view text) {
  const size_t length = text.size() < N - 1 ? text.size() : N - 1;
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

// The text of a fixed field that another party filled in; false: it is not zero-terminated.
template <size_t N>
bool ReadText(const char (&from)[N], std::string_view& text) {
  const void* end = std::memchr(from, '\0', N);
  if (end == nullptr) return false;
  text = std::string_view(from, static_cast<size_t>(static_cast<const char*>(end) - from));
  return true;
}

}  // namespace sluice::control
