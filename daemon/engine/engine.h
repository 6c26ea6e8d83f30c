// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/engine/containers.h"
#include "daemon/engine/host.h"
#include "daemon/engine/latency.h"
#include "daemon/engine/path.h"
#include "daemon/engine/session.h"
#include "daemon/engine/socket.h"
#include "daemon/engine/wire.h"
#include "daemon/sched/send_window.h"
#include "daemon/transport/transport.h"

namespace sluice {

struct EngineCounters {
  uint64_t sent_messages = 0, sent_bytes = 0, received_messages = 0, received_bytes = 0;
  uint64_t keepalives_sent = 0, keepalives_received = 0;
  uint64_t window_stalls = 0, credit_stalls = 0, queue_stalls = 0, landing_waits = 0;
  uint64_t operations_ok = 0, operations_failed = 0, operations_unknown = 0;
  uint64_t grants_used = 0, stale_frames = 0, sessions = 0, paths = 0;
  uint64_t fabric_paths = 0, fabric_failures = 0;
  LatencyCounts operations;  // From Send() to the end, of those that ended OK.
};

// One peer daemon (and lane): sockets multiplexed over one path at a time, which is a queue pair of
// whatever transport. Frames, rendezvous, flow control, acknowledgements, keepalive, and what
// survives when the path or the session dies. The wire path (TCP) is always there; where both ends
// have a fabric (RDMA) the messages move to that, and back when it fails (fabric_path.cc).
//
// A session begins with the first path and ends when the peer restarts, says goodbye, or stays
// silent for the keepalive timeout; all sockets die with it. Losing a path does not end it: the
// next path resumes, and each end sends again only what the other has not got.
//
// Pure logic: no system call; time is an argument; the queue pair, the sockets' owners and the
// control thread are behind interfaces. Thread: its I/O thread's. Owns its queue pairs, its
// operations and landings; sockets live in the thread's table. Allocates: in steady state never.
class Engine {
 public:
  enum class State { kConnecting, kUp, kLost };

  Engine(PeerId peer, std::string name, SocketTable& sockets, EngineHost& host,
         const LocalLimits& limits, const Tunables& tunables);
  ~Engine();

  // --- paths (from the control thread's messages) ---

  // A connection finished its handshake. Refused (false) when it claims to resume a session that is
  // over here.
  bool OnPathUp(std::unique_ptr<transport::QueuePair> queue_pair, const SessionParameters& session,
                uint64_t now_ns);
  // No path could be made. `definite`: it is not worth waiting for; opening sockets fail now.
  void OnPathFailed(bool definite, int error, uint64_t now_ns);
  // Sends kGoodbye; the session ends once it is out.
  void SayGoodbye(uint64_t now_ns);
  void EndSession(int error, const std::string& reason, uint64_t now_ns);
  // The host's fabric is there now, or is another.
  void OnFabricChanged(uint64_t now_ns);
  // The fabric is about to go: afterwards no queue pair of this engine is on it.
  void LeaveFabric(const std::string& reason, uint64_t now_ns);

  // --- the loop ---

  // Of the wire path's queue pair, and of the fabric's.
  void OnCompletion(const transport::Completion& completion, uint64_t now_ns);
  void OnFabricCompletion(const transport::Completion& completion, uint64_t now_ns);
  // Posts what may go out now. Acknowledgements wait for company for a while. True: posted.
  bool Flush(uint64_t now_ns);
  // Keepalive, deadlines, idle grants. Cheap; every few milliseconds.
  void Tick(uint64_t now_ns);
  // When Flush() or Tick() wants to be called again without any event.
  uint64_t NextDeadlineNs() const;

  // --- sockets ---

  // Asks the peer for a socket to its service. Null: too many sockets.
  Socket* Open(void* owner, uint64_t token, uint16_t service, uint64_t now_ns);
  void Accept(Socket& socket, void* owner, uint64_t listener);
  void Refuse(Socket& socket, int error);

  struct SendRequest {
    const std::byte* data;  // Stays put until SendOver, unless inline_copy.
    uint64_t length;
    uint64_t token;
    uint64_t trace_id;
    uint8_t traffic_class;
    bool inline_copy;     // At most kInlineBytes, copied now.
    uint64_t now_ns = 0;  // From when on its latency counts.
  };
  // False: the socket is not open; nothing was done.
  bool Send(Socket& socket, const SendRequest& request);

  // The owner wants no more. Queued messages still go out.
  void Close(Socket& socket);
  // The owner is gone: nothing queued goes out, nothing is handed on; Gone() follows when no memory
  // is touched any more.
  void Abort(Socket& socket);
  // Memory or a completion slot of the socket's owner has become free.
  void Retry(Socket& socket);
  // Asks the peer for unused grants of this socket, whose owner is short of memory.
  void RecallGrants(Socket& socket);

