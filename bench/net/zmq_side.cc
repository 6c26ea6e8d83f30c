// SPDX-License-Identifier: Apache-2.0
// The workloads over ZeroMQ: a DEALER asks, a ROUTER answers.
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "bench/net/workload.h"

namespace sluice::bench {
namespace {

constexpr int kWaitMs = 100;

bool FailZmq(const char* what) {
  std::fprintf(stderr, "sluice-bench: ZeroMQ: %s: %s\n", what, zmq_strerror(zmq_errno()));
  return false;
}

// A socket with its context; both go without waiting for messages not yet sent.
class Socket {
 public:
  explicit Socket(int type) : context_(zmq_ctx_new()), socket_(zmq_socket(context_, type)) {
    const int linger_ms = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
  }
  ~Socket() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void* get() const { return socket_; }

  // False: nothing came in that time.
  bool Wait(bool spin) const {
    zmq_pollitem_t item{.socket = socket_, .fd = 0, .events = ZMQ_POLLIN, .revents = 0};
    return zmq_poll(&item, 1, spin ? 0 : kWaitMs) > 0;
  }

  bool Send(const MessageHeader& header) const {
    zmq_msg_t message;
    zmq_msg_init_size(&message, header.bytes);
    std::memcpy(zmq_msg_data(&message), &header, sizeof(header));
    if (zmq_msg_send(&message, socket_, 0) >= 0) return true;
    zmq_msg_close(&message);
    return false;
  }

 private:
  void* context_;
  void* socket_;
};

std::span<const std::byte> BytesOf(zmq_msg_t& message) {
  return {static_cast<const std::byte*>(zmq_msg_data(&message)), zmq_msg_size(&message)};
}

bool AnswerOne(const Socket& socket, zmq_msg_t& identity) {
  zmq_msg_t message;
  zmq_msg_init(&message);
  if (zmq_msg_recv(&message, socket.get(), 0) < 0) return FailZmq("receiving");
  MessageHeader request{};
  const auto bytes = BytesOf(message);
  std::memcpy(&request, bytes.data(), std::min(bytes.size(), sizeof(request)));
  zmq_msg_close(&message);
  if (zmq_msg_send(&identity, socket.get(), ZMQ_SNDMORE) < 0) return FailZmq("answering");
  return socket.Send({.bytes = request.reply_bytes, .reply_bytes = 0, .slot = request.slot}) ||
         FailZmq("answering");
}

bool Serve(const Endpoint& endpoint) {
  const Socket socket(ZMQ_ROUTER);
  if (zmq_bind(socket.get(), ("tcp://" + endpoint.address).c_str()) != 0) {
    return FailZmq("listening");
  }
  std::printf("ready\n");
  std::fflush(stdout);
  while (!StopRequested()) {
    if (!socket.Wait(endpoint.spin)) continue;
    zmq_msg_t identity;
    zmq_msg_init(&identity);
    while (zmq_msg_recv(&identity, socket.get(), ZMQ_DONTWAIT) >= 0) {
      if (!AnswerOne(socket, identity)) return false;
    }
    zmq_msg_close(&identity);
  }
  return true;
}

bool Request(const Endpoint& endpoint, const RunOptions& options, Requests& requests) {
  const Socket socket(ZMQ_DEALER);
  if (zmq_connect(socket.get(), ("tcp://" + endpoint.address).c_str()) != 0) {
    return FailZmq("connecting");
  }
  requests = Requests(options);
  uint64_t now_ns = NowNs();
  while (requests.Running(now_ns)) {
    MessageHeader header;
    while (requests.Begin(now_ns, header)) {
      if (!socket.Send(header)) return FailZmq("sending");
    }
    socket.Wait(endpoint.spin);
    now_ns = NowNs();
    zmq_msg_t reply;
    zmq_msg_init(&reply);
    while (zmq_msg_recv(&reply, socket.get(), ZMQ_DONTWAIT) >= 0) {
      if (!requests.End(BytesOf(reply), now_ns)) {
        std::fprintf(stderr, "sluice-bench: a reply that was not asked for\n");
        return false;
      }
    }
    zmq_msg_close(&reply);
  }
  return true;
}

}  // namespace

const System kZeroMq = {"zeromq", Serve, Request};

}  // namespace sluice::bench
