// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a process test includes: hosts, processes on them, and sluiced among those.
//
//   TEST(Outage, ...) {
//     SLUICE_NEED_NETWORK();
//     auto network = Network::Create(2);
//     ASSERT_TRUE(network) << network.error().message;
//     Daemon left(**network, 0), right(**network, 1);
//     ASSERT_TRUE(left.Start());
//     ASSERT_TRUE(right.Start());
//     ...an application: Process::Start({.arguments = {...}, .environment = {{"SLUICE_SOCKET",
//     left.control_socket()}}})
//   }
#include "tests/harness/daemon.h"
#include "tests/harness/network.h"
#include "tests/harness/process.h"
