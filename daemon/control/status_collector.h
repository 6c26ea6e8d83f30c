// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "daemon/control/event_loop.h"
#include "daemon/control/status.h"

namespace sluice::control {

// The parts of a picture; each is called on the control thread. Those left empty are left out.
struct StatusParts {
  std::function<DaemonStatus()> daemon;
  std::function<std::vector<ClientStatus>()> clients;
  std::function<std::vector<PeerStatus>()> peers;
  std::function<DeviceStatus()> device;
  std::function<std::vector<NamedNumber>()> numbers;
  std::vector<std::function<void(io::ToIo)>> io_threads;  // Each posts to one thread's mailbox.
};

// Puts the picture together: asks every I/O thread and waits for them at most kDeadlineNs. Requests
// that come while one is under way share its picture.
// Invariant: at most one Query is outstanding in each thread's mailbox, so that a thread that hangs
// is not buried in them.
// Thread: control. The event loop must outlive the I/O threads; answers that come after the
// collector's destruction do nothing.
class StatusCollector final : public StatusSource {
 public:
  static constexpr uint64_t kDeadlineNs = 500 * kNsPerMs;

  StatusCollector(EventLoop& loop, StatusParts parts);
  ~StatusCollector() override;

  void Collect(Callback done) override;

 private:
  struct Thread {
    bool asked = false;  // A Query is in its mailbox.
    bool fresh = false;  // It answered for the picture under way.
    uint64_t last_answer_ns = 0;
    io::ThreadSnapshot snapshot;
  };

  void Ask(size_t index);
  void OnAnswer(size_t index, io::ThreadSnapshot snapshot);
  void Finish();
  NodeStatus Picture() const;

  EventLoop& loop_;
  StatusParts parts_;
  std::vector<Thread> threads_;
  std::vector<Callback> waiting_;
  EventLoop::TimerId deadline_ = 0;
  // Holds null once destroyed. The I/O threads carry copies; only the control thread looks inside.
  std::shared_ptr<StatusCollector*> self_;
};

}  // namespace sluice::control
