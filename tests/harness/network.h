// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "shm_proto/base/fd.h"
#include "shm_proto/base/result.h"

// Hosts on one machine: network namespaces around a switch.
namespace sluice::testing {

// Up to nine hosts, each a network namespace with an interface of its own on one Ethernet segment.
// Names are unique to this process; what a killed test left behind is removed by the next one.
// In the VM (tests/vm/network) two hosts are the two ends of its first link instead, so that they
// have RDMA: processes that share our namespace but not their addresses.
// Owns: the namespaces, which go with it.
class Network {
 public:
  // Empty when namespaces can be made here, else why not: the reason of a skipped test.
  static std::string WhyUnavailable();

  static Result<std::unique_ptr<Network>> Create(int hosts);

  // Runs the script tests/vm/network, which is what a test in the VM makes faults with.
  static Result<> Vm(const std::string& words);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  int hosts() const { return hosts_; }
  std::string Namespace(int host) const;  // As `ip netns` knows it; empty: ours.
  std::string Address(int host) const;    // "10.77.0.1" for host 0.
  // What a daemon must be told to live there, as DaemonOptions::settings.
  std::map<std::string, std::string> DaemonSettings(int host) const;

  // A black hole: frames from and to this host vanish; its own interface stays up and notices
  // nothing.
  Result<> Unplug(int host);
  Result<> Plug(int host);

  // A TCP connection from one host to a port of another, made by this process; -EINPROGRESS is
  // waited for.
  Result<Fd> Connect(int from_host, const std::string& address, uint16_t port) const;

 private:
  explicit Network(int hosts);
  Result<> Build();

  int hosts_;
  bool in_vm_ = false;
  std::string prefix_;
};

// This thread lives in another network namespace for the life of this object: sockets it makes
// belong there.
class InNamespace {
 public:
  explicit InNamespace(const std::string& name);
  ~InNamespace();
  InNamespace(const InNamespace&) = delete;
  InNamespace& operator=(const InNamespace&) = delete;

  bool entered() const { return entered_; }

 private:
  Fd home_;
  bool entered_ = false;
};

}  // namespace sluice::testing
