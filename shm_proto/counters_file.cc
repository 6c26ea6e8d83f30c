// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/counters_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

namespace sluice {
namespace {

std::string BootId() {
  char text[40] = "";
  const Fd fd(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return "";
  const ssize_t got = read(fd.get(), text, sizeof(text) - 1);
  const std::string id(text, got > 0 ? static_cast<size_t>(got) : 0);
  return id.substr(0, id.find('\n'));
}

int64_t UnixMs() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);  // For people to read.
  return static_cast<int64_t>(now.tv_sec) * 1'000 + now.tv_nsec / 1'000'000;
}

// Fills the whole field: no byte of an earlier text stays, and the last is always zero.
template <size_t kBytes>
void Put(char (&field)[kBytes], std::string_view text) {
  const size_t length = std::min(text.size(), kBytes - 1);
  std::memcpy(field, text.data(), length);
  std::memset(field + length, 0, kBytes - length);
}

template <size_t kBytes>
std::string Text(const char (&field)[kBytes]) {
  return std::string(field, strnlen(field, kBytes));
}

// Marks an entry as being written; EndWrite() makes it whole again. Together with Whole() on the
// reader's side this is a seqlock.
void BeginWrite(std::atomic<uint32_t>& sequence) {
  sequence.store(sequence.load(std::memory_order_relaxed) | 1, std::memory_order_relaxed);
  // Orders the mark before the fields; pairs with the acquire fence in Whole().
  std::atomic_thread_fence(std::memory_order_release);
}
void EndWrite(std::atomic<uint32_t>& sequence) {
  // Orders the fields before the new number; pairs with the acquire load in the readers.
  sequence.store(sequence.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}
// After copying an entry whose sequence was `before`: whether the copy is of one piece.
bool Whole(const std::atomic<uint32_t>& sequence, uint32_t before) {
  std::atomic_thread_fence(
      std::memory_order_acquire);  // Pairs with the release fence in BeginWrite().
  return (before & 1) == 0 && sequence.load(std::memory_order_relaxed) == before;
}

struct Unmapper {
  void operator()(const CountersLayout* layout) const {
    munmap(const_cast<CountersLayout*>(layout), sizeof(CountersLayout));
  }
};
using Mapping = std::unique_ptr<const CountersLayout, Unmapper>;

Result<Mapping> Map(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return FailErrno("cannot open the counters file " + path);
  struct stat status;
  if (fstat(fd.get(), &status) != 0) return FailErrno("cannot look at the counters file " + path);
  if (!S_ISREG(status.st_mode) || status.st_size != static_cast<off_t>(sizeof(CountersLayout))) {
    return Fail(ErrorCode::kVersion, path + " is not a counters file of this version");
  }
  void* address = mmap(nullptr, sizeof(CountersLayout), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) return FailErrno("cannot map the counters file " + path);
  Mapping layout(static_cast<const CountersLayout*>(address));
  if (layout->magic != kCountersMagic || layout->version != kCountersVersion) {
    return Fail(ErrorCode::kVersion, path + " is not a counters file of this version");
  }
  return layout;
}

uint64_t Age(uint64_t then_ns, uint64_t now_ns) { return now_ns > then_ns ? now_ns - then_ns : 0; }

void ReadErrors(const CountersLayout& layout, CountersImage& image) {
  const size_t count = std::min<size_t>(layout.error_count.load(std::memory_order_acquire),
                                        kMaxDistinctErrors);
  for (size_t i = 0; i < count; ++i) {
    const ErrorEntry& entry = layout.errors[i];
    const uint32_t before = entry.sequence.load(
        std::memory_order_acquire);  // Pairs with EndWrite().
    CountersImage::Error error{entry.level, entry.count, entry.first_unix_ms, entry.last_unix_ms,
                               Text(entry.text)};
    if (Whole(entry.sequence, before)) image.errors.push_back(std::move(error));
  }
  image.errors_dropped = layout.errors_dropped.load(std::memory_order_relaxed);
}

void ReadEvents(const CountersLayout& layout, CountersImage& image) {
  const uint64_t end = layout.event_count.load(std::memory_order_acquire);
  for (uint64_t n = end > kMaxEvents ? end - kMaxEvents : 0; n < end; ++n) {
    const EventEntry& entry = layout.events[n % kMaxEvents];
    const uint32_t before = entry.sequence.load(
        std::memory_order_acquire);  // Pairs with EndWrite().
    CountersImage::Event event{entry.level, entry.unix_ms, Text(entry.text)};
    if (Whole(entry.sequence, before)) image.events.push_back(std::move(event));
  }
}

}  // namespace

Result<CountersWriter> CountersWriter::Create(const std::string& path, uint32_t mode,
                                              uint64_t instance) {
  const std::string fresh = path + ".new";
  if (unlink(fresh.c_str()) != 0 && errno != ENOENT) return FailErrno("cannot remove " + fresh);
  const Fd fd(open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return FailErrno("cannot make the counters file " + fresh);
  // Allocated at once: a full file system is an error here, not a signal later.
  if (const int error = posix_fallocate(fd.get(), 0, sizeof(CountersLayout)); error != 0) {
    unlink(fresh.c_str());
    return FailErrno("no room for the counters file " + fresh, error);
  }
  void* address = mmap(nullptr, sizeof(CountersLayout), PROT_READ | PROT_WRITE, MAP_SHARED,
                       fd.get(), 0);
  if (address == MAP_FAILED) return FailErrno("cannot map the counters file " + fresh);
  auto* layout = new (address) CountersLayout{};
  CountersWriter writer(layout);
  layout->magic = kCountersMagic;
  layout->version = kCountersVersion;
  layout->bytes = sizeof(CountersLayout);
  layout->instance = instance;
  layout->process_id = getpid();
  layout->started_unix_ms = UnixMs();
  Put(layout->boot_id, BootId());
  if (fchmod(fd.get(), mode) != 0) return FailErrno("cannot set the mode of " + fresh);
  if (rename(path.c_str(), (path + ".previous").c_str()) != 0 && errno != ENOENT) {
    return FailErrno("cannot keep the earlier counters file " + path);
  }
  if (rename(fresh.c_str(), path.c_str()) != 0)
    return FailErrno("cannot name the counters file " + path);
  return writer;
}

CountersWriter::CountersWriter(CountersWriter&& other) noexcept
    : layout_(std::exchange(other.layout_, nullptr)),
      counter_names_(std::move(other.counter_names_)),
      error_kinds_(std::move(other.error_kinds_)),
      error_counts_(std::move(other.error_counts_)) {}

CountersWriter::~CountersWriter() {
  if (layout_ != nullptr) munmap(layout_, sizeof(CountersLayout));
}

void CountersWriter::SetCounter(std::string_view name, uint64_t value) {
  const auto found = std::ranges::find(counter_names_, name);
  const auto index = static_cast<size_t>(found - counter_names_.begin());
  if (found == counter_names_.end()) {
    if (index == kMaxCounters) return;
    counter_names_.emplace_back(name);
    Put(layout_->counters[index].name, name);
  }
  layout_->counters[index].value.store(value, std::memory_order_relaxed);
  // Publishes the name; pairs with the acquire load in ReadCounters().
  layout_->counter_count.store(static_cast<uint32_t>(counter_names_.size()),
                               std::memory_order_release);
}

void CountersWriter::AddError(uint32_t level, std::string_view kind, std::string_view text,
                              int64_t unix_ms) {
  const auto found = std::ranges::find(error_kinds_, kind);
  const auto index = static_cast<size_t>(found - error_kinds_.begin());
  const bool is_new = found == error_kinds_.end();
  if (is_new && index == kMaxDistinctErrors) {
    layout_->errors_dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (is_new) {
    error_kinds_.emplace_back(kind);
    error_counts_.push_back(0);
  }
  ErrorEntry& entry = layout_->errors[index];
  BeginWrite(entry.sequence);
  entry.level = level;
  entry.count = ++error_counts_[index];
  if (is_new) entry.first_unix_ms = unix_ms;
  entry.last_unix_ms = unix_ms;
  Put(entry.text, text);
  EndWrite(entry.sequence);
  // Publishes a new entry; pairs with the acquire load in ReadErrors().
  layout_->error_count.store(static_cast<uint32_t>(error_kinds_.size()), std::memory_order_release);
}

void CountersWriter::AddEvent(uint32_t level, std::string_view text, int64_t unix_ms) {
  const uint64_t number = layout_->event_count.load(std::memory_order_relaxed);
  EventEntry& entry = layout_->events[number % kMaxEvents];
  BeginWrite(entry.sequence);
  entry.level = level;
  entry.unix_ms = unix_ms;
  Put(entry.text, text);
  EndWrite(entry.sequence);
  layout_->event_count.store(number + 1, std::memory_order_release);  // Pairs with ReadEvents().
}

Result<CountersImage> ReadCounters(const std::string& path, uint64_t now_ns) {
  auto mapped = Map(path);
  if (!mapped) return std::unexpected(mapped.error());
  const CountersLayout& layout = **mapped;
  CountersImage image;
  image.instance = layout.instance;
  image.process_id = layout.process_id;
  image.started_unix_ms = layout.started_unix_ms;
  image.same_boot = Text(layout.boot_id) == BootId();
  image.heartbeat_age_ns = Age(layout.heartbeat_ns.load(std::memory_order_relaxed), now_ns);
  image.io_heartbeat_age_ns = Age(layout.io_heartbeat_ns.load(std::memory_order_relaxed), now_ns);
  image.stopped = layout.stopped.load(std::memory_order_relaxed) != 0;
  const size_t count = std::min<size_t>(layout.counter_count.load(std::memory_order_acquire),
                                        kMaxCounters);
  for (size_t i = 0; i < count; ++i) {
    image.counters.push_back(
        {Text(layout.counters[i].name), layout.counters[i].value.load(std::memory_order_relaxed)});
  }
  ReadErrors(layout, image);
  ReadEvents(layout, image);
  return image;
}

}  // namespace sluice
