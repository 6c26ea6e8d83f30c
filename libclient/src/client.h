// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "libclient/src/client_messages.h"
#include "libclient/src/control_port.h"
#include "libclient/src/error_text.h"
#include "libclient/src/fork_guard.h"
#include "libclient/src/inline_slab.h"
#include "libclient/src/mailbox.h"
#include "libclient/src/pool.h"
#include "shm_proto/base/clock.h"
#include "shm_proto/base/fd.h"
#include "shm_proto/base/random.h"
#include "shm_proto/base/result.h"
#include "shm_proto/control.h"

namespace sluice::client {

// What the daemon said when it accepted the attachment.
struct Limits {
  uint32_t io_threads = 0;
  uint64_t pool_reserve_bytes = 0;
  uint64_t max_message_bytes = 0;
  uint32_t max_channels = 0;
  uint32_t max_sockets = 0;
};

// One attachment to the node's daemon and all that outlives a restart of it: who listens on what,
// which channels there are, which pools still hold buffers. Speaks the control protocol and says to
// channels what they must know; never touches a ring. Runs without a thread of its own: somebody
// calls HandleMessage(), OnHangup() and Tick(). Invariant: pool_ is the pool of the daemon that is
// attached now, or null; every other pool is retired. Thread: what is marked control belongs to the
// control thread, the rest may be called by any. Everything below mutex_ is guarded by it; lock
// order: growing_, mutex_, then a mailbox's or a pool's own.
class Client final : private Pool::Daemon {
 public:
  struct Options {
    std::string name;
    uint64_t attach_timeout_ns = 5 * kNsPerSecond;
    uint64_t request_timeout_ns = 10 * kNsPerSecond;
    uint64_t retry_min_ns = 10 * kNsPerMs;
    uint64_t retry_max_ns = 1 * kNsPerSecond;
  };

  Client(Options options, ControlPort& port, const Clock& clock, Random& random);
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() override;

  Result<> Start();              // Private memory and the guard; before anything else.
  Answer<void> AwaitAttached();  // Waits for the first attachment and tells how it went.
  void Stop();                   // No more attaching; requests fail.

  // Control.
  void HandleMessage(std::span<const std::byte> packet, std::vector<Fd>& descriptors);
  void OnHangup(const std::string& reason);
  uint64_t Tick(uint64_t now_ns);  // Returns when to call again at the latest.
  bool FlushOutbox();              // False: packets wait until the socket is writable.

  // Any thread. Those that answer wait for the daemon, at most request_timeout_ns.
  struct OpenedChannel {
    uint32_t number;
    std::shared_ptr<Mailbox> mailbox;
    std::shared_ptr<Pool> pool;
    Limits limits;
  };
  Answer<OpenedChannel> OpenChannel(uint32_t ring_entries);
  // The ports are kept until the daemon has let go of them.
  void CloseChannel(uint32_t number, std::vector<std::unique_ptr<RingPort>> ports);
  size_t open_channels();
  Answer<uint64_t> Listen(uint32_t channel, uint16_t service);  // The listener's token.
  void Unlisten(uint64_t token);
  // Does not wait; returns the request's number.
  Answer<uint32_t> Connect(uint32_t channel, uint64_t token, const std::string& host,
                           uint16_t service);
  // A buffer of whichever pool, from a thread that cannot tell.
  Pool::Freed Free(void* buffer);
  bool InRetiredPool(const void* pointer);
  // A received buffer was freed where no ring to its I/O thread is.
  void ReturnToDaemon(Pool& pool, uint32_t io_thread, uint64_t offset);
  void ReportBroken(const Pool& pool, const std::string& reason);

  InlineSlab& slab() { return slab_; }
  const ForkGuard& guard() const { return guard_; }
  Limits limits();

