// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/switch/metrics.h"

#include <civetweb.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <cstring>
#include <utility>
#include <vector>

namespace sluice::rain {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

class Families {
 public:
  Families& Begin(prometheus::MetricType type, const std::string& name, const std::string& help) {
    families_.push_back(
        {.name = "sluice_switch_" + name, .help = help, .type = type, .metric = {}});
    return *this;
  }
  Families& Counter(const std::string& name, const std::string& help) {
    return Begin(prometheus::MetricType::Counter, name, help);
  }
  Families& Gauge(const std::string& name, const std::string& help) {
    return Begin(prometheus::MetricType::Gauge, name, help);
  }
  void Add(uint64_t value, const Labels& labels = {}) {
    prometheus::ClientMetric metric;
    for (const auto& [key, text] : labels) metric.label.push_back({key, text});
    metric.counter.value = metric.gauge.value = static_cast<double>(value);
    families_.back().metric.push_back(std::move(metric));
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  std::vector<prometheus::MetricFamily> families_;
};

void AddPorts(const Snapshot& snapshot, Families& families) {
  const auto each = [&](uint64_t PortCounts::*count) {
    for (size_t i = 0; i < snapshot.ports.size(); ++i) {
      families.Add(snapshot.ports[i].*count, {{"port", std::to_string(i)}});
    }
  };
  families.Counter("port_received_packets_total", "Packets received.");
  each(&PortCounts::received_packets);
  families.Counter("port_received_bytes_total", "Bytes received.");
  each(&PortCounts::received_bytes);
  families.Counter("port_sent_packets_total", "Packets sent.");
  each(&PortCounts::sent_packets);
  families.Counter("port_sent_bytes_total", "Bytes sent.");
  each(&PortCounts::sent_bytes);
  families.Counter("port_full_drops_total", "Packets dropped because the device took no more.");
  each(&PortCounts::full_drops);
}

void AddSlices(const Snapshot& snapshot, Families& families) {
  const auto each = [&](uint32_t SliceCounts::*count) {
    for (size_t i = 0; i < snapshot.slices.size(); ++i) {
      families.Add(snapshot.slices[i].*count, {{"slice", std::to_string(i)}});
    }
  };
  families.Gauge("slice_waiting_tasks", "Tasks waiting for a token.");
  each(&SliceCounts::waiting_tasks);
  families.Gauge("slice_waiting_tokens", "Tokens waiting for a task.");
  each(&SliceCounts::waiting_tokens);
  families.Gauge("slice_task_limit", "Tasks that may wait at most.");
  each(&SliceCounts::task_limit);
}

void Answer(mg_connection* connection, int status, const char* type, const std::string& body,
            bool with_body) {
  mg_printf(
      connection,
      "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
      status, mg_get_response_code_text(connection, status), type, body.size());
  if (with_body) mg_write(connection, body.data(), body.size());
}

}  // namespace

std::string MetricsText(const Snapshot& snapshot) {
  Families families;
  families.Counter("packets_total", "Packets by what became of them.");
  for (size_t i = 0; i < snapshot.outcomes.size(); ++i) {
    families.Add(snapshot.outcomes[i], {{"outcome", Name(static_cast<Outcome>(i))}});
  }
  families.Counter("malformed_packets_total", "Malformed Rain packets by reason.");
  for (size_t i = static_cast<size_t>(Malformed::kTruncated); i < snapshot.malformed.size(); ++i) {
    families.Add(snapshot.malformed[i], {{"reason", Name(static_cast<Malformed>(i))}});
  }
  AddSlices(snapshot, families);
  families.Counter("replicas_total", "RDMA WRITEs made of waiting tasks.").Add(snapshot.replicas);
  families.Counter("replica_bytes_total", "Bytes of these frames.").Add(snapshot.replica_bytes);
  AddPorts(snapshot, families);
  families.Counter("flooded_packets_total", "Packets sent to all other ports.")
      .Add(snapshot.flooded);
  families
      .Counter("no_buffer_drops_total", "Replicas dropped: no packet buffer, or not programmed.")
      .Add(snapshot.no_buffer_drops);
  families
      .Counter("no_port_drops_total", "Packets dropped: a table names a port that is not there.")
      .Add(snapshot.no_port_drops);
  families.Gauge("memory_bytes", "Memory of queues and tables.").Add(snapshot.memory_bytes);
  return families.Text();
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen,
                                                            const SnapshotBoard& board,
                                                            const Clock& clock) {
  std::unique_ptr<MetricsServer> server(new MetricsServer(board, clock));
  const char* options[] = {"listening_ports",    listen.c_str(), "num_threads", "2",
                           "request_timeout_ms", "5000",         nullptr};
  mg_callbacks callbacks{};
  callbacks.log_message = [](const mg_connection*, const char*) { return 1; };
  server->context_ = mg_start(&callbacks, server.get(), options);
  if (server->context_ == nullptr) {
    return Fail(ErrorCode::kSystem, "cannot listen at " + listen + "; change metrics.listen");
  }
  mg_set_request_handler(server->context_, "/", &MetricsServer::OnRequest, server.get());
  return server;
}

MetricsServer::~MetricsServer() {
  if (context_ != nullptr) mg_stop(context_);
}

int MetricsServer::OnRequest(mg_connection* connection, void* self) {
  const auto& server = *static_cast<MetricsServer*>(self);
  const mg_request_info* request = mg_get_request_info(connection);
  const bool with_body = std::strcmp(request->request_method, "GET") == 0;
  if (!with_body && std::strcmp(request->request_method, "HEAD") != 0) {
    Answer(connection, 405, "text/plain", "GET and HEAD only\n", true);
    return 405;
  }
  const Snapshot snapshot = server.board_.Look();
  if (std::strcmp(request->local_uri, "/metrics") == 0) {
    Answer(connection, 200, "text/plain; version=0.0.4", MetricsText(snapshot), with_body);
    return 200;
  }
  if (std::strcmp(request->local_uri, "/healthz") == 0) {
    const bool healthy = snapshot.at_ns + kPatienceNs > server.clock_.NowNs();
    Answer(connection, healthy ? 200 : 503, "text/plain",
           healthy ? "ok\n" : "the loop does not turn\n", with_body);
    return healthy ? 200 : 503;
  }
  Answer(connection, 404, "text/plain", "try /metrics or /healthz\n", with_body);
  return 404;
}

}  // namespace sluice::rain
