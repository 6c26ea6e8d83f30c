// SPDX-License-Identifier: Apache-2.0
// hello: `hello 7` greets whoever connects to service 7; `hello HOST:7` connects, says hello and
// prints the answer.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sluice/sluice.hpp>

namespace {
int Fail(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, sluice_error_text());
  return 1;
}
}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: hello SERVICE | hello HOST:SERVICE\n"), 2;
  const bool serves = std::strchr(argv[1], ':') == nullptr;
  auto client = sluice::Client::Attach();
  if (!client) return Fail("attach");
  auto channel = client->OpenChannel();
  if (!channel) return Fail("open a channel");
  const auto started = serves ? channel->Listen(static_cast<uint16_t>(std::atoi(argv[1]))).status()
                              : channel->Connect(argv[1]).status();
  if (!started) return Fail(argv[1]);
  for (sluice_event event; channel->Wait(&event, 1, -1).value() > 0;) {
    if (event.type == SLUICE_EVENT_CONNECTED) {
      if (event.outcome != SLUICE_OK) return std::fprintf(stderr, "%s\n", event.text), 1;
      if (!channel->SendCopy(event.socket, "hello", 5)) return Fail("send");
    } else if (event.type == SLUICE_EVENT_MESSAGE) {
      const auto message = channel->Adopt(event);  // Goes back to the pool at the end of the block.
      std::printf("%.*s\n", static_cast<int>(message.size()), static_cast<char*>(message.data()));
      if (!serves) return 0;
      if (!channel->SendCopy(event.socket, "hello to you", 12)) return Fail("send");
    }
  }
}
