// SPDX-License-Identifier: Apache-2.0
#include "worker.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace sluice_ps {
namespace {

constexpr int kEventsAtOnce = 64;
constexpr int kIdleWaitMs = 100;
constexpr int kBlockedRetryMs = 1;
constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint64_t kNsPerSecond = 1'000'000'000;
constexpr uint64_t kFirstBackoffNs = 10 * kNsPerMs;
constexpr uint64_t kLongestBackoffNs = 500 * kNsPerMs;
constexpr uint64_t kCatchUpTimeoutNs = 30 * kNsPerSecond;
constexpr double kNsPerSecondF = 1e9;

}  // namespace

bool WorkerStats::Good() const {
  const auto exactly_once = [](const OutcomeCounts& counts) {
    return counts.duplicated == 0 && counts.ended() == counts.begun;
  };
  return !gave_up && operations_lost == 0 && sends_lost == 0 && connects_lost == 0 &&
         workload.rows_wrong == 0 && workload.stray_replies == 0 &&
         workload.unordered_replies == 0 && workload.rows_verified > 0 &&
         exactly_once(workload.fetch.outcomes) && exactly_once(workload.push.outcomes) &&
         exactly_once(sends) && exactly_once(connects);
}

Worker::Worker(Endpoint& endpoint, const WorkerOptions& options)
    : endpoint_(endpoint),
      options_(options),
      operations_(options.workload),
      links_(options.servers.size()),
      now_ns_(NowNs()),
      start_ns_(now_ns_) {
  printed_.at_ns = start_ns_;
}

Worker::~Worker() {
  for (Link& link : links_) {
    sluice_free(endpoint_.channel(), link.ready);
  }
}

void Worker::Run(const volatile std::sig_atomic_t& stop) {
  const auto duration_ns = static_cast<uint64_t>(options_.seconds * kNsPerSecondF);
  // Twice: connecting and learning the own rows are not measured.
  for (const bool measured : {false, true}) {
    start_ns_ = now_ns_ = printed_.at_ns = NowNs();
    while (stop == 0 && !stats_.gave_up && (measured || !operations_.CaughtUp()) &&
           (duration_ns == 0 ||
            now_ns_ - start_ns_ < std::max(duration_ns, measured ? 0 : kCatchUpTimeoutNs))) {
      RunOnce(true, kIdleWaitMs);
      if (!options_.quiet && now_ns_ - printed_.at_ns >= kNsPerSecond) {
        PrintProgress();
      }
    }
  }
  stop_ns_ = now_ns_;
  const auto drain_ns = static_cast<uint64_t>(options_.drain_seconds * kNsPerSecondF);
  while (!AllOver() && !stats_.gave_up && now_ns_ - stop_ns_ < drain_ns) {
    RunOnce(false, kIdleWaitMs);
  }
}

void Worker::RunOnce(bool begin_operations, int timeout_ms) {
  now_ns_ = NowNs();
  while (begin_operations && operations_.Begin(now_ns_)) {
  }
  bool blocked = false;
  for (Link& link : links_) {
    if (link.state == LinkState::kDown && now_ns_ >= link.retry_at_ns) {
      Connect(link);
    }
    blocked |= !Pump(link);
  }
  std::array<sluice_event, kEventsAtOnce> events;
  const int count = sluice_wait(endpoint_.channel(), events.data(), kEventsAtOnce,
                                WaitMs(timeout_ms, blocked));
  now_ns_ = NowNs();
  for (int i = 0; i < count; ++i) {
    OnEvent(events[static_cast<size_t>(i)]);
  }
  TrackOutage();
}

int Worker::WaitMs(int timeout_ms, bool blocked) const {
  uint64_t wait_ms = blocked ? kBlockedRetryMs : static_cast<uint64_t>(timeout_ms);
  for (const Link& link : links_) {
    if (link.state == LinkState::kDown) {
      const uint64_t left_ns = link.retry_at_ns > now_ns_ ? link.retry_at_ns - now_ns_ : 0;
      wait_ms = std::min(wait_ms, left_ns / kNsPerMs + 1);
    }
  }
  return static_cast<int>(wait_ms);
}

