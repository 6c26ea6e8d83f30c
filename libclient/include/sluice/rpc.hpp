// SPDX-License-Identifier: Apache-2.0
//
// Requests that end in time, whatever dies: an RPC layer on libsluice's messages.
//
//   endpoint  one attachment to the node's daemon with one channel of it; servers and channels
//   share
//             it. One thread at a time drives it with Poll(), or Start() gives it a thread.
//   server    answers requests on one service of this node.
//   channel   calls one service: shards x replicas x domains, from a source that may change.
//   payload   the bytes of a request or a reply: a buffer of the pool, handed over, never copied on
//             the way unless it is small.
//
// Every call ends exactly once, by its deadline at the latest, with a code and with an outcome in
// the transport's own words: OK it was carried out; FAILED it certainly was not; UNKNOWN it may
// have been. A call is sent again after FAILED, and after UNKNOWN only if its method is idempotent,
// or carries a token by which the server knows it again; then only to that same server. All further
// attempts, hedges included, come out of a budget that is a share of the calls.
//
// Threads: everything here belongs to the endpoint's thread, except what says "any thread".
// Callbacks run on it, within Poll() and never under a lock; they may call anything but Poll().
// A call never ends within the function that began it. Throws nothing. docs/rpc.md has the
// messages.
#ifndef SLUICE_RPC_HPP_
#define SLUICE_RPC_HPP_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <sluice/sluice.hpp>
#include <string>
#include <utility>
#include <vector>
#if defined(__cpp_impl_coroutine)
#include <coroutine>
#endif

namespace sluice {
namespace rpc {

enum class Code : std::uint32_t {
  kOk = 0,
  kFailed = 1,    // No server took it.
  kUnknown = 2,   // A server or the path to it died with it.
  kDeadline = 3,  // It took too long.
  kCancelled = 4,
  kOverloaded = 5,    // The server, or this channel, has as many as it may. Not carried out.
  kNoMethod = 6,      // The server does not know the method.
  kMalformed = 7,     // One side did not understand the other.
  kNotServing = 8,    // The server is not ready, or shutting down. Not carried out.
  kForgotten = 9,     // The server no longer knows whether it carried out this token.
  kApplication = 10,  // The handler said no; the payload is its text.
};
constexpr std::size_t kCodes = 11;
const char* CodeName(Code code);

// The bytes of a request or a reply, in the pool. Move-only; goes back to the pool when destroyed,
// which must happen on its endpoint's thread and before the endpoint goes.
class Payload {
 public:
  static constexpr std::size_t kHeadroom = 64;  // Before the bytes, for the message's header.

  Payload() = default;
  Payload(sluice_channel* channel, void* buffer, std::size_t offset, std::size_t size)
      : channel_(channel), buffer_(static_cast<char*>(buffer)), offset_(offset), size_(size) {}
  Payload(Payload&& other) noexcept { *this = std::move(other); }
  Payload& operator=(Payload&& other) noexcept {
    if (this != &other) {
      Reset();
      channel_ = other.channel_;
      offset_ = other.offset_;
      size_ = std::exchange(other.size_, 0);
      buffer_ = std::exchange(other.buffer_, nullptr);
    }
    return *this;
  }
  ~Payload() { Reset(); }

  explicit operator bool() const { return buffer_ != nullptr; }  // False: no buffer, size() is 0.
  char* data() const { return buffer_ == nullptr ? nullptr : buffer_ + offset_; }
  std::size_t size() const { return size_; }
  std::size_t headroom() const { return buffer_ == nullptr ? 0 : offset_; }
  std::string ToString() const { return buffer_ == nullptr ? "" : std::string(data(), size_); }
  void Shorten(std::size_t size) { size_ = size < size_ ? size : size_; }

  void* Release() {  // The caller frees the buffer from now on.
    size_ = 0;
    return std::exchange(buffer_, nullptr);
  }
  void Reset() {
    if (buffer_ != nullptr) sluice_free(channel_, std::exchange(buffer_, nullptr));
    size_ = 0;
  }

 private:
  sluice_channel* channel_ = nullptr;
  char* buffer_ = nullptr;
  std::size_t offset_ = 0;
  std::size_t size_ = 0;
};

// ---- Endpoint -------------------------------------------------------------------------------

struct EndpointOptions {
  std::string socket_path = {};  // Empty: the library's default.
  std::string name = "rpc";
  std::uint32_t ring_entries = 0;              // 0: the library's default.
  std::function<std::uint64_t()> now_ns = {};  // Empty: the monotonic clock.
  std::uint64_t seed = 0;                      // Of its random choices; 0: random.
};

class EndpointImpl;

class Endpoint {
 public:
  static Maybe<std::unique_ptr<Endpoint>> Open(const EndpointOptions& options);
  explicit Endpoint(std::unique_ptr<EndpointImpl> impl);
  ~Endpoint();  // Servers and channels go first. Ends the thread of Start().

