// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/packet/header.h"

#include <algorithm>

#include "p4_scheduler/packet/bytes.h"
#include "p4_scheduler/packet/checksum.h"
#include "shm_proto/base/check.h"

namespace sluice::rain {
namespace {

bool MayHaveFlags(const Header& header) {
  switch (header.kind) {
    case Kind::kDispatch:
      if ((header.flags & ~(kQueued | kPrewritten)) != 0) return false;
      // Only what waited was written beforehand, and only large payloads are.
      return (header.flags & kPrewritten) == 0 ||
             ((header.flags & kQueued) != 0 && IsLarge(header.size));
    case Kind::kProbe:
    case Kind::kReset: return (header.flags & ~kAnswer) == 0;
    case Kind::kTask:
    case Kind::kToken:
    case Kind::kReply:
    case Kind::kReject:
    case Kind::kAffine: return header.flags == 0;
  }
  return false;
}

bool MayHaveCode(const Header& header) {
  if (header.kind == Kind::kReject) {
    return header.code >= static_cast<uint8_t>(RejectReason::kQueueFull) &&
           header.code <= static_cast<uint8_t>(RejectReason::kTokensFull);
  }
  if (header.kind == Kind::kReset) {
    return header.code != 0 && (header.code & ~(kResetSlice | kResetMember)) == 0;
  }
  return header.code == 0;
}

// Kinds that speak of no request, and a REJECT of a token.
bool IsWithoutRequest(const Header& header) {
  return header.kind == Kind::kToken || header.kind == Kind::kProbe ||
         header.kind == Kind::kReset ||
         (header.kind == Kind::kReject &&
          header.code == static_cast<uint8_t>(RejectReason::kTokensFull));
}

bool MayHaveFragments(const Header& header) {
  const uint8_t index = header.fragment, count = header.fragments;
  if (IsWithoutRequest(header)) return index == 0 && count == 0;
  switch (header.kind) {
    case Kind::kTask:
      // The count of a small task is not kept in the switch's queue, so it has to be 1.
      return index == 0 && (IsLarge(header.size) ? count >= 1 : count == 1);
    case Kind::kDispatch:
      // Written beforehand: 0, the slot has the count.
      if ((header.flags & kPrewritten) != 0) return index == 0 && count == 0;
      return index == 0 && (IsLarge(header.size) ? count >= 1 : count == 1);
    case Kind::kAffine: return index >= 1 && index < count;
    case Kind::kReply:
    case Kind::kReject: return index < count;
    default: return false;
  }
}

}  // namespace

const char* Name(Malformed reason) {
  switch (reason) {
    case Malformed::kNone: return "none";
    case Malformed::kNotRain: return "not_rain";
    case Malformed::kTruncated: return "truncated";
    case Malformed::kIpv4: return "ipv4";
    case Malformed::kVersion: return "version";
    case Malformed::kKind: return "kind";
    case Malformed::kFlags: return "flags";
    case Malformed::kCode: return "code";
    case Malformed::kSize: return "size";
    case Malformed::kFragment: return "fragment";
    case Malformed::kLength: return "length";
    case Malformed::kCount_: break;
  }
  return "unknown";
}

Malformed ValidateHeader(const Header& header) {
  if (header.kind < Kind::kTask || header.kind > Kind::kReset) return Malformed::kKind;
  if (header.size > (IsWithoutRequest(header) ? 0 : kMaxPayloadBytes)) return Malformed::kSize;
  if (!MayHaveFlags(header)) return Malformed::kFlags;
  if (!MayHaveCode(header)) return Malformed::kCode;
  if (!MayHaveFragments(header)) return Malformed::kFragment;
  return Malformed::kNone;
}

Malformed DecodeHeader(std::span<const std::byte, kHeaderBytes> bytes, Header& header) {
  const std::byte* from = bytes.data();
  if (LoadBigEndian<uint8_t>(from) != kVersion) return Malformed::kVersion;
  header.kind = static_cast<Kind>(from[1]);
  header.flags = LoadBigEndian<uint8_t>(from + 2);
  header.code = LoadBigEndian<uint8_t>(from + 3);
  header.type = LoadBigEndian<uint8_t>(from + 4);
  header.slice = LoadBigEndian<uint8_t>(from + 5);
  header.fragment = LoadBigEndian<uint8_t>(from + 6);
  header.fragments = LoadBigEndian<uint8_t>(from + 7);
  header.client = LoadBigEndian<uint16_t>(from + 8);
  header.size = LoadBigEndian<uint16_t>(from + 10);
  header.request = LoadBigEndian<uint32_t>(from + 12);
  header.epoch = LoadBigEndian<uint16_t>(from + 16);
  header.member = LoadBigEndian<uint16_t>(from + 18);
  header.ticket = LoadBigEndian<uint32_t>(from + 20);
  header.queue_tasks = LoadBigEndian<uint32_t>(from + 24);
  header.switch_ns = LoadBigEndian<uint32_t>(from + 28);
  std::copy_n(from + 32, kDataBytes, header.data.begin());
  return ValidateHeader(header);
}

void EncodeHeader(const Header& header, std::span<std::byte, kHeaderBytes> bytes) {
  std::byte* to = bytes.data();
  StoreBigEndian<uint8_t>(to, kVersion);
  StoreBigEndian<uint8_t>(to + 1, static_cast<uint8_t>(header.kind));
  StoreBigEndian<uint8_t>(to + 2, header.flags);
  StoreBigEndian<uint8_t>(to + 3, header.code);
  StoreBigEndian<uint8_t>(to + 4, header.type);
  StoreBigEndian<uint8_t>(to + 5, header.slice);
  StoreBigEndian<uint8_t>(to + 6, header.fragment);
  StoreBigEndian<uint8_t>(to + 7, header.fragments);
  StoreBigEndian<uint16_t>(to + 8, header.client);
  StoreBigEndian<uint16_t>(to + 10, header.size);
  StoreBigEndian<uint32_t>(to + 12, header.request);
  StoreBigEndian<uint16_t>(to + 16, header.epoch);
  StoreBigEndian<uint16_t>(to + 18, header.member);
  StoreBigEndian<uint32_t>(to + 20, header.ticket);
  StoreBigEndian<uint32_t>(to + 24, header.queue_tasks);
  StoreBigEndian<uint32_t>(to + 28, header.switch_ns);
  std::copy_n(header.data.begin(), kDataBytes, to + 32);
}

PayloadDigest DigestOf(std::span<const std::byte> payload) {
  return {.crc32c = Crc32c(payload), .bytes = static_cast<uint32_t>(payload.size())};
}

PayloadDigest DigestIn(const Header& header) {
  return {.crc32c = LoadBigEndian<uint32_t>(header.data.data()),
          .bytes = LoadBigEndian<uint32_t>(header.data.data() + 4)};
}

void SetPayload(Header& header, std::span<const std::byte> payload) {
  SLUICE_CHECK(payload.size() <= kMaxPayloadBytes, "a payload fits one RDMA packet");
  header.size = static_cast<uint16_t>(payload.size());
  header.data = {};
  if (!IsLarge(payload.size())) {
    std::ranges::copy(payload, header.data.begin());
    return;
  }
  const PayloadDigest digest = DigestOf(payload);
  StoreBigEndian<uint32_t>(header.data.data(), digest.crc32c);
  StoreBigEndian<uint32_t>(header.data.data() + 4, digest.bytes);
}

bool DescribesSameTask(const Header& descriptor, const Header& slot) {
  return descriptor.type == slot.type && descriptor.slice == slot.slice &&
         descriptor.client == slot.client && descriptor.size == slot.size &&
         descriptor.request == slot.request && descriptor.ticket == slot.ticket &&
         descriptor.data == slot.data;
}

}  // namespace sluice::rain
