// A device that cannot be used, of which the daemon tells the coordinator: one that is lost, one that a process holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "machine/testing/test_directory.h"
#include "process/child_process.h"
#include "worker/daemon/testing/daemon_fixture.h"
#include "worker/daemon/testing/fake_worker_service.h"

namespace tacc::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What the daemon has said of its device ("trouble" or "memory N"), and "exit" where a rank's end came between.
std::vector<std::string> DeviceStory(FakeWorkerService* coordinator) {
  std::vector<std::string> story;
  for (const v1::AttachRequest& message : coordinator->received()) {
    if (message.rank_report().has_exited()) story.push_back("exit");
    if (!message.has_device_state()) continue;
    const v1::DeviceState& state = message.device_state();
    story.push_back(state.trouble().empty() ? absl::StrCat("memory ", state.device().memory_bytes()) : state.trouble());
  }
  return story;
}

// The GPU falls off its bus while a rank runs, and comes back.
TEST_F(DaemonTest, AfterAFailureTheGpuIsLookedAtAndTheDaemonStays) {
  options_.place.device = "cuda:1";
  options_.device.set_name("cuda:1");
  options_.device.set_model("NVIDIA H100 80GB HBM3");
  options_.device.set_memory_bytes(4096);
  options_.look_again_seconds = 0.1;
  absl::Mutex mutex;
  absl::Status health = absl::FailedPreconditionError("tacc-rank --look ended with exit code 1: no device");
  options_.look = [&]() -> absl::StatusOr<v1::DeviceProfile> {
    absl::MutexLock lock(&mutex);
    if (!health.ok()) return health;
    v1::DeviceProfile now = options_.device;
    now.set_memory_bytes(2048);
    return now;
  };
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  UntilReport("started");
  coordinator_.Command(1, "die");
  UntilReport("exit - 9");
  const std::string looked_at = "cuda:1 is being looked at after a rank has failed on it";
  const std::string lost = "cuda:1 cannot be used: tacc-rank --look ended with exit code 1: no device";
  Until("trouble", [&] { return absl::c_linear_search(DeviceStory(&coordinator_), lost); });
  // A coordinator that the daemon dials again hears of it.
  coordinator_.Stop();
  coordinator_.Start();
  UntilRegistered(2);
  EXPECT_EQ(coordinator_.registrations()[1].device_trouble(), lost);
  {
    absl::MutexLock lock(&mutex);
    health = absl::OkStatus();
  }
  Until("recovery", [&] { return DeviceStory(&coordinator_).back() == "memory 2048"; });
  std::vector<std::string> story = DeviceStory(&coordinator_);
  // Before the rank's end: no rank starts here.
  EXPECT_LT(absl::c_find(story, looked_at), absl::c_find(story, "exit"));
  story.erase(std::remove(story.begin(), story.end(), "exit"), story.end());
  story.erase(std::unique(story.begin(), story.end()), story.end());
  EXPECT_THAT(story, ElementsAre("memory 4096", looked_at, lost, "memory 2048"));
  coordinator_.StartRank(2);
  Until("attempt 2 to start", [&] {
    const std::string text = TestDirectory::Read(directory_.File("seen-start.json"));
    return text.find("\"memory_bytes\":2048") != std::string::npos;
  });
}

// A process that is not seen to end while it is held: as in a driver that does not answer.
class HeldProcess : public ChildProcess {
 public:
  HeldProcess(ChildProcess&& process, const std::atomic<bool>* is_held)
      : ChildProcess(std::move(process)), is_held_(*is_held) {}
  absl::optional<ProcessEnd> TryReap() override { return is_held_ ? absl::nullopt : ChildProcess::TryReap(); }

 private:
  const std::atomic<bool>& is_held_;
};

class HeldProcessTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    options_.device.set_name("cpu");
    options_.device.set_memory_bytes(4096);
    options_.reap_seconds = 0.1;
    options_.start_process = [this](const ProcessOptions& options) -> absl::StatusOr<std::unique_ptr<ChildProcess>> {
      auto process = ChildProcess::Start(options);
      if (!process.ok()) return process.status();
      pid_ = (*process)->pid();
      return std::make_unique<HeldProcess>(std::move(**process), &is_held_);
    };
  }

  // Starts a rank and kills it; returns why the device cannot be used.
  std::string KillInVain() {
    StartDaemon();
    UntilRegistered(1);
    coordinator_.StartRank(1);
    UntilReport("started");
    coordinator_.KillRank(1);
    UntilReport("exit - 0 killed");
    UntilReport("warning");
    const std::vector<std::string> story = DeviceStory(&coordinator_);
    const auto trouble =
        absl::c_find_if(story, [](const std::string& text) { return absl::StrContains(text, " cannot be used: "); });
    // Before the rank's end, on which the coordinator would start the next one.
    EXPECT_LT(trouble, absl::c_find(story, "exit"));
    coordinator_.StartRank(2);
    UntilReport("2:1 exit - 0 " + *trouble);
    return *trouble;
  }

  void UntilStarts(int attempt) {
    coordinator_.StartRank(attempt);
    Until("the rank to start", [&] {
      return absl::c_any_of(coordinator_.Reports(), [&](const std::string& report) {
        return absl::StartsWith(report, absl::StrCat(attempt, ":")) && absl::StrContains(report, " started");
      });
    });
  }

  std::atomic<bool> is_held_ = true;
  pid_t pid_ = 0;
};

TEST_F(HeldProcessTest, AProcessThatDoesNotEndTakesTheDeviceOutOfService) {
  const std::string trouble = KillInVain();
  EXPECT_THAT(trouble, HasSubstr(absl::StrCat("cpu cannot be used: the process of job job-1 attempt 1 rank 0 (pid ",
                                              pid_, ", state Z (ended, held by another process)) was killed ")));
  EXPECT_THAT(trouble, HasSubstr("if it does not end by itself, restart the machine"));
  is_held_ = false;
  Until("recovery", [&] { return DeviceStory(&coordinator_).back() == "memory 4096"; });
  UntilStarts(3);
}

TEST_F(HeldProcessTest, AGpuIsLookedAtWhenTheProcessHasGone) {
  options_.device.set_name("cuda:1");
  std::atomic<int> num_looks = 0;
  options_.look = [&]() -> absl::StatusOr<v1::DeviceProfile> {
    ++num_looks;
    v1::DeviceProfile now = options_.device;
    now.set_memory_bytes(2048);
    return now;
  };
  EXPECT_THAT(KillInVain(), HasSubstr("if it does not end by itself, reset the GPU or restart the machine"));
  EXPECT_EQ(num_looks, 0);
  is_held_ = false;
  Until("recovery", [&] { return DeviceStory(&coordinator_).back() == "memory 2048"; });
  EXPECT_EQ(num_looks, 1);
  UntilStarts(3);
}

TEST_F(HeldProcessTest, ARankThatHasFailedAndDoesNotEndIsKilled) {
  options_.last_words_seconds = 0.1;
  options_.reap_seconds = 60;
  is_held_ = false;
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  coordinator_.Command(1, "fail");
  UntilReport("failed");
  UntilReport("exit - 9");
}

// The daemon does not wait for it; its record stays for the next daemon.
TEST_F(HeldProcessTest, TheEndDoesNotWaitForAProcessThatDoesNotEnd) {
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  UntilReport("started");
  ASSERT_EQ(write(end_pipe_[1], "x", 1), 1);
  thread_.join();
  EXPECT_THAT(TestDirectory::Read(directory_.File("state") + "/rank.json"), HasSubstr(absl::StrCat(pid_)));
  ASSERT_EQ(waitpid(pid_, nullptr, 0), pid_);
}

}  // namespace
}  // namespace tacc::worker
