#include "worker/daemon/answers/device_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "machine/testing/test_directory.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;

constexpr char kProbe[] =
    R"({"name":"cpu","kind":"cpu","model":"AMD","threads":2,"memory_bytes":8000,"matmul_flops_per_second":{"f32":9.5e10},)"
    R"("matmul_fraction":0.9,)"
    R"("memory_bytes_per_second":1.5e10,"link_bytes_per_second":2e9,"link_latency_seconds":1e-4,"cpus":2,)"
    R"("multiplies_bf16":true})";

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
    EXPECT_EQ(profile->matmul_fraction(), 0.9);
    EXPECT_EQ(profile->link_latency_seconds(), 1e-4);
    EXPECT_EQ(profile->cpus(), 2);
    EXPECT_TRUE(profile->multiplies_bf16());
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

TEST_F(DeviceProbeTest, WhatWasMeasuredInTooLittleTimeIsNotRemembered) {
  const std::string probe = kProbe;
  const ProbeRequest request = Request("echo '" + probe.substr(0, probe.size() - 1) + ",\"cut_short\":true}'");
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(ProbeDevice(request).ok());
  EXPECT_EQ(Runs(), 2u);
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

constexpr char kLook[] = R"("name":"cuda:1","kind":"cuda","model":"NVIDIA H200","total_memory_bytes":150000,)"
                         R"("compute_capability":"9.0","links":{"cuda:0":"nvlink"},"driver":"580.1")";
constexpr char kMeasured[] =
    R"("threads":2,"memory_bytes":1,"matmul_flops_per_second":{"f32":5e13,"tf32":4e14,"bf16":7e14,"fp8":0},)"
    R"("matmul_fraction":0.8,"attention_flops_per_second":{"tiles":5e12,"flash":3e14,"cudnn":0},)"
    R"("memory_bytes_per_second":4e12,"link_bytes_per_second":3e11,"link_latency_seconds":5e-6,"cpus":16)";

// A tacc-rank on a machine with a GPU that has as many bytes free as a file says.
std::string GpuScript(const std::string& directory) {
  return "free=$(cat " + directory + "/free)\ncase \"$1 $2 $3\" in\n  '--look --device cuda:1') echo '{" + kLook +
         ",\"free_memory_bytes\":'$free'}';;\n  '--probe --device cuda:1') echo probe >>" + directory +
         "/probes; echo '{" + kLook + "," + kMeasured + ",\"free_memory_bytes\":'$free'}';;\n  *) exit 9;;\nesac";
}

TEST_F(DeviceProbeTest, AGpuIsMeasuredOnceAndItsMemoryEachTime) {
  ProbeRequest request = Request(GpuScript(directory_.File("")));
  request.device = "cuda:1";
  for (const int64_t free : {90000, 70000}) {
    TestDirectory::Write(directory_.File("free"), std::to_string(free));
    const auto profile = ProbeDevice(request);
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_EQ(profile->kind(), "cuda");
    EXPECT_EQ(profile->free_memory_bytes(), free);
    EXPECT_EQ(profile->total_memory_bytes(), 150000);
    EXPECT_EQ(profile->compute_capability(), "9.0");
    EXPECT_EQ(profile->links().at("cuda:0"), "nvlink");
    EXPECT_EQ(profile->driver(), "580.1");
    EXPECT_EQ(profile->matmul_flops_per_second().at("tf32"), 4e14);
    EXPECT_EQ(profile->matmul_flops_per_second().count("fp8"), 0u);  // 0: it has none.
    EXPECT_EQ(profile->matmul_fraction(), 0.8);
    EXPECT_EQ(profile->attention_flops_per_second().at("flash"), 3e14);
    EXPECT_EQ(profile->attention_flops_per_second().count("cudnn"), 0u);
  }
  EXPECT_EQ(TestDirectory::Read(directory_.File("probes")), "probe\n");
  TestDirectory::Write(directory_.File("libtacc_cuda.so"), "another module");
  EXPECT_TRUE(ProbeDevice(request).ok());
  EXPECT_EQ(TestDirectory::Read(directory_.File("probes")), "probe\nprobe\n");
}

TEST_F(DeviceProbeTest, AGpuThatIsNotThereIsBadInputInTheRanksWords) {
  ProbeRequest request = Request("echo 'error: cuda:7: this machine has 2 GPUs, from cuda:0 on' >&2; exit 2");
  request.device = "cuda:7";
  EXPECT_EQ(ProbeDevice(request).status(),
            absl::InvalidArgumentError("--device cuda:7: this machine has 2 GPUs, from cuda:0 on"));
  request = Request("echo '{\"name\":\"cuda:1\"}'");
  request.device = "cuda:1";
  EXPECT_THAT(std::string(ProbeDevice(request).status().message()),
              HasSubstr("--look: the device probe printed no usable"));
}

TEST(ShareGpuMemoryTest, WhatIsFreeLessTheReserve) {
  v1::DeviceProfile device;
  device.set_name("cuda:0");
  device.set_model("NVIDIA H200");
  device.set_total_memory_bytes(int64_t{140} << 30);
  device.set_free_memory_bytes(int64_t{100} << 30);
  const int64_t gib = int64_t{1} << 30;
  ASSERT_TRUE(ShareGpuMemory(0, gib, &device).ok());
  EXPECT_EQ(device.memory_bytes(), 99 * gib);
  EXPECT_EQ(device.reserve_bytes(), gib);
  ASSERT_TRUE(ShareGpuMemory(99 * gib, gib, &device).ok());
  EXPECT_EQ(device.memory_bytes(), 99 * gib);
  EXPECT_EQ(ShareGpuMemory(100 * gib, gib, &device).message(),
            "cuda:0 (NVIDIA H200): 100.00 GiB free of 140.00 GiB, of which 1.00 GiB is kept in reserve, but --memory "
            "wants 100.00 GiB; end what uses the GPU (nvidia-smi lists it), or lower --memory");
  device.set_free_memory_bytes(gib / 2);
  EXPECT_EQ(ShareGpuMemory(0, gib, &device).message(),
            "cuda:0 (NVIDIA H200): 0.50 GiB free of 140.00 GiB, of which 1.00 GiB is kept in reserve, so nothing is "
            "left for a rank; end what uses the GPU (nvidia-smi lists it), or lower --memory-reserve");
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
  for (const char* field :
       {"name", "kind", "model", "threads", "memory_bytes", "matmul_flops_per_second", "matmul_fraction",
        "memory_bytes_per_second", "link_bytes_per_second", "link_latency_seconds", "cpus", "multiplies_bf16"}) {
    std::string text = kProbe;
    text.replace(text.find(std::string("\"") + field + "\"") + 1, 1, "_");
    EXPECT_THAT(std::string(ParseDeviceProfile(text).status().message()), HasSubstr(std::string("\"") + field + "\""));
  }
  std::string faster_than_its_best = kProbe;
  faster_than_its_best.replace(faster_than_its_best.find("0.9"), 3, "1.1");
  EXPECT_THAT(std::string(ParseDeviceProfile(faster_than_its_best).status().message()), HasSubstr("matmul_fraction"));
  const std::string gpu = std::string("{") + kLook + "," + kMeasured + ",\"free_memory_bytes\":5}";
  ASSERT_TRUE(ParseDeviceProfile(gpu).ok()) << ParseDeviceProfile(gpu).status();
  for (const char* field : {"total_memory_bytes", "free_memory_bytes", "compute_capability", "links", "driver",
                            "attention_flops_per_second"}) {
    std::string text = gpu;
    text.replace(text.find(std::string("\"") + field + "\"") + 1, 1, "_");
    EXPECT_THAT(std::string(ParseDeviceProfile(text).status().message()), HasSubstr(std::string("\"") + field + "\""));
  }
}

}  // namespace
}  // namespace tacc::worker