 private:
  enum class Link {
    kDown,       // Waiting for retry_at_ns_.
    kAttaching,  // kAttach is sent.
    kRestoring,  // Attached; channels and listeners are being made again.
    kUp,
    kStopped,
  };
  struct Request {
    bool done = false;
    int32_t error = 0;
    std::string text;
  };
  struct Channel {
    enum class State { kOpening, kOpen, kClosing };
    State state = State::kOpening;
    uint32_t ring_entries = 0;
    std::shared_ptr<Mailbox> mailbox;
    uint64_t rings = 0;          // One bit per I/O thread that it has a ring pair with.
    bool away = false;           // Was told that the daemon is gone, and not yet that it is back.
    bool restored = false;       // The daemon of now knows it.
    bool left_out = false;       // Was told, while away, that a daemon did not take it back.
    Refusal refusal{};           // Why the daemon of now does not know it.
    uint32_t close_request = 0;  // kClosing
    std::deque<Notice>
        deferred;  // Rings that came before the channel may hear of the reattachment.
    std::vector<std::unique_ptr<RingPort>> remains;  // kClosing
  };
  struct Listener {
    uint32_t channel;
    uint16_t service;
    bool up;
    int32_t error = 0;
    std::string text;
  };
  struct Restore {
    bool is_listener;
    uint64_t id;  // Listener's token or channel's number.
  };

  Result<> Grow(Pool& pool, uint64_t needed_bytes, uint64_t wished_bytes) override;
  void Shrink(Pool& pool, uint64_t pool_offset, uint64_t bytes) override;

  // Under mutex_; `control` thread but for Queue() and Await().
  template <typename Message>
  void Queue(const Message& message, control::Type type, uint32_t request) {
    outbox_.push_back(Pack(message, type, request));
    port_.Wake();
  }
  uint32_t NextRequest();
  Answer<void> Await(std::unique_lock<std::mutex>& lock, uint32_t request, const char* what);
  void Maintain(uint64_t now_ns);
  void TryConnect();
  void Down(const std::string& reason);
  void FirstAttachFailed(int error, const std::string& text);
  void FailRequests(const std::string& reason);
  void DetachChannels(const std::string& reason);
  void RestoreAll();
  void RestoreListener(uint64_t token, Listener& listener);
  void OnRestored(uint32_t request, int32_t error, const std::string& text);
  void MaybeUp();
  static void LeaveOut(Channel& channel);
  void RetryListeners();
  void DropDrainedPools();
  uint64_t NextBackoff();
  Channel* Find(uint32_t number);

  template <typename Message>
  bool Read(std::span<const std::byte> packet, Message& message);
  void Dispatch(control::Type type, std::span<const std::byte> packet,
                std::vector<Fd>& descriptors);
  void OnAttached(const control::Attached& message);
  void OnError(const control::ErrorReply& message);
  void OnChannelOpened(const control::ChannelOpened& message);
  void OnChannelClosed(const control::ChannelClosed& message);
  void OnRegion(const control::Region& message, std::vector<Fd>& descriptors);
  Result<> MapRegion(const control::Region& message, std::vector<Fd>& descriptors);
  Result<> MapRings(const control::Region& message, std::vector<Fd>& descriptors);
  void OnBlocks(const control::Blocks& message);
  void OnUnmap(const control::Unmap& message);
  void OnListening(const control::Listening& message);
  void OnConnectFailed(const control::ConnectFailed& message);
  void Complete(uint32_t request, int32_t error, const std::string& text);

  const Options options_;
  ControlPort& port_;
  const Clock& clock_;
  Random& random_;
  ForkGuard guard_;
  InlineSlab slab_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Link link_ = Link::kDown;
  bool attached_once_ = false;
  std::optional<Refusal> attach_error_;
  std::string last_reason_ = "not attached yet";
  std::optional<Refusal> last_words_;  // An error that answers nothing: it explains a hang-up.
  std::string broken_reason_;          // A channel saw the daemon break the rules.
  uint64_t life_ = 0;                  // Rises with every detachment.
  uint64_t retry_at_ns_ = 0;
  uint64_t deadline_ns_ = 0;  // kAttaching, kRestoring: give up and try again.
  uint64_t backoff_ns_ = 0;
  uint64_t maintenance_at_ns_ = 0;
  uint32_t attach_request_ = 0;
  uint32_t next_request_ = 1;
  uint64_t next_listener_ = 1;
  Limits limits_;
  std::shared_ptr<Pool> pool_;
  std::vector<std::shared_ptr<Pool>> retired_;
  std::vector<std::unique_ptr<Channel>> channels_;  // By number; null: unused.
  std::map<uint64_t, Listener> listeners_;          // By token.
  std::map<uint32_t, Request> requests_;            // Somebody waits for each.
  std::map<uint32_t, Restore> restoring_;
  std::set<uint32_t> ring_regions_;
  std::deque<std::vector<std::byte>> outbox_;
};

}  // namespace sluice::client