  // A buffer with room for a header before its `bytes`; empty when there is no memory.
  Payload Allocate(std::size_t bytes);
  Payload Copy(const void* data, std::size_t bytes);

  // One turn: timers, events, callbacks; waits up to timeout_ms (-1: for ever) for something to do.
  // Returns how many events there were.
  int Poll(int timeout_ms);

  // Any thread: runs `task` on the endpoint's thread, soon. Tasks run in the order of Post().
  void Post(std::function<void()> task);

  void Start();  // A thread that polls until Stop(); nobody else polls meanwhile.
  void Stop();

  std::uint64_t now_ns() const;  // The clock that deadlines are of.
  EndpointImpl& impl() { return *impl_; }

 private:
  std::unique_ptr<EndpointImpl> impl_;
};

// ---- Server ---------------------------------------------------------------------------------

struct ServerOptions {
  std::uint32_t max_running = 256;   // Requests being handled at a time.
  std::uint32_t max_waiting = 1024;  // For that; one more is answered kOverloaded.
  std::uint32_t max_unsent = 4096;   // Replies of one connection that its client does not take.
  std::uint32_t remembered_clients = 4096;  // Of calls with a token.
  std::uint64_t remembered_calls = 1 << 20;
  std::uint64_t remembered_bytes = 64 << 20;
};

struct RequestState;
class ServerImpl;

// A request being handled. Reply(), Fail() or the last part ends it; one that is dropped without is
// answered kApplication. May be kept and answered later, on the endpoint's thread.
class Request {
 public:
  explicit Request(std::shared_ptr<RequestState> state);
  Request(Request&&) noexcept = default;
  Request& operator=(Request&& other) noexcept;
  ~Request();

  std::uint32_t method() const;
  Payload& payload();                 // May be moved away.
  std::uint64_t deadline_ns() const;  // Give it to the calls that this request makes in turn.
  std::uint64_t trace_id() const;     // This one too.
  std::uint32_t attempt() const;
  bool cancelled() const;  // Nobody waits for the reply any more, or the deadline is over.
  void OnCancel(std::function<void()> callback);

  // The idempotency token, for a service that keeps its effects beyond this process and must
  // remember tokens with them. sequence 0: none.
  std::uint64_t token_client() const;
  std::uint64_t token_sequence() const;

  void Reply(Payload reply);
  void ReplyCopy(const void* data, std::size_t bytes);
  void Fail(const std::string& text);

  // One part of a streamed reply; Reply() is the last. False: the client does not take them fast
  // enough; nothing was taken, try again when OnWritable() calls.
  bool Part(Payload& part);
  void OnWritable(std::function<void()> callback);

