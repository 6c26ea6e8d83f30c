// SPDX-License-Identifier: Apache-2.0
#include "libclient/src/fake_daemon_testing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>

#include "shm_proto/base/check.h"

namespace sluice::client {
namespace {

using control::Type;
using namespace std::chrono_literals;

constexpr auto kPatience = 10s;

template <typename Message>
Message As(std::span<const std::byte> packet) {
  Message message{};
  SLUICE_CHECK(packet.size() == sizeof(message), "the library sends whole messages");
  std::memcpy(&message, packet.data(), sizeof(message));
  return message;
}

std::pair<Fd, std::byte*> SharedMemory(uint64_t bytes) {
  Fd memfd(memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  SLUICE_CHECK(ftruncate(memfd.get(), static_cast<off_t>(bytes)) == 0, "the test has memory");
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
  SLUICE_CHECK(base != MAP_FAILED, "the test has memory");
  return {std::move(memfd), static_cast<std::byte*>(base)};
}

template <typename Condition>
bool Eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

std::optional<Descriptor> FakeDaemon::Port::TryNext() {
  Descriptor descriptor;
  if (!submissions.Pop(descriptor)) return std::nullopt;
  if (submissions.Release()) send(doorbell.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (descriptor.op == static_cast<uint8_t>(SubmitOp::kFree)) {
    for (size_t i = 0; i < descriptor.inline_bytes / sizeof(uint64_t); ++i) {
      freed_.push_back(descriptor.free_offsets[i]);
    }
  }
  return descriptor;
}

Descriptor FakeDaemon::Port::Next() {
  std::optional<Descriptor> descriptor;
  if (!Eventually([&] { return (descriptor = TryNext()).has_value(); })) {
    ADD_FAILURE() << "no submission came";
    return {};
  }
  return *descriptor;
}

Descriptor FakeDaemon::Port::NextOf(SubmitOp op) {
  for (;;) {
    const Descriptor descriptor = Next();
    if (descriptor.op == static_cast<uint8_t>(op) || descriptor.op == 0) return descriptor;
  }
}

bool FakeDaemon::Port::WaitForFrees(size_t count) {
  return Eventually([&] {
    while (TryNext()) {
    }
    return freed_.size() >= count;
  });
}

void FakeDaemon::Port::PushSilently(const Descriptor& descriptor) {
  ASSERT_TRUE(Eventually([&] { return completions.Stage(descriptor); }))
      << "the client does not drain";
  completions.Publish();
}

void FakeDaemon::Port::Push(Descriptor descriptor) {
  descriptor.flags |= path_flags;
  ASSERT_TRUE(Eventually([&] { return completions.Stage(descriptor); }))
      << "the client does not drain";
  if (completions.Publish()) send(doorbell.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

namespace {

Descriptor Completion(CompletionOp op, uint64_t token, uint32_t socket) {
  Descriptor descriptor{};
  descriptor.op = static_cast<uint8_t>(op);
  descriptor.token = token;
  descriptor.socket = socket;
  return descriptor;
}

}  // namespace

void FakeDaemon::Port::Sent(uint64_t token, Outcome outcome, int32_t error) {
  Descriptor descriptor = Completion(CompletionOp::kSent, token, 0);
  descriptor.result.outcome = static_cast<uint32_t>(outcome);
  descriptor.result.error = error;
  Push(descriptor);
}

void FakeDaemon::Port::Connected(uint64_t token, uint32_t socket) {
  Push(Completion(CompletionOp::kConnected, token, socket));
}

void FakeDaemon::Port::Accepted(uint64_t listener, uint32_t socket) {
  Push(Completion(CompletionOp::kAccepted, listener, socket));
}

void FakeDaemon::Port::Closed(uint32_t socket, int32_t error) {
  Descriptor descriptor = Completion(CompletionOp::kClosed, 0, socket);
  descriptor.result.error = error;
  Push(descriptor);
}

void FakeDaemon::Port::MessageInline(uint32_t socket, std::string_view payload) {
  Descriptor descriptor = Completion(CompletionOp::kMessage, 0, socket);
  descriptor.flags = kFlagInline;
  descriptor.inline_bytes = static_cast<uint8_t>(payload.size());
  std::memcpy(descriptor.inline_data, payload.data(), payload.size());
  Push(descriptor);
}

void FakeDaemon::Port::MessageAt(uint32_t socket, uint64_t offset, uint64_t length) {
  Descriptor descriptor = Completion(CompletionOp::kMessage, 0, socket);
  descriptor.region.offset = offset;
  descriptor.region.length = length;
  Push(descriptor);
}

FakeDaemon::FakeDaemon(std::string path, Options options)
    : path_(std::move(path)), options_(std::move(options)) {}

FakeDaemon::~FakeDaemon() { Kill(); }

void FakeDaemon::Start() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
  unlink(path_.c_str());
  listener_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener_.get(), 8), 0);
  int wake[2];
  ASSERT_EQ(pipe2(wake, O_CLOEXEC), 0);
  wake_read_.Reset(wake[0]);
  wake_write_.Reset(wake[1]);
  stopping_ = false;
  thread_ = std::thread([this] { Run(); });
}

void FakeDaemon::Kill() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ASSERT_EQ(write(wake_write_.get(), "", 1), 1);
  thread_.join();
  listener_.Reset();
  connection_.Reset();
  ports_.clear();
  for (const auto& [base, bytes] : mappings_) munmap(base, bytes);
  mappings_.clear();
  extents_.clear();
  ring_entries_.clear();
  connects_.clear();
  listens_.clear();
  grows_.clear();
  mapped_.clear();
  seen_.clear();
  next_offset_ = receive_offset_ = receive_end_ = 0;
}

void FakeDaemon::Run() {
  for (;;) {
    pollfd waited[3] = {{wake_read_.get(), POLLIN, 0},
                        {listener_.get(), POLLIN, 0},
                        {connection_.get(), POLLIN, 0}};
    poll(waited, 3, -1);
    std::unique_lock lock(mutex_);
    if (stopping_) return;
    if (waited[1].revents != 0) {
      Fd accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::lock_guard connection(connection_mutex_);
      connection_ = std::move(accepted);
      continue;
    }
    lock.unlock();
    if (waited[2].revents != 0 && !Serve()) {
      std::lock_guard connection(connection_mutex_);
      connection_.Reset();
    }
  }
}

bool FakeDaemon::Serve() {
  std::byte bytes[control::kMaxMessageBytes];
  const ssize_t got = recv(connection_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (got <= 0) return got < 0 && errno == EAGAIN;
  const std::span packet(bytes, static_cast<size_t>(got));
  control::Header header;
  std::memcpy(&header, packet.data(), sizeof(header));
  if (!options_.intercept || !options_.intercept(*this, header, packet)) Handle(header, packet);
  std::lock_guard lock(mutex_);
  ++seen_[header.type];
  changed_.notify_all();
  return true;
}

void FakeDaemon::Handle(const control::Header& header, std::span<const std::byte> packet) {
  std::unique_lock lock(mutex_);
  switch (header.type) {
    case Type::kAttach: return OnAttach(packet);
    case Type::kOpenChannel: {
      const auto message = As<control::OpenChannel>(packet);
      ring_entries_[message.channel] = message.ring_capacity;
      last_channel_ = message.channel;
      control::ChannelOpened answer{};
      answer.channel = message.channel;
      return Send(answer, Type::kChannelOpened, header.request);
    }
    case Type::kCloseChannel: {
      control::ChannelClosed answer{};
      answer.channel = As<control::CloseChannel>(packet).channel;
      if (options_.confirms_close) Send(answer, Type::kChannelClosed, header.request);
      return;
    }
    case Type::kMapped: {
      const auto message = As<control::Mapped>(packet);
      mapped_.insert(message.region);
      if (const auto grow = grows_.find(message.region); grow != grows_.end()) {
        control::Blocks blocks{};
        blocks.pool_offset = extents_[grow->second.first].offset;
        blocks.bytes = extents_[grow->second.first].bytes;
        Send(blocks, Type::kBlocks, grow->second.second);
      }
      return;
    }
    case Type::kGrow: return OnGrow(header, packet);
    case Type::kListen: return OnListen(packet);
    case Type::kConnect: connects_.push_back(As<control::Connect>(packet)); return;
    default: return;
  }
}

void FakeDaemon::OnAttach(std::span<const std::byte> packet) {
  const auto message = As<control::Attach>(packet);
  if (message.version_max < options_.version_min || message.version_min > options_.version_max) {
    return SendError(message.header.request, EPROTONOSUPPORT, "no common version");
  }
  control::Attached answer{};
  answer.version = control::kVersionMax;
  answer.io_threads = static_cast<uint16_t>(options_.io_threads);
  answer.client = 1;
  answer.instance = 1;
  answer.pool_reserve_bytes = options_.pool_bytes;
  answer.max_message_bytes = options_.max_message_bytes;
  answer.max_channels = options_.max_channels;
  answer.max_sockets = options_.max_sockets;
  Send(answer, Type::kAttached, message.header.request);
}

void FakeDaemon::OnListen(std::span<const std::byte> packet) {
  const auto message = As<control::Listen>(packet);
  if (options_.refused_services.contains(message.service)) {
    return SendError(message.header.request, EADDRINUSE, "the service is another client's");
  }
  listens_.push_back(message);
  control::Listening answer{};
  answer.token = message.token;
  Send(answer, Type::kListening, message.header.request);
}

void FakeDaemon::OnGrow(const control::Header& header, std::span<const std::byte> packet) {
  if (!options_.answers_grow) return;
  const uint64_t bytes = RoundUp(As<control::Grow>(packet).bytes, control::kBlockBytes);
  if (!InRange(next_offset_, bytes, options_.pool_bytes)) {
    return SendError(header.request, ENOMEM, "the quota is used up");
  }
  const Extent& extent = MakeExtent(bytes);
  grows_[next_region_ - 1] = {extents_.size() - 1, header.request};
  control::Region region{};
  region.region = next_region_ - 1;
  region.kind = control::RegionKind::kExtent;
  region.bytes = extent.bytes;
  region.pool_offset = extent.offset;
  Send(region, Type::kRegion, header.request, {extent.memfd.get()});
}

FakeDaemon::Extent& FakeDaemon::MakeExtent(uint64_t bytes) {
  auto [memfd, base] = SharedMemory(bytes);
  mappings_.emplace_back(base, bytes);
  extents_.push_back({std::move(memfd), base, next_offset_, bytes});
  next_offset_ += bytes;
  ++next_region_;
  return extents_.back();
}

void FakeDaemon::SendBytes(std::span<const std::byte> bytes, const std::vector<int>& descriptors) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char room[CMSG_SPACE(32 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = room;
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* item = CMSG_FIRSTHDR(&message);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(item), descriptors.data(), descriptors.size() * sizeof(int));
  }
  std::lock_guard lock(connection_mutex_);
  sendmsg(connection_.get(), &message, MSG_NOSIGNAL);
}

void FakeDaemon::SendError(uint32_t request, int error, std::string_view text) {
  control::ErrorReply answer{};
  answer.error = error;
  answer.version_min = options_.version_min;
  answer.version_max = options_.version_max;
  text.copy(answer.text, sizeof(answer.text) - 1);
  Send(answer, Type::kError, request);
}

void FakeDaemon::HangUp() {
  std::lock_guard lock(connection_mutex_);
  shutdown(connection_.get(), SHUT_RDWR);
}

FakeDaemon::Port& FakeDaemon::OpenPort(uint32_t channel, uint32_t io_thread) {
  std::unique_lock lock(mutex_);
  if (!ring_entries_.contains(channel)) ADD_FAILURE() << "no such channel";
  const uint32_t capacity = ring_entries_[channel];
  const uint64_t bytes = RoundUp(2 * RingBytes(capacity), 4096);
  auto [memfd, base] = SharedMemory(bytes);
  mappings_.emplace_back(base, bytes);
  InitializeRing({base, capacity}, options_.ring_start);
  InitializeRing({base + RingBytes(capacity), capacity}, options_.ring_start);
  int doorbell[2];
  SLUICE_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, doorbell) == 0, "descriptors");
  Fd theirs(doorbell[1]);
  auto& port = ports_[{channel, io_thread}];
  port = std::make_unique<Port>(base, capacity, Fd(doorbell[0]));
  control::Region region{};
  region.region = next_region_++;
  region.kind = control::RegionKind::kRingPair;
  region.bytes = bytes;
  region.channel = channel;
  region.io_thread = io_thread;
  region.capacity = capacity;
  Send(region, Type::kRegion, 0, {memfd.get(), theirs.get()});
  if (!changed_.wait_for(lock, kPatience, [&] { return mapped_.contains(region.region); })) {
    ADD_FAILURE() << "the client did not map the ring pair";
  }
  return *port;
}

