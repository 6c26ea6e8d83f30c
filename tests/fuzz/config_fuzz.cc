// SPDX-License-Identifier: Apache-2.0
// Any text is a configuration or an error with a sentence, and what is accepted obeys the rules
// that join keys.
#include "daemon/control/config.h"
#include "shm_proto/base/check.h"
#include "tests/fuzz/fuzz.h"

std::vector<std::string> sluice::fuzz::Seeds() {
  return {
      "[daemon]\nrun_dir = \"/run/sluice\"\nio_cpus = [0, 1]\nidle = \"spin\"\n",
      "[engine]\nsend_window_bytes = 65536\nfragment_bytes = 1024\nkeepalive_interval_ms = "
      "10\nkeepalive_timeout_ms = 30\n",
      "[peer]\nlisten = [\"0.0.0.0:4500\", \"[::1]:1\"]\nauth = \"none\"\nallow = "
      "[\"10.0.0.0/8\"]\n",
      "[[tenant]]\nname = \"a\"\nuids = [0, 1000]\nservices = [1, 65535]\n[[tenant]]\nname = "
      "\"b\"\nany_user = true\n",
      "http.listen = \"127.0.0.1:9450\"\nlog.level = \"debug\"\n",
  };
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = sluice::ParseConfig(std::string(reinterpret_cast<const char*>(data), size),
                                          "fuzzed.toml");
  if (config) {
    SLUICE_CHECK(!config->tenants.empty(), "a configuration has a tenant");
    SLUICE_CHECK(sluice::CheckConfig(*config).has_value(),
                 "what was parsed obeys the rules that join keys");
  } else {
    SLUICE_CHECK(!config.error().message.empty(), "an error says what is wrong");
  }
  return 0;
}
