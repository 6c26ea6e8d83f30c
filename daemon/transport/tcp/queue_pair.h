// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "daemon/transport/grant_table.h"
#include "daemon/transport/tcp/reader.h"
#include "daemon/transport/tcp/tcp_transport.h"
#include "daemon/transport/tcp/writer.h"
#include "daemon/transport/transport.h"
#include "daemon/transport/work_queue.h"
#include "shm_proto/base/fd.h"

namespace sluice::transport {

// One TCP connection as a queue pair.
// Invariant: once reason_ is set nothing is read, written or completed any more but the flush.
// Thread: its transport's. Owns: the socket.
class TcpQueuePair final : public QueuePair {
 public:
  TcpQueuePair(TcpTransport& transport, Fd connection, const QueuePairLimits& limits,
               void* context);
  ~TcpQueuePair() override;

  size_t PostSend(std::span<const SendRequest> requests) override;
  Result<> PostReceive(std::span<const ReceiveRequest> requests) override;
  Result<size_t> Expose(uint32_t grant, std::span<const LandingSegment> segments,
                        std::span<RemoteSlice, kMaxSlices> slices) override;
  void Withdraw(uint32_t grant) override;
  void Shutdown() override;
  const char* kind() const override { return "tcp"; }
  std::string reason() const override { return reason_; }
  uint64_t last_heard_ns() const override { return last_heard_ns_; }

  // The rest is for the transport alone. What returns a bool returns whether there is more to do.
  void OnEvents(uint32_t events);
  bool WriteSome(uint64_t now_ns);
  bool ReadSome(std::span<std::byte> staging, uint64_t now_ns);
  bool LookForAcknowledgement(uint64_t now_ns);
  void Flush();
  uint64_t next_look_ns() const { return next_look_ns_; }
  int socket() const { return connection_.get(); }
  const QueuePairLimits& limits() const { return limits_; }

  uint8_t listed_in = 0;  // Bits of the work lists.

 private:
  bool IsUrgent() const;  // Whether the sender is likely to wait for an acknowledgement.
  bool dead() const { return !reason_.empty(); }
  void Die(std::string reason);
  bool ReadOnce(std::span<std::byte> staging, uint64_t now_ns, uint64_t& budget_bytes);
  Result<> OnBytes(uint64_t bytes, uint64_t landed, std::span<std::byte> staging);
  bool OnReadFailed(ssize_t result);

  TcpTransport& transport_;
  const Fd connection_;
  const QueuePairLimits limits_;
  void* const context_;
  SendQueue sends_;
  ReceiveQueue receives_;
  GrantTable grants_;
  TcpWriter writer_;
  TcpReader reader_;
  bool write_blocked_ = false;  // Until EPOLLOUT.
  bool hung_up_ = false;        // The end of the stream has come in: read on until it shows.
  std::string write_failure_;   // The socket takes nothing any more; what it holds is read first.
  std::string reason_;
  uint64_t last_heard_ns_ = 0;
  uint64_t last_look_ns_ = 0;
  uint64_t next_look_ns_ = 0;
  uint64_t look_backoff_ns_ = 0;
  uint64_t discarded_seen_ = 0;
};

}  // namespace sluice::transport
