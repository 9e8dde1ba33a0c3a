#include "machine/machine.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tacc {
namespace {

TEST(SizeTextTest, HasAUnit) {
  EXPECT_EQ(SizeText(12), "12 B");
  EXPECT_EQ(SizeText(1536), "1.5 KiB");
  EXPECT_EQ(SizeText(int64_t{4} << 30), "4.0 GiB");
  EXPECT_EQ(SizeText(int64_t{5000} << 40), "5000.0 TiB");
}

TEST(ParseBytesTest, UnitsAndMistakes) {
  EXPECT_EQ(*ParseBytes("4GiB"), int64_t{4} << 30);
  EXPECT_EQ(*ParseBytes("1.5kB"), 1500);
  EXPECT_EQ(*ParseBytes("512MiB"), 512 << 20);
  EXPECT_EQ(*ParseBytes("8000000000"), 8000000000);
  for (const char* bad : {"", "GiB", "4 GiB", "4gib", "4Gi", "-1", "0", "1e9", "1..2GB", "nan", "99999999TiB"})
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

TEST_F(MachineTest, HowLongThreadsWait) {
  EXPECT_TRUE(ThreadWaitSeconds(root_).empty());
  Write("proc/self/task/41/schedstat", "900000000 1500000000 77\n");
  Write("proc/self/task/42/schedstat", "0 0 0\n");
  Write("proc/self/task/43/comm", "it has ended\n");
  EXPECT_EQ(ThreadWaitSeconds(root_), (std::map<int, double>{{41, 1.5}, {42, 0}}));
}

TEST_F(MachineTest, WithoutCgroups) {
  Write("proc/meminfo", "MemTotal:  16 kB\nMemAvailable:     8 kB\n");
  const LocalMachine machine = LookAtMachine(root_, 6);
  EXPECT_EQ(machine.num_cpus, 6);
  EXPECT_EQ(machine.memory_bytes, 16384);
  EXPECT_EQ(machine.available_memory_bytes, 8192);
}

TEST_F(MachineTest, Version2LimitsOfAnyAncestorCount) {
  Write("proc/meminfo", "MemTotal: 2000 kB\nMemAvailable: 1000 kB\n");
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  Write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/a/b/memory.max", "500000\n");
  Write("sys/fs/cgroup/a/b/memory.current", "300000\n");
  Write("sys/fs/cgroup/a/b/memory.stat", "anon 1\ninactive_file 100000\n");
  const LocalMachine machine = LookAtMachine(root_, 8);
  EXPECT_EQ(machine.num_cpus, 2);
  EXPECT_EQ(machine.memory_bytes, 500000);
  EXPECT_EQ(machine.available_memory_bytes, 300000);
}

TEST_F(MachineTest, Version1) {
  Write("proc/meminfo", "MemTotal: 2000 kB\nMemAvailable: 1000 kB\n");
  Write("proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/x\n");
  Write("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n");
  Write("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  Write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "400000\n");
  Write("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "100000\n");
  const LocalMachine machine = LookAtMachine(root_, 8);
  EXPECT_EQ(machine.num_cpus, 1);
  EXPECT_EQ(machine.memory_bytes, 400000);
  EXPECT_EQ(machine.available_memory_bytes, 300000);
}

TEST_F(MachineTest, AContainersOwnNamespace) {
  Write("proc/meminfo", "MemTotal: 8192 kB\nMemAvailable: 8000 kB\n");
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  Write("sys/fs/cgroup/memory.max", "1000000\n");
  const LocalMachine machine = LookAtMachine(root_, 16);
  EXPECT_EQ(machine.num_cpus, 1);
  EXPECT_EQ(machine.memory_bytes, 1000000);
}

TEST_F(MachineTest, CpuModel) {
  EXPECT_EQ(LookAtMachine(root_, 1).cpu_model, "unknown CPU");
  Write("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 9B14\n");
  EXPECT_EQ(LookAtMachine(root_, 1).cpu_model, "AMD EPYC 9B14");
}

TEST(StandardStreamsTest, OnesThatAreClosedAreNoFilesNumbers) {
  for (const std::vector<int>& closed : std::vector<std::vector<int>>{{}, {STDIN_FILENO}, {STDERR_FILENO}, {0, 1, 2}}) {
    const pid_t child = fork();
    if (child == 0) {
      for (const int fd : closed) close(fd);
      KeepStandardStreams();
      const int file = open("/proc/self/status", O_RDONLY);
      bool are_open = true;
      for (int fd = 0; fd <= STDERR_FILENO; ++fd) are_open = are_open && fcntl(fd, F_GETFD) == 0;
      _exit(file > STDERR_FILENO && are_open ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << closed.size() << " closed";
  }
}

TEST(MachineNowTest, IsAMachine) {
  const LocalMachine machine = ThisMachine();
  EXPECT_GE(machine.num_cpus, 1);
  EXPECT_GT(machine.available_memory_bytes, 1 << 20);
  EXPECT_GE(machine.memory_bytes, machine.available_memory_bytes);
  EXPECT_GT(ResidentBytes(), 1 << 20);
  EXPECT_LT(ResidentBytes(), machine.memory_bytes);
}

}  // namespace
}  // namespace tacc
