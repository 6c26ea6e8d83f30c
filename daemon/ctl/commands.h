// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "daemon/ctl/admin_client.h"
#include "daemon/ctl/exit_code.h"

// What sluicectl can do. Each prints its result, for people or as JSON, and says how to end.
namespace sluice::ctl {

struct Session {
  AdminClient client;
  bool json = false;
};

// Prints the failure on standard error (and as JSON on standard output when asked for).
int Report(const Session& session, const Failure& failure);
void PrintJson(const Json& json);

int ShowStatus(Session& session);
int ShowClients(Session& session);
int ShowEngines(Session& session);
int ShowSockets(Session& session);
int ShowPools(Session& session);
int ShowDevices(Session& session);
int Explain(Session& session, const std::string& engine);
int ShowVersion(Session& session);

// Live figures, every `interval_s`, `count` times (0: until interrupted).
int Top(Session& session, double interval_s, int count);

int Get(Session& session, const std::string& key);
// "KEY VALUE KEY VALUE" or "KEY=VALUE KEY=VALUE": all of them or none.
int Set(Session& session, const std::vector<std::string>& words);
int Reload(Session& session);
int ShowConfig(Session& session);
int DiffConfig(Session& session);
int ShowConfigHistory(Session& session);

// Asks for a clean shutdown; with `wait_s` above 0 also waits until the daemon has gone.
int Drain(Session& session, double wait_s);

// From the counters file, which the daemon leaves also when it dies: distinct warnings and errors;
// with `everything` also counters and the last events. An empty `file`: that beside the socket.
int ShowErrors(Session& session, const std::string& file, bool everything);

// Looks for what is wrong with this host and its daemon.
int Doctor(Session& session);
// Packs what a developer needs to see into one archive; a dry run only lists it.
int BugReport(Session& session, const std::string& output, bool dry_run);

}  // namespace sluice::ctl
