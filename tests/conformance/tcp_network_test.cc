// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/tcp/tcp_transport.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/sockets.h"

namespace sluice::transport {
namespace {

class TcpNetwork final : public Network {
 public:
  TcpNetwork(std::unique_ptr<TcpTransport> a, std::unique_ptr<TcpTransport> b, bool tiny_buffers)
      : a_(std::move(a)), b_(std::move(b)), tiny_buffers_(tiny_buffers) {}

  static Result<std::unique_ptr<Network>> Create(bool tiny_buffers) {
    auto a = TcpTransport::Create();
    auto b = TcpTransport::Create();
    if (!a) return std::unexpected(a.error());
    if (!b) return std::unexpected(b.error());
    return std::make_unique<TcpNetwork>(std::move(*a), std::move(*b), tiny_buffers);
  }

  Result<Pair> Connect(QueuePairLimits limits_a, void* context_a, QueuePairLimits limits_b,
                       void* context_b) override {
    auto sockets = ConnectedSockets(tiny_buffers_);
    if (!sockets) return std::unexpected(sockets.error());
    auto a = a_->Adopt(std::move(sockets->first), limits_a, context_a);
    auto b = b_->Adopt(std::move(sockets->second), limits_b, context_b);
    if (!a) return std::unexpected(a.error());
    if (!b) return std::unexpected(b.error());
    return Pair(std::move(*a), std::move(*b));
  }
  std::vector<Transport*> transports() override { return {a_.get(), b_.get()}; }

 private:
  std::unique_ptr<TcpTransport> a_;
  std::unique_ptr<TcpTransport> b_;
  const bool tiny_buffers_;
};

TransportUnderTest Tcp(const char* name, bool tiny_buffers) {
  return {.name = name,
          .make_network = [tiny_buffers] { return TcpNetwork::Create(tiny_buffers); },
          .waits_for_receives = false,
          .discards_stale_writes = true};
}

INSTANTIATE_TEST_SUITE_P(Tcp, Conformance,
                         testing::Values(Tcp("tcp", false), Tcp("tcp_with_tiny_buffers", true)),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace sluice::transport
