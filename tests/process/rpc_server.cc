// SPDX-License-Identifier: Apache-2.0
// A counter as a service, for tests that kill it: rpc_server SERVICE. Method 1 adds one and method
// 2 does not; both reply with the count.
#include <cstdio>
#include <cstdlib>
#include <sluice/rpc.hpp>

int main(int, char** argv) {
  auto endpoint = sluice::rpc::Endpoint::Open({.name = "counter"});
  if (!endpoint) return 3;
  uint64_t count = 0;
  sluice::rpc::Server server(**endpoint);
  server.Handle(1, "add", [&](sluice::rpc::Request request) {
    ++count;
    request.ReplyCopy(&count, sizeof(count));
  });
  server.Handle(2, "get",
                [&](sluice::rpc::Request request) { request.ReplyCopy(&count, sizeof(count)); });
  if (!server.Listen(static_cast<uint16_t>(std::atoi(argv[1])))) return 4;
  std::printf("ready\n");
  std::fflush(stdout);
  while (true) (*endpoint)->Poll(1000);
}
