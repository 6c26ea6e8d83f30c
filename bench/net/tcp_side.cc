// SPDX-License-Identifier: Apache-2.0
// The workloads over plain TCP: what a careful program without Sluice would do. One epoll loop,
// non-blocking sockets, gathered writes, and large messages read straight to where they belong.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "bench/net/workload.h"
#include "shm_proto/base/fd.h"

namespace sluice::bench {
namespace {

constexpr size_t kStagingBytes = 64 * 1024;
constexpr size_t kFramesAtOnce = 16;
constexpr int kWaitMs = 100;

bool FailErrno(const char* what) {
  std::fprintf(stderr, "sluice-bench: %s: %s\n", what, std::strerror(errno));
  return false;
}

// One connection: frames out, messages in.
// Invariant: staged_ bytes at the start of staging_ are received and not yet taken.
class Connection {
 public:
  explicit Connection(int fd) : fd_(fd), staging_(kStagingBytes), payload_(kMaxMessageBytes) {}

  int fd() const { return fd_.get(); }
  void Queue(const MessageHeader& header) { frames_.push_back({header, 0}); }
  bool wants_to_write() const { return !frames_.empty(); }

  // False: the connection is over.
  bool Flush() {
    while (!frames_.empty()) {
      std::array<iovec, 2 * kFramesAtOnce> parts;
      size_t count = 0;
      for (size_t i = 0; i < std::min(frames_.size(), kFramesAtOnce); ++i) {
        count += frames_[i].Parts(payload_.data(), &parts[count]);
      }
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = count;
      const ssize_t sent = sendmsg(fd(), &message, MSG_NOSIGNAL);
      if (sent < 0) {
        return errno == EAGAIN || errno == EINTR;
      }
      Advance(static_cast<size_t>(sent));
    }
    return true;
  }

  // Hands every complete message on; false: the connection is over.
  bool Receive(const std::function<bool(std::span<const std::byte>)>& on_message) {
    while (true) {
      const bool large = expected_ > staging_.size();
      std::byte* to = large ? message_.data() + received_ : staging_.data() + staged_;
      const size_t room = large ? expected_ - received_ : staging_.size() - staged_;
      const ssize_t count = recv(fd(), to, room, 0);
      if (count <= 0) {
        return count < 0 && (errno == EAGAIN || errno == EINTR);
      }
      (large ? received_ : staged_) += static_cast<size_t>(count);
      if (large && received_ < expected_) {
        continue;
      }
      if (large && !on_message(message_)) {
        return false;
      }
      expected_ = large ? 0 : expected_;
      if (!TakeStaged(on_message)) {
        return false;
      }
      if (static_cast<size_t>(count) < room) {
        return true;
      }
    }
  }

 private:
  struct Frame {
    MessageHeader header;
    size_t sent;

    size_t Parts(std::byte* payload, iovec* parts) {
      if (sent >= sizeof(header)) {
        parts[0] = {payload, header.bytes - sent};
        return 1;
      }
      parts[0] = {reinterpret_cast<std::byte*>(&header) + sent, sizeof(header) - sent};
      parts[1] = {payload, header.bytes - sizeof(header)};
      return 2;
    }
  };

  void Advance(size_t bytes) {
    while (bytes > 0) {
      Frame& frame = frames_.front();
      const size_t step = std::min(bytes, frame.header.bytes - frame.sent);
      frame.sent += step;
      bytes -= step;
      if (frame.sent == frame.header.bytes) {
        frames_.pop_front();
      }
    }
  }

  bool TakeStaged(const std::function<bool(std::span<const std::byte>)>& on_message) {
    size_t taken = 0;
    while (staged_ - taken >= sizeof(MessageHeader)) {
      MessageHeader header;
      std::memcpy(&header, staging_.data() + taken, sizeof(header));
      if (header.bytes < sizeof(header) || header.bytes > kMaxMessageBytes) {
        std::fprintf(stderr, "sluice-bench: a message of %u bytes\n", header.bytes);
        return false;
      }
      if (header.bytes > staging_.size()) {
        message_.resize(header.bytes);
        expected_ = header.bytes;
        received_ = std::min<size_t>(staged_ - taken, header.bytes);
        std::memcpy(message_.data(), staging_.data() + taken, received_);
        taken += received_;
        break;
      }
      if (staged_ - taken < header.bytes) {
        break;
      }
      if (!on_message(std::span(staging_).subspan(taken, header.bytes))) {
        return false;
      }
      taken += header.bytes;
    }
    staged_ -= taken;
    std::memmove(staging_.data(), staging_.data() + taken, staged_);
    return true;
  }

