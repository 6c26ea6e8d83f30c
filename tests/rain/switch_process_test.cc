// SPDX-License-Identifier: Apache-2.0
// sluice-switch as a process, between a client and two agents in network namespaces of their own.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <optional>

#include "p4_scheduler/packet/bytes.h"
#include "p4_scheduler/packet/roce.h"
#include "tests/harness/harness.h"

namespace sluice::testing {
namespace {

using namespace sluice::rain;

constexpr int kClient = 1, kAgentA = 2, kAgentB = 3;  // The last byte of a host's address.
constexpr uint16_t kMemberA = 1, kMemberB = 2;
constexpr uint16_t kClientUdpPort = 17001;
constexpr uint64_t kSlots = 1024, kSlotBytes = 1024;
constexpr char kSwitchIp[] = "10.79.0.254";

std::string Ip(int host) { return "10.79.0." + std::to_string(host); }
std::string MacText(int host) { return "02:00:00:00:00:0" + std::to_string(host); }
std::string Namespace(const std::string& name) {
  return "rain" + std::to_string(getpid()) + "-" + name;
}

int Sh(const std::string& command) {
  return RunCommand({.arguments = {"sh", "-c", command}}).exit_code;
}

std::string Row(const char* table, int host, const std::string& more) {
  return std::string("[[") + table + "]]\nport = " + std::to_string(host - 1) + "\nmac = \"" +
         MacText(host) + "\"\nip = \"" + Ip(host) + "\"\n" + more + "\n";
}

// The test runs once with each of the drivers that need no hardware.
std::string Driver() {
  const char* driver = getenv("SLUICE_SWITCH_DRIVER");
  return driver == nullptr ? "af_packet" : driver;
}

std::string WhyUnavailable() {
  if (Driver() == "af_xdp" && Fd(socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0)).get() < 0) {
    return "this kernel has no AF_XDP";
  }
  return Network::WhyUnavailable();
}

std::string Configuration(const std::string& driver) {
  std::string text = std::string("[switch]\nmac = \"02:00:00:00:00:fe\"\nip = \"") + kSwitchIp +
                     "\"\nslots = " + std::to_string(kSlots) +
                     "\nslot_bytes = " + std::to_string(kSlotBytes) +
                     "\n[controller]\nport = 0\nmac = \"" + MacText(kClient) + "\"\nip = \"" +
                     Ip(kClient) +
                     "\"\n[dpdk]\nhugepages = false\nidle_sleep_us = 100\n"
                     "[metrics]\nlisten = \"127.0.0.1:9464\"\n"
                     "[[type]]\ntype = 1\nslice = 0\n[[slice]]\nslice = 0\nreplicas = [1, 2]\n";
  for (int host = kClient; host <= kAgentB; ++host) {
    text += "[[port]]\ndriver = \"" + driver + "\"\ndevice = \"p" + std::to_string(host) + "\"\n";
  }
  text += Row("client", kClient, "client = 1\nudp_port = 17001");
  for (int host = kAgentA; host <= kAgentB; ++host) {
    const std::string number = std::to_string(host - 1);
    text += Row("member", host, "slice = 0\nepoch = 1\nmember = " + number);
    text += Row("replica", host,
                "queue_pair = 7\nrkey = 9\nreplica = " + number + "\npsn_register = " + number +
                    "\nbase = " + std::to_string(kSlots * kSlotBytes * 16));
  }
  return text;
}

// One host's socket for Rain packets: what a client or an agent without DPDK would use.
class RainSocket {
 public:
  RainSocket(int host, uint16_t port) {
    const InNamespace inside(Namespace(std::to_string(host)));
    fd_ = Fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const int one = 1;  // A veth leaves checksums to a device that is not there.
    EXPECT_EQ(setsockopt(fd_.get(), SOL_SOCKET, SO_NO_CHECK, &one, sizeof(one)), 0);
    sockaddr_in own = Address(Ip(host), port);
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
  }

