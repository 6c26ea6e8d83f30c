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
#include "daemon/engine/request_chain.h"
#include "daemon/engine/session.h"
#include "daemon/engine/socket.h"
#include "daemon/engine/wire.h"
#include "daemon/sched/credits.h"
#include "daemon/sched/send_window.h"
#include "daemon/transport/transport.h"

namespace sluice {

struct EngineCounters {
  uint64_t sent_messages = 0, sent_bytes = 0, received_messages = 0, received_bytes = 0;
  uint64_t keepalives_sent = 0, keepalives_received = 0;
  uint64_t window_stalls = 0, credit_stalls = 0, queue_stalls = 0, landing_waits = 0;
  uint64_t operations_ok = 0, operations_failed = 0, operations_unknown = 0;
  uint64_t grants_used = 0, stale_frames = 0, sessions = 0, paths = 0;
  LatencyCounts operations;  // From Send() to the end, of those that ended OK.
};

// One peer daemon (and lane): sockets multiplexed over one path, which is a queue pair of whatever
// transport. Frames, rendezvous, flow control, acknowledgements, keepalive, and what survives when
// the path or the session dies.
//
// A session begins with the first path and ends when the peer restarts, says goodbye, or stays
// silent for the keepalive timeout; all sockets die with it. Losing a path does not end it: the
// next path resumes, and each end sends again only what the other has not got.
//
// Pure logic: no system call; time is an argument; the queue pair, the sockets' owners and the
// control thread are behind interfaces. Thread: its I/O thread's. Owns its queue pair, its
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

  // --- the loop ---

  void OnCompletion(const transport::Completion& completion, uint64_t now_ns);
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
  uint32_t credits() const { return credits_.available(); }
  size_t socket_count() const { return all_.size(); }
  const char* transport_kind() const { return queue_pair_ ? queue_pair_->kind() : "none"; }
  uint64_t last_heard_ns() const { return last_heard_ns_; }
  bool has_unfinished_sends() const { return operations_.live() > 0; }
  // Nothing of ours waits to be sent or to be confirmed by the transport.
  bool Quiet() const { return !queue_pair_ || (control_.empty() && chain_.InFlight() == 0); }
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

  // engine.cc: paths, sessions, sockets' life.
  void LosePath();
  void BreakPath(std::string reason);
  void ReleaseSlot(const ChainSlot& slot, bool on_path_end);
  void FinishOperation(Socket& socket, SendOperation& operation, Outcome outcome, int error);
  void FinishAcknowledged(Socket& socket);
  void EndOperations(Socket& socket, int error, bool unposted_only);
  void MaybeRetire(Socket& socket);
  void Retire(Socket& socket);
  void SessionOver(int error, const std::string& reason);
  void FreeReceiveSide(Socket& socket, bool ready_too);
  void DropReady(Socket& socket);
  bool IsAnswerOverdue(const Socket& socket, uint64_t now_ns) const;
  void Scan(uint64_t now_ns);
  void StartClose(Socket& socket);
  void Reset(Socket& socket, int error);
  void PostReceives();

  // send_path.cc
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
  void OnReceived(std::span<const std::byte> bytes);
  void OnFrame(const wire::FrameHeader& header, std::span<const std::byte> payload);
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
  void StartResume();
  void OnResume(const wire::FrameHeader& header);
  void OnResumed();
  void ForgetPathState(Socket& socket);
  void Reoffer(Socket& socket);

  const PeerId peer_;
  const std::string name_;
  SocketTable& sockets_;
  EngineHost& host_;
  const LocalLimits limits_;
  Tunables tunables_;

  std::unique_ptr<transport::QueuePair> queue_pair_;
  SessionParameters session_;
  bool session_alive_ = false;
  bool path_broken_ = false;  // To be taken down at the next Flush(), outside the completion loop.
  bool
      resuming_ = false;  // Own kResume frames are out, the peer's kResumed is not in: no data yet.
  bool goodbye_ = false;  // Ours was queued.
  bool peer_said_goodbye_ = false;
  std::string break_reason_;

  RequestChain chain_;
  SendWindow window_;
  SendCredits credits_;
  CreditReturns returns_;
  std::unique_ptr<std::byte[]>
      receive_memory_;  // receive_depth slots of receive_bytes, for the queue pair; of a session.
  std::vector<transport::ReceiveRequest> consumed_;  // To be posted again, as one list.
  Fifo<ControlFrame> control_;
  transport::SendRequest* bundle_ = nullptr;  // The SEND that still takes frames.
  ChainSlot* bundle_slot_ = nullptr;

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
  uint64_t next_keepalive_ns_ = 0;
  uint64_t first_ack_ns_ = 0;  // When the oldest owed acknowledgement became owed; 0: none.
  uint32_t unacknowledged_messages_ = 0;  // That arrived since acknowledgements were last written.
  bool acks_stalled_ = false;  // They need a completion first, which wakes the loop: no deadline
                               // helps.
  uint64_t now_ns_ = 0;        // Of the current call; for marks deep inside.
  uint64_t keepalive_sequence_ = 0;
  uint64_t peer_keepalive_ = 0;
  const char* limited_by_ = "nothing";
  EngineCounters counters_;
};

}  // namespace sluice
