// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sluice/sluice.h>
#include <sys/resource.h>
#include <time.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>

namespace sluice_ps {

inline uint64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// User and system time of this process.
inline double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// An attachment to the node's daemon with one channel. Owns both.
class Endpoint {
 public:
  Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  ~Endpoint() {
    if (channel_ != nullptr) {
      sluice_channel_close(channel_);
    }
    if (client_ != nullptr) {
      sluice_detach(client_);
    }
  }

  // Says on stderr why it failed.
  bool Open(const std::string& socket_path, const std::string& name) {
    sluice_options options{};
    options.size = sizeof(options);
    options.socket_path = socket_path.empty() ? nullptr : socket_path.c_str();
    options.name = name.c_str();
    if (sluice_attach(&options, &client_) != 0 || sluice_channel_open(client_, 0, &channel_) != 0) {
      std::fprintf(stderr, "%s: %s\n", name.c_str(), sluice_error_text());
      return false;
    }
    return true;
  }

  sluice_channel* channel() const { return channel_; }
  size_t max_message_bytes() const { return sluice_max_message_bytes(client_); }

 private:
  sluice_client* client_ = nullptr;
  sluice_channel* channel_ = nullptr;
};

}  // namespace sluice_ps