void Worker::OnEvent(const sluice_event& event) {
  Link* link = LinkOf(event.socket);
  switch (event.type) {
    case SLUICE_EVENT_SENT:
      sends_.End(event.user_data, static_cast<Outcome>(event.outcome));
      if (event.outcome != SLUICE_OK && link != nullptr && link->state == LinkState::kUp) {
        Close(*link);  // A request is missing: only a new connection gets the order right again.
      }
      break;
    case SLUICE_EVENT_MESSAGE:
      OnMessage(event);
      sluice_free(endpoint_.channel(), event.data);
      break;
    case SLUICE_EVENT_CONNECTED:
      if (link != nullptr && link->state == LinkState::kConnecting) {
        OnConnected(*link, event);
      } else {
        connects_.End(0, Outcome::kUnknown);  // Counts as a duplicate: no connect is under way.
      }
      break;
    case SLUICE_EVENT_CLOSED:
      if (link != nullptr) {
        LinkLost(*link);
      }
      break;
    case SLUICE_EVENT_REATTACHED:
      for (Link& down : links_) {
        down.retry_at_ns = 0;
      }
      break;
    default: break;  // DETACHED: every socket got its own event.
  }
}

void Worker::OnMessage(const sluice_event& event) {
  Link* link = LinkOf(event.socket);
  if (link == nullptr || link->state != LinkState::kUp) {
    return;  // Of a connection that this side has given up.
  }
  const std::span message(static_cast<const std::byte*>(event.data), event.length);
  switch (operations_.OnReply(ShardOf(*link), message, now_ns_)) {
    case ReplyVerdict::kFine: break;
    case ReplyVerdict::kResetPath: Close(*link); break;
    case ReplyVerdict::kGiveUp: stats_.gave_up = true; break;
  }
}

Worker::Link* Worker::LinkOf(sluice_socket socket) {
  const auto found = std::ranges::find_if(links_,
                                          [&](const Link& link) { return link.socket == socket; });
  return socket == 0 || found == links_.end() ? nullptr : &*found;
}

void Worker::Connect(Link& link) {
  const uint64_t token = connects_.Begin();
  const std::string& address = options_.servers[ShardOf(link)];
  link.backoff_ns = std::clamp(link.backoff_ns * 2, kFirstBackoffNs, kLongestBackoffNs);
  link.retry_at_ns = now_ns_ + link.backoff_ns;
  const int result = sluice_connect(endpoint_.channel(), address.c_str(), 0, &link.socket);
  if (result == 0) {
    link.state = LinkState::kConnecting;
    link.connect_token = token;
    return;
  }
  connects_.Cancel(token);
  link.socket = 0;
  if (result != -ENOTCONN && result != -EAGAIN) {
    std::fprintf(stderr, "%s: %s: %s\n", options_.name.c_str(), address.c_str(),
                 sluice_error_text());
    stats_.gave_up = true;
  }
}

void Worker::OnConnected(Link& link, const sluice_event& event) {
  connects_.End(link.connect_token, static_cast<Outcome>(event.outcome));
  if (event.outcome != SLUICE_OK) {
    link.state = LinkState::kDown;
    link.socket = 0;
    link.retry_at_ns = now_ns_ + link.backoff_ns;
    return;
  }
  link.state = LinkState::kUp;
  link.backoff_ns = 0;
  if (std::ranges::all_of(links_,
                          [](const Link& other) { return other.state == LinkState::kUp; })) {
    all_up_since_ns_ = now_ns_;
  }
}

void Worker::Close(Link& link) {
  const int result = sluice_close(endpoint_.channel(), link.socket);
  if (result != 0 && result != -EAGAIN) {
    LinkLost(link);
    return;
  }
  // With -EAGAIN the library cannot take the request now, which only a wedged ring explains: keep
  // using the link, its next trouble closes it.
  if (result == 0) {
    link.state = LinkState::kClosing;
  }
}

void Worker::LinkLost(Link& link) {
  if (link.state == LinkState::kConnecting) {
    connects_.End(link.connect_token, Outcome::kUnknown);
  } else {
    ++stats_.connections_lost;
    if (disrupted_at_ns_ == 0) {
      disrupted_at_ns_ = std::max(operations_.stats().last_ok_ns, start_ns_);
    }
    operations_.OnPathLost(ShardOf(link), now_ns_);
  }
  sluice_free(endpoint_.channel(), link.ready);
  link.ready = nullptr;
  link.state = LinkState::kDown;
  link.socket = 0;
  link.retry_at_ns = now_ns_;
  all_up_since_ns_ = 0;
}

