// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "daemon/control/config_keys.h"
#include "daemon/io/messages.h"
#include "shm_proto/base/clock.h"

namespace sluice {
namespace {

using testing::HasSubstr;

std::string Section(std::string_view name) { return std::string(name.substr(0, name.find('.'))); }
std::string Leaf(std::string_view name) { return std::string(name.substr(name.find('.') + 1)); }

// A file that sets one key to some TOML text.
std::string FileWith(std::string_view name, const std::string& toml_value) {
  return "[" + Section(name) + "]\n" + Leaf(name) + " = " + toml_value + "\n";
}

// The message of the error that the text must give.
std::string ErrorOf(const std::string& text) {
  const auto config = ParseConfig(text, "f.toml");
  EXPECT_FALSE(config.has_value()) << text;
  return config ? "" : config.error().message;
}

TEST(Config, GivesDefaultsForAnEmptyFile) {
  const auto config = ParseConfig("", "f.toml");
  ASSERT_TRUE(config) << config.error().message;
  for (const auto& key : ConfigKeys()) EXPECT_EQ(key.get(*config), key.get(Config{})) << key.name;
  ASSERT_EQ(config->tenants.size(), 1u);
  EXPECT_THAT(config->tenants[0].uids, testing::Contains(geteuid()));
}

TEST(Config, HasDefaultsThatItAccepts) {
  for (const auto& key : ConfigKeys()) {
    EXPECT_TRUE(CheckValue(key, key.get(Config{}))) << key.name;
    EXPECT_FALSE(key.doc.empty()) << key.name;
  }
  EXPECT_TRUE(CheckConfig(DefaultConfig()));
}

TEST(Config, NamesEveryKeyOnce) {
  std::set<std::string_view> names;
  for (const auto& key : ConfigKeys()) EXPECT_TRUE(names.insert(key.name).second) << key.name;
}

TEST(Config, HasTheEnginesOwnDefaults) {
  const Tunables made = ToTunables(Config{}), own;
  EXPECT_EQ(made.send_window_bytes, own.send_window_bytes);
  EXPECT_EQ(made.fragment_bytes, own.fragment_bytes);
  EXPECT_EQ(made.credit_batch, own.credit_batch);
  EXPECT_EQ(made.ack_delay_ns, own.ack_delay_ns);
  EXPECT_EQ(made.keepalive_interval_ns, own.keepalive_interval_ns);
  EXPECT_EQ(made.keepalive_timeout_ns, own.keepalive_timeout_ns);
  EXPECT_EQ(made.connect_timeout_ns, own.connect_timeout_ns);
  EXPECT_EQ(made.landing_ahead, own.landing_ahead);
}

TEST(Config, TakesTheEndsOfEveryRangeAndRefusesOneBeyond) {
  for (const auto& key : ConfigKeys()) {
    if (key.type != KeyType::kInteger) continue;
    for (const int64_t good : {key.min, key.max}) {
      Config config;
      ASSERT_TRUE(CheckValue(key, good)) << key.name;
      key.set(config, good);
      EXPECT_EQ(key.get(config), ConfigValue(good)) << key.name << " does not hold its own range";
    }
    for (const int64_t bad : {key.min - 1, key.max + 1}) {
      const std::string error = ErrorOf(FileWith(key.name, std::to_string(bad)));
      EXPECT_THAT(error, HasSubstr("f.toml:2: " + std::string(key.name) + ": "));
      EXPECT_THAT(error, HasSubstr(Allowed(key)));
    }
  }
}

TEST(Config, RefusesTheWrongTypeForEveryKey) {
  for (const auto& key : ConfigKeys()) {
    for (const std::string wrong : {"1979-05-27", "1.5", "{a = 1}", "[1, \"mixed\"]", "[[1]]"}) {
      EXPECT_THAT(ErrorOf(FileWith(key.name, wrong)), HasSubstr(std::string(key.name) + ": "))
          << wrong;
    }
    const bool is_number = key.type == KeyType::kInteger;
    EXPECT_THAT(ErrorOf(FileWith(key.name, is_number ? "\"7\"" : "7")), HasSubstr("f.toml:2: "))
        << key.name;
  }
}

TEST(Config, RefusesUnknownNamesWithTheLineAndTheNearestOne) {
  EXPECT_THAT(ErrorOf("\n[engine]\nsend_windw_bytes = 65536\n"),
              HasSubstr("f.toml:3: engine.send_windw_bytes: unknown key; did you mean "
                        "engine.send_window_bytes?"));
  EXPECT_THAT(ErrorOf("[engin]\n"),
              HasSubstr("f.toml:1: engin: unknown section; did you mean engine?"));
  EXPECT_THAT(ErrorOf("io_threads = 1\n"), HasSubstr("f.toml:1: io_threads: unknown key"));
  EXPECT_THAT(ErrorOf("engine = 1\n"), HasSubstr("write it as [engine]"));
}

TEST(Config, ReportsAllMistakesAtOnceButNotWithoutBound) {
  std::string text = "[engine]\n";
  for (int i = 0; i < 100; ++i) text += "unknown_" + std::to_string(i) + " = 1\n";
  const std::string error = ErrorOf(text);
  EXPECT_THAT(error, HasSubstr("f.toml:2: "));
  EXPECT_THAT(error, HasSubstr("f.toml:3: "));
  EXPECT_THAT(error, HasSubstr("and 80 more"));
}

TEST(Config, OnlySizesThatRdmaPacketsHaveAreAPathMtu) {
  for (const char* good : {"0", "256", "512", "1024", "2048", "4096"}) {
    EXPECT_TRUE(ParseConfig(std::string("rdma.path_mtu = ") + good, "f.toml").has_value()) << good;
  }
  for (const char* bad : {"1", "128", "1500", "4095"}) {
    EXPECT_THAT(ErrorOf(std::string("rdma.path_mtu = ") + bad), HasSubstr("1024, 2048 or 4096"));
  }
}

TEST(Config, SharedReceivesAreNoneOrEnoughForOnePeer) {
  EXPECT_TRUE(ParseConfig("rdma.shared_receives = 0", "f.toml").has_value());
  EXPECT_TRUE(ParseConfig("rdma.shared_receives = 8", "f.toml").has_value());
  EXPECT_THAT(ErrorOf("rdma.shared_receives = 7"), HasSubstr("rdma.shared_reserve (8)"));
  EXPECT_THAT(ErrorOf("rdma.shared_reserve = 3"), HasSubstr("rdma.shared_reserve"));
}

TEST(Config, RefusesTextThatIsNotToml) {
  EXPECT_THAT(ErrorOf("[engine]\nfragment_bytes = = 3\n"), HasSubstr("f.toml:2: this is not TOML"));
  EXPECT_THAT(ErrorOf("[http]\nlisten = \"\"\nlisten = \"\"\n"), HasSubstr("f.toml:3: "));
  EXPECT_THAT(ErrorOf(std::string("\xff\xfe\0", 3)), HasSubstr("f.toml:1: "));
}

TEST(Config, RefusesAKeepaliveTimeoutBelowThreeIntervals) {
  EXPECT_THAT(ErrorOf("[engine]\nkeepalive_interval_ms = 1000\nkeepalive_timeout_ms = 2999\n"),
              HasSubstr("three times"));
  EXPECT_TRUE(ParseConfig("[engine]\nkeepalive_interval_ms = 1000\nkeepalive_timeout_ms = 3000\n",
                          "f.toml"));
}

TEST(Config, ChecksAddressesAndNetworks) {
  for (const char* good : {"0.0.0.0", "10.1.2.3:1", "::1", "[::1]", "[fd00::1]:65535"}) {
    EXPECT_TRUE(ParseConfig(FileWith("peer.listen", std::string("[\"") + good + "\"]"), "f.toml"))
        << good;
  }
  for (const char* bad : {"", "host", "host:1", "1.2.3.4:0", "1.2.3.4:65536", "1.2.3.4:", "[::1",
                          "[1.2.3.4]:1", "1.2.3.4:1x", "::1]:3"}) {
    EXPECT_THAT(ErrorOf(FileWith("peer.listen", std::string("[\"") + bad + "\"]")),
                HasSubstr("peer.listen"))
        << bad;
  }
  for (const char* bad : {"10.0.0.0", "10.0.0.0/33", "10.0.0/8", "::/129", "/8", "10.0.0.0/-1"}) {
    EXPECT_THAT(ErrorOf(FileWith("peer.allow", std::string("[\"") + bad + "\"]")),
                HasSubstr("peer.allow"))
        << bad;
  }
  EXPECT_THAT(ErrorOf("[http]\nlisten = \"127.0.0.1\"\n"), HasSubstr("http.listen"));
  EXPECT_TRUE(ParseConfig("[http]\nlisten = \"\"\n", "f.toml"));
}

TEST(Config, ReadsTenantsInOrder) {
  const auto config = ParseConfig(
      "[[tenant]]\nname = \"a\"\nuids = [1000, 4294967295]\nservices = []\n"
      "[[tenant]]\nname = \"b\"\nany_user = true\npool_quota_mib = 64\n",
      "f.toml");
  ASSERT_TRUE(config) << config.error().message;
  ASSERT_EQ(config->tenants.size(), 2u);
  EXPECT_EQ(config->tenants[0].uids, (std::vector<uint32_t>{1000, 4294967295u}));
  EXPECT_EQ(config->tenants[1].pool_quota_mib, 64u);
}

TEST(Config, RefusesTenantsThatMakeNoSense) {
  EXPECT_THAT(ErrorOf("[[tenant]]\nuids = [1]\n"), HasSubstr("needs a name"));
  EXPECT_THAT(ErrorOf("[[tenant]]\nname = \"a\"\n"), HasSubstr("nobody belongs to it"));
  EXPECT_THAT(
      ErrorOf("[[tenant]]\nname = \"a\"\nuids = [1]\n[[tenant]]\nname = \"a\"\nuids = [2]\n"),
      HasSubstr("f.toml:4: tenant: there are two"));
  EXPECT_THAT(ErrorOf("[tenant]\nname = \"a\"\n"), HasSubstr("[[tenant]]"));
  EXPECT_THAT(ErrorOf("[[tenant]]\nname = \"a.b\"\nuids = [1]\n"), HasSubstr("letters"));
  EXPECT_THAT(ErrorOf("[[tenant]]\nname = \"a\"\nuids = [-1]\n"), HasSubstr("f.toml:3: uids"));
}

TEST(Config, GetsWhatWasSet) {
  Config config = DefaultConfig();
  ASSERT_TRUE(SetConfigKey(config, "engine.fragment_bytes", "32768"));
  EXPECT_EQ(config.engine.fragment_bytes, 32768u);
  EXPECT_EQ(GetConfigKey(config, "engine.fragment_bytes").value(), ConfigValue(int64_t{32768}));
  ASSERT_TRUE(SetConfigKey(config, "tenant.default.max_sockets", "5"));
  EXPECT_EQ(config.tenants[0].max_sockets, 5u);
  ASSERT_TRUE(SetConfigKey(config, "tenant.default.uids", "0, 7,8"));
  EXPECT_EQ(config.tenants[0].uids, (std::vector<uint32_t>{0, 7, 8}));
  ASSERT_TRUE(SetConfigKey(config, "log.level", "debug"));
  EXPECT_EQ(config.log.level, "debug");
}

TEST(Config, RefusesToSetWhatNeedsARestart) {
  for (const auto& key : ConfigKeys()) {
    if (key.live) continue;
    Config config = DefaultConfig();
    const auto set = SetConfigKey(config, key.name, "1");
    ASSERT_FALSE(set) << key.name;
    EXPECT_EQ(set.error().code, ErrorCode::kRefused) << key.name;
  }
}

TEST(Config, ExplainsWhatItDoesNotKnow) {
  Config config = DefaultConfig();
  EXPECT_THAT(SetConfigKey(config, "engine.fragment_byte", "1").error().message,
              HasSubstr("engine.fragment_bytes"));
  EXPECT_EQ(GetConfigKey(config, "tenant.nobody.uids").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(GetConfigKey(config, "tenant.default").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(GetConfigKey(config, "").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(SetConfigKey(config, "engine.ack_delay_us", "12ms").error().message,
              HasSubstr("whole number"));
}

TEST(Config, PrintsEveryValueSoThatItReadsBackTheSame) {
  Config config = DefaultConfig();
  config.daemon.name = "a \"quoted\" \\ name\n";
  config.daemon.io_cpus = {1, 2};
  for (const auto& key : ConfigKeys()) {
    const auto again = ParseConfig(FileWith(key.name, FormatValue(key.get(config))), "f.toml");
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(key.get(*again), key.get(config)) << key.name;
  }
}

TEST(Config, ReadsItsOwnDefaultFileAlsoWithEveryKeySet) {
  std::string text = DefaultConfigFile();
  EXPECT_TRUE(ParseConfig(text, "f.toml"));
  // Uncomment the keys; prose lines have a space after the '#'.
  std::string uncommented;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool at_key = text[i] == '#' && (i == 0 || text[i - 1] == '\n') && i + 1 < text.size() &&
                        text[i + 1] != ' ';
    if (!at_key) uncommented += text[i];
  }
  const auto config = ParseConfig(uncommented, "f.toml");
  ASSERT_TRUE(config) << config.error().message;
  for (const auto& key : ConfigKeys()) EXPECT_EQ(key.get(*config), key.get(Config{})) << key.name;
  EXPECT_EQ(config->tenants[0].name, "default");
}

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Config, IsDocumentedAsItIs) {
  EXPECT_EQ(FileText(SLUICE_SOURCE_DIR "/docs/config.md"), ConfigReference())
      << "run `sluiced --print-config-reference > docs/config.md`";
  EXPECT_EQ(FileText(SLUICE_SOURCE_DIR "/systemd/sluiced.toml"), DefaultConfigFile())
      << "run `sluiced --print-default-config > systemd/sluiced.toml`";
}

TEST(LoadConfig, NamesTheFileItCannotRead) {
  EXPECT_EQ(LoadConfig("/nonexistent/sluiced.toml").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(LoadConfig("/nonexistent/sluiced.toml").error().message,
              HasSubstr("/nonexistent/sluiced.toml"));
  EXPECT_THAT(LoadConfig("/").error().message, HasSubstr("regular file"));
  EXPECT_FALSE(LoadConfig("/dev/zero"));
}

TEST(LoadConfig, ReadsAnEmptyFile) {
  char path[] = "/tmp/sluice-config-XXXXXX";
  const int fd = mkstemp(path);
  ASSERT_GE(fd, 0);
  close(fd);
  EXPECT_TRUE(LoadConfig(path));
  unlink(path);
}

}  // namespace
}  // namespace sluice
