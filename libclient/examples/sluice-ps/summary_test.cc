// SPDX-License-Identifier: Apache-2.0
#include "summary.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "report.h"

namespace sluice_ps {
namespace {

class Summary : public testing::Test {
 protected:
  Summary() {
    char name[] = "/tmp/sluice-ps-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~Summary() override {
    for (const char* file : {"/w0", "/w1", "/s", "/out"}) {
      unlink((folder_ + file).c_str());
    }
    rmdir(folder_.c_str());
  }

  static WorkerStats GoodWorker(uint64_t latency_ns) {
    WorkerStats stats;
    stats.measured_s = 2;
    for (OperationStats* kind : {&stats.workload.fetch, &stats.workload.push}) {
      for (int i = 0; i < 100; ++i) {
        kind->latency.Add(latency_ns);
      }
      kind->outcomes = {.begun = 100, .ok = 100, .failed = 0, .unknown = 0, .duplicated = 0};
      kind->bytes = 1'000'000'000;
    }
    stats.workload.rows_verified = 10;
    stats.workload.values_verified = 320;
    stats.cpu_s = 1.5;
    return stats;
  }

  std::string Write(const std::string& file, const WorkerStats& stats) {
    WorkerOptions options;
    options.name = file;
    EXPECT_TRUE(WriteFile(folder_ + "/" + file, ToJson(options, stats)));
    return folder_ + "/" + file;
  }

  nlohmann::json Result() {
    std::ifstream file(folder_ + "/out");
    return nlohmann::json::parse(file);
  }

  std::string folder_;
};

TEST_F(Summary, AddsWorkersUp) {
  const SummaryOptions options{
      .steady = ParseRun("run," + Write("w0", GoodWorker(1'000'000)) + "," +
                         Write("w1", GoodWorker(3'000'000)) + ",sluiced=0.5"),
      .faults = {},
      .json_path = folder_ + "/out"};
  EXPECT_EQ(Summarize(options), 0);
  const auto result = Result();
  EXPECT_EQ(result["verified"], true);
  EXPECT_EQ(result["values_verified"], 640);
  ASSERT_EQ(result["rows"].size(), 3u);
  EXPECT_EQ(result["rows"][0]["workload"], "fetch");
  EXPECT_EQ(result["rows"][0]["operations"], 200);
  EXPECT_DOUBLE_EQ(result["rows"][0]["operations_per_s"], 100);
  EXPECT_DOUBLE_EQ(result["rows"][0]["gb_per_s"], 1);
  EXPECT_DOUBLE_EQ(result["rows"][0]["mean_us"], 2000);
  EXPECT_NEAR(result["rows"][0]["p99_us"].get<double>(), 3000, 50);
  EXPECT_EQ(result["rows"][2]["operations"], 400);
  EXPECT_EQ(result["processes"].size(), 3u);
}

TEST_F(Summary, IsNotContentWithAnythingWrong) {
  const auto judge = [&](const WorkerStats& stats, bool fault) {
    SummaryOptions options{
        .steady = ParseRun("run," + Write("w0", GoodWorker(1))), .faults = {}, .json_path = ""};
    options.faults.push_back(ParseRun("killed," + Write("w1", stats)));
    if (!fault) {
      options.faults.clear();
      options.steady = ParseRun("run," + Write("w1", stats));
    }
    return Summarize(options);
  };
  WorkerStats recovered = GoodWorker(1);
  recovered.outages.push_back({.at_s = 1, .outage_ms = 20});
  EXPECT_EQ(judge(recovered, true), 0);
  EXPECT_EQ(judge(GoodWorker(1), true), 1) << "the fault did nothing";

  WorkerStats wrong = GoodWorker(1);
  wrong.workload.rows_wrong = 1;
  EXPECT_EQ(judge(wrong, false), 1);
  WorkerStats lost = GoodWorker(1);
  lost.sends_lost = 1;
  EXPECT_EQ(judge(lost, false), 1);
  WorkerStats duplicated = GoodWorker(1);
  duplicated.sends.duplicated = 1;
  EXPECT_EQ(judge(duplicated, false), 1);
  WorkerStats idle = GoodWorker(1);
  idle.workload.values_verified = 0;
  EXPECT_EQ(judge(idle, false), 1);

  const SummaryOptions missing{
      .steady = ParseRun("run," + folder_ + "/nothing"), .faults = {}, .json_path = ""};
  EXPECT_EQ(Summarize(missing), 1);
}

}  // namespace
}  // namespace sluice_ps
