// The real binary is killed with SIGKILL at its failpoints and at drawn moments, and started again on the same state
// directory. No job is lost or run twice, no metric point is missing or doubled.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "coordinator/testing/coordinator_process.h"
#include "coordinator/testing/fake_daemon.h"

namespace tacc::coordinator {
namespace {

constexpr int kSteps = 10;

// Runs a job to its end while the coordinator dies by `failpoints`, or of a kill after `kill_after_ms` when that is not
// negative.
void RunWithKill(const std::string& failpoints, int kill_after_ms) {
  SCOPED_TRACE(absl::StrCat("failpoints \"", failpoints, "\", kill after ", kill_after_ms, " ms"));
  CoordinatorProcess coordinator;
  ASSERT_NO_FATAL_FAILURE(coordinator.Start(failpoints));
  TestClient client(coordinator.address());
  FakeDaemon daemon("w0");
  daemon.version = TACC_VERSION;
  const v1::JobSpec spec = TestSpec("toy", coordinator.dir().path() + "/runs", 1);
  bool submitted = false;
  int deaths = 0;
  bool finished = false;
  v1::RankId rank;
  int step = -1;  // Of `rank`; -1: no rank.
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0; round < 4000 && !finished; ++round) {
    const auto elapsed =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
    if (kill_after_ms >= 0 && deaths == 0 && elapsed >= kill_after_ms) {
      coordinator.Kill();
      ++deaths;
      ASSERT_NO_FATAL_FAILURE(coordinator.Start(""));
    } else if (coordinator.Died()) {
      ++deaths;
      ASSERT_NO_FATAL_FAILURE(coordinator.Start(""));
    }
    if (!daemon.connected()) daemon.Connect(coordinator.address());
    if (!submitted) submitted = client.Submit(spec);
    if (daemon.TakeRank(&rank)) {
      step = 0;
      daemon.Ready(rank, 0);
    }
    if (step >= 0 && step < kSteps) {
      daemon.Step(rank, ++step);
      if (step % 5 == 0) daemon.Checkpoint(rank, step);
      if (step == kSteps) daemon.Finish(rank, step);
    }
    const std::vector<v1::Job> jobs = client.List();
    finished = submitted && jobs.size() == 1 && jobs[0].phase() == v1::PHASE_FINISHED;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_LE(deaths, 1);
  EXPECT_EQ(deaths, failpoints.empty() ? deaths : 1) << "the failpoint was not reached";
  // It may have died after the last commit: the answer above came from the one that stayed.
  if (coordinator.Died()) {
    ASSERT_NO_FATAL_FAILURE(coordinator.Start(""));
  }
  const std::vector<v1::Job> jobs = client.List();
  ASSERT_EQ(jobs.size(), 1u);
  ASSERT_TRUE(finished) << jobs[0].ShortDebugString();
  std::map<std::pair<int, int64_t>, int> points;
  for (const v1::WatchResponse& item : client.Watch(jobs[0].id())) {
    if (item.has_step()) ++points[{item.step().attempt(), item.step().step()}];
  }
  for (int i = 1; i <= kSteps; ++i) EXPECT_EQ((points[{jobs[0].attempt(), i}]), 1) << "step " << i;
  for (const auto& [point, count] : points)
    EXPECT_EQ(count, 1) << "step " << point.second << " of attempt " << point.first;
  // Only a start that was decided and never sent costs an attempt.
  EXPECT_LE(jobs[0].attempt(), 2);
  EXPECT_EQ(jobs[0].last_checkpoint().step(), kSteps);
}

// Facts of the run come in at least these transactions: accepted, compiled, started, listening, ready, two checkpoints,
// end. (Some may share one.)
class CommitsTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(CommitsTest, LosesAndDoublesNothing) {
  RunWithKill(absl::StrCat(std::get<0>(GetParam()), "=kill@", std::get<1>(GetParam())), -1);
}

INSTANTIATE_TEST_SUITE_P(Failpoints, CommitsTest,
                         ::testing::Combine(::testing::Values("before_log_commit", "after_log_commit"),
                                            ::testing::Values(1, 2, 3, 4, 5, 6)));

TEST(FailpointTest, TheUsersBinaryHasNone) {
  CoordinatorProcess coordinator;
  coordinator.obeys_failpoints = false;
  ASSERT_NO_FATAL_FAILURE(coordinator.Start("before_log_commit=kill;after_log_commit=kill"));
  EXPECT_TRUE(TestClient(coordinator.address()).Submit(TestSpec("toy", coordinator.dir().path() + "/runs", 1)));
  EXPECT_FALSE(coordinator.Died());
  std::ifstream log(coordinator.dir().path() + "/log");
  std::string said;
  std::getline(log, said);
  EXPECT_EQ(said.rfind("TACC_FAILPOINTS is ignored", 0), 0u) << said;
}

TEST(KillTest, AtDrawnMomentsLosesAndDoublesNothing) {
  const char* text = std::getenv("TACC_SEED");
  const unsigned seed = text != nullptr ? static_cast<unsigned>(std::stoul(text)) : std::random_device()();
  std::printf("TACC_SEED=%u\n", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 3; ++i) RunWithKill("", static_cast<int>(random() % 300));
}

// Its own disk is full: it waits, acknowledges nothing, and loses nothing.
TEST(FullDiskTest, IsWaitedFor) {
  CoordinatorProcess coordinator;
  ASSERT_NO_FATAL_FAILURE(coordinator.Start(""));
  TestClient client(coordinator.address());
  FakeDaemon daemon("w0");
  daemon.version = TACC_VERSION;
  ASSERT_TRUE(daemon.Connect(coordinator.address()).ok());
  ASSERT_TRUE(client.Submit(TestSpec("toy", coordinator.dir().path() + "/runs", 1)));
  const v1::RankId rank = daemon.WaitForRank(1);
  daemon.Ready(rank, 0);
  ASSERT_TRUE(WaitUntil([&] { return daemon.NumUnacknowledged() == 0; }));
  ASSERT_NO_FATAL_FAILURE(coordinator.LimitFiles(4096));
  for (int step = 1; step <= kSteps; ++step) daemon.Step(rank, step);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_EQ(daemon.NumUnacknowledged(), size_t{kSteps});
  ASSERT_NO_FATAL_FAILURE(coordinator.LimitFiles(RLIM_INFINITY));
  daemon.Checkpoint(rank, kSteps);
  daemon.Finish(rank, kSteps);
  ASSERT_TRUE(WaitUntil([&] {
    const std::vector<v1::Job> jobs = client.List();
    return jobs.size() == 1 && jobs[0].phase() == v1::PHASE_FINISHED;
  }));
  int points = 0;
  for (const v1::WatchResponse& item : client.Watch("toy-1")) points += item.has_step() ? 1 : 0;
  EXPECT_EQ(points, kSteps);
}

// Nothing that the daemon sends is there to be read when it goes on: the stop alone must not count as silence.
TEST(StallTest, OfTheCoordinatorEndsNoAttempt) {
  CoordinatorProcess coordinator;
  ASSERT_NO_FATAL_FAILURE(coordinator.Start(""));
  TestClient client(coordinator.address());
  FakeDaemon daemon("w0");
  daemon.version = TACC_VERSION;
  ASSERT_TRUE(daemon.Connect(coordinator.address()).ok());
  ASSERT_TRUE(client.Submit(TestSpec("toy", coordinator.dir().path() + "/runs", 1)));
  const v1::RankId rank = daemon.WaitForRank(1);
  daemon.Ready(rank, 0);
  ASSERT_TRUE(WaitUntil([&] { return daemon.NumUnacknowledged() == 0; }));
  daemon.is_quiet = true;
  coordinator.Freeze();
  EXPECT_EQ(client.List().size(), 1u);                   // It goes on.
  std::this_thread::sleep_for(std::chrono::seconds(1));  // And has ticked.
  daemon.is_quiet = false;
  daemon.Checkpoint(rank, kSteps);
  daemon.Finish(rank, kSteps);
  ASSERT_TRUE(WaitUntil([&] {
    const std::vector<v1::Job> jobs = client.List();
    return jobs.size() == 1 && jobs[0].phase() == v1::PHASE_FINISHED;
  }));
  EXPECT_EQ(client.List()[0].attempt(), 1);
  EXPECT_EQ(client.List()[0].restarts_size(), 0);
}

TEST(SignalTest, EndsWithItsParent) {
  int parent[2];
  ASSERT_EQ(pipe2(parent, O_CLOEXEC), 0);
  CoordinatorProcess coordinator;
  ASSERT_NO_FATAL_FAILURE(coordinator.Start("", parent[0]));
  close(parent[0]);
  close(parent[1]);
  const int status = coordinator.Wait();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(SignalTest, EndsCleanlyOnSigterm) {
  CoordinatorProcess coordinator;
  ASSERT_NO_FATAL_FAILURE(coordinator.Start(""));
  FakeDaemon daemon("w0");
  daemon.version = TACC_VERSION;
  ASSERT_TRUE(daemon.Connect(coordinator.address()).ok());
  const int status = coordinator.Terminate();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tacc::coordinator
