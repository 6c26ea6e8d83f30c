// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/clock.h"
#include "bench/commands.h"
#include "libclient/examples/sluice-ps/latency.h"

// What the network benchmarks do, whatever carries their messages: a client keeps some requests
// outstanding on one connection, the server answers each with as many bytes as it asks for.
// Payloads are neither written nor read beyond their header.
namespace sluice::bench {

struct Workload {
  std::string_view name;
  uint32_t request_bytes;  // At least sizeof(MessageHeader), as all messages.
  uint32_t reply_bytes;
  uint32_t outstanding;
};

inline constexpr std::array<Workload, 6> kWorkloads = {{
    {"echo_32B", 32, 32, 1},
    {"fetch_64B_20KB", 64, 20 * 1024, 16},
    {"rate_32B", 32, 32, 1024},
    {"stream_4KB", 4 * 1024, 32, 64},
    {"stream_64KB", 64 * 1024, 32, 32},
    {"stream_1MB", 1024 * 1024, 32, 8},
}};

inline constexpr uint32_t kMaxMessageBytes = 1024 * 1024;

// At the start of every message.
struct MessageHeader {
  uint32_t bytes;        // Of the whole message.
  uint32_t reply_bytes;  // Wanted; 0 in a reply.
  uint64_t slot;         // Which of the client's outstanding requests this is.
};
static_assert(sizeof(MessageHeader) == 16);

inline double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct RunOptions {
  Workload workload;
  double seconds = 5;
  double warm_up_seconds = 0.5;
};

// The client's side of one workload: which requests are outstanding and how long each took.
// Invariant: a slot is idle or has exactly one request under way.
class Requests {
 public:
  explicit Requests(const RunOptions& options);  // The time starts here.

  bool Running(uint64_t now_ns) const { return now_ns < end_ns_; }
  bool Idle() const { return idle_.size() == started_ns_.size(); }

  // The next request to send; false: all are outstanding, or the time is over.
  bool Begin(uint64_t now_ns, MessageHeader& header);
  void Undo(const MessageHeader& header) { idle_.push_back(static_cast<uint32_t>(header.slot)); }

  // False: no reply of ours.
  bool End(std::span<const std::byte> reply_header, uint64_t now_ns);

  struct Result {
    uint64_t operations = 0;
    double seconds = 0;
    uint64_t all_operations = 0;  // Those of the warming up included.
    uint64_t bytes = 0;
    double cpu_s = 0;  // Of this process, for all_operations.
    const sluice_ps::LatencyHistogram* latency = nullptr;
  };
  Result Finish() const;

 private:
  Workload workload_;
  uint64_t measure_from_ns_;
  uint64_t end_ns_;
  std::vector<uint64_t> started_ns_;
  std::vector<uint32_t> idle_;
  sluice_ps::LatencyHistogram latency_;
  uint64_t first_ns_ = 0;
  uint64_t last_ns_ = 0;
  uint64_t all_operations_ = 0;
  double cpu_s_at_start_;
};

// Where the server is.
struct Endpoint {
  std::string address;      // "host:port"; over Sluice "host:service".
  std::string socket_path;  // Sluice: the daemon's control socket; empty: the library's default.
  bool spin = false;        // Poll without ever sleeping.
  uint32_t sockets = 1;     // Sluice: that the requests take in turn.
};

// One that carries the messages. Both return false after saying on stderr what went wrong; a server
// prints "ready" and runs until a signal.
struct System {
  std::string_view name;
  bool (*serve)(const Endpoint&);
  bool (*request)(const Endpoint&, const RunOptions&, Requests&);
};
extern const System kSluice;
extern const System kTcp;
extern const System kZeroMq;  // Where SLUICE_BENCH_ZEROMQ.
extern const System kGrpc;    // Where SLUICE_BENCH_GRPC.

// "host:port" taken apart; port 0 when there is none.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
HostPort Split(const std::string& address);

}  // namespace sluice::bench
