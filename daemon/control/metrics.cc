// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <map>
#include <set>
#include <utility>

#include "daemon/control/version.h"
#include "shm_proto/base/clock.h"

namespace sluice::control {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Gathers figures into families; figures with the same name and labels are added up.
class Families {
 public:
  void Counter(const std::string& name, const std::string& help, const Labels& labels,
               double value) {
    Add(MetricType::Counter, name, help, labels, value);
  }
  void Gauge(const std::string& name, const std::string& help, const Labels& labels, double value) {
    Add(MetricType::Gauge, name, help, labels, value);
  }

  void Histogram(const std::string& name, const std::string& help, const LatencyCounts& latency) {
    Family& family = Named(MetricType::Histogram, name, help);
    family.latency.Add(latency);
  }

  std::vector<MetricFamily> Take() const {
    std::vector<MetricFamily> out;
    for (const auto& [name, family] : families_) {
      MetricFamily made{.name = name, .help = family.help, .type = family.type, .metric = {}};
      if (family.type == MetricType::Histogram) made.metric.push_back(HistogramOf(family.latency));
      for (const auto& [labels, value] : family.values) {
        ClientMetric metric;
        for (const auto& [key, text] : labels) metric.label.push_back({key, text});
        metric.counter.value = value;
        metric.gauge.value = value;
        made.metric.push_back(std::move(metric));
      }
      out.push_back(std::move(made));
    }
    return out;
  }

 private:
  struct Family {
    MetricType type = MetricType::Gauge;
    std::string help;
    std::map<Labels, double> values;
    LatencyCounts latency;  // Of a histogram.
  };

  static ClientMetric HistogramOf(const LatencyCounts& latency) {
    ClientMetric metric;
    uint64_t count = 0;
    for (size_t i = 0; i < LatencyCounts::kBuckets; ++i) {
      count += latency.counts[i];
      const bool last = i + 1 == LatencyCounts::kBuckets;
      metric.histogram.bucket.push_back(
          {.cumulative_count = count,
           .upper_bound = last ? std::numeric_limits<double>::infinity()
                               : static_cast<double>(LatencyCounts::UpperBoundNs(i)) /
                                     kNsPerSecond});
    }
    metric.histogram.sample_count = count;
    metric.histogram.sample_sum = static_cast<double>(latency.sum_ns) / kNsPerSecond;
    return metric;
  }

  Family& Named(MetricType type, const std::string& name, const std::string& help) {
    Family& family = families_["sluice_" + name];
    family.type = type;
    family.help = help;
    return family;
  }

  void Add(MetricType type, const std::string& name, const std::string& help, const Labels& labels,
           double value) {
    Named(type, name, help).values[labels] += value;
  }

  std::map<std::string, Family> families_;
};

double Number(uint64_t value) { return static_cast<double>(value); }
double Seconds(uint64_t ns) { return static_cast<double>(ns) / kNsPerSecond; }

// Gives a peer its label as long as there are few of them.
class PeerLabels {
 public:
  std::string For(const std::string& peer) {
    if (known_.contains(peer)) return peer;
    if (known_.size() >= kMaxPeersInMetrics) return "other";
    known_.insert(peer);
    return peer;
  }

