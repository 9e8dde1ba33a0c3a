#include "worker/rank/protocol/status_block.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace tacc::worker {
namespace {

// Of the process that runs the test, also in a child it forks.
const pid_t kTestPid = getpid();

std::string Name(const std::string& suffix) { return absl::StrCat("/tacc-test-", kTestPid, "-", suffix); }

TEST(StatusBlockTest, AnotherProcessSeesTheRank) {
  auto daemon = StatusBlock::Create(Name("a"), 3);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const pid_t child = fork();
  if (child == 0) {
    auto rank = StatusBlock::Open(Name("a"));
    if (!rank.ok()) _exit(1);
    (*rank)->SetStep(int64_t{1} << 40);
    (*rank)->SetNode(2, 77, Activity::kInCollective);
    _exit(0);
  }
  int exit_status = 0;
  ASSERT_EQ(waitpid(child, &exit_status, 0), child);
  ASSERT_EQ(exit_status, 0);
  const RankStatus status = (*daemon)->Sample();
  EXPECT_EQ(status.attempt, 3);
  EXPECT_EQ(status.step, int64_t{1} << 40);
  EXPECT_EQ(status.call, 2);
  EXPECT_EQ(status.node, 77);
  EXPECT_EQ(status.activity, Activity::kInCollective);
  EXPECT_EQ(status.heartbeat, 1u);
}

TEST(StatusBlockTest, AnotherObjectTakesItOver) {
  auto first = StatusBlock::Create(Name("b"), 3);
  ASSERT_TRUE(first.ok()) << first.status();
  (*first)->SetStep(7);
  (*first)->Release();
  first->reset();
  auto second = StatusBlock::TakeOver(Name("b"));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)->Sample().step, 7);
  second->reset();
  EXPECT_EQ(StatusBlock::Open(Name("b")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(StatusBlock::TakeOver(Name("b")).status().code(), absl::StatusCode::kNotFound);
}

// In a child with a /dev/shm of its own, of one page, that is full: 0 an error as it should be, 1 none, 2 another one,
// 77 it may not mount.
int CreateWhereItIsFull() {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return 77;
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
  if (mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=4k") != 0) return 77;
  const auto first = StatusBlock::Create(Name("first"), 1);
  if (!first.ok()) return 2;
  const auto second = StatusBlock::Create(Name("second"), 1);
  if (second.ok()) return 1;
  if (access(("/dev/shm" + Name("second")).c_str(), F_OK) == 0) return 2;
  return absl::IsResourceExhausted(second.status()) ? 0 : 2;
}

TEST(StatusBlockTest, NoRoomIsAnErrorNotASignal) {
  const pid_t child = fork();
  if (child == 0) _exit(CreateWhereItIsFull());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "needs root, to mount /dev/shm";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(StatusBlockTest, TheNameGoesWithTheMaker) {
  {
    auto first = StatusBlock::Create(Name("b"), 1);
    ASSERT_TRUE(first.ok());
    EXPECT_TRUE(StatusBlock::Open(Name("b")).ok());
    EXPECT_TRUE(StatusBlock::Open(Name("b")).ok());
  }
  EXPECT_EQ(StatusBlock::Open(Name("b")).status().code(), absl::StatusCode::kNotFound);
}

TEST(StatusBlockTest, LeftoversAreReplacedOrRemoved) {
  const pid_t child = fork();
  if (child == 0) {
    (void)StatusBlock::Create(Name("c"), 1)->release();
    (void)StatusBlock::Create(Name("d"), 1)->release();
    _exit(0);
  }
  int exit_status = 0;
  ASSERT_EQ(waitpid(child, &exit_status, 0), child);
  EXPECT_TRUE(StatusBlock::Open(Name("c")).ok());
  EXPECT_EQ((*StatusBlock::Create(Name("c"), 2))->Sample().attempt, 2);
  shm_unlink(Name("d").c_str());
}

TEST(StatusBlockTest, AnUnknownActivityReadsAsStarting) {
  auto block = StatusBlock::Create(Name("e"), 1);
  ASSERT_TRUE(block.ok());
  (*block)->fields()->activity.store(99);
  EXPECT_EQ((*block)->Sample().activity, Activity::kStarting);
  (*block)->fields()->magic.store(0);
  EXPECT_EQ(StatusBlock::Open(Name("e")).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tacc::worker
