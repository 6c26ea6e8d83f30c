// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/local/local_transport.h"
#include "tests/conformance/conformance.h"

namespace sluice::transport {
namespace {

class LocalNetwork final : public Network {
 public:
  explicit LocalNetwork(std::unique_ptr<LocalTransport> transport)
      : transport_(std::move(transport)) {}

  static Result<std::unique_ptr<Network>> Create() {
    auto transport = LocalTransport::Create();
    if (!transport) return std::unexpected(transport.error());
    return std::make_unique<LocalNetwork>(std::move(*transport));
  }

  Result<Pair> Connect(QueuePairLimits limits_a, void* context_a, QueuePairLimits limits_b,
                       void* context_b) override {
    return transport_->CreatePair(limits_a, context_a, limits_b, context_b);
  }
  std::vector<Transport*> transports() override { return {transport_.get()}; }

 private:
  std::unique_ptr<LocalTransport> transport_;
};

INSTANTIATE_TEST_SUITE_P(Local, Conformance,
                         testing::Values(TransportUnderTest{.name = "local",
                                                            .make_network = LocalNetwork::Create,
                                                            .waits_for_receives = true,
                                                            .discards_stale_writes = true}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace sluice::transport
