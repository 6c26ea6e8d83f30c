// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/service_manager.h"

#include <systemd/sd-daemon.h>

#include <cstring>
#include <utility>

#include "daemon/control/log.h"

namespace sluice::control {
namespace {

// One line: the protocol ends a field with a newline.
std::string OneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

}  // namespace

ServiceManager::ServiceManager(EventLoop& loop, StatusSource& status)
    : loop_(loop), status_(status) {
  uint64_t interval_us = 0;
  if (sd_watchdog_enabled(0, &interval_us) > 0) watchdog_ns_ = interval_us * kNsPerUs;
}

ServiceManager::~ServiceManager() {
  *alive_ = false;
  loop_.Cancel(timer_);
}

void ServiceManager::Ready(const std::string& status) {
  Notify("READY=1\nSTATUS=" + OneLine(status));
  if (watchdog_ns_ == 0 || std::exchange(feeding_, true)) return;
  Feed();
}

void ServiceManager::Status(const std::string& status) { Notify("STATUS=" + OneLine(status)); }

void ServiceManager::Reloading() {
  Notify("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(loop_.clock().NowNs() / kNsPerUs) +
         "\nSTATUS=reading the configuration");
}

void ServiceManager::Stopping(const std::string& status) {
  Notify("STOPPING=1\nSTATUS=" + OneLine(status));
}

void ServiceManager::Feed() {
  status_.Collect([this, alive = alive_](const NodeStatus& status) {
    if (!*alive) return;
    if (status.AllThreadsAnswered()) {
      Notify("WATCHDOG=1");
    } else {
      LogWarning("watchdog not fed", {{"why", "an I/O thread does not answer"}});
    }
    FeedLater();
  });
}

void ServiceManager::FeedLater() {
  timer_ = loop_.After(watchdog_ns_ / 3, [this] {
    timer_ = 0;
    Feed();
  });
}

void ServiceManager::Notify(const std::string& message) {
  const int sent = sd_notify(0, message.c_str());
  if (sent < 0) LogWarning("service manager not told", {{"error", std::strerror(-sent)}});
}

}  // namespace sluice::control
