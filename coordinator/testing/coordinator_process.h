// The coordinator as a process of its own, and a client of it.
#ifndef TACC_COORDINATOR_TESTING_COORDINATOR_PROCESS_H_
#define TACC_COORDINATOR_TESTING_COORDINATOR_PROCESS_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/testing/fake_daemon.h"

extern char** environ;

namespace tacc::coordinator {

// tacc-coordinator with played tools beside it, and the means to kill it and start it again.
class CoordinatorProcess {
 public:
  // `options`: more of its command line. `max_open_files`: its limit of descriptors, soft and hard; 0: as this
  // process's.
  explicit CoordinatorProcess(std::vector<std::string> options = {}, int max_open_files = 0)
      : options_(std::move(options)), max_open_files_(max_open_files) {
    const char* build = std::getenv("TACC_BUILD");
    binary_ = dir_.path() + "/tacc-coordinator";
    const std::string folder = build != nullptr ? build : "build";
    std::filesystem::copy_file(folder + "/tacc-coordinator", binary_);
    std::filesystem::copy_file(folder + "/failpoints/tacc-coordinator", dir_.path() + "/with-failpoints");
    dir_.Script("tacc-plan", FakePlan(1));
    dir_.Script("tacc-data", FakeData());
  }
  ~CoordinatorProcess() {
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
    const bool obeys = obeys_failpoints && !failpoints.empty();
    std::vector<std::string> words = {
        obeys ? dir_.path() + "/with-failpoints" : binary_, "--listen", address_, "--state-dir", state, "--insecure"};
    words.insert(words.end(), options_.begin(), options_.end());
    if (max_open_files_ > 0)
      words.insert(words.begin(),
                   {"/usr/bin/prlimit", absl::StrCat("--nofile=", max_open_files_, ":", max_open_files_)});
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
    ASSERT_EQ(posix_spawn(&pid, words[0].c_str(), &actions, nullptr, argv.data(), envp.data()), 0);
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
  // It gets no more than so many; those that it has stay.
  void LimitDescriptors(rlim_t count) {
    const rlimit limit{count, 1024};
    ASSERT_EQ(prlimit(pid_, RLIMIT_NOFILE, &limit, nullptr), 0);
  }
  const std::string& address() const { return address_; }
  // Not: it is the users' binary that is started with failpoints.
  bool obeys_failpoints = true;
  const TestDirectory& dir() const { return dir_; }

 private:
  TestDirectory dir_;
  std::string binary_;
  const std::vector<std::string> options_;
  const int max_open_files_;
  std::string address_ = "127.0.0.1:0";
  pid_t pid_ = 0;
};

// A client that calls again while the coordinator is away.
class TestClient {
 public:
  explicit TestClient(const std::string& address) {
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
  // Empty: no answer.
  std::string MetricsAddress() {
    grpc::ClientContext context;
    v1::GetVersionResponse response;
    stub_->GetVersion(&context, v1::GetVersionRequest(), &response);
    return response.metrics_address();
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

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_TESTING_COORDINATOR_PROCESS_H_
