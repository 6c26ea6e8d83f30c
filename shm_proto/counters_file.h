// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shm_proto/base/fd.h"
#include "shm_proto/base/result.h"

// A file that the daemon maps and fills, so that its last state can be read when it hangs or is
// dead: a heartbeat, counters, its distinct warnings and errors, and its last events. Readers only
// read, and take nothing in it for true: every text has an end, every number a bound.
namespace sluice {

constexpr uint64_t kCountersMagic = 0x31544e55'4f435453;  // "STCOUNT1"
constexpr uint32_t kCountersVersion = 1;
constexpr size_t kMaxCounters = 256;
constexpr size_t kMaxDistinctErrors = 128;
constexpr size_t kMaxEvents = 256;

// One entry; its sequence is odd while it is being written.
struct CounterEntry {
  char name[56];  // Zero-terminated; fixed once the entry counts.
  std::atomic<uint64_t> value;
};
struct ErrorEntry {
  std::atomic<uint32_t> sequence;
  uint32_t level;  // 3 warning, 4 error.
  uint64_t count;
  int64_t first_unix_ms;
  int64_t last_unix_ms;
  char text[224];
};
struct EventEntry {
  std::atomic<uint32_t> sequence;
  uint32_t level;
  int64_t unix_ms;
  char text[240];
};

struct CountersLayout {
  uint64_t magic;
  uint32_t version;
  uint32_t bytes;  // sizeof(CountersLayout).
  uint64_t instance;
  int64_t process_id;
  int64_t started_unix_ms;
  char boot_id[40];                    // The heartbeat's clock starts with every boot of the host.
  std::atomic<uint64_t> heartbeat_ns;  // CLOCK_MONOTONIC, by the control thread.
  std::atomic<uint64_t> io_heartbeat_ns;  // When every I/O thread had last answered.
  std::atomic<uint32_t> stopped;          // 1 after a clean end.
  std::atomic<uint32_t> counter_count;
  std::atomic<uint32_t> error_count;
  std::atomic<uint32_t> unused;
  std::atomic<uint64_t> errors_dropped;  // Distinct ones beyond the bound.
  std::atomic<uint64_t> event_count;     // In all; event n stands in slot n % kMaxEvents.
  CounterEntry counters[kMaxCounters];
  ErrorEntry errors[kMaxDistinctErrors];
  EventEntry events[kMaxEvents];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The daemon's end. Heartbeats and counters are one thread's; errors and events may come from any
// thread, but one at a time (the caller holds a lock). Owns: the mapping; the file outlives it.
class CountersWriter {
 public:
  // Makes the file anew, with this mode; one that was there moves to PATH.previous, where readers
  // that have it mapped keep it.
  static Result<CountersWriter> Create(const std::string& path, uint32_t mode, uint64_t instance);
  CountersWriter(CountersWriter&& other) noexcept;
  CountersWriter& operator=(CountersWriter&& other) = delete;
  ~CountersWriter();

  void Beat(uint64_t now_ns) { layout_->heartbeat_ns.store(now_ns, std::memory_order_relaxed); }
  void BeatIo(uint64_t now_ns) {
    layout_->io_heartbeat_ns.store(now_ns, std::memory_order_relaxed);
  }
  void SetCounter(std::string_view name,
                  uint64_t value);  // Names beyond kMaxCounters are left out.
  void MarkStopped() { layout_->stopped.store(1, std::memory_order_relaxed); }

  // `kind` tells apart what counts as the same; `text` is its latest instance.
  void AddError(uint32_t level, std::string_view kind, std::string_view text, int64_t unix_ms);
  void AddEvent(uint32_t level, std::string_view text, int64_t unix_ms);

 private:
  explicit CountersWriter(CountersLayout* layout) : layout_(layout) {}

  CountersLayout* layout_;
  std::vector<std::string> counter_names_;  // The writer's own copy: it never reads the file.
  std::vector<std::string> error_kinds_;
  std::vector<uint64_t> error_counts_;
};

// What a reader finds.
struct CountersImage {
  uint64_t instance = 0;
  int64_t process_id = 0;
  int64_t started_unix_ms = 0;
  bool same_boot = false;  // Else the ages mean nothing.
  uint64_t heartbeat_age_ns = 0;
  uint64_t io_heartbeat_age_ns = 0;
  bool stopped = false;
  struct Counter {
    std::string name;
    uint64_t value;
  };
  struct Error {
    uint32_t level;
    uint64_t count;
    int64_t first_unix_ms, last_unix_ms;
    std::string text;
  };
  struct Event {
    uint32_t level;
    int64_t unix_ms;
    std::string text;
  };
  std::vector<Counter> counters = {};
  std::vector<Error> errors = {};
  uint64_t errors_dropped = 0;
  std::vector<Event> events = {};  // Oldest first.
};

// Reads the file, whether its daemon runs or not. Entries that are being written are left out.
Result<CountersImage> ReadCounters(const std::string& path, uint64_t now_ns);

}  // namespace sluice
