#include "worker/daemon/machine_limits.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "worker/checkpoint/test_directory.h"

namespace tacc::worker {
namespace {

class MachineLimitsTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& content) {
    std::filesystem::create_directories(std::filesystem::path(root_.File(path)).parent_path());
    TestDirectory::Write(root_.File(path), content);
  }
  TestDirectory root_;
};

TEST_F(MachineLimitsTest, WithoutCgroupsTheMachineIsTheLimit) {
  Write("proc/meminfo", "MemFree: 1 kB\nMemTotal:        2048 kB\n");
  Write("proc/self/cgroup", "4:memory:/x\n");
  const MachineLimits limits = ReadMachineLimits(root_.path(), 3);
  EXPECT_EQ(limits.num_cpus, 3);
  EXPECT_EQ(limits.memory_bytes, 2048 * 1024);
}

TEST_F(MachineLimitsTest, TheTightestLevelCounts) {
  Write("proc/meminfo", "MemTotal: 8192 kB\n");
  Write("proc/self/cgroup", "0::/slice/pod/container\n");
  Write("sys/fs/cgroup/slice/pod/container/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/slice/pod/container/memory.max", "max\n");
  Write("sys/fs/cgroup/slice/pod/cpu.max", "250000 100000\n");
  Write("sys/fs/cgroup/slice/pod/memory.max", "4194304\n");
  Write("sys/fs/cgroup/slice/memory.max", "5194304\n");
  MachineLimits limits = ReadMachineLimits(root_.path(), 16);
  EXPECT_EQ(limits.num_cpus, 2);
  EXPECT_EQ(limits.memory_bytes, 4194304);
  limits = ReadMachineLimits(root_.path(), 1);
  EXPECT_EQ(limits.num_cpus, 1);
}

TEST_F(MachineLimitsTest, AContainersOwnNamespace) {
  Write("proc/meminfo", "MemTotal: 8192 kB\n");
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  Write("sys/fs/cgroup/memory.max", "1000000\n");
  const MachineLimits limits = ReadMachineLimits(root_.path(), 16);
  EXPECT_EQ(limits.num_cpus, 1);
  EXPECT_EQ(limits.memory_bytes, 1000000);
}

TEST_F(MachineLimitsTest, CpuModel) {
  EXPECT_EQ(CpuModel(root_.path()), "unknown CPU");
  Write("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 9B14\n");
  EXPECT_EQ(CpuModel(root_.path()), "AMD EPYC 9B14");
}

TEST(ParseBytesTest, UnitsAndMistakes) {
  EXPECT_EQ(*ParseBytes("4GiB"), int64_t{4} << 30);
  EXPECT_EQ(*ParseBytes("512 MiB"), 512 << 20);
  EXPECT_EQ(*ParseBytes("1.5GB"), 1500000000);
  EXPECT_EQ(*ParseBytes("8000000000"), 8000000000);
  for (const char* bad : {"", "GiB", "4gib", "-1", "1e9", "4 Gi", "1..2GB", "99999999TiB", "nan"})
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
}

}  // namespace
}  // namespace tacc::worker
