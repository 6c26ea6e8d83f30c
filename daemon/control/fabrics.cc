// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/fabrics.h"

#include <algorithm>

#include "daemon/control/log.h"
#include "shm_proto/base/check.h"

namespace sluice::control {

Fabrics::Fabrics(EventLoop& loop, std::vector<io::Mailbox<io::ToIo>*> io, OpenFabricDevice open)
    : loop_(loop),
      io_(std::move(io)),
      open_(std::move(open)),
      alive_(std::make_shared<int>(0)),
      worker_([this] {
        loop_.Post([this, alive = std::weak_ptr<void>(alive_)] {
          if (!alive.expired()) worker_.RunCompletions();
        });
      }) {}

Fabrics::~Fabrics() {
  alive_.reset();
  worker_.Stop();
  loop_.Cancel(timer_);
  if (device_) loop_.Remove(device_->events_fd());
}

void Fabrics::Start() { StartOpening(); }

void Fabrics::StartOpening() {
  timer_ = 0;
  state_ = State::kOpening;
  worker_.Run([this]() -> memory::MemoryWorker::Completion {
    return [this, opened = Open(open_, io_.size())]() mutable { OnOpened(std::move(opened)); };
  });
}

Result<Fabrics::Opened> Fabrics::Open(const OpenFabricDevice& open, size_t io_threads) {
  auto device = open();
  if (!device) return std::unexpected(device.error());
  Opened opened{std::move(*device), {}};
  for (size_t i = 0; i < io_threads; ++i) {
    auto fabric = opened.device->MakeFabric();
    if (!fabric) {
      opened.fabrics.clear();
      return std::unexpected(fabric.error());
    }
    opened.fabrics.push_back(std::move(*fabric));
  }
  return opened;
}

void Fabrics::OnOpened(Result<Opened> opened) {
  if (!opened) {
    state_ = State::kClosed;
    if (opened.error().message != reason_) {
      reason_ = opened.error().message;
      LogInfo("no RDMA, peers are reached over TCP", {{"reason", reason_}});
    }
    return RetryLater();
  }
  device_ = std::move(opened->device);
  state_ = State::kUp;
  reason_.clear();
  ++opened_;
  pauses_.Begin();
  for (size_t i = 0; i < io_.size(); ++i) {
    ++unanswered_;
    io_[i]->Post(io::SetFabric{std::move(opened->fabrics[i]), "replaced"});
  }
  const FabricDeviceInfo info = device_->Info();
  LogInfo("RDMA is there", {{"device", info.name}});
  for (const std::string& note : info.notes) LogInfo(note, {{"device", info.name}});
  auto added = loop_.Add(device_->events_fd(), EPOLLIN, [this](uint32_t) {
    if (const std::string why = device_->OnEvents(); !why.empty()) Leave(why);
  });
  if (!added) return Leave("its events cannot be watched: " + added.error().message);
  timer_ = loop_.After(kWatchNs, [this] { Watch(); });
}

void Fabrics::Watch() {
  timer_ = 0;
  if (!device_->Present()) return Leave("the device is being removed");
  retry_ns_ = kFirstRetryNs;
  timer_ = loop_.After(kWatchNs, [this] { Watch(); });
  if (pauses_.Due(MonotonicClock().NowNs())) WatchPauses();
}

void Fabrics::Configure(const PauseSettings& settings) {
  pause_settings_ = settings;
  pauses_.SetLimit(settings.storm_per_s);
}

// Left because of a storm, the device is looked at again as rarely as one that is not there.
void Fabrics::WatchPauses() {
  const std::optional<uint64_t> frames = device_->PauseFrames();
  if (!frames) return;
  const auto change = pauses_.Sample(*frames, MonotonicClock().NowNs());
  if (change == PauseWatch::Change::kNone) return;
  const std::string name = device_->Info().name;
  if (change == PauseWatch::Change::kCalm)
    return LogInfo("the storm of pause frames is over", {{"device", name}});
  LogWarning(
      "pause frames storm: a host or switch on this network holds up the others; look for "
      "a port that sends them without end",
      {{"device", name}, {"frames_per_s", pauses_.rate()}, {"leave", pause_settings_.leave}});
  if (!pause_settings_.leave) return;
  Leave("pause frames storm (" + std::to_string(pauses_.rate()) + " a second)");
  retry_ns_ = kLastRetryNs;
}

void Fabrics::Leave(const std::string& reason) {
  if (state_ != State::kUp) return;
  LogWarning("leaving RDMA, peers are reached over TCP",
             {{"device", device_->Info().name}, {"reason", reason}});
  state_ = State::kLeaving;
  reason_ = reason;
  loop_.Cancel(std::exchange(timer_, 0));
  loop_.Remove(device_->events_fd());
  for (io::Mailbox<io::ToIo>* thread : io_) {
    ++unanswered_;
    thread->Post(io::SetFabric{nullptr, reason});
  }
}

void Fabrics::OnFabricSet() {
  SLUICE_CHECK(unanswered_ > 0, "an I/O thread answers SetFabric once");
  if (--unanswered_ == 0 && state_ == State::kLeaving) Close();
}

void Fabrics::Close() {
  state_ = State::kClosing;
  worker_.Run([this, device = std::move(device_)]() mutable -> memory::MemoryWorker::Completion {
    device.reset();
    return [this] {
      state_ = State::kClosed;
      RetryLater();
    };
  });
}

void Fabrics::RetryLater() {
  timer_ = loop_.After(retry_ns_, [this] { StartOpening(); });
  retry_ns_ = std::min(2 * retry_ns_, kLastRetryNs);
}

}  // namespace sluice::control
