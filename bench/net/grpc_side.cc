// SPDX-License-Identifier: Apache-2.0
// The workloads over gRPC: asynchronous unary calls of raw bytes, so that no serialisation is
// counted, with one completion queue and one thread polling it on either side.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "bench/net/workload.h"

namespace sluice::bench {
namespace {

constexpr auto kWait = std::chrono::milliseconds(100);
constexpr const char* kMethod = "/sluice.bench.Bench/Call";

// A message without copying its payload, which nobody looks at.
grpc::ByteBuffer Message(const MessageHeader& header) {
  static const std::vector<std::byte> payload(kMaxMessageBytes);
  const std::array<grpc::Slice, 2> slices = {
      grpc::Slice(&header, sizeof(header)),
      grpc::Slice(payload.data(), header.bytes - sizeof(header), grpc::Slice::STATIC_SLICE)};
  return grpc::ByteBuffer(slices.data(), header.bytes > sizeof(header) ? 2 : 1);
}

// The header of a message; all zero when it is shorter than one.
MessageHeader HeaderOf(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  MessageHeader header{};
  if (message.Length() < sizeof(header) || !message.Dump(&slices).ok()) return header;
  size_t have = 0;
  for (const grpc::Slice& slice : slices) {
    const size_t step = std::min(slice.size(), sizeof(header) - have);
    std::memcpy(reinterpret_cast<std::byte*>(&header) + have, slice.begin(), step);
    have += step;
  }
  return header;
}

// One call at the server, from waiting for it to its end; then it waits for the next.
class Call {
 public:
  Call(grpc::AsyncGenericService& service, grpc::ServerCompletionQueue& queue)
      : service_(service), queue_(queue), stream_(&context_) {
    service_.RequestCall(&context_, &stream_, &queue_, &queue_, this);
  }

  void Proceed(bool ok) {
    if (step_ == Step::kWaits && ok) new Call(service_, queue_);
    if (!ok || step_ == Step::kAnswers) {
      delete this;
    } else if (step_ == Step::kWaits) {
      step_ = Step::kReads;
      stream_.Read(&request_, this);
    } else {
      step_ = Step::kAnswers;
      const MessageHeader request = HeaderOf(request_);
      const uint32_t bytes = std::clamp<uint32_t>(request.reply_bytes, sizeof(request),
                                                  kMaxMessageBytes);
      stream_.WriteAndFinish(Message({.bytes = bytes, .reply_bytes = 0, .slot = request.slot}),
                             grpc::WriteOptions(), grpc::Status::OK, this);
    }
  }

 private:
  enum class Step { kWaits, kReads, kAnswers };
  grpc::AsyncGenericService& service_;
  grpc::ServerCompletionQueue& queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  grpc::ByteBuffer request_;
  Step step_ = Step::kWaits;
};

bool Serve(const Endpoint& endpoint) {
  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(endpoint.address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterAsyncGenericService(&service);
  const auto queue = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    std::fprintf(stderr, "sluice-bench: gRPC cannot listen on %s\n", endpoint.address.c_str());
    return false;
  }
  std::printf("ready\n");
  std::fflush(stdout);
  new Call(service, *queue);
  void* tag = nullptr;
  bool ok = false;
  while (!StopRequested()) {
    const auto next = queue->AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kWait);
    if (next == grpc::CompletionQueue::GOT_EVENT) static_cast<Call*>(tag)->Proceed(ok);
  }
  server->Shutdown(std::chrono::system_clock::now());
  queue->Shutdown();
  while (queue->Next(&tag, &ok)) static_cast<Call*>(tag)->Proceed(false);
  return true;
}

// One call at the client.
struct Asked {
  grpc::ClientContext context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  grpc::ByteBuffer reply;
  grpc::Status status;
};

bool Request(const Endpoint& endpoint, const RunOptions& options, Requests& requests) {
  grpc::GenericStub stub(grpc::CreateChannel(endpoint.address, grpc::InsecureChannelCredentials()));
  grpc::CompletionQueue queue;
  requests = Requests(options);
  uint64_t now_ns = NowNs();
  bool good = true;
  int outstanding = 0;
  while (good && (requests.Running(now_ns) || outstanding > 0)) {
    MessageHeader header;
    while (requests.Begin(now_ns, header)) {
      auto* asked = new Asked;
      asked->reader = stub.PrepareUnaryCall(&asked->context, kMethod, Message(header), &queue);
      asked->reader->StartCall();
      asked->reader->Finish(&asked->reply, &asked->status, asked);
      ++outstanding;
    }
    void* tag = nullptr;
    bool ok = false;
    if (!queue.Next(&tag, &ok)) return false;
    now_ns = NowNs();
    const std::unique_ptr<Asked> asked(static_cast<Asked*>(tag));
    --outstanding;
    const MessageHeader reply = HeaderOf(asked->reply);
    good = asked->status.ok() && requests.End(std::as_bytes(std::span(&reply, 1)), now_ns);
    if (!good) {
      std::fprintf(stderr, "sluice-bench: gRPC: %s\n", asked->status.error_message().c_str());
    }
  }
  queue.Shutdown();
  return good;
}

}  // namespace

const System kGrpc = {"grpc", Serve, Request};

}  // namespace sluice::bench