  void Send(const Header& header, std::span<const std::byte> payload = {},
            const std::string& ip = kSwitchIp, uint16_t port = kUdpPort) {
    std::vector<std::byte> frame(FrameBytes(header));
    BuildFrame({}, {}, header, payload, frame);
    const auto packet = std::span(frame).subspan(kHeaderOffset);
    const sockaddr_in to = Address(ip, port);
    EXPECT_EQ(sendto(fd_.get(), packet.data(), packet.size(), 0,
                     reinterpret_cast<const sockaddr*>(&to), sizeof(to)),
              static_cast<ssize_t>(packet.size()));
  }

  struct Received {
    Header header;
    std::vector<std::byte> body;
  };
  // The next packet; empty when none comes in time.
  std::optional<Received> Receive() {
    pollfd readable{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, static_cast<int>(kPatience.count())) != 1) return std::nullopt;
    std::vector<std::byte> bytes(kMaxFrameBytes);
    const ssize_t length = recv(fd_.get(), bytes.data(), bytes.size(), 0);
    Received received;
    if (length < static_cast<ssize_t>(kHeaderBytes) ||
        DecodeHeader(std::span(bytes).first<kHeaderBytes>(), received.header) != Malformed::kNone) {
      ADD_FAILURE() << "what came is no Rain packet";
      return std::nullopt;
    }
    received.body.assign(bytes.begin() + kHeaderBytes, bytes.begin() + length);
    return received;
  }

 private:
  static sockaddr_in Address(const std::string& ip, uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    inet_pton(AF_INET, ip.c_str(), &address.sin_addr);
    return address;
  }

  Fd fd_;
};

// Every frame that reaches a host.
class Sniffer {
 public:
  explicit Sniffer(int host) {
    const InNamespace inside(Namespace(std::to_string(host)));
    fd_ = Fd(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL)));
    sockaddr_ll where{};
    where.sll_family = AF_PACKET;
    where.sll_protocol = htons(ETH_P_ALL);
    where.sll_ifindex = static_cast<int>(if_nametoindex("eth0"));
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<sockaddr*>(&where), sizeof(where)), 0);
  }

  // The next RDMA WRITE, in `frame`.
  std::optional<ParsedWrite> NextWrite(std::vector<std::byte>& frame) {
    ParsedWrite write;
    const bool came = WaitUntil([&] {
      frame.resize(kMaxWriteFrameBytes);
      const ssize_t length = recv(fd_.get(), frame.data(), frame.size(), MSG_DONTWAIT);
      if (length < 0) return false;
      frame.resize(static_cast<size_t>(length));
      return ParseWrite(frame, write) == BadWrite::kNone;
    });
    return came ? std::optional(write) : std::nullopt;
  }

 private:
  Fd fd_;
};

