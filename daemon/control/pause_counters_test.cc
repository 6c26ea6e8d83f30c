// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/pause_counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace sluice::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

struct FakeStatistics final : InterfaceStatistics {
  Result<std::vector<Named>> Read() override { return values; }
  Result<std::vector<Named>> values;
};

TEST(PauseCounters, AreThoseThatDriversNameAfterPauseFrames) {
  for (const char* name : {"rx_prio3_pause", "tx_prio3_pause_duration", "rx_pause_ctrl_phy",
                           "rx_pfc_ena_frames_pri3", "rx_priority_3_xoff.nic", "rx_pb_3_pxoff"}) {
    EXPECT_TRUE(IsPauseCounter(name)) << name;
  }
  for (const char* name : {"rx_prio3_bytes", "tx_packets", "rx_discards_phy", "peer_ifindex"}) {
    EXPECT_FALSE(IsPauseCounter(name)) << name;
  }
}

TEST(PauseCounters, OfAnInterfaceAreTakenOutOfItsStatistics) {
  FakeStatistics statistics;
  statistics.values = std::vector<InterfaceStatistics::Named>{
      {"rx_packets", 1}, {"rx_prio3_pause", 2}, {"tx_prio3_pause", 3}};
  auto counters = PauseCounters(statistics);
  ASSERT_TRUE(counters);
  EXPECT_THAT(*counters, ElementsAre(Pair("rx_prio3_pause", 2), Pair("tx_prio3_pause", 3)));
}

TEST(PauseCounters, ThatNobodyKeepsAreNone) {
  FakeStatistics statistics;
  statistics.values = std::vector<InterfaceStatistics::Named>{{"peer_ifindex", 7}};
  auto counters = PauseCounters(statistics);
  ASSERT_TRUE(counters);
  EXPECT_THAT(*counters, IsEmpty());
}

TEST(PauseCounters, ThatCannotBeReadSayWhy) {
  FakeStatistics statistics;
  statistics.values = Fail(ErrorCode::kUnavailable, "v0 is gone");
  auto counters = PauseCounters(statistics);
  ASSERT_FALSE(counters);
  EXPECT_EQ(counters.error().message, "v0 is gone");
  auto gone = EthtoolStatistics("no-such-device")->Read();
  ASSERT_FALSE(gone);
  EXPECT_THAT(gone.error().message, HasSubstr("no-such-device"));
}

TEST(PauseCounters, AreOfTheInterfaceThatAPortOfTheDeviceNames) {
  const std::string root = testing::TempDir() + "pause_counters_" + std::to_string(getpid());
  const std::string folder = root + "/mlx5_0/ports/2/gid_attrs/ndevs";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/0") << "";
  std::ofstream(folder + "/1") << "ens3f1\n";
  EXPECT_EQ(InterfaceBelow(root, "mlx5_0", 2), "ens3f1");
  EXPECT_EQ(InterfaceBelow(root, "mlx5_0", 1), "");
  std::filesystem::remove_all(root);
}

TEST(PauseCounters, ThoseReceivedAreCountedOnce) {
  EXPECT_EQ(ReceivedPauseFrames({}), std::nullopt);
  EXPECT_EQ(ReceivedPauseFrames({{"tx_pause", 9}}), std::nullopt);
  EXPECT_EQ(ReceivedPauseFrames({{"rx_pause_ctrl_phy", 7}, {"tx_pause_ctrl_phy", 9}}), 7u);
  EXPECT_EQ(ReceivedPauseFrames({{"rx_pause_ctrl_phy", 7},
                                 {"rx_prio0_pause", 3},
                                 {"rx_prio3_pause", 4},
                                 {"rx_prio3_pause_duration", 1'000},
                                 {"rx_prio3_pause_transition", 2}}),
            7u);
}

}  // namespace
}  // namespace sluice::control
