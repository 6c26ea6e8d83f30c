// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/transport/verbs/device.h"
#include "daemon/transport/verbs/registry.h"
#include "daemon/transport/verbs/verbs_fabric.h"
#include "tests/conformance/conformance.h"

// RC queue pairs on whatever RDMA devices there are; tests/vm brings some.
namespace sluice::transport {
namespace {

// A NIC wants to be told of memory, and the suite uses any. So what is sent is copied into memory
// that is known, receives are posted from there, and a landing is registered when it is exposed.
class ForgivingQueuePair final : public QueuePair {
 public:
  ForgivingQueuePair(VerbsRegistry& registry, const QueuePairLimits& limits)
      : registry_(registry),
        limits_(limits),
        receive_bytes_(size_t{limits.receive_queue_depth} * limits.receive_bytes),
        memory_(receive_bytes_ + (limits.send_queue_depth > 4 ? 20'000'000 : 20'000)) {}

  std::span<std::byte> memory() { return memory_; }
  void Use(std::unique_ptr<FabricQueuePair> inner) { inner_ = std::move(inner); }
  FabricQueuePair& inner() { return *inner_; }

  size_t PostSend(std::span<const SendRequest> requests) override {
    std::vector<SendRequest> copies(requests.begin(), requests.end());
    for (SendRequest& request : copies) {
      for (uint32_t i = 0; i < request.segment_count; ++i) Copy(request.segments[i]);
    }
    return inner_->PostSend(copies);
  }
  Result<> PostReceive(std::span<const ReceiveRequest> requests) override {
    std::vector<ReceiveRequest> moved(requests.begin(), requests.end());
    for (ReceiveRequest& request : moved) {
      request.address = &memory_[next_receive_++ % limits_.receive_queue_depth *
                                 limits_.receive_bytes];
    }
    auto posted = inner_->PostReceive(moved);
    if (!posted) next_receive_ -= moved.size();
    return posted;
  }
  Result<size_t> Expose(uint32_t grant, std::span<const LandingSegment> segments,
                        std::span<RemoteSlice, kMaxSlices> slices) override {
    uint64_t bytes = 0;
    for (const LandingSegment& segment : segments) bytes += segment.length;
    registry_.Deregister(segments[0].address);
    if (auto known = registry_.Register(segments[0].address, bytes); !known)
      return std::unexpected(known.error());
    return inner_->Expose(grant, segments, slices);
  }
  void Withdraw(uint32_t grant) override { inner_->Withdraw(grant); }
  void Shutdown() override { inner_->Shutdown(); }
  const char* kind() const override { return inner_->kind(); }
  std::string reason() const override { return inner_->reason(); }

 private:
  void Copy(Segment& segment) {
    if (segment.length == 0) return void(segment.address = memory_.data());
    if (next_send_ + segment.length > memory_.size()) next_send_ = receive_bytes_;
    std::memcpy(&memory_[next_send_], segment.address, segment.length);
    segment.address = &memory_[std::exchange(next_send_, next_send_ + segment.length)];
  }

  VerbsRegistry& registry_;
  const QueuePairLimits limits_;
  const size_t receive_bytes_;
  std::vector<std::byte> memory_;
  size_t next_receive_ = 0;
  size_t next_send_ = receive_bytes_;
  std::unique_ptr<FabricQueuePair> inner_;  // Goes before the memory.
};

class VerbsNetwork final : public Network {
 public:
  struct Host {
    std::unique_ptr<VerbsDevice> device;
    std::unique_ptr<VerbsFabric> fabric;
    VerbsRegistry registry{
        [this](std::shared_ptr<const Regions> regions) { fabric->SetRegions(regions); }};
    std::jthread events;  // Takes those of the device, as a control thread does. Ends first.
  };

  static Result<std::unique_ptr<Network>> Create(std::array<const char*, 2> devices,
                                                 uint32_t shared_receives) {
    auto network = std::make_unique<VerbsNetwork>();
    for (size_t i = 0; i < 2; ++i) {
      VerbsSettings settings;
      settings.device = devices[i];
      settings.timeout = 11;  // Soon given up: ends are waited for here.
      settings.retries = 6;
      settings.shared_receives = shared_receives;
      settings.shared_reserve = 8;
      settings.shared_bytes = 64 << 10;
      auto device = VerbsDevice::Open(settings);
      if (!device) return std::unexpected(device.error());
      Host& host = network->hosts_[i];
      host.device = std::move(*device);
      auto fabric = VerbsFabric::Create(*host.device, network->random_);
      if (!fabric) return std::unexpected(fabric.error());
      host.fabric = std::move(*fabric);
      if (auto attached = host.registry.Attach(*host.device); !attached)
        return std::unexpected(attached.error());
      host.events = std::jthread([&device = *host.device](std::stop_token stop) {
        while (!stop.stop_requested()) {
          pollfd events{device.events_fd(), POLLIN, 0};
          if (poll(&events, 1, 5) > 0) device.TakeEvents();
        }
      });
    }
    return network;
  }

  Result<Pair> Connect(QueuePairLimits limits_a, void* context_a, QueuePairLimits limits_b,
                       void* context_b) override {
    auto a = Make(hosts_[0], limits_a, context_a);
    if (!a) return std::unexpected(a.error());
    auto b = Make(hosts_[1], limits_b, context_b);
    if (!b) return std::unexpected(b.error());
    for (auto [from, to] : {std::pair(a->get(), b->get()), std::pair(b->get(), a->get())}) {
      if (auto joined = from->inner().Connect(to->inner().local_endpoint()); !joined)
        return std::unexpected(joined.error());
    }
    return Pair{std::move(*a), std::move(*b)};
  }
  std::vector<Transport*> transports() override {
    return {hosts_[0].fabric.get(), hosts_[1].fabric.get()};
  }

 private:
  static Result<std::unique_ptr<ForgivingQueuePair>> Make(Host& host, const QueuePairLimits& limits,
                                                          void* context) {
    auto made = std::make_unique<ForgivingQueuePair>(host.registry, limits);
    auto inner = host.fabric->Create(limits, made->memory(), context);
    if (!inner) return std::unexpected(inner.error());
    made->Use(std::move(*inner));
    return made;
  }

  SystemRandom random_;
  std::array<Host, 2> hosts_;
};

// With shared receives there is always one, and the engine's credits keep peers from too many.
TransportUnderTest Rc(const char* name, std::array<const char*, 2> devices,
                      uint32_t shared_receives = 0) {
  return {.name = name,
          .make_network = [=] { return VerbsNetwork::Create(devices, shared_receives); },
          .waits_for_receives = shared_receives == 0,
          .discards_stale_writes = false,
          .needs_device = true,
          .tells_the_peer = false,
          .knows_grants = false};
}

INSTANTIATE_TEST_SUITE_P(Verbs, Conformance,
                         testing::Values(Rc("rc_loop", {"rxe0", "rxe0"}),
                                         Rc("rc_wire", {"rxe0", "rxe1"}),
                                         Rc("rc_shared", {"rxe0", "rxe1"}, 256)),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace sluice::transport
