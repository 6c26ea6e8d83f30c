// SPDX-License-Identifier: Apache-2.0
#include "p4_scheduler/switch/config.h"

#include <gtest/gtest.h>

namespace sluice::rain {
namespace {

std::string With(const std::string& from, const std::string& to) {
  std::string text = ExampleConfig();
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string WhyRefused(const std::string& text) {
  const auto config = ParseProgramConfig(text, "file");
  return config ? "accepted" : config.error().message;
}

TEST(SwitchConfiguration, TheExampleIsAcceptedAndMeansWhatItSays) {
  const auto config = ParseProgramConfig(ExampleConfig(), "example");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->rain.own.ip, 0x0a4d00feu);
  EXPECT_EQ(config->rain.own.mac, (Mac{2, 0, 0, 0, 0, 0xfe}));
  EXPECT_EQ(config->rain.own.port, kUdpPort);
  EXPECT_EQ(config->rain.controller.endpoint.ip, 0x0a4d0001u);
  EXPECT_FALSE(config->hugepages);
  ASSERT_EQ(config->ports.size(), 2u);
  EXPECT_EQ(config->ports[1].device, "eth2");
  auto made = MakeSwitch(*config);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->types().Find(1)->slice, 0);
  EXPECT_EQ(made->clients().Find(1)->destination.endpoint.port, 17001);
  EXPECT_EQ(made->members().Find(1)->target, made->members().Find(1)->owner);
  EXPECT_EQ(made->members().Find(1)->epoch, 1);
  EXPECT_EQ(made->replicas().Find(1)->queue_pair, 17u);
  EXPECT_EQ(made->slice_table().Find(0)->replicas, std::vector<uint16_t>{1});
  EXPECT_EQ(made->slice_table().Find(0)->large_limit, 1024u);
}

TEST(SwitchConfiguration, EachMistakeIsNamed) {
  EXPECT_EQ(WhyRefused(With("[dpdk]", "[dkdp]")), "file: dkdp is not known");
  EXPECT_EQ(WhyRefused(With("hugepages = false", "hugepage = false")),
            "file: dpdk.hugepage is not known");
  EXPECT_EQ(WhyRefused(With("hugepages = false", "hugepages = 1")),
            "file: dpdk.hugepages must be true or false");
  EXPECT_EQ(WhyRefused(With("ip = \"10.77.0.254\"", "ip = \"10.77.0\"")),
            "file: switch.ip must be an IPv4 address");
  EXPECT_EQ(WhyRefused(With("02:00:00:00:00:fe", "02:00:00:00:00:fe:1")),
            "file: switch.mac must be like 02:00:00:00:00:01");
  EXPECT_EQ(WhyRefused(With("# slices = 8", "slices = -1")),
            "file: switch.slices must be a number from 0 to 4294967295");
  EXPECT_EQ(WhyRefused(With("# slices = 8", "slices = 0")),
            "file: switch: slices must be 1 to 256");
  EXPECT_EQ(WhyRefused(With("# task_capacity = 16384", "task_capacity = 1000")),
            "file: switch: task_capacity must be a power of two");
  EXPECT_EQ(WhyRefused(With("device = \"eth2\"", "device = \"eth2,qpairs=9\"")),
            "file: port[1].device must be an interface's name or a PCI address");
  EXPECT_EQ(WhyRefused(With("driver = \"af_packet\"          #", "driver = \"tap\" #")),
            "file: port[0].driver must be af_packet, af_xdp or pci");
  EXPECT_EQ(WhyRefused(With("driver = \"af_packet\"\ndevice = \"eth2\"",
                            "driver = \"af_xdp\"\ndevice = \"eth2\"\n[[port]]\n"
                            "device = \"eth3\"\nframe_bytes = 4096")),
            "file: beside an af_xdp port, frame_bytes must be 2048 at every port");
  EXPECT_EQ(WhyRefused(With("client = 1", "client = 0")),
            "file: client[0].client must be a number from 1 to 65535");
  EXPECT_EQ(WhyRefused(With("queue_pair = 17\n", "")), "file: replica[0].queue_pair is missing");
  EXPECT_EQ(WhyRefused(With("base = 0 ", "base = 4096 ")),
            "file: replica 1: base must be a multiple of the ring's 8388608 bytes");
  EXPECT_EQ(WhyRefused(With("replicas = [1]", "replicas = [0]")),
            "file: slice[0].replicas must be a list of numbers from 1 to 65535");
  EXPECT_EQ(
      WhyRefused(std::string(ExampleConfig()) + "[[client]]\nclient = 1\nport = 0\n"
                                                "mac = \"02:00:00:00:00:01\"\nip = \"1.2.3.4\""),
      "file: client 1: is there already; modify it");
  EXPECT_NE(WhyRefused("[switch").find("file, line 1"), std::string::npos);
  EXPECT_EQ(WhyRefused("port = 3\n"), "file: switch.mac must be like 02:00:00:00:00:01");
  EXPECT_FALSE(LoadProgramConfig("/nonexistent/file"));
}

}  // namespace
}  // namespace sluice::rain
