// The real binary is killed with SIGKILL at its failpoints and at drawn moments, and started again on the same state
// directory. No job is lost or run twice, no metric point is missing or doubled.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "coordinator/service/fake_daemon_for_test.h"

extern char** environ;

namespace tacc::coordinator {
namespace {

constexpr int kSteps = 10;

// tacc-coordinator with played tools beside it, and the means to kill it and start it again.
class Coordinator {
 public:
  Coordinator() {
    const char* build = std::getenv("TACC_BUILD");
    binary_ = dir_.path() + "/tacc-coordinator";
    std::filesystem::copy_file(std::string(build != nullptr ? build : "build") + "/tacc-coordinator", binary_);
    dir_.Script("tacc-plan", FakePlan(1));
    dir_.Script("tacc-data", FakeData());
  }
  ~Coordinator() {
    if (pid_ > 0) Kill();
  }

  // Waits until it listens. It may die of its failpoint at any time after. With `parent_fd`, it ends when that reads
  // end-of-file.
  void Start(const std::string& failpoints, int parent_fd = -1) {
    int out[2];
    ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, (dir_.path() + "/log").c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    const std::string state = dir_.path() + "/state";
    std::vector<std::string> words = {binary_, "--listen", address_, "--state-dir", state};
    if (parent_fd >= 0) {
      words.push_back("--exit-with-parent-fd");
      words.push_back("7");
      posix_spawn_file_actions_adddup2(&actions, parent_fd, 7);
    }
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::vector<std::string> variables = {"TACC_FAILPOINTS=" + failpoints};
    for (char** variable = environ; *variable != nullptr; ++variable) {
      if (std::string(*variable).rfind("TACC_FAILPOINTS=", 0) != 0) variables.push_back(*variable);
    }
    std::vector<char*> envp;
    for (std::string& variable : variables) envp.push_back(variable.data());
    envp.push_back(nullptr);
    pid_t pid = 0;
    ASSERT_EQ(posix_spawn(&pid, binary_.c_str(), &actions, nullptr, argv.data(), envp.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    FILE* stream = fdopen(out[0], "r");
    char host[64] = "";
    ASSERT_EQ(fscanf(stream, "listening %63s", host), 1) << "see " << dir_.path() << "/log";
    fclose(stream);
    address_ = host;
    pid_ = pid;
  }
  // True once after it died.
  bool Died() {
    if (pid_ <= 0 || waitpid(pid_, nullptr, WNOHANG) != pid_) return false;
    pid_ = 0;
    return true;
  }
  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // Stops the process, which does not know, for longer than a lease.
  void Freeze() {
    kill(pid_, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(10500));
    kill(pid_, SIGCONT);
  }
  int Terminate() {
    kill(pid_, SIGTERM);
    return Wait();
  }
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }
  // Files may grow to `bytes`; RLIM_INFINITY: as they like.
  void LimitFiles(rlim_t bytes) {
    const rlimit limit{bytes, RLIM_INFINITY};
    ASSERT_EQ(prlimit(pid_, RLIMIT_FSIZE, &limit, nullptr), 0);
  }
  const std::string& address() const { return address_; }
  const TestDirectory& dir() const { return dir_; }

 private:
  TestDirectory dir_;
  std::string binary_;
  std::string address_ = "127.0.0.1:0";
  pid_t pid_ = 0;
};

// A client that calls again while the coordinator is away.
class Client {
 public:
  explicit Client(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    stub_ = v1::CoordinatorService::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }
  bool Submit(const v1::JobSpec& spec) {
    grpc::ClientContext context;
    v1::SubmitRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id("the one");
    v1::SubmitResponse response;
    return stub_->Submit(&context, request, &response).ok();
  }
  std::vector<v1::Job> List() {
    grpc::ClientContext context;
    v1::ListResponse response;
    if (!stub_->List(&context, v1::ListRequest(), &response).ok()) return {};
    return {response.jobs().begin(), response.jobs().end()};
  }
  std::vector<v1::WatchResponse> Watch(const std::string& job) {
    grpc::ClientContext context;
    v1::WatchRequest request;
    request.set_job(job);
    auto reader = stub_->Watch(&context, request);
    std::vector<v1::WatchResponse> all;
    v1::WatchResponse item;
    while (reader->Read(&item)) all.push_back(item);
    EXPECT_TRUE(reader->Finish().ok());
    return all;
  }

 private:
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
};

// Runs a job to its end while the coordinator dies by `failpoints`, or of a kill after `kill_after_ms` when that is not
// negative.
void RunWithKill(const std::string& failpoints, int kill_after_ms) {
  SCOPED_TRACE(absl::StrCat("failpoints \"", failpoints, "\", kill after ", kill_after_ms, " ms"));
  Coordinator coordinator;
  ASSERT_NO_FATAL_FAILURE(coordinator.Start(failpoints));
  Client client(coordinator.address());
  FakeDaemon daemon("w0");
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
class FailpointTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(FailpointTest, LosesAndDoublesNothing) {
  RunWithKill(absl::StrCat(std::get<0>(GetParam()), "=kill@", std::get<1>(GetParam())), -1);
}

INSTANTIATE_TEST_SUITE_P(Commits, FailpointTest,
                         ::testing::Combine(::testing::Values("before_log_commit", "after_log_commit"),
                                            ::testing::Values(1, 2, 3, 4, 5, 6)));

TEST(KillTest, AtDrawnMomentsLosesAndDoublesNothing) {
  const char* text = std::getenv("TACC_SEED");
  const unsigned seed = text != nullptr ? static_cast<unsigned>(std::stoul(text)) : std::random_device()();
  std::printf("TACC_SEED=%u\n", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 3; ++i) RunWithKill("", static_cast<int>(random() % 300));
}

// Its own disk is full: it waits, acknowledges nothing, and loses nothing.
TEST(FullDiskTest, IsWaitedFor) {
  Coordinator coordinator;
  ASSERT_NO_FATAL_FAILURE(coordinator.Start(""));
  Client client(coordinator.address());
  FakeDaemon daemon("w0");
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
  Coordinator coordinator;
  ASSERT_NO_FATAL_FAILURE(coordinator.Start(""));
  Client client(coordinator.address());
  FakeDaemon daemon("w0");
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
  Coordinator coordinator;
  ASSERT_NO_FATAL_FAILURE(coordinator.Start("", parent[0]));
  close(parent[0]);
  close(parent[1]);
  const int status = coordinator.Wait();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(SignalTest, EndsCleanlyOnSigterm) {
  Coordinator coordinator;
  ASSERT_NO_FATAL_FAILURE(coordinator.Start(""));
  FakeDaemon daemon("w0");
  ASSERT_TRUE(daemon.Connect(coordinator.address()).ok());
  const int status = coordinator.Terminate();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tacc::coordinator
