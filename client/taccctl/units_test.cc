#include "client/taccctl/units.h"

#include <filesystem>
#include <fstream>

#include "client/taccctl/coordinator_client.h"
#include "client/taccctl/machine.h"
#include "gtest/gtest.h"

namespace tacc::client {
namespace {

TEST(UnitsTest, Formats) {
  EXPECT_EQ(FormatBytes(12), "12 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(3.0 * (1 << 30)), "3.0 GiB");
  EXPECT_EQ(FormatDuration(7), "0:07");
  EXPECT_EQ(FormatDuration(3723), "1:02:03");
  EXPECT_EQ(FormatDuration(4 * 86400 + 3660), "4 d 01:01");
  EXPECT_EQ(FormatDuration(-1), "-");
  EXPECT_EQ(FormatCount(8192), "8.19k");
  EXPECT_EQ(FormatCount(999.9), "1k");
  EXPECT_EQ(FormatCount(9.3e10), "93G");
  EXPECT_EQ(FormatPercent(0.413), "41.3%");
  EXPECT_EQ(FormatTime(0), "");
}

TEST(BackoffTest, DoublesFromTwoTenthsToTwoSeconds) {
  Backoff backoff;
  for (const double wanted : {0.2, 0.4, 0.8, 1.6, 2.0, 2.0}) EXPECT_DOUBLE_EQ(backoff.Next(), wanted);
  backoff.Reset();
  EXPECT_DOUBLE_EQ(backoff.Next(), 0.2);
}

TEST(UnitsTest, ParsesSizes) {
  EXPECT_EQ(*ParseBytes("4GiB"), int64_t{4} << 30);
  EXPECT_EQ(*ParseBytes("1.5kB"), 1500);
  EXPECT_EQ(*ParseBytes("4096"), 4096);
  for (const char* bad : {"", "GiB", "4 GiB", "4gigs", "-1", "0", "1e30", "99999999TiB"})
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
}

class MachineTest : public testing::Test {
 protected:
  MachineTest()
      : root_(testing::TempDir() + "/machine_test_" + testing::UnitTest::GetInstance()->current_test_info()->name() +
              "/") {}
  ~MachineTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  const std::string root_;
};

TEST_F(MachineTest, WithoutCgroups) {
  Write("proc/meminfo", "MemTotal:  16 kB\nMemAvailable:     8 kB\n");
  const Machine machine = LookAtMachine(root_, 6);
  EXPECT_EQ(machine.num_cpus, 6);
  EXPECT_EQ(machine.available_memory_bytes, 8192);
}

TEST_F(MachineTest, Version2LimitsOfAnyAncestorCount) {
  Write("proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  Write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/a/b/memory.max", "500000\n");
  Write("sys/fs/cgroup/a/b/memory.current", "300000\n");
  Write("sys/fs/cgroup/a/b/memory.stat", "anon 1\ninactive_file 100000\n");
  const Machine machine = LookAtMachine(root_, 8);
  EXPECT_EQ(machine.num_cpus, 2);
  EXPECT_EQ(machine.available_memory_bytes, 300000);
}

TEST_F(MachineTest, Version1) {
  Write("proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/x\n");
  Write("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n");
  Write("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  Write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "400000\n");
  Write("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "100000\n");
  const Machine machine = LookAtMachine(root_, 8);
  EXPECT_EQ(machine.num_cpus, 1);
  EXPECT_EQ(machine.available_memory_bytes, 300000);
}

TEST(ShareOutTest, NeverMoreThreadsThanCpusUnlessItMust) {
  const Machine machine{8, 1000};
  EXPECT_EQ(ShareOut(machine, 3).threads, 2);
  EXPECT_EQ(ShareOut(machine, 3).memory_bytes, 300);
  EXPECT_FALSE(ShareOut(machine, 8).oversubscribed);
  EXPECT_TRUE(ShareOut(machine, 9).oversubscribed);
  EXPECT_EQ(ShareOut(machine, 9).threads, 1);
}

TEST(MachineNowTest, IsAMachine) {
  const Machine machine = ThisMachine();
  EXPECT_GE(machine.num_cpus, 1);
  EXPECT_GT(machine.available_memory_bytes, 1 << 20);
}

}  // namespace
}  // namespace tacc::client
