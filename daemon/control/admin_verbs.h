// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "daemon/control/admin.h"
#include "daemon/control/config_store.h"
#include "daemon/control/event_loop.h"
#include "daemon/control/status.h"

namespace sluice::control {

// What the verbs act on. All outlive the server.
struct AdminContext {
  EventLoop& loop;
  StatusSource& status;
  ConfigStore& config;
  // Starts a clean shutdown: no new clients or connections, what is in flight ends, then the daemon
  // exits. Called at most once.
  std::function<void()> drain;
};

// Teaches the server every verb of sluicectl: status, clients, engines, sockets, pools, explain,
// get, set, reload, config_show, config_diff, config_history, drain, version.
void RegisterAdminVerbs(AdminServer& server, AdminContext context);

}  // namespace sluice::control
