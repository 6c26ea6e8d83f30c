// SPDX-License-Identifier: Apache-2.0
#include "libclient/rpc/wire.h"

#include <bit>
#include <cstring>

namespace sluice::rpc {
namespace {

static_assert(std::endian::native == std::endian::little, "the headers are copied as they are");

template <typename Header>
std::optional<Parsed> Take(std::span<const std::byte> message, size_t header_bytes) {
  if (header_bytes < sizeof(Header)) {
    return std::nullopt;
  }
  Header header;
  std::memcpy(&header, message.data(), sizeof(header));
  return Parsed{header, header_bytes};
}

template <typename Header>
void Put(Header& header, Kind kind, std::span<std::byte> room) {
  header.prefix.kind = kind;
  header.prefix.header_bytes = sizeof(header);
  std::memcpy(room.first(sizeof(header)).data(), &header, sizeof(header));
}

bool Plausible(const RequestHeader& header) {
  return header.remaining_us > 0 && header.incomplete_span <= header.sequence;
}

}  // namespace

const Prefix& Parsed::prefix() const {
  return std::visit([](const auto& any) -> const Prefix& { return any.prefix; }, header);
}

std::optional<Parsed> Parse(std::span<const std::byte> message) {
  Prefix prefix;
  if (message.size() < sizeof(prefix)) {
    return std::nullopt;
  }
  std::memcpy(&prefix, message.data(), sizeof(prefix));
  if (prefix.magic != kMagic || prefix.version != kVersion ||
      prefix.header_bytes > message.size()) {
    return std::nullopt;
  }
  switch (prefix.kind) {
    case Kind::kRequest: {
      auto parsed = Take<RequestHeader>(message, prefix.header_bytes);
      return parsed && Plausible(std::get<RequestHeader>(parsed->header)) ? parsed : std::nullopt;
    }
    case Kind::kReply: return Take<ReplyHeader>(message, prefix.header_bytes);
    case Kind::kCancel:
    case Kind::kHello: return Take<ShortHeader>(message, prefix.header_bytes);
  }
  return std::nullopt;
}

void Write(RequestHeader header, std::span<std::byte> room) { Put(header, Kind::kRequest, room); }
void Write(ReplyHeader header, std::span<std::byte> room) { Put(header, Kind::kReply, room); }
void Write(ShortHeader header, std::span<std::byte> room) { Put(header, header.prefix.kind, room); }

}  // namespace sluice::rpc