  // --- looking and tuning ---

  void Configure(const Tunables& tunables);
  State state() const;
  PeerId peer() const { return peer_; }
  const std::string& name() const { return name_; }
  const SessionParameters& session() const { return session_; }
  bool session_alive() const { return session_alive_; }
  const EngineCounters& counters() const { return counters_; }
  const SendWindow& window() const { return window_; }
  uint32_t credits() const { return path_->credits.available(); }
  size_t socket_count() const { return all_.size(); }
  const char* transport_kind() const {
    return path_->queue_pair ? path_->queue_pair->kind() : "none";
  }
  // Why messages do not take the fabric, where they could; empty: they do, or never tried.
  const std::string& fabric_reason() const { return fabric_.reason; }
  bool on_fabric() const { return path_ == &fabric_; }
  // Messages take the wire although both ends are for a fabric: it failed, or could not be joined.
  bool degraded() const {
    return session_alive_ && MayUseFabric() && !on_fabric() && !fabric_.reason.empty();
  }
  uint64_t last_heard_ns() const { return last_heard_ns_; }
  bool has_unfinished_sends() const { return operations_.live() > 0; }
  // Nothing of ours waits to be sent or to be confirmed by the transport.
  bool Quiet() const {
    return !path_->queue_pair || (control_.empty() && path_->chain.InFlight() == 0);
  }
  // Which control holds back the sockets that want to send: "nothing", "window", "credits",
  // "queue", "peer".
  const char* LimitedBy() const { return limited_by_; }

 private:
  // A frame that waits for its turn in the next SEND. Slices are taken from the landing when it is
  // written.
  struct ControlFrame {
    wire::FrameHeader header{};
    uint32_t landing = 0;
  };
  enum class Turn { kMore, kNothing, kBlocked };
  // How far the fabric path is; see the top of fabric_path.cc.
  enum class FabricStep { kNone, kOffered, kAnswered, kProbing, kSwitching, kUp };

  // session.cc: wire paths and sessions.
  void BeginOnWire();
  void BreakPath(std::string reason);
  void LoseWire();
  void PathsGone();
  void SessionOver(int error, const std::string& reason);

  // engine.cc: completions, sockets' life, time.
  void KeepPathsAlive();
  void Receive(Path& path, const transport::Completion& completion);
  void ReleaseSlot(const ChainSlot& slot, bool on_path_end);
  void FinishOperation(Socket& socket, SendOperation& operation, Outcome outcome, int error);
  void FinishAcknowledged(Socket& socket);
  void EndOperations(Socket& socket, int error, bool unposted_only);
  void MaybeRetire(Socket& socket);
  void Retire(Socket& socket);
  void FreeReceiveSide(Socket& socket, bool ready_too);
  void DropReady(Socket& socket);
  bool IsAnswerOverdue(const Socket& socket, uint64_t now_ns) const;
  void Scan(uint64_t now_ns);
  void StartClose(Socket& socket);
  void Reset(Socket& socket, int error);

  // send_path.cc
  void WriteMessages();
  void Queue(wire::FrameType type, uint32_t socket, uint64_t sequence, uint64_t length,
             uint32_t argument, uint32_t landing = 0);
  bool WriteControl();
  uint64_t Placed(const Socket& socket) const;
  wire::FrameHeader AckOf(const Socket& socket) const;
  void QueueAck(Socket& socket);
  void WriteAcks();
  bool OpenBundle(CreditUse use, uint32_t header_bytes, uint64_t payload_bytes);
  void AddFrame(const wire::FrameHeader& header, std::span<const std::byte> payload = {});
  Turn SendTurn(Socket& socket);
  Turn SendEager(Socket& socket, SendOperation& operation);
  Turn SendFragment(Socket& socket, SendOperation& operation);
  Turn RequestLanding(Socket& socket, SendOperation& operation);
  Turn Blocked(const char* by, uint64_t& counter);
  bool IsEager(uint64_t length) const;
  bool WithinPeerWindow(const Socket& socket, const SendOperation& operation) const;

