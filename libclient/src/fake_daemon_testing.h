// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "shm_proto/base/fd.h"
#include "shm_proto/control.h"
#include "shm_proto/ring.h"

namespace sluice::client {

// A daemon for tests, in the test's own process: it speaks the control protocol over a real socket
// and shares real memory. A thread of its own answers control messages obligingly; what happens in
// the rings the test does itself, so it decides when and how every operation ends. Thread: the
// test's. Owns everything that it shares.
class FakeDaemon {
 public:
  struct Options {
    uint32_t io_threads = 2;
    uint64_t pool_bytes = 64 * kMiB;
    uint64_t max_message_bytes = 16 * kMiB;
    uint32_t max_channels = 8;
    uint32_t max_sockets = 64;
    uint32_t ring_start = 0;  // Where every ring's counters begin.
    uint16_t version_min = control::kVersionMin;
    uint16_t version_max = control::kVersionMax;
    std::set<uint32_t> refused_services;
    bool answers_grow = true;
    bool confirms_close = true;
    // Sees every control message first; true: it was dealt with.
    std::function<bool(FakeDaemon&, const control::Header&, std::span<const std::byte>)> intercept;
  };

  // The daemon's end of one ring pair. Everything waits at most a few seconds, then fails the test.
  class Port {
   public:
    Port(std::byte* base, uint32_t capacity, Fd doorbell)
        : submissions(RingMemory{base, capacity}),
          completions(RingMemory{base + RingBytes(capacity), capacity}),
          doorbell(std::move(doorbell)),
          base_(base) {}

    Descriptor Next();                    // The next submission; waits for it.
    std::optional<Descriptor> TryNext();  // If there is one now.
    Descriptor NextOf(SubmitOp op);       // Skips others, keeping their frees.
    void Push(Descriptor descriptor);     // Shows one completion and rings if the client sleeps.
    void PushSilently(const Descriptor& descriptor);  // The same without the doorbell.

    uint8_t path_flags = 0;  // DescriptorFlags that every pushed completion carries.
    void Sent(uint64_t token, Outcome outcome = Outcome::kOk, int32_t error = 0);
    void Connected(uint64_t token, uint32_t socket);
    void Accepted(uint64_t listener, uint32_t socket);
    void Closed(uint32_t socket, int32_t error = 0);
    void MessageInline(uint32_t socket, std::string_view payload);
    void MessageAt(uint32_t socket, uint64_t offset, uint64_t length);

    std::vector<uint64_t>& freed() { return freed_; }
    bool WaitForFrees(size_t count);

    RingConsumer submissions;
    RingProducer completions;
    Fd doorbell;
    std::byte* base() const { return base_; }

   private:
    std::byte* const base_;
    std::vector<uint64_t> freed_;
  };

  FakeDaemon(std::string path, Options options);
  explicit FakeDaemon(std::string path) : FakeDaemon(std::move(path), Options{}) {}
  ~FakeDaemon();

  void Start();
  void Kill();  // As kill -9 does: every descriptor closes, nobody says goodbye.

  Port& WaitForPort(uint32_t channel, uint32_t io_thread);
  control::Connect WaitForConnect();
  control::Listen WaitForListen();
  bool WaitForMessage(control::Type type, size_t count = 1);  // That many were seen since Start().
  size_t seen(control::Type type);
  uint32_t last_channel();  // The number in the last kOpenChannel.

  Port& OpenPort(uint32_t channel,
                 uint32_t io_thread);      // Sends the ring pair and waits until it is mapped.
  uint64_t ReceiveBuffer(uint64_t bytes);  // A place in the pool, its blocks nobody else's.
  std::byte* At(uint64_t offset);
  std::string Read(uint64_t offset, uint64_t length);

  template <typename Message>
  void Send(Message message, control::Type type, uint32_t request,
            std::vector<int> descriptors = {}) {
    message.header.magic = control::kMagic;
    message.header.type = type;
    message.header.bytes = sizeof(message);
    message.header.request = request;
    SendBytes(std::as_bytes(std::span(&message, 1)), descriptors);
  }
  void SendBytes(std::span<const std::byte> bytes, const std::vector<int>& descriptors = {});
  void HangUp();  // Closes the control connection only.
  void SendError(uint32_t request, int error, std::string_view text);

  static constexpr uint64_t kExtentBytes = 2 * control::kBlockBytes;

 private:
  struct Extent {
    Fd memfd;
    std::byte* base;
    uint64_t offset, bytes;
  };

  void Run();
  bool Serve();
  void Handle(const control::Header& header, std::span<const std::byte> packet);
  void OnAttach(std::span<const std::byte> packet);
  void OnGrow(const control::Header& header, std::span<const std::byte> packet);
  void OnListen(std::span<const std::byte> packet);
  void SendExtent(std::unique_lock<std::mutex>& lock, uint64_t bytes,
                  std::optional<uint32_t> grow_request);
  Extent& MakeExtent(uint64_t bytes);

  const std::string path_;
  const Options options_;
  std::mutex connection_mutex_;  // For who uses connection_ but does not serve it; taken last.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  Fd listener_, connection_, wake_read_, wake_write_;
  bool stopping_ = false;
  uint32_t next_region_ = 1;
  uint32_t last_channel_ = 0;
  uint64_t next_offset_ = 0;
  std::map<uint32_t, uint32_t> ring_entries_;  // By channel.
  std::map<uint32_t, std::pair<uint64_t, uint32_t>>
      grows_;  // Region -> offset's extent index, request.
  std::set<uint32_t> mapped_;
  std::vector<Extent> extents_;
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Port>> ports_;
  std::vector<std::pair<std::byte*, size_t>> mappings_;
  std::deque<control::Connect> connects_;
  std::deque<control::Listen> listens_;
  std::map<control::Type, size_t> seen_;
  uint64_t receive_offset_ = 0, receive_end_ = 0;
};

}  // namespace sluice::client
