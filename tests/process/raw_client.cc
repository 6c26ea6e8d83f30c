// SPDX-License-Identifier: Apache-2.0
#include "tests/process/raw_client.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

namespace sluice::testing {
namespace {

constexpr size_t kMaxDescriptors = 32;
constexpr int kTurnMs = 5;

}  // namespace

Mapping::Mapping(int memfd, uint64_t bytes) : bytes_(bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  data_ = at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

control::Type Packet::type() const { return As<control::Header>().type; }

std::unique_ptr<RawClient> RawClient::Connect(const Daemon& daemon) {
  auto client = std::make_unique<RawClient>();
  client->control_.Reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = daemon.control_socket();
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  if (::connect(client->control_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) !=
      0) {
    ADD_FAILURE() << "connecting to " << path << ": " << std::strerror(errno);
    return nullptr;
  }
  return client;
}

bool RawClient::SendBytes(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> room{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = room.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  // A daemon that reads no more must not hang the test: its socket fills up, and that is the end of
  // it.
  return sendmsg(control_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

std::optional<Packet> RawClient::Receive(milliseconds timeout) {
  pollfd watched{.fd = control_.get(), .events = POLLIN, .revents = 0};
  if (poll(&watched, 1, static_cast<int>(timeout.count())) != 1) {
    return std::nullopt;
  }
  Packet packet;
  packet.bytes.resize(control::kMaxMessageBytes);
  iovec part{packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> room{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room.data();
  message.msg_controllen = room.size();
  const ssize_t count = recvmsg(control_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (count <= 0) {
    hung_up_ = true;
    return std::nullopt;
  }
  packet.bytes.resize(static_cast<size_t>(count));
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr;
       item = CMSG_NXTHDR(&message, item)) {
    const size_t descriptors = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; item->cmsg_type == SCM_RIGHTS && i < descriptors; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(fd));
      packet.descriptors.emplace_back(fd);
    }
  }
  return packet;
}

bool RawClient::WaitHangUp() {
  return WaitUntil([this] {
    Receive(milliseconds(kTurnMs));
    return hung_up_;
  });
}

std::optional<Packet> RawClient::Await(control::Type type, milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!hung_up_ && std::chrono::steady_clock::now() < deadline) {
    auto packet = Receive(milliseconds(kTurnMs));
    if (packet && packet->type() == control::Type::kRegion && type != control::Type::kRegion) {
      OnRegion(*packet);
    } else if (packet && packet->type() == type) {
      return packet;
    } else if (packet && packet->type() == control::Type::kError) {
      ADD_FAILURE() << "the daemon says: " << packet->As<control::ErrorReply>().text;
      return std::nullopt;
    } else if (packet && packet->type() == control::Type::kConnectFailed) {
      ADD_FAILURE() << "the daemon says: " << packet->As<control::ConnectFailed>().text;
      return std::nullopt;
    }
  }
  return std::nullopt;
}

bool RawClient::OnRegion(Packet& packet) {
  const auto region = packet.As<control::Region>();
  if (packet.descriptors.empty()) {
    return false;
  }
  auto mapping = std::make_unique<Mapping>(packet.descriptors[0].get(), region.bytes);
  if (region.kind == control::RegionKind::kRingPair && packet.descriptors.size() == 2) {
    rings_ = std::move(mapping);
    capacity_ = region.capacity;
    doorbell_ = std::move(packet.descriptors[1]);
    producer_ = std::make_unique<RingProducer>(submissions());
    consumer_ = std::make_unique<RingConsumer>(completions());
  } else {
    extents_[region.pool_offset] = std::move(mapping);
  }
  control::Mapped mapped{};
  mapped.region = region.region;
  return Send(mapped, control::Type::kMapped);
}

bool RawClient::Attach() {
  control::Attach attach{};
  attach.version_min = control::kVersionMin;
  attach.version_max = control::kVersionMax;
  std::strncpy(attach.name, "raw", sizeof(attach.name) - 1);
  Send(attach, control::Type::kAttach);
  const auto packet = Await(control::Type::kAttached);
  if (packet) {
    attached_ = packet->As<control::Attached>();
  }
  return packet.has_value();
}

bool RawClient::OpenChannel(uint32_t capacity) {
  control::OpenChannel open{};
  open.channel = 0;
  open.ring_capacity = capacity;
  Send(open, control::Type::kOpenChannel);
  return Await(control::Type::kChannelOpened).has_value();
}

bool RawClient::Listen(uint16_t service, uint64_t token) {
  control::Listen listen{};
  listen.token = token;
  listen.service = service;
  Send(listen, control::Type::kListen);
  return Await(control::Type::kListening).has_value();
}

bool RawClient::Grow(uint64_t bytes) {
  control::Grow grow{};
  grow.bytes = bytes;
  Send(grow, control::Type::kGrow);
  const auto packet = Await(control::Type::kBlocks);
  if (packet) {
    pool_offset_ = packet->As<control::Blocks>().pool_offset;
  }
  return packet.has_value();
}

std::byte* RawClient::memory() const {
  const auto extent = std::prev(extents_.upper_bound(pool_offset_));
  return extent->second->data() + (pool_offset_ - extent->first);
}

bool RawClient::ConnectTo(const std::string& host, uint16_t service) {
  control::Connect connect{};
  connect.token = 1;
  connect.service = service;
  host.copy(connect.host, sizeof(connect.host) - 1);
  Send(connect, control::Type::kConnect);
  return WaitUntil([&] {
    if (!has_rings()) {
      auto packet = Receive(milliseconds(kTurnMs));
      if (packet && packet->type() == control::Type::kRegion) {
        OnRegion(*packet);
      }
      return false;
    }
    const auto completion = Complete(milliseconds(kTurnMs));
    if (!completion || completion->op != static_cast<uint8_t>(CompletionOp::kConnected)) {
      return false;
    }
    socket_ = completion->socket;
    return completion->result.outcome == static_cast<uint32_t>(Outcome::kOk);
  });
}

void RawClient::Submit(const Descriptor& descriptor) {
  const bool staged = WaitUntil([&] { return producer_->Stage(descriptor) || hung_up_; });
  EXPECT_TRUE(staged) << "the daemon takes no more descriptors";
  producer_->Publish();
  Ring();
}

std::optional<Descriptor> RawClient::Complete(milliseconds timeout) {
  std::optional<Descriptor> result;
  WaitUntil(
      [&] {
        Descriptor descriptor;
        if (consumer_->Pop(descriptor)) {
          consumer_->Release();
          result = descriptor;
        }
        return result.has_value();
      },
      timeout);
  return result;
}

void RawClient::Ring() {
  [[maybe_unused]] const ssize_t sent = send(doorbell_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace sluice::testing