  // receive_path.cc
  void OnReceived(Path& path, std::span<const std::byte> bytes);
  void OnFrame(Path& path, const wire::FrameHeader& header, std::span<const std::byte> payload);
  void OnSocketFrame(Socket& socket, const wire::FrameHeader& header,
                     std::span<const std::byte> payload);
  void OnOpen(const wire::FrameHeader& header);
  void OnOpened(Socket& socket, uint32_t remote_id);
  void OnRefused(Socket& socket, int error);
  void OnClosed(Socket& socket);
  void OnMessage(Socket& socket, const wire::FrameHeader& header,
                 std::span<const std::byte> payload);
  static Landing* BoundTo(const Socket& socket, uint64_t sequence);
  void OnWriteRequest(Socket& socket, const wire::FrameHeader& header);
  void OnWritten(uint32_t grant);
  void OnGrant(Socket& socket, const wire::FrameHeader& header, std::span<const std::byte> payload);
  void OnWriteResponse(Socket& socket, const wire::FrameHeader& header,
                       std::span<const std::byte> payload);
  void OnAck(Socket& socket, const wire::FrameHeader& header);
  void OnPeerClose(Socket& socket, int error);
  void PeerEndGone(Socket& socket, int error);
  void OnRecall(Socket& socket, uint32_t grant);
  void OnReturned(Socket& socket, uint32_t grant);
  bool Expected(Socket& socket, uint64_t sequence);
  void Arrived(Socket& socket, ReadyMessage& message);
  void DeliverReady(Socket& socket);
  bool PlaceHeld(Socket& socket, ReadyMessage& message);
  void DropHeld(Socket& socket, ReadyMessage& message);
  void FillLandings(Socket& socket);
  void FreeLanding(Landing& landing);
  void Unoffer(Socket& socket, Landing& landing);
  void OfferLandings(Socket& socket);
  RemoteLanding* ReadSlices(const wire::FrameHeader& header, std::span<const std::byte> payload);
  void OweAck(Socket& socket);

  // resume.cc
  void StartResume(bool first);
  void OnResume(const wire::FrameHeader& header);
  void OnResumed();
  void ForgetPathState(Socket& socket, transport::QueuePair* living);
  void Reoffer(Socket& socket);

  // fabric_path.cc
  bool MayUseFabric() const;
  bool IsFabricInitiator() const;
  void StepFabric();
  Result<transport::Endpoint> MakeFabricQueuePair();
  Result<> TakeFabricCredits(uint64_t credits);
  void SettleFabric();
  void DropFabric(std::string reason);
  void OnPathFrame(Path& path, const wire::FrameHeader& header, std::span<const std::byte> payload);
  void OnFabricOffer(uint32_t attempt, const transport::Endpoint& peer, uint64_t credits);
  void OnFabricAnswer(uint32_t attempt, const transport::Endpoint* peer, uint64_t credits);
  void OnFabricProbe();
  void OnPathMark(uint32_t attempt);
  void SwitchToFabric();
  void LoseFabric();
  void FallToWire();
  void LeavePath(transport::QueuePair* living);

  const PeerId peer_;
  const std::string name_;
  SocketTable& sockets_;
  EngineHost& host_;
  const LocalLimits limits_;
  Tunables tunables_;

  Path wire_;
  Path fabric_;
  Path* path_ = &wire_;  // Carries the messages.
  SessionParameters session_;
  bool session_alive_ = false;
  bool
      resuming_ = false;  // Own kResume frames are out, the peer's kResumed is not in: no data yet.
  bool changed_path_ = false;  // In this session: what is said may have been said before.
  bool goodbye_ = false;       // Ours was queued.
  bool peer_said_goodbye_ = false;

  FabricStep fabric_step_ = FabricStep::kNone;
  uint32_t fabric_attempt_ = 0;
  transport::FabricQueuePair* joining_ = nullptr;  // fabric_.queue_pair, while it is not up.
  uint64_t next_fabric_ns_ = ~uint64_t{0};         // When StepFabric() has something to do.
  uint64_t fabric_up_ns_ = 0;
  uint64_t settle_ns_ = 0;
  bool awaiting_marker_ = false;  // We fell to the wire; until the peer says that it knows, what
                                  // it says there is void.
  std::vector<transport::Completion> early_;  // On the fabric, ahead of the peer's kPath.

  SendWindow window_;
  Fifo<ControlFrame> control_;

  RoundRobin<Socket, &Socket::ready_link> ready_;
  RoundRobin<Socket, &Socket::ack_link> acks_;
  RoundRobin<Socket, &Socket::engine_link> all_;
  NodePool<SendOperation> operations_;
  NodePool<ReadyMessage> messages_;
  NodePool<RemoteLanding> remote_landings_;
  IdTable<Landing> landings_;
  uint32_t incoming_ = 0;  // Sockets in kIncoming.

  uint64_t last_heard_ns_ = 0;
  uint64_t last_tick_ns_ = 0;
  uint64_t next_scan_ns_ = 0;  // When to look at every socket's deadline.
  uint64_t first_ack_ns_ = 0;  // When the oldest owed acknowledgement became owed; 0: none.
  uint32_t unacknowledged_messages_ = 0;  // That arrived since acknowledgements were last written.
  bool acks_stalled_ = false;  // They need a completion first, which wakes the loop: no deadline
                               // helps.
  uint64_t now_ns_ = 0;        // Of the current call; for marks deep inside.
  const char* limited_by_ = "nothing";
  EngineCounters counters_;
};

}  // namespace sluice
