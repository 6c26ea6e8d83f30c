// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "daemon/control/event_loop.h"
#include "daemon/control/status.h"

namespace sluice::control {

// What the daemon tells its service manager (sd_notify); nothing happens without one.
// Invariant: the watchdog is fed only after the control thread and every I/O thread have made
// progress since the last time, so a daemon that hangs is restarted.
// Thread: control.
class ServiceManager {
 public:
  ServiceManager(EventLoop& loop, StatusSource& status);
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  // Also starts to feed the watchdog, if the service manager wants one.
  void Ready(const std::string& status);
  void Status(const std::string& status);    // One line for `systemctl status`.
  void Reloading();                          // Ready() ends it, whatever came of it.
  void Stopping(const std::string& status);  // Feeding goes on: a drain that hangs is ended too.

  uint64_t watchdog_interval_ns() const { return watchdog_ns_; }  // 0: none is wanted.

 private:
  void Feed();
  void FeedLater();
  void Notify(const std::string& message);

  EventLoop& loop_;
  StatusSource& status_;
  uint64_t watchdog_ns_ = 0;
  EventLoop::TimerId timer_ = 0;
  bool feeding_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace sluice::control
