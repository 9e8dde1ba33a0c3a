#include "worker/daemon/device_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "worker/checkpoint/test_directory.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;

constexpr char kProbe[] =
    R"({"name":"cpu","kind":"cpu","model":"AMD","threads":2,"memory_bytes":8000,"matmul_flops_per_second":{"f32":9.5e10},)"
    R"("memory_bytes_per_second":1.5e10,"link_bytes_per_second":2e9,"link_latency_seconds":1e-4,"cpus":2})";

class DeviceProbeTest : public ::testing::Test {
 protected:
  ProbeRequest Request(const std::string& script) {
    const std::string path = directory_.File("rank");
    TestDirectory::Write(path, "#!/bin/sh\necho run >>" + directory_.File("runs") + "\n" + script);
    chmod(path.c_str(), 0755);
    ProbeRequest request;
    request.rank_path = path;
    request.version = "1";
    request.device = "cpu";
    request.num_threads = 2;
    request.cpu_model = "AMD";
    request.cache_path = directory_.File("cache/probe.json");
    return request;
  }
  size_t Runs() { return TestDirectory::Read(directory_.File("runs")).size() / 4; }
  TestDirectory directory_;
};

TEST_F(DeviceProbeTest, MeasuresOnceForTheSameMachine) {
  ProbeRequest request =
      Request(std::string("test \"$*\" = '--probe --device cpu --threads 2' && test $OMP_NUM_THREADS = 2 && echo '") +
              kProbe + "'");
  for (int i = 0; i < 2; ++i) {
    const auto profile = ProbeDevice(request);
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_EQ(profile->model(), "AMD");
    EXPECT_EQ(profile->threads(), 2);
    EXPECT_EQ(profile->matmul_flops_per_second().at("f32"), 9.5e10);
    EXPECT_EQ(profile->link_latency_seconds(), 1e-4);
    EXPECT_EQ(profile->cpus(), 2);
  }
  EXPECT_EQ(Runs(), 1u);
  request.cpu_model = "Intel";
  EXPECT_TRUE(ProbeDevice(request).ok());
  EXPECT_EQ(Runs(), 2u);
  request.version = "2";
  EXPECT_TRUE(ProbeDevice(request).ok());
  TestDirectory::Write(request.cache_path, "damaged");
  EXPECT_TRUE(ProbeDevice(request).ok());
  EXPECT_EQ(Runs(), 4u);
}

TEST_F(DeviceProbeTest, DaemonsThatStartTogetherMeasureOnce) {
  const ProbeRequest request = Request(std::string("sleep 0.3; echo '") + kProbe + "'");
  std::vector<std::thread> daemons;
  std::vector<absl::Status> statuses(3);
  for (absl::Status& status : statuses)
    daemons.emplace_back([&request, &status] { status = ProbeDevice(request).status(); });
  for (std::thread& daemon : daemons) daemon.join();
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(Runs(), 1u);
}

TEST_F(DeviceProbeTest, FailuresSayWhatTheProbeSaid) {
  EXPECT_THAT(std::string(ProbeDevice(Request("echo broken >&2; exit 3")).status().message()),
              HasSubstr("--probe ended with exit code 3: broken"));
  EXPECT_THAT(std::string(ProbeDevice(Request("kill -9 $$")).status().message()), HasSubstr("signal 9"));
  EXPECT_THAT(std::string(ProbeDevice(Request("echo hello")).status().message()), HasSubstr("no JSON object"));
  ProbeRequest slow = Request("sleep 100");
  slow.timeout_seconds = 0.2;
  EXPECT_EQ(ProbeDevice(slow).status().code(), absl::StatusCode::kDeadlineExceeded);
  slow.rank_path = "/nonexistent/tacc-rank";
  EXPECT_THAT(std::string(ProbeDevice(slow).status().message()), HasSubstr("/nonexistent/tacc-rank"));
}

TEST(ProbeCachePathTest, IsTheUsersCacheOrTheStateDirectory) {
  const std::string home = std::getenv("HOME") != nullptr ? std::getenv("HOME") : "";
  setenv("HOME", "/home/u", 1);
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(ProbeCachePath("/state", "cpu", 2), "/cache/tacc/probe-cpu-2.json");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(ProbeCachePath("/state", "cpu", 2), "/home/u/.cache/tacc/probe-cpu-2.json");
  unsetenv("HOME");
  EXPECT_EQ(ProbeCachePath("/state", "cpu", 2), "/state/probe-cpu-2.json");
  if (!home.empty()) setenv("HOME", home.c_str(), 1);
}

TEST(ParseDeviceProfileTest, EachFieldIsNeeded) {
  ASSERT_TRUE(ParseDeviceProfile(kProbe).ok());
  for (const char* field : {"name", "kind", "model", "threads", "memory_bytes", "matmul_flops_per_second",
                            "memory_bytes_per_second", "link_bytes_per_second", "link_latency_seconds", "cpus"}) {
    std::string text = kProbe;
    text.replace(text.find(std::string("\"") + field + "\"") + 1, 1, "_");
    EXPECT_THAT(std::string(ParseDeviceProfile(text).status().message()), HasSubstr(std::string("\"") + field + "\""));
  }
}

}  // namespace
}  // namespace tacc::worker