class RainSwitch : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    unavailable_ = WhyUnavailable();
    if (!unavailable_.empty()) return;
    ASSERT_EQ(
        Sh("ip netns add " + Namespace("s") + " && ip -n " + Namespace("s") + " link set lo up"),
        0);
    for (int host = kClient; host <= kAgentB; ++host) {
      const std::string name = Namespace(std::to_string(host)), port = "p" + std::to_string(host);
      ASSERT_EQ(
          Sh("ip netns add " + name + " && ip -n " + name + " link add eth0 address " +
             MacText(host) + " type veth peer name " + port + " netns " + Namespace("s") +
             " && ip -n " + name + " address add " + Ip(host) + "/24 dev eth0 && ip -n " + name +
             " link set eth0 up && ip -n " + Namespace("s") + " link set " + port + " up"),
          0);
    }
    folder_ = std::make_unique<TemporaryFolder>();
    WriteFile(folder_->File("config"), Configuration(Driver()));
    auto started = Process::Start(
        {.arguments = {SLUICE_SWITCH, "--config", folder_->File("config")},
         .network_namespace = Namespace("s"),
         .output_file = folder_->File("log")});
    ASSERT_TRUE(started) << started.error().message;
    process_ = std::move(*started);
    ASSERT_TRUE(WaitUntil([] {
      return ReadFile(folder_->File("log")).find("ready: 3 ports") != std::string::npos ||
             !process_->Running();
    }));
    ASSERT_TRUE(process_->Running()) << ReadFile(folder_->File("log"));
  }

  static void TearDownTestSuite() {
    process_.reset();
    folder_.reset();
    if (!unavailable_.empty()) return;
    for (const char* name : {"s", "1", "2", "3"}) Sh("ip netns del " + Namespace(name));
  }

  void SetUp() override {
    if (!unavailable_.empty()) GTEST_SKIP() << unavailable_;
    ASSERT_NE(process_, nullptr) << "the switch did not start";
  }

  static void SendToken(RainSocket& agent, uint16_t member) {
    agent.Send({.kind = Kind::kToken, .epoch = 1, .member = member});
  }

  static std::vector<std::byte> SendTask(RainSocket& client, uint32_t request, size_t bytes) {
    std::vector<std::byte> payload(bytes);
    for (size_t i = 0; i < bytes; ++i) payload[i] = static_cast<std::byte>(i + request);
    Header header{.type = 1, .fragments = 1, .client = 1, .request = request};
    SetPayload(header, payload);
    client.Send(header, payload);
    return payload;
  }

  // What the switch holds for a member: {tasks seen, tokens held, tasks waiting}.
  static Header Probe(RainSocket& agent, uint16_t member) {
    agent.Send({.kind = Kind::kProbe, .epoch = 1, .member = member});
    const auto answer = agent.Receive();
    EXPECT_TRUE(answer);
    return answer ? answer->header : Header{};
  }
  static uint32_t HeldIn(const Header& answer) {
    return LoadBigEndian<uint32_t>(answer.data.data() + 4);
  }

  static std::string Get(const std::string& path) {
    return RunCommand({.arguments = {"curl", "-s", "http://127.0.0.1:9464" + path},
                       .network_namespace = Namespace("s")})
        .output;
  }
  static bool HasMetric(const std::string& line) {
    return WaitUntil([&] { return Get("/metrics").find(line) != std::string::npos; });
  }

  static inline std::string unavailable_;
  static inline std::unique_ptr<TemporaryFolder> folder_;
  static inline std::unique_ptr<Process> process_;
};

TEST_F(RainSwitch, BringsATaskToTheWaitingWorkerAndItsReplyToTheClient) {
  RainSocket client(kClient, kClientUdpPort), agent(kAgentA, kUdpPort);
  SendToken(agent, kMemberA);
  const Header state = Probe(agent, kMemberA);
  EXPECT_EQ(state.flags, kAnswer);
  EXPECT_EQ(HeldIn(state), 1u);
  const auto payload = SendTask(client, 10, 700);
  const auto task = agent.Receive();
  ASSERT_TRUE(task);
  EXPECT_EQ(task->header.kind, Kind::kDispatch);
  EXPECT_EQ(task->header.request, 10u);
  EXPECT_EQ(task->body.size(), 704u);
  EXPECT_TRUE(std::equal(payload.begin(), payload.end(), task->body.begin()));
  Header reply = task->header;
  reply.kind = Kind::kReply;
  SetPayload(reply, {});
  agent.Send(reply);
  const auto got = client.Receive();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->header.kind, Kind::kReply);
  EXPECT_EQ(got->header.request, 10u);
}

TEST_F(RainSwitch, KeepsASmallTaskUntilATokenComesAndSaysHowLong) {
  RainSocket client(kClient, kClientUdpPort), agent(kAgentA, kUdpPort);
  SendTask(client, 20, 8);
  ASSERT_TRUE(WaitUntil([&] { return Probe(agent, kMemberA).queue_tasks == 1; }));
  SendToken(agent, kMemberA);
  const auto task = agent.Receive();
  ASSERT_TRUE(task);
  EXPECT_EQ(task->header.request, 20u);
  EXPECT_EQ(task->header.flags, kQueued);
  EXPECT_EQ(task->header.queue_tasks, 1u);
  EXPECT_GT(task->header.switch_ns, 0u);
}

