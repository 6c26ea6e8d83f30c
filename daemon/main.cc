// SPDX-License-Identifier: Apache-2.0
// sluiced: reads its configuration, builds the daemon and runs it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "daemon/control/config.h"
#include "daemon/control/config_keys.h"
#include "daemon/control/daemon.h"
#include "daemon/control/version.h"
#include "daemon/rdma.h"
#include "daemon/transport/local/local_transport.h"
#include "daemon/transport/tcp/tcp_transport.h"

namespace sluice {
namespace {

// Exit codes: 0 a clean stop, 1 it could not start, 2 wrong usage or configuration.
constexpr int kCannotStart = 1;
constexpr int kUsage = 2;

Result<io::Networks> MakeTcpNetworks() {
  auto tcp = transport::TcpTransport::Create();
  if (!tcp) return std::unexpected(tcp.error());
  auto local = transport::LocalTransport::Create();
  if (!local) return std::unexpected(local.error());
  const auto adopt = [tcp = tcp->get()](Fd connection, const transport::QueuePairLimits& limits,
                                        void* context) {
    return tcp->Adopt(std::move(connection), limits, context);
  };
  const auto make_loop = [local = local->get()](const transport::QueuePairLimits& limits,
                                                void* context_a, void* context_b) {
    return local->CreatePair(limits, context_a, limits, context_b);
  };
  return io::Networks{std::move(*tcp), adopt, std::move(*local), make_loop};
}

int Run(const Config& config, const std::string& config_path) {
  const MonotonicClock clock;
  SystemRandom random;
  // The memory that it knows goes with the daemon, so it stays until the daemon is gone.
  control::Daemon* publisher = nullptr;
  transport::VerbsRegistry registry([&](const std::shared_ptr<const transport::Regions>& regions) {
    publisher->Publish(regions);
  });
  control::Daemon daemon(config, config_path, clock);
  publisher = &daemon;
  control::DaemonParts parts{MakeTcpNetworks};
  if (config.rdma.mode != "off") {
    parts.registry = &registry;
    parts.open_fabric_device = [&] { return OpenRdmaDevice(config, registry, random); };
  }
  if (auto started = daemon.Start(parts); !started) {
    std::fprintf(stderr, "sluiced: %s\n", started.error().message.c_str());
    return kCannotStart;
  }
  return daemon.Run();
}

int Main(int argc, char** argv) {
  CLI::App app{
      "The node's transport daemon. Applications reach it through libsluice, operators "
      "through sluicectl."};
  std::string path;
  bool print_defaults = false, print_reference = false, check = false;
  app.add_option("--config", path,
                 std::string("Configuration file (TOML); without it ") + kDefaultConfigPath +
                     ", or the defaults if that does not exist");
  app.add_flag("--check", check, "Only check the configuration");
  app.add_flag("--print-default-config", print_defaults, "Print a commented configuration file");
  app.add_flag("--print-config-reference", print_reference, "Print the reference of all keys");
  app.set_version_flag("--version", std::string("sluiced ") + control::kVersion);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (print_defaults) return std::puts(DefaultConfigFile().c_str()) < 0;
  if (print_reference) return std::puts(ConfigReference().c_str()) < 0;

  Result<Config> config = DefaultConfig();
  if (path.empty() && std::filesystem::exists(kDefaultConfigPath)) path = kDefaultConfigPath;
  if (!path.empty()) config = LoadConfig(path);
  if (!config) {
    std::fprintf(stderr, "sluiced: %s\n", config.error().message.c_str());
    return kUsage;
  }
  return check ? 0 : Run(*config, path);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
