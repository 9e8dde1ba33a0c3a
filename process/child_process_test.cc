#include "process/child_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "machine/testing/test_directory.h"

namespace tacc {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<ChildProcess>> Shell(const std::string& script) {
  return ChildProcess::Start({.argv = {"/bin/sh", "-c", script}, .environment = {{"TACC_TEST", "value"}}});
}

struct Outcome {
  std::string out, err;
  ProcessEnd end;
};

Outcome Finish(ChildProcess* child) {
  Outcome outcome;
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (absl::Now() < deadline) {
    const bool out = child->ReadStdout(&outcome.out);
    const bool err = child->ReadStderr(&outcome.err);
    if (!out && !err) {
      if (const auto end = child->TryReap(); end.has_value()) {
        outcome.end = *end;
        return outcome;
      }
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
  ADD_FAILURE() << "the child did not end";
  return outcome;
}

TEST(ChildProcessTest, PipesEnvironmentAndExitCode) {
  auto child = Shell("read line; echo out $line $TACC_TEST; echo err >&2; exit 7");
  ASSERT_TRUE(child.ok()) << child.status();
  (*child)->WriteLine("hello");
  const Outcome outcome = Finish(child->get());
  EXPECT_EQ(outcome.out, "out hello value\n");
  EXPECT_EQ(outcome.err, "err\n");
  EXPECT_EQ(outcome.end.exit_code, 7);
  EXPECT_EQ(outcome.end.signal, 0);
}

TEST(ChildProcessTest, InheritsTheVariablesThatItMay) {
  setenv("TACC_KEPT", "1", 1);
  setenv("TACC_SECRET", "1", 1);
  auto child = ChildProcess::Start({.argv = {"/bin/sh", "-c", "echo $TACC_KEPT,$TACC_SECRET,$TACC_SET"},
                                    .inherits = [](absl::string_view name) { return name == "TACC_KEPT"; },
                                    .environment = {{"TACC_SET", "2"}}});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(Finish(child->get()).out, "1,,2\n");
  unsetenv("TACC_KEPT");
  unsetenv("TACC_SECRET");
}

TEST(ChildProcessTest, ClosingStdinIsSeenAndAClosedStdinIsHarmless) {
  signal(SIGPIPE, SIG_IGN);
  auto child = Shell("cat >/dev/null; exec <&-; echo done; sleep 0.2");
  ASSERT_TRUE(child.ok());
  (*child)->WriteLine("x");
  (*child)->CloseStdin();
  (*child)->WriteLine("y");
  EXPECT_EQ(Finish(child->get()).out, "done\n");
  auto closed = Shell("exec <&-; echo closed; sleep 0.2");
  ASSERT_TRUE(closed.ok());
  std::string out;
  while (out.empty()) (*closed)->ReadStdout(&out);
  (*closed)->WriteLine("y");
  EXPECT_EQ((*closed)->stdin_fd(), -1);
  EXPECT_EQ(Finish(closed->get()).end.exit_code, 0);
}

TEST(ChildProcessTest, NoDescriptorsNoSignalsOwnGroup) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);  // Without O_CLOEXEC.
  sigset_t blocked, old;
  sigfillset(&blocked);
  sigprocmask(SIG_SETMASK, &blocked, &old);
  auto child = Shell(
      "ls /proc/self/fd | tr '\\n' ' '; grep -E 'SigBlk|SigIgn' /proc/self/status; ps -o pgid= -p $$ 2>/dev/null; echo "
      "$$");
  sigprocmask(SIG_SETMASK, &old, nullptr);
  ASSERT_TRUE(child.ok());
  const Outcome outcome = Finish(child->get());
  EXPECT_THAT(outcome.out, HasSubstr("0 1 2 3 "));  // 3 is ls's own, of the folder it lists.
  EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr(" 4 ")));
  EXPECT_THAT(outcome.out, HasSubstr("SigBlk:\t0000000000000000"));
  // The two signals that the C library keeps for itself (32, 33) cannot be reset.
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("SigIgn:\t0000000[01][08]0000000"));
  close(fds[0]);
  close(fds[1]);
}

