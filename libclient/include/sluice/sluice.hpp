// SPDX-License-Identifier: Apache-2.0
//
// The C++17 face of libsluice: handles that close themselves over the C interface of sluice.h,
// whose words about threads, buffers and errors hold here too. Throws nothing; what can fail says
// so in its return value.
#ifndef SLUICE_SLUICE_HPP_
#define SLUICE_SLUICE_HPP_

#include <sluice/sluice.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace sluice {

// 0 or a count, or a negative errno value.
class [[nodiscard]] Status {
 public:
  Status(int value = 0) : value_(value) {}  // NOLINT: what the C functions return is one.
  bool ok() const { return value_ >= 0; }
  explicit operator bool() const { return ok(); }
  bool again() const { return value_ == -EAGAIN; }  // Back-pressure: poll, then try again.
  int value() const { return value_; }
  int error() const { return ok() ? 0 : -value_; }
  // Of this thread's last error: ask at once.
  static std::string Text() { return sluice_error_text(); }

 private:
  int value_;
};

// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] Maybe {
 public:
  Maybe(T value) : value_(std::move(value)) {}  // NOLINT: so that a function returns either.
  Maybe(Status status) : status_(status) {}     // NOLINT
  explicit operator bool() const { return status_.ok(); }
  Status status() const { return status_; }
  T& operator*() { return value_; }
  T* operator->() { return &value_; }

 private:
  T value_{};
  Status status_;
};

// A piece of the pool. Goes back when destroyed; must not outlive its channel.
class Buffer {
 public:
  Buffer() = default;
  Buffer(sluice_channel* channel, void* data, std::size_t size)
      : channel_(channel), data_(data), size_(size) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      Reset();
      channel_ = other.channel_;
      size_ = other.size_;
      data_ = std::exchange(other.data_, nullptr);
    }
    return *this;
  }
  ~Buffer() { Reset(); }

  explicit operator bool() const { return data_ != nullptr; }
  void* data() const { return data_; }
  std::size_t size() const { return size_; }
  void* Release() { return std::exchange(data_, nullptr); }  // The caller frees it from now on.
  void Reset() {
    if (data_ != nullptr) sluice_free(channel_, std::exchange(data_, nullptr));
  }

 private:
  sluice_channel* channel_ = nullptr;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// Where one thread submits and polls. One thread at a time.
class Channel {
 public:
  Channel() = default;
  explicit Channel(sluice_channel* handle) : handle_(handle) {}

  sluice_channel* get() const { return handle_.get(); }
  explicit operator bool() const { return handle_ != nullptr; }

  Maybe<Buffer> Allocate(std::size_t bytes) {
    void* data = sluice_alloc(get(), bytes);
    if (data == nullptr) return Status(-errno);
    return Buffer(get(), data, bytes);
  }
  // The buffer of a MESSAGE event, or of a SENT event with KEEP.
  Buffer Adopt(const sluice_event& event) {
    return Buffer(get(), event.data, static_cast<std::size_t>(event.length));
  }

  Maybe<sluice_listener> Listen(std::uint16_t service, std::uint64_t user_data = 0) {
    sluice_listener listener = 0;
    const Status status = sluice_listen(get(), service, user_data, &listener);
    if (!status) return status;
    return listener;
  }
  Status Unlisten(sluice_listener listener) { return sluice_unlisten(get(), listener); }
  Maybe<sluice_socket> Connect(const std::string& address, std::uint64_t user_data = 0) {
    sluice_socket socket = 0;
    const Status status = sluice_connect(get(), address.c_str(), user_data, &socket);
    if (!status) return status;
    return socket;
  }
  Status SetUserData(sluice_socket socket, std::uint64_t user_data) {
    return sluice_set_user_data(get(), socket, user_data);
  }
  Status Close(sluice_socket socket) { return sluice_close(get(), socket); }

  // Takes the buffer along when it succeeds, and only then.
  Status Send(sluice_socket socket, Buffer& buffer, std::size_t bytes, std::uint64_t user_data = 0,
              std::uint32_t flags = 0, std::uint64_t trace_id = 0) {
    const Status status = sluice_send(get(), socket, buffer.data(), bytes, flags, user_data,
                                      trace_id);
    if (status) buffer.Release();
    return status;
  }
  Status SendCopy(sluice_socket socket, const void* data, std::size_t bytes,
                  std::uint64_t user_data = 0, std::uint32_t flags = 0,
                  std::uint64_t trace_id = 0) {
    return sluice_send_copy(get(), socket, data, bytes, flags, user_data, trace_id);
  }

  Status Poll(sluice_event* events, int max) { return sluice_poll(get(), events, max); }
  Status Wait(sluice_event* events, int max, int timeout_ms) {
    return sluice_wait(get(), events, max, timeout_ms);
  }
  int event_fd() const { return sluice_event_fd(get()); }
  bool Arm() { return sluice_arm(get()) == 1; }  // True: poll instead of sleeping.

 private:
  struct Closer {
    void operator()(sluice_channel* handle) const { sluice_channel_close(handle); }
  };
  std::unique_ptr<sluice_channel, Closer> handle_;
};

// One attachment to the node's daemon. Outlives its channels.
class Client {
 public:
  Client() = default;

  static Maybe<Client> Attach(const sluice_options* options = nullptr) {
    sluice_client* handle = nullptr;
    const Status status = sluice_attach(options, &handle);
    if (!status) return status;
    return Client(handle);
  }

  sluice_client* get() const { return handle_.get(); }
  Maybe<Channel> OpenChannel(std::uint32_t ring_entries = 0) {
    sluice_channel* channel = nullptr;
    const Status status = sluice_channel_open(get(), ring_entries, &channel);
    if (!status) return status;
    return Channel(channel);
  }
  Status Free(void* buffer) { return sluice_client_free(get(), buffer); }
  std::size_t max_message_bytes() const { return sluice_max_message_bytes(get()); }
  std::size_t pool_quota_bytes() const { return sluice_pool_quota_bytes(get()); }

 private:
  explicit Client(sluice_client* handle) : handle_(handle) {}
  struct Detacher {
    void operator()(sluice_client* handle) const { sluice_detach(handle); }
  };
  std::unique_ptr<sluice_client, Detacher> handle_;
};

}  // namespace sluice

#endif  // SLUICE_SLUICE_HPP_
