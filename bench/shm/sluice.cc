// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cerrno>
#include <cstdio>

#include "bench/net/workload.h"
#include "bench/shm/shm.h"
#include "bench/sluice_app.h"

namespace sluice::bench {
namespace {

constexpr int kSendsAtOnce = 32;
constexpr std::array<std::byte, 8> kHead{};

std::string Size(uint32_t bytes) {
  return bytes < 1024 ? std::to_string(bytes) + "B" : std::to_string(bytes / 1024) + "KB";
}

// The application, connected to its own service.
class Loop {
 public:
  explicit Loop(const ShmRun& run) : run_(run), app_(run.spin) {}

  bool Open() {
    return app_.Attach(run_.socket_path) && (run_.cpu < 0 || PinTo(run_.cpu)) &&
           app_.Listen(Split(run_.address).port) && app_.Connect(run_.address, socket_);
  }

  // False: no room, or failed().
  bool Send() {
    const int result = app_.Send(socket_, kHead, run_.bytes);
    failed_ = result != 0 && result != -EAGAIN && !FailSluice("sending");
    return result == 0;
  }

  // The messages that came in, given back at once.
  uint32_t Take(bool blocked = false) {
    uint32_t count = 0;
    for (const sluice_event& event : app_.TakeEvents(events_, blocked)) {
      if (event.type == SLUICE_EVENT_MESSAGE) {
        sluice_free(app_.channel(), event.data);
        ++count;
      } else if (event.type != SLUICE_EVENT_ACCEPTED) {
        std::fprintf(stderr, "sluice-bench: unexpected event %u, error %d\n", event.type,
                     event.error);
        failed_ = true;
      }
    }
    return count;
  }

  bool failed() const { return failed_ || StopRequested(); }
  std::string system() const { return run_.spin ? "sluice spin" : "sluice event"; }

 private:
  const ShmRun& run_;
  SluiceApp app_;
  sluice_socket socket_ = 0;
  Events events_;
  bool failed_ = false;
};

}  // namespace

bool SluiceRoundTrips(const ShmRun& run) {
  Loop loop(run);
  if (!loop.Open()) {
    return false;
  }
  const auto latency = TimeRoundTrips(run.seconds, 1, [&] {
    while (!loop.Send()) {
      loop.Take(true);
      if (loop.failed()) {
        return false;
      }
    }
    while (loop.Take() == 0) {
      if (loop.failed()) {
        return false;
      }
    }
    return true;
  });
  PrintRoundTrips("round_trip_" + Size(run.bytes), loop.system(), latency);
  return !loop.failed();
}

bool SluiceRate(const ShmRun& run) {
  Loop loop(run);
  if (!loop.Open()) {
    return false;
  }
  RateMeter meter(run.seconds);
  uint32_t taken = 0;
  do {
    int sent = 0;
    while (sent < kSendsAtOnce && loop.Send()) {
      ++sent;
    }
    taken = loop.Take(sent < kSendsAtOnce);
  } while (!loop.failed() && meter.Count(taken));
  PrintRate("rate_" + Size(run.bytes), loop.system(), meter, run.bytes);
  return !loop.failed();
}

}  // namespace sluice::bench