 private:
  std::shared_ptr<RequestState> state_;
};

using Handler = std::function<void(Request)>;

class Server {
 public:
  Server(Endpoint& endpoint, const ServerOptions& options = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void Handle(std::uint32_t method, std::string name, Handler handler);  // Method 0 is taken.
  Status Listen(std::uint16_t service);

  // A server that does not serve answers kNotServing, to probes too: say so until a restarted
  // replica has its data again, and before shutting down.
  void SetServing(bool serving);
  void SetLimits(std::uint32_t max_running, std::uint32_t max_waiting);  // Live.

  std::uint32_t running() const;
  std::string MetricsText() const;  // Prometheus text format.

 private:
  std::unique_ptr<ServerImpl> impl_;
};

// ---- Channel --------------------------------------------------------------------------------

// All of it applies live, with the next call.
struct Tuning {
  double connect_timeout_ms = 10;
  double request_timeout_ms = 40;  // After which an attempt counts as failed, and another is made.
  double deadline_ms = 1000;       // Of a call that brings none.
  std::uint32_t max_attempts = 4;
  double retry_probability = 1;       // Of an attempt after one that took too long.
  double retry_share = 0.2;           // Further attempts per call, at most.
  std::uint32_t retry_reserve = 100;  // At once, by a channel that has been quiet.
  double hedge_percentile = 0;  // A slower call of an idempotent method is sent twice; 0: never.
  double settle_ms = 500;       // How long a replica is avoided before it is probed.
  double longest_settle_ms = 30'000;
  std::uint32_t quarantine_connection_failures = 30;  // More than so many within the window.
  std::uint32_t quarantine_request_failures = 50;
  double quarantine_window_ms = 300'000;
  double return_ms = 10'000;  // From none to all of its load, after quarantine.
  double panic_share = 0.5;   // If more of a shard's replicas are in quarantine, none is.
  std::uint32_t max_outstanding = 65'536;  // Calls of the channel.
};

struct Replica {
  std::uint32_t shard = 0;
  std::string address = {};  // As of sluice_connect().
  std::string domain = {};   // "data centre/pod/mini-pod"; compared level by level.
};

struct ServiceMap {
  std::string name = {};
  std::string domain = {};  // Where this process is; empty: nowhere in particular.
  std::vector<Replica> replicas = {};
  Tuning tuning = {};
};

// Where a channel learns its service from. Asked now and then on the endpoint's thread.
class Source {
 public:
  virtual ~Source() = default;
  // True: `map` is new. False: nothing new; a non-empty `error` says what is wrong with the news,
  // which the channel shows and otherwise ignores.
  virtual bool Next(ServiceMap& map, std::string& error) = 0;
};
std::unique_ptr<Source> FixedSource(ServiceMap map);
// A TOML file, watched; docs/rpc.md has its keys. A bad file changes nothing.
std::unique_ptr<Source> FileSource(std::string path);
// The same from text, for sources of one's own. False: `error` says why.
bool ParseServiceMap(const std::string& text, ServiceMap& map, std::string& error);

struct Method {
  std::uint32_t id = 1;
  bool idempotent = false;  // Carrying it out twice does no harm: any replica may get it again.
  bool token = false;       // It is given a token, so that no server carries it out twice.
};

struct Result {
  Code code = Code::kUnknown;
  sluice_outcome outcome = SLUICE_UNKNOWN;
  Payload payload;  // Of kOk, kApplication.
  std::uint32_t attempts = 0;
  int replica = -1;  // Which of the shard's answered.
  std::string text() const { return payload.ToString(); }
};
using Done = std::function<void(Result)>;

struct CallOptions {
  std::uint64_t deadline_ns = 0;  // Of the endpoint's clock; 0: the tuning's.
  std::uint64_t trace_id = 0;     // 0: made up.
  int replica = -1;               // Only this one of the shard's; -1: the channel chooses.
  std::function<void(Payload)> on_part =
      {};  // Takes the parts of a streamed reply before the last.
};

using CallId = std::uint64_t;

// What a future holds: copied, since another thread takes it.
struct CopiedResult {
  Code code = Code::kUnknown;
  sluice_outcome outcome = SLUICE_UNKNOWN;
  std::string bytes;
};

struct Target {
  std::uint32_t shard = 0;
  int replica = -1;
  Payload request = {};
};

// When a fan-out is over, and whether it is a success.
struct Gather {
  std::uint32_t need = 0;    // So many kOk make it one; 0: all of them.
  bool wait_for_all = true;  // False: over as soon as that is decided; the rest is cancelled.
};

class ChannelImpl;

class Channel {
 public:
  Channel(Endpoint& endpoint, std::unique_ptr<Source> source);
  ~Channel();  // Calls under way are forgotten: their callbacks never run.
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  CallId Call(const Method& method, std::uint32_t shard, Payload request, Done done,
              const CallOptions& options = {});
  bool Cancel(CallId call);  // False: it is over. It ends as kCancelled, with the next turn.

  // Any thread; the endpoint's must be polling.
  std::future<CopiedResult> CallFuture(const Method& method, std::uint32_t shard,
                                       std::string request, CallOptions options = {});

  // One call to each target; `done` gets their results in the targets' order, and whether enough of
  // them are kOk. Results that were not waited for are kCancelled.
  void FanOut(const Method& method, std::vector<Target> targets, const Gather& gather,
              std::function<void(bool enough, std::vector<Result>)> done,
              const CallOptions& options = {});

  std::uint32_t shards() const;
  std::uint32_t replicas(std::uint32_t shard) const;
  bool connected(std::uint32_t shard, std::uint32_t replica) const;
  std::string MetricsText() const;  // Prometheus text format.
  std::string Explain() const;      // Each replica, and why it gets requests or does not.

#if defined(__cpp_impl_coroutine)
  // Result result = co_await channel.Await(method, shard, std::move(request));
  auto Await(const Method& method, std::uint32_t shard, Payload request, CallOptions options = {}) {
    struct Awaiter {
      Channel& channel;
      Method method;
      std::uint32_t shard;
      Payload request;
      CallOptions options;
      Result result;

      bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<> waiting) {
        const auto done = [this, waiting](Result ended) {
          result = std::move(ended);
          waiting.resume();
        };
        channel.Call(method, shard, std::move(request), done, options);
      }
      Result await_resume() { return std::move(result); }
    };
    return Awaiter{*this, method, shard, std::move(request), std::move(options), {}};
  }
#endif

 private:
  Endpoint& endpoint_;
  std::unique_ptr<ChannelImpl> impl_;
};

}  // namespace rpc
}  // namespace sluice

#endif  // SLUICE_RPC_HPP_