  Fd fd_;
  std::deque<Frame> frames_;
  std::vector<std::byte> staging_;
  std::vector<std::byte> payload_;  // What is sent; its content does not matter.
  std::vector<std::byte> message_;  // A large one, being received.
  size_t staged_ = 0;
  size_t expected_ = 0;  // Bytes of the large message that is being received; 0: none.
  size_t received_ = 0;
};

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

bool Watch(int epoll, int fd, bool write, int operation) {
  epoll_event event{};
  event.events = EPOLLIN | (write ? static_cast<uint32_t>(EPOLLOUT) : 0);
  event.data.fd = fd;
  return epoll_ctl(epoll, operation, fd, &event) == 0;
}

sockaddr_in Address(const Endpoint& endpoint) {
  const HostPort name = Split(endpoint.address);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(name.port);
  inet_pton(AF_INET, name.host.c_str(), &address.sin_addr);
  return address;
}

bool Answer(Connection& connection) {
  return connection.Receive([&](std::span<const std::byte> message) {
    MessageHeader request;
    std::memcpy(&request, message.data(), sizeof(request));
    connection.Queue(
        {.bytes = std::clamp<uint32_t>(request.reply_bytes, sizeof(request), kMaxMessageBytes),
         .reply_bytes = 0,
         .slot = request.slot});
    return true;
  });
}

bool Serve(const Endpoint& endpoint) {
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  const int on = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const sockaddr_in name = Address(endpoint);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 ||
      listen(listener.get(), 16) != 0) {
    return FailErrno("listening");
  }
  const Fd epoll(epoll_create1(0));
  Watch(epoll.get(), listener.get(), false, EPOLL_CTL_ADD);
  std::printf("ready\n");
  std::fflush(stdout);
  std::map<int, std::unique_ptr<Connection>> connections;
  std::array<epoll_event, 16> events;
  while (!StopRequested()) {
    const int count = epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()),
                                 endpoint.spin ? 0 : kWaitMs);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == listener.get()) {
        const int accepted = accept4(fd, nullptr, nullptr, SOCK_NONBLOCK);
        if (accepted >= 0) {
          SetNoDelay(accepted);
          connections[accepted] = std::make_unique<Connection>(accepted);
          Watch(epoll.get(), accepted, false, EPOLL_CTL_ADD);
        }
        continue;
      }
      Connection& connection = *connections.at(fd);
      const bool waited_to_write = connection.wants_to_write();
      if (!Answer(connection) || !connection.Flush()) {
        connections.erase(fd);
      } else if (connection.wants_to_write() != waited_to_write) {
        Watch(epoll.get(), fd, connection.wants_to_write(), EPOLL_CTL_MOD);
      }
    }
  }
  return true;
}

bool Request(const Endpoint& endpoint, const RunOptions& options, Requests& requests) {
  const sockaddr_in name = Address(endpoint);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  Connection connection(fd);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    return FailErrno("connecting");
  }
  SetNoDelay(fd);
  const Fd epoll(epoll_create1(0));
  Watch(epoll.get(), fd, false, EPOLL_CTL_ADD);
  if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
    return FailErrno("fcntl");
  }
  requests = Requests(options);
  uint64_t now_ns = NowNs();
  bool watches_write = false;
  while (requests.Running(now_ns)) {
    MessageHeader header;
    while (requests.Begin(now_ns, header)) {
      connection.Queue(header);
    }
    if (!connection.Flush()) {
      return FailErrno("sending");
    }
    if (connection.wants_to_write() != watches_write) {
      watches_write = connection.wants_to_write();
      Watch(epoll.get(), fd, watches_write, EPOLL_CTL_MOD);
    }
    epoll_event event;
    epoll_wait(epoll.get(), &event, 1, endpoint.spin ? 0 : kWaitMs);
    now_ns = NowNs();
    const bool alive = connection.Receive([&](std::span<const std::byte> reply) {
      return requests.End(reply.first(sizeof(MessageHeader)), now_ns);
    });
    if (!alive) {
      std::fprintf(
          stderr,
          "sluice-bench: the server closed the connection, or answered what was not asked\n");
      return false;
    }
  }
  return true;
}

}  // namespace

const System kTcp = {"tcp", Serve, Request};

}  // namespace sluice::bench
