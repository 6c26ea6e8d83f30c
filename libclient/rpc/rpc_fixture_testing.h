// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <sluice/rpc.hpp>
#include <string>
#include <vector>

#include "libclient/examples/sluice-ps/fake_sluice.h"

// Servers and a client in one process and one thread, on a libsluice that does what the test says,
// in time that the test moves.
namespace sluice::rpc {

constexpr uint64_t kMs = 1'000'000;
constexpr uint16_t kFirstService = 100;
constexpr uint32_t kEcho = 1;
constexpr uint32_t kKeep = 2;    // Handlers leave the request in `kept`.
constexpr uint32_t kStream = 3;  // As many parts of one byte as the request's first byte says.

// A server process: it dies with this object.
struct TestServer {
  explicit TestServer(const std::function<uint64_t()>& now_ns, uint16_t service, uint64_t seed,
                      const ServerOptions& options = {}) {
    endpoint = std::move(*Endpoint::Open({.now_ns = now_ns, .seed = seed}));
    server = std::make_unique<Server>(*endpoint, options);
    server->Handle(kEcho, "echo", [this](Request request) {
      ++handled;
      request.Reply(std::move(request.payload()));
    });
    server->Handle(kKeep, "keep", [this](Request request) {
      ++handled;
      kept.push_back(std::move(request));
    });
    server->Handle(kStream, "stream", [](Request request) {
      const int parts = request.payload().data()[0];
      for (int i = 0; i < parts; ++i) {
        Payload part;
        request.OnWritable(nullptr);
        if (!request.Part(part)) break;
      }
      request.ReplyCopy("end", 3);
    });
    EXPECT_TRUE(server->Listen(service)) << service;
  }
  ~TestServer() {
    kept.clear();
    server.reset();
  }

  std::unique_ptr<Endpoint> endpoint;
  std::unique_ptr<Server> server;
  std::vector<Request> kept;
  int handled = 0;
};

class RpcWorld : public testing::Test {
 protected:
  RpcWorld() { fake_sluice::Reset(); }
  ~RpcWorld() override {
    channel_.reset();
    results_.clear();
    client_.reset();
    servers_.clear();
    EXPECT_EQ(fake_sluice::BadFrees(), 0u);
    EXPECT_EQ(fake_sluice::Buffers(), 0u);
  }

  std::function<uint64_t()> Clock() {
    return [this] { return now_ns_; };
  }

  // So many servers, one shard, as near as their order says.
  void Begin(int servers, Tuning tuning = {}, const ServerOptions& options = {}) {
    ServiceMap map{.name = "test", .domain = "dc/a", .replicas = {}, .tuning = tuning};
    for (int i = 0; i < servers; ++i) {
      StartServer(i, options);
      map.replicas.push_back({0, AddressOf(i), i == 0 ? "dc/a" : "dc/b"});
    }
    client_ = std::move(*Endpoint::Open({.now_ns = Clock(), .seed = 5}));
    channel_ = std::make_unique<Channel>(*client_, FixedSource(map));
    Turns(3);
  }

  static std::string AddressOf(int server) {
    return "host:" + std::to_string(kFirstService + server);
  }
  void StartServer(int i, const ServerOptions& options = {}) {
    servers_.resize(std::max(servers_.size(), static_cast<size_t>(i) + 1));
    servers_[static_cast<size_t>(i)].reset();
    servers_[static_cast<size_t>(i)] = std::make_unique<TestServer>(
        Clock(), static_cast<uint16_t>(kFirstService + i), ++seed_, options);
  }
  TestServer& server(size_t i) { return *servers_[i]; }

  // A millisecond passes; whoever is not stopped does what there is to do.
  void Turn(size_t deliver = 1000) {
    now_ns_ += kMs;
    client_->Poll(0);
    for (size_t i = 0; i < servers_.size(); ++i) {
      if (servers_[i] != nullptr && i != stopped_) servers_[i]->endpoint->Poll(0);
    }
    fake_sluice::Deliver(deliver);
  }
  void Turns(int count) {
    for (int i = 0; i < count; ++i) Turn();
  }

  CallId Start(const Method& method, const std::string& request = "hello",
               const CallOptions& options = {}) {
    const size_t index = results_.size();
    results_.emplace_back();
    return channel_->Call(
        method, 0, client_->Copy(request.data(), request.size()),
        [this, index](Result result) {
          EXPECT_FALSE(results_[index]) << "a call ended twice";
          results_[index] = std::move(result);
        },
        options);
  }
  // The last call's result, for which so many milliseconds are waited.
  const Result* Wait(int most_ms = 2000) {
    for (int i = 0; i < most_ms && !results_.back(); ++i) Turn();
    return results_.back() ? &*results_.back() : nullptr;
  }
  uint64_t Metric(const std::string& name) const {
    const std::string text = "\n" + channel_->MetricsText();
    const size_t at = text.find("\nsluice_rpc_" + name + "{");
    return at == std::string::npos ? UINT64_MAX : std::stoull(text.substr(text.find("} ", at) + 2));
  }

  uint64_t now_ns_ = 1'000 * kMs;
  uint64_t seed_ = 0;
  size_t stopped_ = SIZE_MAX;
  std::vector<std::unique_ptr<TestServer>> servers_;
  std::unique_ptr<Endpoint> client_;
  std::unique_ptr<Channel> channel_;
  std::vector<std::optional<Result>> results_;
};

}  // namespace sluice::rpc
