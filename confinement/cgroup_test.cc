#include "confinement/cgroup.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "confinement/testing/own_cgroup.h"
#include "machine/testing/test_directory.h"

namespace tacc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMebibyte = 1 << 20;

// A machine's folders, without what the kernel makes in them.
class CgroupLookupTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& content) {
    std::filesystem::create_directories(std::filesystem::path(directory_.File(name)).parent_path());
    TestDirectory::Write(directory_.File(name), content);
  }
  std::string Refusal(const CgroupLimits& limits = {}) {
    const auto cgroups = Cgroups::Open(directory_.path() + "/", "tacc-x", limits);
    EXPECT_EQ(cgroups.status().code(), absl::StatusCode::kFailedPrecondition);
    return std::string(cgroups.status().message());
  }
  TestDirectory directory_;
};

TEST_F(CgroupLookupTest, FindsItsOwnWhereverItIsMounted) {
  const struct {
    const char *cgroup, *mounts, *own;
  } cases[] = {
      {"0::/system.slice/w.service\n", "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
       "sys/fs/cgroup/system.slice/w.service"},
      {"4:memory:/x\n1:name=systemd:/y\n0::/user.slice\n",
       "30 24 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
       "42 32 0:39 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
       "sys/fs/cgroup/unified/user.slice"},
      {"0::/docker/0123/w\n", "30 24 0:26 /docker/0123 /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "sys/fs/cgroup/w"},
      {"0::/\n", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "sys/fs/cgroup"},
  };
  for (const auto& one : cases) {
    Write("proc/self/cgroup", one.cgroup);
    Write("proc/self/mountinfo", one.mounts);
    std::filesystem::create_directories(directory_.File(one.own));
    EXPECT_THAT(Refusal(), AllOf(HasSubstr(directory_.File(one.own) + "/tacc-x/cgroup.kill: No such file"),
                                 HasSubstr("Linux 5.14")));
    EXPECT_FALSE(std::filesystem::exists(directory_.File(one.own) + "/tacc-x"));
  }
}

TEST_F(CgroupLookupTest, WithoutOneOfItsOwnItSaysSo) {
  const std::pair<const char*, const char*> cases[] = {
      {"4:memory:/x\n", "30 24 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"},
      {"0::/elsewhere\n", "30 24 0:26 /docker/0123 /sys/fs/cgroup rw - cgroup2 cgroup rw\n"},
      {"0::/docker/01234\n", "30 24 0:26 /docker/0123 /sys/fs/cgroup rw - cgroup2 cgroup rw\n"},
      {"0::/../other\n", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n"},
      {"", ""},
  };
  for (const auto& [cgroup, mounts] : cases) {
    Write("proc/self/cgroup", cgroup);
    Write("proc/self/mountinfo", mounts);
    EXPECT_THAT(Refusal(), HasSubstr("sees no cgroup of its own of version 2"));
  }
}

TEST_F(CgroupLookupTest, AFolderThatIsNotThereIsNamed) {
  Write("proc/self/cgroup", "0::/gone\n");
  Write("proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("no cgroup can be made in " + directory_.File("sys/fs/cgroup/gone")),
                               HasSubstr("Delegate=yes")));
}

TEST_F(CgroupLookupTest, ALimitThatNobodyDelegatedIsNamed) {
  Write("proc/self/cgroup", "0::/\n");
  Write("proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
  Write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  Write("sys/fs/cgroup/tacc-x/cgroup.kill", "");
  EXPECT_THAT(Refusal({.num_processes = 10}),
              AllOf(HasSubstr("no controller pids (cgroup.controllers: cpu memory)"), HasSubstr("Delegate=yes")));
  Write("sys/fs/cgroup/cgroup.controllers", "");
  EXPECT_THAT(Refusal({.memory_bytes = 1}), HasSubstr("no controller memory (cgroup.controllers: none)"));
}

// On this machine's own.
class CgroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!own_.trouble().empty()) GTEST_SKIP() << own_.trouble();
  }
  void Open(const CgroupLimits& limits) {
    auto cgroups = Cgroups::Open("/", "tacc-x", limits);
    ASSERT_TRUE(cgroups.ok()) << cgroups.status();
    cgroups_ = *std::move(cgroups);
    EXPECT_EQ(cgroups_->path(), own_.path() + "/tacc-x");
  }
  std::unique_ptr<Cgroup> Make() {
    auto cgroup = cgroups_->Make("job-1/x attempt");
    EXPECT_TRUE(cgroup.ok()) << cgroup.status();
    return *std::move(cgroup);
  }
  // Runs `work` in it, which must not return.
  static pid_t Start(const Cgroup& cgroup, const std::function<void()>& work) {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    const int fd = open(cgroup.ProcsPath().c_str(), O_WRONLY);
    if (write(fd, "0", 1) != 1) _exit(1);
    close(fd);
    work();
    _exit(0);
  }
  static int End(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return status;
  }

  OwnCgroup own_;
  std::unique_ptr<Cgroups> cgroups_;
};

