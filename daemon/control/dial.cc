// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/dial.h"

#include <algorithm>
#include <utility>

namespace sluice::control {

using handshake::Handshake;
using handshake::Phase;
using handshake::RefuseReason;

std::string HostPort::Text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

const char* StateText(Dial::State state) {
  switch (state) {
    case Dial::State::kIdle: return "idle";
    case Dial::State::kWaiting: return "waiting";
    case Dial::State::kResolving: return "resolving";
    case Dial::State::kConnecting: return "connecting";
    case Dial::State::kHandshaking: return "handshaking";
  }
  return "unknown";
}

Dial::Dial(const DialContext& context, Owner& owner, HostPort where)
    : context_(context),
      owner_(owner),
      where_(std::move(where)),
      backoff_(context.backoff_first_ns, context.backoff_cap_ns) {}

Dial::~Dial() { Stop(); }

void Dial::Start(bool at_once) {
  if (state_ != State::kIdle) return;
  state_ = State::kWaiting;
  const uint64_t pause_ns = at_once ? 0 : backoff_.NextNs(context_.random);
  next_retry_ns_ = context_.loop.clock().NowNs() + pause_ns;
  timer_ = context_.loop.At(next_retry_ns_, [this] {
    timer_ = 0;
    Attempt();
  });
}

void Dial::Stop() {
  context_.loop.Cancel(std::exchange(timer_, 0));
  lookup_.reset();
  connector_.reset();
  if (socket_)
    socket_->Reject(RefuseReason::kDuplicate, "the dialer needs this connection no more");
  socket_.reset();
  state_ = State::kIdle;
}

bool Dial::Reaches(const SocketAddress& address, uint64_t instance) const {
  if (state_ != State::kHandshaking) return false;
  return proven_instance_ != 0 ? proven_instance_ == instance : address_ == address;
}

void Dial::Attempt() {
  ++attempts_;
  state_ = State::kResolving;
  if (const auto literal = SocketAddress::Parse(where_.host, where_.port)) {
    return OnAddresses(Resolver::Addresses{*literal});
  }
  lookup_ = std::make_shared<bool>(true);
  context_.resolver.Lookup(
      where_.host, where_.port,
      [this, alive = std::weak_ptr(lookup_)](Result<Resolver::Addresses> result) {
        if (!alive.expired()) OnAddresses(std::move(result));
      });
}

void Dial::OnAddresses(Result<Resolver::Addresses> result) {
  lookup_.reset();
  Resolver::Addresses addresses;
  if (result) {
    addresses = std::move(*result);
  } else if (!known_) {
    return Failed({.code = result.error().code,
                   .definite = result.error().code == ErrorCode::kNotFound,
                   .text = result.error().message});
  }
  if (known_) {  // First: one name may stand for several daemons, and a session is with one of
                 // them.
    std::erase(addresses, *known_);
    addresses.insert(addresses.begin(), *known_);
  }
  const SocketAddress first = addresses.front();
  std::erase_if(addresses, [this](const SocketAddress& address) {
    return std::ranges::none_of(context_.allow,
                                [&](const Network& network) { return network.Contains(address); });
  });
  if (addresses.empty()) {
    return Failed({.code = ErrorCode::kPermission,
                   .definite = true,
                   .text = first.Text() + " is outside the networks that peer.allow names"});
  }
  if (!owner_.OnResolved(addresses)) return Yield();
  state_ = State::kConnecting;
  connector_ = std::make_unique<Connector>(
      context_.loop, std::move(addresses), context_.connect_timeout_ns,
      [this](Result<Connected> connected) { OnSocket(std::move(connected)); });
}

void Dial::OnSocket(Result<Connected> result) {
  if (!result) return Failed({.code = result.error().code, .text = result.error().message});
  connector_.reset();
  state_ = State::kHandshaking;
  address_ = result->address;
  proven_instance_ = 0;
  yielding_ = false;
  const uint64_t now_ns = context_.loop.clock().NowNs();
  socket_ = std::make_unique<HandshakeSocket>(
      context_.loop, std::move(result->socket),
      Handshake::Dial(context_.handshake, owner_.MakeWish(), context_.random, now_ns),
      now_ns + context_.handshake_timeout_ns,
      HandshakeSocket::Callbacks{[this] { OnDecide(); }, [this] { OnEnded(); }});
}

void Dial::OnDecide() {
  Handshake& handshake = socket_->state();
  proven_instance_ = handshake.peer().instance;
  if (owner_.OnProven(handshake.peer(), address_)) return handshake.Proceed(context_.loop.now_ns());
  yielding_ = true;
  handshake.Reject(RefuseReason::kDuplicate, "the dialer is connected to this daemon already");
}

void Dial::OnEnded() {
  const std::unique_ptr<HandshakeSocket> socket = std::move(socket_);
  Handshake& handshake = socket->state();
  if (handshake.phase() == Phase::kDone) {
    state_ = State::kIdle;
    last_error_.clear();
    return owner_.OnConnected(socket->Take(), handshake.Parameters(), handshake.peer(), address_);
  }
  if (yielding_) return Yield();
  const handshake::Failure& failure = handshake.failure();
  Failed({.code = failure.code,
          .definite = failure.definite,
          .duplicate = failure.reason == RefuseReason::kDuplicate,
          // Only from a proof: anybody could claim to be us.
          .self = failure.reason == RefuseReason::kSelf && !failure.by_peer,
          .text = address_.Text() + ": " + failure.text});
}

void Dial::Yield() {
  state_ = State::kIdle;
  owner_.OnYielded();
}

void Dial::Failed(DialError error) {
  connector_.reset();
  if (!error.duplicate) last_error_ = error.text;
  state_ = State::kIdle;
  Start(false);
  owner_.OnFailed(error);
}

}  // namespace sluice::control
