// SPDX-License-Identifier: Apache-2.0
// Stepping the wall clock must change nothing: every timer counts on the monotonic one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

#include "tests/harness/endpoint.h"
#include "tests/harness/harness.h"

namespace sluice::testing {
namespace {

constexpr long kHour = 3'600;

TEST(WallClock, SteppedByAnHourEitherWayDisconnectsNobody) {
  SLUICE_NEED_NETWORK();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's runtime must be loaded before the stepped clock";
#endif
  TemporaryFolder folder;
  const std::string clock_file = folder.File("offset");
  WriteFile(clock_file, "0");
  const std::map<std::string, std::string> stepped = {{"LD_PRELOAD", SLUICE_STEPPED_CLOCK},
                                                      {"SLUICE_TEST_CLOCK", clock_file}};
  auto network = Network::Create(2);
  ASSERT_TRUE(network) << network.error().message;
  const DaemonOptions options{.settings = {{"engine.keepalive_interval_ms", "100"},
                                           {"engine.keepalive_timeout_ms", "1000"}},
                              .environment = stepped};
  Daemon left(**network, 0, options), right(**network, 1, options);
  ASSERT_TRUE(left.Start());
  ASSERT_TRUE(right.Start());
  Endpoint sender(left), receiver(right);
  ASSERT_TRUE(receiver.Listen(7));
  const sluice_socket socket = sender.Connected(right.Address() + ":7");
  ASSERT_NE(socket, 0u) << left.Log();

  for (const long offset : {kHour, -kHour, 0L}) {
    WriteFile(clock_file, std::to_string(offset));
    const Finished date = RunCommand({.arguments = {"date", "+%s"}, .environment = stepped});
    ASSERT_NEAR(static_cast<double>(std::atol(date.output.c_str()) - time(nullptr)),
                static_cast<double>(offset), 5)
        << "the clock must step, or this tests nothing: " << date.output;
    // Longer than the keepalive timeout, so that every timer of both daemons has come round.
    EXPECT_FALSE(sender.Next(SLUICE_EVENT_CLOSED, milliseconds(1'500))) << left.Log();
    EXPECT_TRUE(Exchange(sender, socket, receiver, "offset " + std::to_string(offset)));
  }
}

}  // namespace
}  // namespace sluice::testing