// A pipe that whoever was started holds open.
class Lifeline {
 public:
  Lifeline() {
    if (pipe(ends_) != 0) abort();
  }
  ~Lifeline() { close(ends_[0]); }
  void Say() { (void)!write(ends_[1], "x", 1); }
  // Of the test, once all are started.
  void LetGo() { close(ends_[1]); }
  void UntilSaid() {
    char x;
    ASSERT_EQ(read(ends_[0], &x, 1), 1);
  }
  // All who held it have ended within ten seconds.
  bool IsCut() {
    pollfd descriptor = {ends_[0], POLLIN, 0};
    return poll(&descriptor, 1, 10000) == 1 && (descriptor.revents & POLLHUP) != 0;
  }

 private:
  int ends_[2];
};

TEST_F(CgroupTest, AnotherObjectTakesItOver) {
  Open({});
  std::unique_ptr<Cgroup> cgroup = Make();
  Lifeline line;
  const pid_t child = Start(*cgroup, [&] {
    line.Say();
    while (true) pause();
  });
  line.UntilSaid();
  const std::string path = cgroup->path(), folder = cgroups_->path();
  cgroup->Release();
  cgroup.reset();
  Cgroups::Held held = cgroups_->Release();
  cgroups_.reset();
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0);
  cgroups_ = Cgroups::TakeOver(std::move(held), {});
  EXPECT_EQ(cgroups_->path(), folder);
  cgroup = std::make_unique<Cgroup>(path);
  cgroup.reset();
  EXPECT_EQ(WTERMSIG(End(child)), SIGKILL);
  cgroups_.reset();
  EXPECT_NE(access(folder.c_str(), F_OK), 0);
}

TEST_F(CgroupTest, EndsAGrandchildThatHasLeftItsGroup) {
  Open({});
  for (const bool by_destroying : {false, true}) {
    std::unique_ptr<Cgroup> cgroup = Make();
    EXPECT_EQ(cgroup->path(), cgroups_->path() + "/job-1-x-attempt");
    Lifeline line;
    const pid_t child = Start(*cgroup, [&] {
      if (fork() != 0) _exit(0);
      setsid();
      line.Say();
      while (true) pause();
    });
    EXPECT_EQ(End(child), 0);
    line.LetGo();
    line.UntilSaid();
    const std::string path = cgroup->path();
    if (by_destroying) {
      cgroup.reset();
      EXPECT_FALSE(std::filesystem::exists(path));
    } else {
      cgroup->Kill();
    }
    EXPECT_TRUE(line.IsCut());
  }
}

TEST_F(CgroupTest, NoNameIsThatOfAnotherFolder) {
  Open({});
  for (const char* name : {"", ".", "..", "daemon", "../x", "cgroup.procs/.."}) {
    const auto cgroup = cgroups_->Make(name);
    ASSERT_TRUE(cgroup.ok()) << cgroup.status();
    const std::filesystem::path path = (*cgroup)->path();
    EXPECT_EQ(path.lexically_normal(), path);
    EXPECT_EQ(path.parent_path(), cgroups_->path());
    EXPECT_NE(path.filename(), "daemon");
    EXPECT_FALSE(path.filename().empty());
  }
}