TEST(ChildProcessTest, KillEndsTheWholeGroup) {
  auto child = Shell("sleep 100 & echo $!; wait");
  ASSERT_TRUE(child.ok());
  std::string out;
  while (out.find('\n') == std::string::npos) (*child)->ReadStdout(&out);
  pid_t grandchild = 0;
  ASSERT_TRUE(absl::SimpleAtoi(absl::StripAsciiWhitespace(out), &grandchild));
  (*child)->Kill();
  EXPECT_EQ(Finish(child->get()).end.signal, SIGKILL);
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  while (kill(grandchild, 0) == 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  // Whoever adopts it may be slow to reap; a dead process has no command line.
  if (kill(grandchild, 0) == 0) {
    FILE* file = fopen(absl::StrCat("/proc/", grandchild, "/cmdline").c_str(), "r");
    EXPECT_TRUE(file == nullptr || fgetc(file) == EOF);
    if (file != nullptr) fclose(file);
  }
}

TEST(ChildProcessTest, AMissingProgramIsNamed) {
  const auto child = ChildProcess::Start({.argv = {"/nonexistent/tacc-rank"}});
  EXPECT_EQ(child.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(child.status().message()), HasSubstr("/nonexistent/tacc-rank: cannot be started"));
}

TEST(ChildProcessTest, AFileThatCannotBeOpenedIsNamed) {
  for (const auto& [options, path] : std::vector<std::pair<ProcessOptions, std::string>>{
           {{.argv = {"/bin/true"}, .stderr_path = "/nonexistent/log"}, "/nonexistent/log"},
           {{.argv = {"/bin/true"}, .cgroup_procs = "/nonexistent/cgroup.procs"}, "/nonexistent/cgroup.procs"}}) {
    const auto child = ChildProcess::Start(options);
    EXPECT_EQ(child.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(child.status().message()), HasSubstr(path));
  }
}

TEST(ChildProcessTest, OneWithoutADescriptorForItsErrorsDoesNotStart) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {100, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> all;
  for (int fd; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) all.push_back(fd);
  // Three pipes of the child's and that of its errors.
  for (int i = 0; i < 8; ++i, all.pop_back()) close(all.back());
  const auto child = ChildProcess::Start({.argv = {"/bin/true"}});
  for (const int fd : all) close(fd);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_THAT(std::string(child.status().message()), HasSubstr("/bin/true: cannot be started: Too many open files"));
}

TEST(ChildProcessTest, JoinsACgroupBeforeItRunsTheProgram) {
  TestDirectory directory;
  const std::string procs = directory.File("cgroup.procs");
  TestDirectory::Write(procs, "");
  auto child = ChildProcess::Start({.argv = {"/bin/cat", procs}, .cgroup_procs = procs});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(Finish(child->get()).out, "0");
}

TEST(ChildProcessTest, OneThatMayNotJoinItsCgroupDoesNotStart) {
  auto child = ChildProcess::Start({.argv = {"/bin/true"}, .cgroup_procs = "/dev/full"});
  EXPECT_THAT(std::string(child.status().message()), HasSubstr("/bin/true: cannot be started: No space left"));
}

TEST(ChildProcessTest, AnotherObjectTakesItOver) {
  auto child = Shell("echo one; read line; echo got $line; exit 7");
  ASSERT_TRUE(child.ok()) << child.status();
  const pid_t pid = (*child)->pid();
  ChildProcess::Held held = (*child)->Release();
  child->reset();
  auto second = ChildProcess::TakeOver(std::move(held));
  EXPECT_EQ(second->pid(), pid);
  second->WriteLine("words");
  const absl::optional<ProcessEnd> end = second->WaitForEnd(10);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->exit_code, 7);
  std::string out;
  second->ReadStdout(&out);
  EXPECT_EQ(out, "one\ngot words\n");
}

TEST(ChildProcessTest, DestroyingItKillsAndReaps) {
  pid_t pid = 0;
  {
    auto child = Shell("sleep 100");
    ASSERT_TRUE(child.ok());
    pid = (*child)->pid();
  }
  EXPECT_NE(kill(pid, 0), 0);
}

}  // namespace
}  // namespace tacc
