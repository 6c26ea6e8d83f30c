// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/flight_recorder.h"

#include <chrono>
#include <utility>

#include "daemon/control/log.h"

namespace sluice::control {
namespace {

int64_t UnixMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();  // For people to read.
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace

Result<std::unique_ptr<FlightRecorder>> FlightRecorder::Start(EventLoop& loop, StatusSource& status,
                                                              const std::string& path,
                                                              uint32_t mode, uint64_t instance) {
  auto writer = CountersWriter::Create(path, mode, instance);
  if (!writer) return std::unexpected(writer.error());
  return std::unique_ptr<FlightRecorder>(new FlightRecorder(loop, status, *std::move(writer)));
}

FlightRecorder::FlightRecorder(EventLoop& loop, StatusSource& status, CountersWriter writer)
    : loop_(loop), status_(status), writer_(std::move(writer)) {
  SetLogObserver([this](LogLevel level, std::string_view event, const std::string& text) {
    const auto severity = static_cast<uint32_t>(level);
    writer_.AddEvent(severity, text, UnixMs());
    if (level >= LogLevel::kWarning) writer_.AddError(severity, event, text, UnixMs());
  });
  Beat();
}

FlightRecorder::~FlightRecorder() {
  SetLogObserver(nullptr);
  *alive_ = false;
  loop_.Cancel(timer_);
  writer_.MarkStopped();
}

void FlightRecorder::Beat() {
  writer_.Beat(loop_.clock().NowNs());
  if (beats_++ % kCollectEvery == 0) {
    status_.Collect([this, alive = alive_](const NodeStatus& status) {
      if (*alive) Record(status);
    });
  }
  timer_ = loop_.After(kBeatNs, [this] { Beat(); });
}

void FlightRecorder::Record(const NodeStatus& status) {
  if (status.AllThreadsAnswered()) writer_.BeatIo(loop_.clock().NowNs());
  const NodeTotals totals = TotalsOf(status);
  uint64_t pool_bytes = 0;
  for (const ClientStatus& client : status.clients) pool_bytes += client.pool_bytes;
  const std::pair<const char*, uint64_t> figures[] = {
      {"clients", status.clients.size()},
      {"peers", status.peers.size()},
      {"engines_up", totals.engines_up},
      {"sockets", totals.sockets},
      {"pool_bytes", pool_bytes},
      {"io_loops_total", totals.loops},
      {"sent_messages_total", totals.sent_messages},
      {"sent_bytes_total", totals.sent_bytes},
      {"received_messages_total", totals.received_messages},
      {"received_bytes_total", totals.received_bytes},
      {"operations_ok_total", totals.ok},
      {"operations_failed_total", totals.failed},
      {"operations_unknown_total", totals.unknown},
  };
  for (const auto& [name, value] : figures) writer_.SetCounter(name, value);
  for (const NamedNumber& number : status.numbers) {
    std::string name = number.name;
    for (const auto& [label, text] : number.labels) name += "." + text;
    writer_.SetCounter(name, number.value < 0 ? 0 : static_cast<uint64_t>(number.value));
  }
}

}  // namespace sluice::control