uint64_t FakeDaemon::ReceiveBuffer(uint64_t bytes) {
  std::unique_lock lock(mutex_);
  const uint64_t rounded = RoundUp(bytes == 0 ? 1 : bytes, 64);
  if (rounded > receive_end_ - receive_offset_) {
    const Extent& extent = MakeExtent(
        RoundUp(std::max(rounded, kExtentBytes), control::kBlockBytes));
    control::Region region{};
    region.region = next_region_ - 1;
    region.kind = control::RegionKind::kExtent;
    region.bytes = extent.bytes;
    region.pool_offset = receive_offset_ = extent.offset;
    receive_end_ = extent.offset + extent.bytes;
    Send(region, Type::kRegion, 0, {extent.memfd.get()});
    if (!changed_.wait_for(lock, kPatience, [&] { return mapped_.contains(region.region); })) {
      ADD_FAILURE() << "the client did not map the extent";
    }
  }
  receive_offset_ += rounded;
  return receive_offset_ - rounded;
}

std::byte* FakeDaemon::At(uint64_t offset) {
  std::lock_guard lock(mutex_);
  for (const Extent& extent : extents_) {
    if (offset - extent.offset < extent.bytes) return extent.base + (offset - extent.offset);
  }
  ADD_FAILURE() << "no extent at " << offset;
  return nullptr;
}

