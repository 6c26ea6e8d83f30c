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
  io::EngineSnapshot sum;
  uint64_t loops = 0, sockets = 0, engines_up = 0, pool_bytes = 0;
  for (const ThreadStatus& thread : status.threads) {
    loops += thread.snapshot.loops;
    sockets += thread.snapshot.sockets.size();
    for (const io::EngineSnapshot& engine : thread.snapshot.engines) {
      engines_up += engine.state == "up" ? 1 : 0;
      sum.sent_messages += engine.sent_messages;
      sum.sent_bytes += engine.sent_bytes;
      sum.received_messages += engine.received_messages;
      sum.received_bytes += engine.received_bytes;
      sum.operations_ok += engine.operations_ok;
      sum.operations_failed += engine.operations_failed;
      sum.operations_unknown += engine.operations_unknown;
    }
  }
  for (const ClientStatus& client : status.clients) pool_bytes += client.pool_bytes;
  const std::pair<const char*, uint64_t> figures[] = {
      {"clients", status.clients.size()},
      {"peers", status.peers.size()},
      {"engines_up", engines_up},
      {"sockets", sockets},
      {"pool_bytes", pool_bytes},
      {"io_loops_total", loops},
      {"sent_messages_total", sum.sent_messages},
      {"sent_bytes_total", sum.sent_bytes},
      {"received_messages_total", sum.received_messages},
      {"received_bytes_total", sum.received_bytes},
      {"operations_ok_total", sum.operations_ok},
      {"operations_failed_total", sum.operations_failed},
      {"operations_unknown_total", sum.operations_unknown},
  };
  for (const auto& [name, value] : figures) writer_.SetCounter(name, value);
  for (const NamedNumber& number : status.numbers) {
    std::string name = number.name;
    for (const auto& [label, text] : number.labels) name += "." + text;
    writer_.SetCounter(name, number.value < 0 ? 0 : static_cast<uint64_t>(number.value));
  }
}

}  // namespace sluice::control