TEST_F(CgroupTest, EndsWhatOneThatWasKilledHasLeft) {
  Open({});
  std::unique_ptr<Cgroup> left = Make();
  Lifeline line;
  const pid_t child = Start(*left, [&] {
    line.Say();
    while (true) pause();
  });
  line.LetGo();
  line.UntilSaid();
  auto next = Cgroups::Open("/", "tacc-x", {});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(line.IsCut());
  EXPECT_EQ(WTERMSIG(End(child)), SIGKILL);
}

TEST_F(CgroupTest, LeavesAllAsItWas) {
  if (const std::string trouble = own_.LimitTrouble(); !trouble.empty()) GTEST_SKIP() << trouble;
  for (const CgroupLimits& limits :
       {CgroupLimits(), CgroupLimits{.memory_bytes = 64 * kMebibyte, .num_processes = 99}}) {
    Open(limits);
    cgroups_.reset();
    EXPECT_FALSE(std::filesystem::exists(own_.path() + "/tacc-x"));
    EXPECT_EQ(TestDirectory::Read(own_.path() + "/cgroup.subtree_control"), "");
    EXPECT_THAT(TestDirectory::Read("/proc/self/cgroup"), HasSubstr(std::filesystem::path(own_.path()).filename()));
  }
}

TEST_F(CgroupTest, AMemoryHogIsEndedWithAllThatItStartedAndCounted) {
  if (const std::string trouble = own_.LimitTrouble(); !trouble.empty()) GTEST_SKIP() << trouble;
  Open({.memory_bytes = 32 * kMebibyte});
  std::unique_ptr<Cgroup> cgroup = Make();
  EXPECT_EQ(cgroup->NumOutOfMemory(), 0);
  Lifeline line;
  const pid_t hog = Start(*cgroup, [&] {
    if (fork() == 0) {
      while (true) pause();
    }
    for (int i = 0; i < 256; ++i) memset(new char[kMebibyte], 1, kMebibyte);
  });
  line.LetGo();
  const int status = End(hog);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_GT(cgroup->NumOutOfMemory(), 0);
  EXPECT_TRUE(line.IsCut());
}

TEST_F(CgroupTest, AForkBombIsHeld) {
  if (const std::string trouble = own_.LimitTrouble(); !trouble.empty()) GTEST_SKIP() << trouble;
  constexpr int kMost = 20;
  Open({.num_processes = kMost});
  std::unique_ptr<Cgroup> cgroup = Make();
  const pid_t bomb = Start(*cgroup, [] {
    int num_forks = 0;
    while (true) {
      const pid_t pid = fork();
      if (pid < 0) _exit(num_forks);
      if (pid == 0) {
        while (true) pause();
      }
      if (++num_forks > 2 * kMost) _exit(255);
    }
  });
  EXPECT_EQ(WEXITSTATUS(End(bomb)), kMost - 1);
  const std::string path = cgroup->path();
  cgroup.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(CgroupTest, ItsPartsHaveNoLimitsWhereOthersAreInIt) {
  if (const std::string trouble = own_.LimitTrouble(); !trouble.empty()) GTEST_SKIP() << trouble;
  const pid_t other = fork();
  if (other == 0) {
    while (true) pause();
  }
  const auto cgroups = Cgroups::Open("/", "tacc-x", {.memory_bytes = 32 * kMebibyte});
  EXPECT_THAT(std::string(cgroups.status().message()),
              HasSubstr("other processes are in the cgroup " + own_.path() + " (" + std::to_string(other) + ")"));
  EXPECT_FALSE(std::filesystem::exists(own_.path() + "/tacc-x"));
  kill(other, SIGKILL);
  End(other);
}

}  // namespace
}  // namespace tacc