std::string FakeDaemon::Read(uint64_t offset, uint64_t length) {
  return std::string(reinterpret_cast<const char*>(At(offset)), length);
}

FakeDaemon::Port& FakeDaemon::WaitForPort(uint32_t channel, uint32_t io_thread) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [&] { return ports_.contains({channel, io_thread}); })) {
    ADD_FAILURE() << "no such ring pair";
  }
  return *ports_[{channel, io_thread}];
}

control::Connect FakeDaemon::WaitForConnect() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [&] { return !connects_.empty(); })) {
    ADD_FAILURE() << "no connect came";
    return {};
  }
  const control::Connect connect = connects_.front();
  connects_.pop_front();
  return connect;
}

control::Listen FakeDaemon::WaitForListen() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [&] { return !listens_.empty(); })) {
    ADD_FAILURE() << "no listen came";
    return {};
  }
  const control::Listen listen = listens_.front();
  listens_.pop_front();
  return listen;
}

bool FakeDaemon::WaitForMessage(Type type, size_t count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return seen_[type] >= count; });
}

uint32_t FakeDaemon::last_channel() {
  std::lock_guard lock(mutex_);
  return last_channel_;
}

size_t FakeDaemon::seen(Type type) {
  std::lock_guard lock(mutex_);
  return seen_[type];
}

}  // namespace sluice::client
