// SPDX-License-Identifier: Apache-2.0
#include "bench/net/workload.h"

#include <charconv>

namespace sluice::bench {

Requests::Requests(const RunOptions& options)
    : workload_(options.workload),
      started_ns_(options.workload.outstanding),
      cpu_s_at_start_(CpuSeconds()) {
  const uint64_t now_ns = NowNs();
  measure_from_ns_ = now_ns + static_cast<uint64_t>(options.warm_up_seconds * 1e9);
  end_ns_ = measure_from_ns_ + static_cast<uint64_t>(options.seconds * 1e9);
  for (uint32_t slot = workload_.outstanding; slot-- > 0;) {
    idle_.push_back(slot);
  }
}

bool Requests::Begin(uint64_t now_ns, MessageHeader& header) {
  if (idle_.empty() || now_ns >= end_ns_) {
    return false;
  }
  header = {
      .bytes = workload_.request_bytes, .reply_bytes = workload_.reply_bytes, .slot = idle_.back()};
  idle_.pop_back();
  started_ns_[header.slot] = now_ns;
  return true;
}

bool Requests::End(std::span<const std::byte> reply, uint64_t now_ns) {
  MessageHeader header;
  if (reply.size() < sizeof(header)) {
    return false;
  }
  std::memcpy(&header, reply.data(), sizeof(header));
  if (header.slot >= started_ns_.size() || started_ns_[header.slot] == 0 ||
      header.bytes != workload_.reply_bytes) {
    return false;
  }
  if (now_ns >= measure_from_ns_ && now_ns < end_ns_) {
    if (first_ns_ == 0) {
      first_ns_ = now_ns;
    } else {
      latency_.Add(now_ns - started_ns_[header.slot]);
    }
    last_ns_ = now_ns;
  }
  ++all_operations_;
  started_ns_[header.slot] = 0;
  idle_.push_back(static_cast<uint32_t>(header.slot));
  return true;
}

Requests::Result Requests::Finish() const {
  Result result;
  result.operations = latency_.count();
  result.seconds = static_cast<double>(last_ns_ - first_ns_) / 1e9;
  result.all_operations = all_operations_;
  result.bytes = result.operations * (workload_.request_bytes + workload_.reply_bytes);
  result.cpu_s = CpuSeconds() - cpu_s_at_start_;
  result.latency = &latency_;
  return result;
}

HostPort Split(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return {address};
  }
  HostPort result{address.substr(0, colon)};
  std::from_chars(address.data() + colon + 1, address.data() + address.size(), result.port);
  return result;
}

}  // namespace sluice::bench
