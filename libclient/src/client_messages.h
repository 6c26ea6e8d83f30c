// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "shm_proto/control.h"

// Control messages to and from bytes.
namespace sluice::client {

template <typename Message>
std::vector<std::byte> Pack(Message message, control::Type type, uint32_t request) {
  message.header.magic = control::kMagic;
  message.header.type = type;
  message.header.bytes = static_cast<uint16_t>(sizeof(message));
  message.header.request = request;
  std::vector<std::byte> packet(sizeof(message));
  std::memcpy(packet.data(), &message, sizeof(message));
  return packet;
}

// A text field of a message, whether or not the other side ended it.
template <size_t kBytes>
std::string Text(const char (&field)[kBytes]) {
  return std::string(field, strnlen(field, kBytes));
}

}  // namespace sluice::client