bool Worker::Pump(Link& link) {
  const uint32_t shard = ShardOf(link);
  while (link.state == LinkState::kUp) {
    if (link.ready == nullptr) {
      link.ready_bytes = operations_.NextBytes(shard);
      if (link.ready_bytes == 0) {
        return true;
      }
      link.ready = sluice_alloc(endpoint_.channel(), link.ready_bytes);
      if (link.ready == nullptr) {
        return false;
      }
      operations_.EncodeNext(shard, {static_cast<std::byte*>(link.ready), link.ready_bytes});
    }
    const uint64_t token = sends_.Begin();
    const int result = sluice_send(endpoint_.channel(), link.socket, link.ready, link.ready_bytes,
                                   0, token, 0);
    if (result != 0) {
      sends_.Cancel(token);
      if (result != -EAGAIN && result != -ENOTCONN) {
        std::fprintf(stderr, "%s: sending %zu bytes: %s\n", options_.name.c_str(), link.ready_bytes,
                     sluice_error_text());
        stats_.gave_up = true;
      }
      return false;
    }
    link.ready = nullptr;
    operations_.MarkSent(shard);
  }
  return true;
}

void Worker::TrackOutage() {
  const uint64_t last_ok_ns = operations_.stats().last_ok_ns;
  if (disrupted_at_ns_ == 0 || all_up_since_ns_ == 0 || last_ok_ns < all_up_since_ns_) {
    return;
  }
  if (stats_.outages.size() < kMaxOutages) {
    const auto ns = [](uint64_t value) { return static_cast<double>(value); };
    stats_.outages.push_back(
        {ns(disrupted_at_ns_ - start_ns_) / 1e9, ns(last_ok_ns - disrupted_at_ns_) / 1e6});
  }
  disrupted_at_ns_ = 0;
}

// The fields are name=value so that a script can add several workers' lines up.
void Worker::PrintProgress() {
  const WorkloadStats& stats = operations_.stats();
  const double seconds = static_cast<double>(now_ns_ - printed_.at_ns) / kNsPerSecondF;
  const auto rate = [&](uint64_t now, uint64_t before) {
    return static_cast<double>(now - before) / seconds;
  };
  const auto up = std::ranges::count_if(
      links_, [](const Link& link) { return link.state == LinkState::kUp; });
  std::printf(
      "%s at_s=%.0f fetch_per_s=%.0f push_per_s=%.0f gb_per_s=%.3f p99_us=%.0f outstanding=%llu "
      "links=%ld/%zu "
      "verified=%llu wrong=%llu unknown=%llu\n",
      options_.name.c_str(), static_cast<double>(now_ns_ - start_ns_) / kNsPerSecondF,
      rate(stats.fetch.outcomes.ok, printed_.fetches),
      rate(stats.push.outcomes.ok, printed_.pushes), rate(stats.bytes(), printed_.bytes) / 1e9,
      static_cast<double>(operations_.recent().QuantileNs(0.99)) / 1e3,
      static_cast<unsigned long long>(operations_.outstanding()), static_cast<long>(up),
      links_.size(), static_cast<unsigned long long>(stats.values_verified),
      static_cast<unsigned long long>(stats.rows_wrong),
      static_cast<unsigned long long>(stats.fetch.outcomes.unknown + stats.push.outcomes.unknown));
  std::fflush(stdout);
  operations_.recent() = LatencyHistogram();
  printed_ = {now_ns_, stats.fetch.outcomes.ok, stats.push.outcomes.ok, stats.bytes()};
}

WorkerStats Worker::Finish() {
  stats_.operations_lost = operations_.outstanding();
  operations_.Abandon(now_ns_);
  stats_.workload = operations_.stats();
  stats_.sends = sends_.counts();
  stats_.sends_lost = sends_.outstanding();
  stats_.connects = connects_.counts();
  // A connect that is under way when the run is over has not been lost.
  const auto connecting = std::ranges::count_if(
      links_, [](const Link& link) { return link.state == LinkState::kConnecting; });
  stats_.connects.begun -= static_cast<uint64_t>(connecting);
  stats_.connects_lost = connects_.outstanding() - static_cast<uint64_t>(connecting);
  stats_.measured_s = static_cast<double>((stop_ns_ == 0 ? now_ns_ : stop_ns_) - start_ns_) /
                      kNsPerSecondF;
  stats_.cpu_s = CpuSeconds();
  return stats_;
}

}  // namespace sluice_ps