 private:
  std::set<std::string> known_;
};

void AddDaemon(const DaemonStatus& daemon, Families& out) {
  out.Gauge("build_info", "The daemon's version; always 1.", {{"version", kVersion}}, 1);
  out.Gauge("uptime_seconds", "Time since the daemon started.", {}, Seconds(daemon.uptime_ns));
  out.Gauge("ready", "Whether the daemon takes clients and peers.", {}, daemon.ready ? 1 : 0);
  out.Gauge("draining", "Whether the daemon is about to end.", {}, daemon.draining ? 1 : 0);
  out.Gauge("peer_auth_enabled", "Whether peers must prove themselves with the cluster key.", {},
            daemon.peer_auth == "none" ? 0 : 1);
}

void AddThread(const ThreadStatus& thread, Families& out) {
  const Labels labels = {{"io_thread", std::to_string(thread.io_thread)}};
  out.Gauge("io_thread_answering", "Whether the I/O thread answered in time.", labels,
            thread.answered ? 1 : 0);
  out.Gauge("io_thread_silent_seconds", "Time since the I/O thread's last answer.", labels,
            Seconds(thread.silent_ns));
  out.Counter("io_loops_total", "Turns of the I/O thread's loop.", labels,
              Number(thread.snapshot.loops));
  out.Counter("io_sleeps_total", "Times the I/O thread slept for want of work.", labels,
              Number(thread.snapshot.sleeps));
  uint64_t submitted = 0, completed = 0, rejected = 0, in_flight = 0;
  for (const io::PortSnapshot& port : thread.snapshot.ports) {
    submitted += port.submitted;
    completed += port.completed;
    rejected += port.rejected;
    in_flight += port.operations_in_flight;
  }
  out.Gauge("io_channels", "Channels of attached clients.", labels,
            Number(thread.snapshot.ports.size()));
  out.Gauge("io_operations_in_flight", "Operations submitted and not completed.", labels,
            Number(in_flight));
  out.Gauge("io_attached_submissions", "Submissions taken from the clients attached now.", labels,
            Number(submitted));
  out.Gauge("io_attached_completions", "Completions given to the clients attached now.", labels,
            Number(completed));
  out.Gauge("io_attached_rejections", "Bad submissions of the clients attached now.", labels,
            Number(rejected));
}

void AddEngineTraffic(const io::EngineSnapshot& engine, const Labels& labels, Families& out) {
  out.Counter("sent_messages_total", "Messages handed to the network.", labels,
              Number(engine.sent_messages));
  out.Counter("sent_bytes_total", "Payload bytes handed to the network.", labels,
              Number(engine.sent_bytes));
  out.Counter("received_messages_total", "Messages delivered to this node's applications.", labels,
              Number(engine.received_messages));
  out.Counter("received_bytes_total", "Payload bytes delivered to this node's applications.",
              labels, Number(engine.received_bytes));
  out.Counter("landing_grants_used_total",
              "Large messages that found a landing buffer granted ahead.", labels,
              Number(engine.grants_used));
  out.Counter("stale_frames_total", "Frames of an earlier path, dropped.", labels,
              Number(engine.stale_frames));
  out.Counter("engine_sessions_total", "Sessions with the peer.", labels, Number(engine.sessions));
  out.Counter("engine_paths_total", "Paths to the peer.", labels, Number(engine.paths));
  out.Counter("engine_rdma_paths_total", "Times messages to the peer moved to RDMA.", labels,
              Number(engine.fabric_paths));
  out.Counter("engine_rdma_failures_total", "Times RDMA failed under messages to the peer.", labels,
              Number(engine.fabric_failures));
  out.Counter("keepalives_sent_total", "Keepalives sent.", labels, Number(engine.keepalives_sent));
  out.Counter("keepalives_received_total", "Keepalives received.", labels,
              Number(engine.keepalives_received));
  const auto with = [&](const char* key, const char* value) {
    Labels more = labels;
    more.emplace_back(key, value);
    return more;
  };
  const char* operations = "Operations of this node's applications, by how they ended.";
  out.Counter("operations_total", operations, with("outcome", "ok"), Number(engine.operations_ok));
  out.Counter("operations_total", operations, with("outcome", "failed"),
              Number(engine.operations_failed));
  out.Counter("operations_total", operations, with("outcome", "unknown"),
              Number(engine.operations_unknown));
  out.Histogram(
      "operation_seconds",
      "Time from taking an operation to the peer's acknowledgement, of those that ended OK.",
      engine.operations);
  const char* stalls = "Times a limit held the engine back.";
  out.Counter("engine_stalls_total", stalls, with("limit", "window"), Number(engine.window_stalls));
  out.Counter("engine_stalls_total", stalls, with("limit", "credits"),
              Number(engine.credit_stalls));
  out.Counter("engine_stalls_total", stalls, with("limit", "ring"), Number(engine.queue_stalls));
  out.Counter("engine_stalls_total", stalls, with("limit", "landing"),
              Number(engine.landing_waits));
}

void AddEngine(const io::EngineSnapshot& engine, const Labels& labels, Families& out) {
  out.Gauge("engines_up", "Engines of the peer that have a path.", labels,
            engine.state == "up" ? 1 : 0);
  out.Gauge("engine_sockets", "Sockets to the peer.", labels, engine.sockets);
  out.Gauge("engine_window_bytes", "Send window.", labels, Number(engine.window_bytes));
  out.Gauge("engine_in_flight_bytes", "Bytes posted and not yet done.", labels,
            Number(engine.in_flight_bytes));
  out.Gauge("engine_credits", "Receives that the peer has posted for us.", labels, engine.credits);
  out.Gauge("engine_silent_seconds", "Time since anything was heard of the peer.", labels,
            Seconds(engine.last_heard_ns_ago));
  AddEngineTraffic(engine, labels, out);
}

void AddClients(const NodeStatus& status, Families& out) {
  for (const ClientStatus& client : status.clients) {
    const Labels labels = {{"tenant", client.tenant}};
    out.Gauge("clients", "Attached clients.", labels, 1);
    out.Gauge("client_channels", "Channels of attached clients.", labels, client.channels);
    out.Gauge("client_sockets", "Sockets of attached clients.", labels, client.sockets);
    out.Gauge("client_listeners", "Services that attached clients listen on.", labels,
              client.listeners);
    out.Gauge("pool_bytes", "Pool memory of attached clients.", labels, Number(client.pool_bytes));
    out.Gauge("pool_quota_bytes", "Pool memory that attached clients may have.", labels,
              Number(client.pool_quota_bytes));
    out.Gauge("pool_send_block_bytes", "Pool memory that clients allocate from.", labels,
              Number(client.send_block_bytes));
    out.Gauge("pool_receive_block_bytes", "Pool memory that messages are received into.", labels,
              Number(client.receive_block_bytes));
  }
}

// What an I/O thread's queue pairs take of the RDMA device.
void AddFabric(const ThreadStatus& thread, Families& out) {
  const transport::FabricUse& use = thread.snapshot.fabric;
  if (use.completions == 0) return;
  const Labels labels = {{"io_thread", std::to_string(thread.io_thread)}};
  out.Gauge("rdma_queue_pairs", "Queue pairs of the I/O thread.", labels, use.queue_pairs);
  out.Gauge("rdma_completions", "Room in the I/O thread's completion queue.", labels,
            Number(use.completions));
  out.Gauge("rdma_completions_reserved", "Of that room, for what can be outstanding.", labels,
            Number(use.completions_reserved));
  out.Gauge("rdma_shared_receives", "Receives that the I/O thread's RDMA peers share; 0: none do.",
            labels, use.shared_receives);
  out.Gauge("rdma_shared_receives_lent", "Of the shared receives, those promised to peers.", labels,
            use.shared_lent);
  out.Counter("rdma_shared_receives_low_total",
              "Times fewer than an eighth of the shared receives were posted.", labels,
              Number(use.shared_low));
}

void AddDevice(const DeviceStatus& device, Families& out) {
  out.Gauge("rdma_up", "Whether an RDMA device is in use.", {}, device.state == "up" ? 1 : 0);
  out.Counter("rdma_opened_total", "Times an RDMA device was opened.", {}, Number(device.opened));
  out.Gauge("rdma_pause_frames_per_second", "Pause frames received, in the last second.", {},
            Number(device.pause_frames_per_s));
  out.Counter("rdma_pause_storms_total", "Storms of pause frames (rdma.pause_storm_per_s).", {},
              Number(device.pause_storms));
  for (const auto& [name, value] : device.counters) {
    // A gauge, since they start anew with the device and some are sizes.
    out.Gauge("rdma_device_figure",
              "Counters of the RDMA device in use: its port's, pause frames, and of the memory "
              "registered.",
              {{"device", device.name}, {"figure", name}}, Number(value));
  }
}

}  // namespace

std::string MetricsText(const NodeStatus& status) {
  Families out;
  PeerLabels labels;
  AddDaemon(status.daemon, out);
  for (const ThreadStatus& thread : status.threads) {
    AddThread(thread, out);
    AddFabric(thread, out);
    for (const io::EngineSnapshot& engine : thread.snapshot.engines) {
      AddEngine(engine, {{"peer", labels.For(engine.name)}}, out);
    }
  }
  AddClients(status, out);
  AddDevice(status.device, out);
  for (const PeerStatus& peer : status.peers) {
    out.Gauge("peers", "Known peer daemons, by the state of their connection.",
              {{"state", peer.state}}, 1);
    out.Counter("peer_attempts_total", "Attempts to reach the peer.",
                {{"peer", labels.For(peer.name)}}, Number(peer.attempts));
  }
  for (const NamedNumber& number : status.numbers) {
    if (number.counter) {
      out.Counter(number.name, number.help, number.labels, number.value);
    } else {
      out.Gauge(number.name, number.help, number.labels, number.value);
    }
  }
  return prometheus::TextSerializer().Serialize(out.Take());
}

}  // namespace sluice::control
