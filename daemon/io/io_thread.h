// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/clients/client_view.h"
#include "daemon/clients/port.h"
#include "daemon/engine/engine.h"
#include "daemon/io/mailbox.h"
#include "daemon/io/messages.h"
#include "daemon/transport/transport.h"
#include "shm_proto/base/clock.h"

namespace sluice::io {

// Turns a connection whose handshake is over into a queue pair of this thread's transport.
using AdoptConnection = std::function<Result<std::unique_ptr<transport::QueuePair>>(
    Fd connection, const transport::QueuePairLimits& limits, void* context)>;

// A queue pair and its peer inside one thread.
using MakeLoop = std::function<
    std::pair<std::unique_ptr<transport::QueuePair>, std::unique_ptr<transport::QueuePair>>(
        const transport::QueuePairLimits& limits, void* context_a, void* context_b)>;

// The networks of one thread: the one that reaches other hosts, the one inside this host, and the
// fabric beside the first, if there is one.
struct Networks {
  std::unique_ptr<transport::Transport> wire;
  AdoptConnection adopt;
  std::unique_ptr<transport::Transport> loop;
  MakeLoop make_loop;
  std::unique_ptr<transport::Fabric> fabric = nullptr;  // Comes and goes with its device.
};

// One I/O thread: its transport, its engines, its ports, its timers. The only place where clients,
// scheduler, engine and transport meet; read PollOnce() first.
// Thread: itself, except mailbox().Post() and progress(). Owns its transport, engines, client
// views.
class IoThread final : public EngineHost {
 public:
  struct Options {
    uint32_t index = 0;
    LocalLimits limits;
    Configure settings;
  };

  IoThread(const Options& options, const Clock& clock, Networks networks, Mailbox<FromIo>& control);
  ~IoThread() override;

  // Until a Stop message is carried out.
  void Run();
  // One turn of the loop. True: something was done, so another turn is likely to find more.
  bool PollOnce(uint64_t now_ns);

  Mailbox<ToIo>& mailbox() { return mailbox_; }
  // Rises with every turn of the loop, so that a watchdog can tell a stuck thread. Any thread.
  uint64_t progress() const { return loops_.load(std::memory_order_relaxed); }

  // --- EngineHost ---
  std::optional<PoolBuffer> Allocate(Socket& socket, uint64_t bytes) override;
  void Free(Socket& socket, const PoolBuffer& buffer) override;
  bool Hold(Socket& socket, uint64_t bytes) override;
  void Unhold(Socket& socket, uint64_t bytes) override;
  uint64_t LargestBuffer(Socket& socket) override;
  bool Deliver(Socket& socket, const Delivery& message) override;
  void SendOver(Socket& socket, const SendOperation& operation, Outcome outcome,
                int error) override;
  void Connected(Socket& socket, Outcome outcome, int error) override;
  void Incoming(Socket& socket) override;
  void Closed(Socket& socket, int error) override;
  void Gone(Socket& socket) override;
  SendBudget* budget() override { return &budget_; }
  transport::Fabric* fabric() override { return networks_.fabric.get(); }
  void PathChanged(Engine& engine) override;
  void PathLost(Engine& engine, bool session_over, const std::string& reason) override;

 private:
  // What an epoll event's tag says woke us; a port's doorbell carries the port's address.
  static constexpr uint64_t kTransportTag = 1;
  static constexpr uint64_t kMailboxTag = 2;

  // io_thread.cc: the loop.
  bool PollCompletions(transport::Transport& transport, uint64_t now_ns);
  bool PollFabric(uint64_t now_ns);
  bool DrainRings();
  void Submit(Port& port, const Descriptor& request);
  void SubmitSend(Port& port, const Descriptor& request);
  void SubmitFree(Port& port, const Descriptor& request);
  void SubmitClose(Port& port, const Descriptor& request);
  void RetryStalled();
  bool FlushEngines(uint64_t now_ns);
  void ReturnQuota(Port& port);
  void Tick(uint64_t now_ns);
  bool StopStep(uint64_t now_ns);
  void Sleep(uint64_t now_ns);
  void Watch(int fd, uint64_t tag);

  // commands.cc: what the control thread asks for.
  bool HandleMailbox(uint64_t now_ns);
  void Handle(AddClient& message, uint64_t now_ns);
  void Handle(AddExtent& message, uint64_t now_ns);
  void Handle(RemoveExtent& message, uint64_t now_ns);
  void Handle(AddReceiveBlocks& message, uint64_t now_ns);
  void Handle(AddPort& message, uint64_t now_ns);
  void Handle(RemovePort& message, uint64_t now_ns);
  void Handle(RemoveClient& message, uint64_t now_ns);
  void Handle(AddPeer& message, uint64_t now_ns);
  void Handle(LinkSelf& message, uint64_t now_ns);
  void Handle(PathUp& message, uint64_t now_ns);
  void Handle(SetFabric& message, uint64_t now_ns);
  void Handle(SetRegions& message, uint64_t now_ns);
  void Handle(PathFailed& message, uint64_t now_ns);
  void Handle(OpenSocket& message, uint64_t now_ns);
  void Handle(AcceptSocket& message, uint64_t now_ns);
  void Handle(RefuseSocket& message, uint64_t now_ns);
  void Handle(Configure& message, uint64_t now_ns);
  void Handle(Stop& message, uint64_t now_ns);
  void Handle(Query& message, uint64_t now_ns);
  ClientView* FindClient(ClientId id);
  Port* FindPort(ClientId client, uint32_t channel);
  Engine* FindEngine(PeerId peer);
  void AbortSocketsOf(const std::function<bool(const Port&)>& chosen);
  void RemovePortNow(Port& port);
  void RemoveIfUnused(ClientView& client);
  void ReturnEmptyBlocks(ClientView& client);
  void NotConnected(Port* port, const OpenSocket& request, int error);
  ThreadSnapshot Snapshot(uint64_t now_ns);

  const uint32_t index_;
  const LocalLimits limits_;
  Configure settings_;
  const Clock& clock_;
  Mailbox<FromIo>& control_;
  Mailbox<ToIo> mailbox_;
  Fd epoll_;
  SocketTable sockets_;
  SendBudget budget_;
  std::map<ClientId, std::unique_ptr<ClientView>> clients_;
  std::vector<Port*> ports_;  // All of all clients that may be polled.
  Networks networks_;
  std::shared_ptr<const transport::Regions> regions_;  // For a fabric that comes later.
  std::map<PeerId, std::unique_ptr<Engine>>
      engines_;  // After networks_: their queue pairs go first.
  std::vector<transport::Completion> completions_;

  uint64_t now_ns_ = 0;
  uint64_t next_tick_ns_ = 0;
  uint64_t last_busy_ns_ = 0;
  bool stopping_ = false;
  bool stopped_ = false;
  uint64_t stop_deadline_ns_ = 0;
  std::atomic<uint64_t> loops_{0};
  uint64_t sleeps_ = 0;
};

}  // namespace sluice::io