TEST_F(RainSwitch, WritesALargeTaskThatHasToWaitToBothAgents) {
  RainSocket client(kClient, kClientUdpPort), agent(kAgentB, kUdpPort);
  Sniffer sniffers[] = {Sniffer(kAgentA), Sniffer(kAgentB)};
  const auto payload = SendTask(client, 30, 500);
  std::vector<std::byte> frames[2];
  Header slot;
  for (int i = 0; i < 2; ++i) {
    const auto write = sniffers[i].NextWrite(frames[i]);
    ASSERT_TRUE(write) << "with a right ICRC";
    EXPECT_EQ(write->write.queue_pair, 7u);
    EXPECT_EQ(write->write.rkey, 9u);
    ASSERT_EQ(DecodeHeader(write->data.first<kHeaderBytes>(), slot), Malformed::kNone);
    EXPECT_EQ(write->write.address, kSlots * kSlotBytes * 16 + (slot.ticket % kSlots) * kSlotBytes);
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), write->data.begin() + kHeaderBytes));
  }
  SendToken(agent, kMemberB);
  const auto descriptor = agent.Receive();
  ASSERT_TRUE(descriptor);
  EXPECT_EQ(descriptor->header.flags, kQueued | kPrewritten);
  EXPECT_TRUE(DescribesSameTask(descriptor->header, slot));
  EXPECT_EQ(DigestIn(descriptor->header), DigestOf(payload));
}

TEST_F(RainSwitch, CountsASpoofedTokenAndAMalformedPacketAndChangesNothing) {
  RainSocket agent(kAgentA, kUdpPort), other(kAgentB, kUdpPort);
  const uint32_t held = HeldIn(Probe(agent, kMemberA));
  SendToken(other, kMemberA);
  other.Send({.kind = Kind::kToken, .code = 7, .epoch = 1, .member = kMemberA});
  EXPECT_TRUE(HasMetric("sluice_switch_packets_total{outcome=\"unknown_member\"} 1"));
  EXPECT_TRUE(HasMetric("sluice_switch_malformed_packets_total{reason=\"code\"} 1"));
  EXPECT_EQ(HeldIn(Probe(agent, kMemberA)), held);
}

TEST_F(RainSwitch, ForwardsWhatIsNotItsOwn) {
  RainSocket client(kClient, 5000), agent(kAgentA, 5000);
  client.Send({.type = 1, .fragments = 1, .client = 1, .request = 99}, {}, Ip(kAgentA), 5000);
  const auto packet = agent.Receive();
  ASSERT_TRUE(packet);
  EXPECT_EQ(packet->header.kind, Kind::kTask);
  EXPECT_EQ(packet->header.request, 99u);
}

TEST_F(RainSwitch, ShowsMetricsThatPrometheusAcceptsAndItsHealth) {
  EXPECT_EQ(Get("/healthz"), "ok\n");
  EXPECT_EQ(Get("/nothing"), "try /metrics or /healthz\n");
  EXPECT_TRUE(HasMetric("sluice_switch_slice_waiting_tasks{slice=\"0\"} 0"));
  WriteFile(folder_->File("metrics"), Get("/metrics"));
  const Finished checked = RunCommand(
      {.arguments = {"sh", "-c", "promtool check metrics < " + folder_->File("metrics")}});
  EXPECT_EQ(checked.exit_code, 0) << checked.output;
}

TEST_F(RainSwitch, ZStopsCleanlyWhenAsked) {
  process_->Signal(SIGTERM);
  const auto status = process_->Wait();
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << ReadFile(folder_->File("log"));
}

TEST(RainSwitchProgram, RefusesAWrongFileWithOneSentence) {
  const TemporaryFolder folder;
  WriteFile(folder.File("config"), "[switch]\nip = \"nowhere\"\n");
  const Finished ended = RunCommand(
      {.arguments = {SLUICE_SWITCH, "--config", folder.File("config")}});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_EQ(std::count(ended.output.begin(), ended.output.end(), '\n'), 1) << ended.output;
  EXPECT_NE(ended.output.find("switch.mac must be"), std::string::npos) << ended.output;
}

}  // namespace
}  // namespace sluice::testing
