// Whole commands against a fake coordinator: exit codes, what goes to stdout and what to stderr.
#include "client/taccctl/taccctl.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_split.h"
#include "client/jobfile/job_file.h"
#include "client/taccctl/session/up_state.h"
#include "client/taccctl/show/units.h"
#include "client/taccctl/testing/fake_coordinator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tacc::client {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class TaccctlTest : public testing::Test {
 protected:
  TaccctlTest() {
    directory_ = testing::TempDir() + "taccctl_test_" + std::to_string(getpid()) +
                 testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(directory_);
    environment_ = {
        {"TACC_ADDRESS", server_.address()}, {"XDG_STATE_HOME", directory_}, {"HOME", directory_}, {"TZ", "UTC"}};
    job_.set_id("tiny-1");
    job_.set_name("tiny");
    job_.set_max_steps(10);
    job_.set_phase(v1::PHASE_RUNNING);
    server_.workers = [](const v1::ListWorkersRequest&, v1::ListWorkersResponse* response) {
      for (const char* state : {"idle", "busy", "lost"}) response->add_workers()->set_state(state);
      return grpc::Status::OK;
    };
    server_.get = [this](const v1::GetRequest& request, v1::GetResponse* response) {
      if (request.job() != "tiny-1" && request.job() != "tiny")
        return grpc::Status(grpc::StatusCode::NOT_FOUND, "no job \"" + request.job() + "\"");
      *response->mutable_job() = job_;
      return grpc::Status::OK;
    };
    server_.watch = [this](grpc::ServerContext*, const v1::WatchRequest& request,
                           grpc::ServerWriter<v1::WatchResponse>* writer) {
      for (const v1::WatchResponse& item : items_) {
        if (item.cursor() > request.cursor()) writer->Write(item);
      }
      return grpc::Status::OK;
    };
  }
  ~TaccctlTest() override { std::filesystem::remove_all(directory_); }

  int Run(const std::vector<std::string>& arguments) {
    std::ostringstream out, err;
    std::istringstream in(in_);
    Context context{"taccctl", in, out, err, is_terminal_, 80, environment_, directory_, interrupt_};
    const int code = RunTaccctl(arguments, context);
    out_ = out.str();
    err_ = err.str();
    return code;
  }

  std::string WriteFile(const std::string& name, const std::string& text) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  std::string JobFile() {
    return WriteFile("job.yaml", "name: tiny\nmodel: {path: m}\ndata: {path: d}\ntrain: {max_steps: 10}\n");
  }

  // A program beside taccctl.
  void WriteTool(const std::string& name, const std::string& script) {
    const std::string path = WriteFile(name, "#!/bin/sh\n" + script);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  void AddStep(int step, double loss) {
    v1::WatchResponse item;
    item.set_cursor(items_.size() + 1);
    item.mutable_step()->set_step(step);
    item.mutable_step()->set_loss(loss);
    item.mutable_step()->set_grad_norm(0.1);
    item.mutable_step()->set_learning_rate(3e-4);
    item.mutable_step()->set_tokens_per_second(8192);
    item.mutable_step()->set_mfu(0.413);
    items_.push_back(item);
  }

  void AddEvent(const std::string& type, const std::string& message) {
    v1::WatchResponse item;
    item.set_cursor(items_.size() + 1);
    item.mutable_event()->set_type(type);
    item.mutable_event()->set_message(message);
    items_.push_back(item);
  }

  FakeCoordinator server_;
  Interrupt interrupt_;
  std::string directory_;
  std::map<std::string, std::string> environment_;
  v1::Job job_;
  std::vector<v1::WatchResponse> items_;
  bool is_terminal_ = false;
  std::string in_, out_, err_;
};

TEST_F(TaccctlTest, BadUsageIsTwo) {
  EXPECT_EQ(Run({}), 2);
  EXPECT_EQ(Run({"get"}), 2);
  EXPECT_EQ(Run({"list", "--no-such-option"}), 2);
  EXPECT_EQ(Run({"list", "-o", "xml"}), 2);
  EXPECT_EQ(Run({"sumbit", "x.yaml"}), 2);
  EXPECT_EQ(err_, "unknown subcommand \"sumbit\"; did you mean \"submit\"?\n");
  EXPECT_EQ(out_, "");
  EXPECT_EQ(Run({"--address", "nowhere", "list"}), 2);
  EXPECT_EQ(err_, "--address = \"nowhere\" is not HOST:PORT, as 127.0.0.1:7070\n");
}

TEST_F(TaccctlTest, HelpAndVersionAreZero) {
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out_, HasSubstr("submit"));
  EXPECT_EQ(Run({"submit", "--help"}), 0);
  EXPECT_EQ(Run({"--version"}), 0);
  EXPECT_EQ(out_, "taccctl 0.1.0\n");
  EXPECT_EQ(Run({"version", "-o", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["coordinator"]["version"], "0.1.0");
}

TEST_F(TaccctlTest, HelpOfEveryCommandHasExamplesAndTheCommonOptions) {
  EXPECT_EQ(Run({"help"}), 0);
  const std::string all = out_;
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_EQ(all, out_);
  EXPECT_THAT(all, HasSubstr("`taccctl help COMMAND` says what a command takes"));
  for (const char* command : {"submit", "get", "list", "watch", "events", "logs", "cancel", "workers", "plan", "export",
                              "data", "up", "down", "version"}) {
    EXPECT_THAT(all, HasSubstr(std::string("\n  ") + command + " ")) << command;
    EXPECT_EQ(Run({"help", command}), 0);
    EXPECT_THAT(out_, HasSubstr("--address HOST:PORT")) << command;
    EXPECT_THAT(out_, HasSubstr("-o,--output FORM")) << command;
    EXPECT_THAT(out_, HasSubstr(std::string("Examples:\n  taccctl ") + command)) << command;
  }
  EXPECT_EQ(Run({"help", "sumbit"}), 2);
  EXPECT_EQ(err_, "unknown subcommand \"sumbit\"; did you mean \"submit\"?\n");
}

TEST_F(TaccctlTest, AFinishedRunHasAPageAndWhoWatchesASample) {
  const std::string model = directory_ + "/hf", page = WriteFile("report.html", "");
  std::filesystem::create_directories(model);
  job_.set_phase(v1::PHASE_FINISHED);
  job_.set_checkpoint_dir(directory_);
  job_.set_exported_path(model);
  WriteTool("python", "echo \"$@\" | tee " + directory_ + "/called\n");
  environment_["TACC_PYTHON"] = directory_ + "/python";
  const auto is_sampled = [&] {
    std::filesystem::remove(directory_ + "/called");
    EXPECT_EQ(Run({"watch", "tiny-1"}), 0);
    EXPECT_THAT(err_, HasSubstr("report:      " + page));
    return std::filesystem::exists(directory_ + "/called");
  };
  is_terminal_ = true;
  EXPECT_FALSE(is_sampled());  // There is no tokenizer.
  WriteFile("hf/tokenizer.json", "{}");
  EXPECT_TRUE(is_sampled());
  EXPECT_THAT(err_, HasSubstr("\n-m tacc sample " + model + " --report " + page));
  is_terminal_ = false;
  EXPECT_FALSE(is_sampled());
  is_terminal_ = true;
  WriteTool("python", "echo no transformers >&2; exit 2\n");
  EXPECT_EQ(Run({"watch", "tiny-1"}), 0);
  EXPECT_THAT(err_, HasSubstr("no sample; the page says how to make one"));
}

TEST_F(TaccctlTest, UnreachableIsFive) {
  server_.Stop();
  EXPECT_EQ(Run({"list"}), 5);
  EXPECT_EQ(out_, "");
  EXPECT_EQ(err_, "no coordinator at " + server_.address() +
                      ": nothing listens there; start one on this machine with `taccctl up`, or say where it is with "
                      "--address or TACC_ADDRESS\n");
  EXPECT_EQ(Run({"submit", JobFile()}), 5);
  EXPECT_EQ(Run({"watch", "tiny-1"}), 5);
  EXPECT_EQ(Run({"version"}), 0);
  EXPECT_THAT(out_, HasSubstr("none at"));
}

// As a coordinator at its limit of connections does: it takes them and closes them at once.
TEST_F(TaccctlTest, WhatListensAndClosesTheConnectionIsNamed) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 16), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::thread closing([listener] {
    for (int taken; (taken = accept(listener, nullptr, nullptr)) >= 0;) close(taken);
  });
  const std::string where = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  EXPECT_EQ(Run({"--address", where, "list"}), 5);
  EXPECT_THAT(err_, StartsWith("something listens at " + where + ", but closed the connection, as "));
  EXPECT_THAT(err_, Not(HasSubstr("no coordinator at")));
  shutdown(listener, SHUT_RDWR);
  closing.join();
  close(listener);
}

TEST_F(TaccctlTest, ABadJobFileIsTwoAndNothingIsSent) {
  server_.submit = [](const v1::SubmitRequest&, v1::SubmitResponse*) {
    ADD_FAILURE() << "sent";
    return grpc::Status::OK;
  };
  const std::string path =
      WriteFile("bad.yaml", "name: tiny\nmodle: {path: m}\ndata: {path: d}\ntrain: {max_steps: ten}\n");
  EXPECT_EQ(Run({"submit", path}), 2);
  EXPECT_EQ(out_, "");
  EXPECT_EQ(err_, path + ":2:1: unknown field \"modle\"; did you mean \"model\"?\n" + path +
                      ":4:20: train.max_steps = ten is not a whole number\n");
  EXPECT_EQ(Run({"submit", directory_ + "/none.yaml"}), 2);
  EXPECT_THAT(err_, HasSubstr("no such file"));
  EXPECT_EQ(Run({"submit", JobFile(), "--threads", "2"}), 2);
}

TEST_F(TaccctlTest, TheJobMayComeFromStdinWithFieldsOverIt) {
  v1::SubmitRequest sent;
  server_.submit = [&](const v1::SubmitRequest& request, v1::SubmitResponse* response) {
    sent = request;
    *response->mutable_job() = job_;
    return grpc::Status::OK;
  };
  in_ = "name: tiny\nmodel: {path: m}\ndata: {path: d}\ntrain: {max_steps: 10}\n";
  EXPECT_EQ(Run({"submit", "--set", "train.max_steps=20", "-", "--set", "train.seed=7"}), 0) << err_;
  EXPECT_EQ(sent.spec().train().max_steps(), 20);
  EXPECT_EQ(sent.spec().train().seed(), 7);
  EXPECT_EQ(sent.spec().model().path(), (std::filesystem::current_path() / "m").string());
  in_ = "name: [";
  EXPECT_EQ(Run({"submit", "-"}), 2);
  EXPECT_THAT(err_, StartsWith("stdin:1:"));
  EXPECT_EQ(Run({"data", "show", JobFile(), "--set", "train.global_batch_size=x"}), 2);
  EXPECT_THAT(err_, StartsWith("--set train.global_batch_size=x: "));
  EXPECT_EQ(Run({"data", "show", "tiny", "--set", "train.seed=1"}), 2);
}

TEST_F(TaccctlTest, PathsThatAreNotThereAreToldAtOnceWhereTheCoordinatorIsHere) {
  int sent = 0;
  server_.submit = [&](const v1::SubmitRequest&, v1::SubmitResponse* response) {
    ++sent;
    *response->mutable_job() = job_;
    return grpc::Status::OK;
  };
  const std::string job = JobFile();
  EXPECT_EQ(Run({"submit", job}), 0) << "a coordinator elsewhere may see other folders";
  server_.state_dir = directory_;
  EXPECT_EQ(Run({"submit", job}), 2);
  EXPECT_THAT(err_, HasSubstr("model.path = " + directory_ +
                              "/m does not exist; it is a folder with config.json; "
                              "`hf download ORG/NAME --local-dir DIR` fetches one from the Hugging Face hub\n"));
  EXPECT_THAT(err_, HasSubstr("data.path = " + directory_ + "/d does not exist"));
  EXPECT_EQ(Run({"submit", "--local", job}), 2);
  EXPECT_THAT(err_, HasSubstr("data.path = "));
  EXPECT_EQ(sent, 1);
}

TEST_F(TaccctlTest, DataAndLayoutAreCheckedWhereTheyAreSeen) {
  int sent = 0;
  server_.submit = [&](const v1::SubmitRequest&, v1::SubmitResponse* response) {
    ++sent;
    *response->mutable_job() = job_;
    return grpc::Status::OK;
  };
  WriteTool("tacc-data", "echo 'error: d: another tokenizer' >&2; exit 2");
  WriteTool("tacc-plan",
            R"(cp "$3" "$(dirname "$0")/request.json"; echo 'error: dist.tp.size = 3 is not' >&2; exit 2)");
  const std::string job = JobFile(), both = "d: another tokenizer\ndist.tp.size = 3 is not\n";
  EXPECT_EQ(Run({"submit", job}), 0);
  EXPECT_THAT(err_, StartsWith("Next:")) << "nothing is seen from here";
  for (const char* folder : {"/m", "/d"}) std::filesystem::create_directory(directory_ + folder);
  EXPECT_EQ(Run({"submit", job}), 0);
  EXPECT_THAT(err_, StartsWith("warning: " + both + "That is what this machine sees; the workers may see other "));
  EXPECT_EQ(sent, 2);
  server_.state_dir = directory_;
  EXPECT_EQ(Run({"submit", job}), 2);
  EXPECT_EQ(err_, both);
  EXPECT_EQ(Run({"submit", "--local", job}), 2);
  EXPECT_EQ(err_, both);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/runs"));
  EXPECT_EQ(sent, 2);
  // What the data says goes to the planner; what fails by itself is no mistake of the job.
  WriteTool("tacc-data", R"(echo '{"vocab_size": 10, "seq_len": 16}')");
  EXPECT_EQ(Run({"submit", job}), 2);
  std::ifstream stream(directory_ + "/request.json");
  const json request = json::parse(stream);
  EXPECT_EQ(request["data"]["vocab_size"], 10);
  EXPECT_EQ(request["job"]["data"]["seq_len"], 16);
  WriteTool("tacc-plan", "exit 1");
  EXPECT_EQ(Run({"submit", job}), 0) << err_;
  EXPECT_EQ(sent, 3);
}

TEST_F(TaccctlTest, AFullDiskIsNoMistakeOfTheJob) {
  int sent = 0;
  server_.submit = [&](const v1::SubmitRequest&, v1::SubmitResponse* response) {
    ++sent;
    *response->mutable_job() = job_;
    return grpc::Status::OK;
  };
  environment_["TMPDIR"] = directory_ + "/tmp";
  for (const char* folder : {"/m", "/d", "/tmp"}) std::filesystem::create_directory(directory_ + folder);
  WriteTool("tacc-data", "echo '{}'");
  WriteTool("tacc-plan", R"([ -s "$3" ] || { echo 'error: unexpected end of input' >&2; exit 2; })");
  server_.state_dir = directory_;
  const std::string job = JobFile();
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const int code = Run({"submit", job});
  setrlimit(RLIMIT_FSIZE, &limit);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(code, 0) << err_;
  EXPECT_EQ(sent, 1);
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/tmp"));
}

TEST_F(TaccctlTest, SubmitPrintsTheIdAndTheNextCommands) {
  v1::SubmitRequest sent;
  server_.submit = [&](const v1::SubmitRequest& request, v1::SubmitResponse* response) {
    sent = request;
    *response->mutable_job() = job_;
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", JobFile()}), 0);
  EXPECT_EQ(out_, "tiny-1\n");
  EXPECT_EQ(
      err_,
      "Next:\n  taccctl watch tiny-1\n  taccctl get tiny-1\n  taccctl logs --follow tiny-1\n  taccctl cancel tiny-1\n");
  EXPECT_EQ(sent.spec().model().path(), directory_ + "/m");
  EXPECT_EQ(sent.request_id().size(), 32u);
  EXPECT_EQ(Run({"submit", JobFile(), "-o", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["id"], "tiny-1");
}

TEST_F(TaccctlTest, TooFewWorkersAreToldWithWhatToDo) {
  server_.submit = [&](const v1::SubmitRequest& request, v1::SubmitResponse* response) {
    *job_.mutable_spec() = request.spec();
    job_.set_phase(v1::PHASE_WAITING);
    *response->mutable_job() = job_;
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", JobFile(), "--set", "resources.workers=2"}), 0);
  EXPECT_THAT(err_, Not(HasSubstr("wants")));
  EXPECT_EQ(Run({"submit", JobFile(), "--set", "dist.fsdp.size=4"}), 0);
  const std::string how =
      "tiny-1 wants 4 workers of one kind, 2 are there, so it waits. To have as many:\n"
      "  " +
      directory_ + "/tacc-worker --coordinator " + server_.address() +
      " --name extra-1: starts one more; the next as extra-2\n"
      "Or cancel it and do without:\n"
      "  taccctl submit --local JOB.YAML: trains here, with as many as it wants\n"
      "  taccctl submit JOB.YAML --set resources.workers=2: with sizes under dist that multiply to 2\n";
  EXPECT_THAT(err_, testing::EndsWith(how));
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_EQ(err_, how);
  // As a request id gives it that was used before.
  for (const v1::Phase phase : {v1::PHASE_STARTING, v1::PHASE_RUNNING, v1::PHASE_FINISHED, v1::PHASE_FAILED}) {
    job_.set_phase(phase);
    server_.submit = [&](const v1::SubmitRequest&, v1::SubmitResponse* response) {
      *response->mutable_job() = job_;
      response->set_existed(true);
      return grpc::Status::OK;
    };
    EXPECT_EQ(Run({"get", "tiny"}), 0);
    EXPECT_EQ(err_, "");
    EXPECT_EQ(Run({"submit", "--request-id", "a", JobFile(), "--set", "dist.fsdp.size=4"}), 0);
    EXPECT_THAT(err_, Not(HasSubstr("wants")));
  }
}

TEST_F(TaccctlTest, CommandsForMoreWorkersAreThoseOfTheService) {
  job_.set_phase(v1::PHASE_WAITING);
  job_.mutable_spec()->mutable_resources()->set_workers(3);
  const auto get = [&](const std::vector<std::string>& options = {}) {
    std::vector<std::string> command = {"get", "tiny"};
    command.insert(command.end(), options.begin(), options.end());
    EXPECT_EQ(Run(command), 0);
    return err_;
  };
  // The one of `taccctl up`, all of which runs, and then not.
  const std::string state = directory_ + "/tacc/up";
  std::filesystem::create_directories(state);
  const UpProcess self = LookAtProcess("coordinator", getpid());
  UpState up;
  up.address = server_.address();
  up.worker_prefix = "host";
  up.devices = {"cpu"};
  up.processes = {self, self};
  ASSERT_TRUE(WriteUpState(state, up).ok());
  EXPECT_THAT(get(), HasSubstr("\n  taccctl down; taccctl up --workers 3: a service that has as many;"));
  EXPECT_THAT(err_, Not(HasSubstr("starts again")));
  up.processes[1].start_ticks += 1;
  ASSERT_TRUE(WriteUpState(state, up).ok());
  EXPECT_THAT(get(), HasSubstr("To have as many:\n  taccctl up: starts again those of its that have ended\n  "));
  up.address = "127.0.0.1:1";
  ASSERT_TRUE(WriteUpState(state, up).ok());
  EXPECT_THAT(get(), Not(HasSubstr("taccctl up")));
  EXPECT_THAT(err_, Not(HasSubstr("taccctl down")));
  // One that is no loopback address wants to be allowed. What was given stays in what is pasted.
  EXPECT_THAT(err_, Not(HasSubstr("--insecure")));
  const std::string open = "0.0.0.0" + server_.address().substr(server_.address().rfind(':'));
  EXPECT_THAT(get({"--address", open}), HasSubstr(" --coordinator " + open + " --insecure --name extra-1: "));
  EXPECT_THAT(err_, HasSubstr("  taccctl --address " + open + " submit JOB.YAML --set resources.workers=2:"));
  // Of GPUs and CPUs a job gets one kind.
  server_.workers = [](const v1::ListWorkersRequest&, v1::ListWorkersResponse* response) {
    for (const char* kind : {"cuda", "cpu", "cuda"}) {
      v1::WorkerView* worker = response->add_workers();
      worker->set_state("idle");
      worker->mutable_device()->set_kind(kind);
    }
    return grpc::Status::OK;
  };
  EXPECT_THAT(get(), StartsWith("tiny-1 wants 3 workers of one kind, 2 are there, so it waits."));
  EXPECT_THAT(err_, HasSubstr(" --device cuda:N --name extra-1: starts one more, on GPU N of this machine; the next"));
  job_.mutable_spec()->mutable_resources()->set_workers(2);
  EXPECT_EQ(get(), "");
}

TEST_F(TaccctlTest, TheCoordinatorsRefusalIsTwoOrSix) {
  server_.submit = [](const v1::SubmitRequest&, v1::SubmitResponse*) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "model.path: no config.json");
  };
  EXPECT_EQ(Run({"submit", JobFile()}), 2);
  EXPECT_EQ(err_, "model.path: no config.json\n");
  server_.submit = [](const v1::SubmitRequest&, v1::SubmitResponse*) {
    return grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "another job");
  };
  EXPECT_EQ(Run({"submit", JobFile(), "--request-id", "a"}), 6);
}

TEST_F(TaccctlTest, FollowingReportsTheOutcome) {
  AddEvent("accepted", "hello");
  AddStep(1, 3.5);
  AddStep(10, 0.1);
  server_.submit = [&](const v1::SubmitRequest&, v1::SubmitResponse* response) {
    *response->mutable_job() = job_;
    return grpc::Status::OK;
  };
  const auto outcome = [&](v1::Phase phase, v1::FailureCode code) {
    job_.set_phase(phase);
    job_.set_failure_code(code);
    job_.set_reason("because");
    return Run({"submit", JobFile(), "--follow"});
  };
  EXPECT_EQ(outcome(v1::PHASE_FINISHED, v1::FAILURE_CODE_UNSPECIFIED), 0);
  EXPECT_THAT(std::vector<std::string>(absl::StrSplit(out_, '\n')),
              ElementsAre("tiny-1", "  hello", StartsWith("step 1/10 10.0%  loss 3.5  8.19k tokens/s  MFU 41.3%"),
                          StartsWith("step 10/10 100.0%  loss 0.1"), ""));
  EXPECT_THAT(err_, HasSubstr("tiny-1 finished: because\n"));
  EXPECT_THAT(err_, Not(HasSubstr("\x1b")));
  EXPECT_EQ(outcome(v1::PHASE_FAILED, v1::FAILURE_CODE_RESTARTS), 100);
  EXPECT_EQ(outcome(v1::PHASE_FAILED, v1::FAILURE_CODE_BAD_INPUT), 2);
  EXPECT_EQ(outcome(v1::PHASE_CANCELLED, v1::FAILURE_CODE_UNSPECIFIED), 101);
  EXPECT_EQ(outcome(v1::PHASE_CANCELLED, v1::FAILURE_CODE_CHECKPOINT), 100);
}

TEST_F(TaccctlTest, ACancelledJobStandsWhereItsReasonSays) {
  job_.set_phase(v1::PHASE_CANCELLED);
  job_.set_step(22);
  job_.set_reason("stopped at step 16, last checkpoint step-16.a3");
  EXPECT_EQ(Run({"watch", "tiny"}), 101);
  EXPECT_EQ(err_, "tiny-1 was cancelled: stopped at step 16, last checkpoint step-16.a3\n");
}

// With scripts for the processes: the coordinator is the fake one.
TEST_F(TaccctlTest, AnInterruptBeforeTheFirstStepSpeaksOfNoCheckpoint) {
  const std::string until_parent_ends = "cat <&3 >/dev/null\n";
  WriteTool("tacc-coordinator", "echo listening " + server_.address() + "\n" + until_parent_ends);
  WriteTool("tacc-worker", until_parent_ends);
  for (const char* folder : {"/m", "/d"}) std::filesystem::create_directories(directory_ + folder);
  WriteFile("m/config.json", "{}");
  server_.submit = [this](const v1::SubmitRequest&, v1::SubmitResponse* response) {
    *response->mutable_job() = job_;
    return grpc::Status::OK;
  };
  server_.watch = [this](grpc::ServerContext* context, const v1::WatchRequest&,
                         grpc::ServerWriter<v1::WatchResponse>*) {
    if (job_.phase() == v1::PHASE_CANCELLED) return grpc::Status::OK;
    interrupt_.Raise();
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return grpc::Status::CANCELLED;
  };
  server_.cancel = [this](const v1::CancelRequest&, v1::CancelResponse* response) {
    job_.set_phase(v1::PHASE_CANCELLED);
    job_.set_reason("cancelled before it ran");
    *response->mutable_job() = job_;
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", "--local", "--device", "cpu", JobFile()}), 101) << err_;
  EXPECT_THAT(err_, HasSubstr("tiny-1 was cancelled: cancelled before it ran\n"));
  EXPECT_THAT(err_, HasSubstr("the same command again begins the job anew; nothing was saved\n"));
  EXPECT_THAT(err_, Not(HasSubstr("checkpoint")));
}

// The stream lasts, so nothing but the wish itself asks again.
TEST_F(TaccctlTest, AWishToStopThatWasNotHeardIsToldAgain) {
  WriteTool("tacc-coordinator", "echo listening " + server_.address() + "\ncat <&3 >/dev/null\n");
  WriteTool("tacc-worker", "cat <&3 >/dev/null\n");
  for (const char* folder : {"/m", "/d"}) std::filesystem::create_directories(directory_ + folder);
  WriteFile("m/config.json", "{}");
  server_.submit = [this](const v1::SubmitRequest&, v1::SubmitResponse* response) {
    *response->mutable_job() = job_;
    return grpc::Status::OK;
  };
  std::atomic<bool> has_ended = false;
  server_.watch = [&](grpc::ServerContext* context, const v1::WatchRequest&,
                      grpc::ServerWriter<v1::WatchResponse>* writer) {
    v1::WatchResponse step;
    step.set_cursor(1);
    step.mutable_step()->set_step(1);
    writer->Write(step);
    if (interrupt_.count() == 0) interrupt_.Raise();
    while (!context->IsCancelled() && !has_ended) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return has_ended ? grpc::Status::OK : grpc::Status::CANCELLED;
  };
  int num_cancels = 0;
  server_.cancel = [&](const v1::CancelRequest& request, v1::CancelResponse* response) {
    EXPECT_EQ(request.mode(), v1::CANCEL_MODE_CHECKPOINT);
    if (++num_cancels < 3) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed");
    job_.set_phase(v1::PHASE_CANCELLED);
    job_.set_reason("stopped at step 1");
    *response->mutable_job() = job_;
    has_ended = true;
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", "--local", "--device", "cpu", JobFile()}), 101) << err_;
  EXPECT_EQ(num_cancels, 3);
  EXPECT_THAT(err_, HasSubstr("\nstopping after a checkpoint; again to stop at once\nlost the coordinator at "));
  // Said once.
  EXPECT_EQ(err_.find("stopping after"), err_.rfind("stopping after")) << err_;
}

TEST_F(TaccctlTest, AnInterruptWhileTheClusterStartsIsNoError) {
  WriteTool("tacc-coordinator", "cat <&3 >/dev/null\n");  // Never says that it listens.
  WriteTool("tacc-worker", "cat <&3 >/dev/null\n");
  for (const char* folder : {"/m", "/d"}) std::filesystem::create_directories(directory_ + folder);
  WriteFile("m/config.json", "{}");
  std::thread user([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    interrupt_.Raise();
  });
  EXPECT_EQ(Run({"submit", "--local", "--device", "cpu", JobFile()}), 101) << err_;
  user.join();
  EXPECT_THAT(err_, HasSubstr("stopped before the job began\n"));
  EXPECT_THAT(err_, Not(HasSubstr("logs")));
}

TEST_F(TaccctlTest, AnInterruptBeforeTheSubmitSubmitsNothing) {
  int sent = 0;
  server_.submit = [&](const v1::SubmitRequest&, v1::SubmitResponse*) {
    ++sent;
    return grpc::Status::OK;
  };
  for (const char* folder : {"/m", "/d"}) std::filesystem::create_directories(directory_ + folder);
  // Between two programs, and while one runs.
  WriteTool("tacc-plan", "exit 0");
  WriteTool("tacc-data", "touch \"$(dirname \"$0\")/called\"; exec sleep 30");
  interrupt_.Raise();
  std::thread user([this] {
    while (!std::filesystem::exists(directory_ + "/called")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    interrupt_.Raise();
  });
  EXPECT_EQ(Run({"submit", JobFile()}), 1);
  user.join();
  EXPECT_EQ(err_, "interrupted: the job was not submitted\n");
  WriteTool("tacc-data", "exit 1");
  server_.state_dir = directory_;
  EXPECT_EQ(Run({"submit", "--follow", JobFile()}), 1);
  EXPECT_EQ(err_, "interrupted: the job was not submitted\n");
  EXPECT_EQ(Run({"submit", "--local", JobFile()}), 101);
  EXPECT_EQ(err_, "stopped before the job began\n");
  EXPECT_EQ(sent, 0);
}

TEST_F(TaccctlTest, AnInterruptWhileGpusAreListedIsNoError) {
  for (const char* folder : {"/m", "/d"}) std::filesystem::create_directories(directory_ + folder);
  WriteFile("libtacc_cuda.so", "module");
  WriteTool("tacc-rank", "touch \"$(dirname \"$0\")/called\"; exec sleep 30");
  std::thread user([this] {
    while (!std::filesystem::exists(directory_ + "/called")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    interrupt_.Raise();
  });
  EXPECT_EQ(Run({"submit", "--local", JobFile()}), 101);
  user.join();
  EXPECT_EQ(err_, "stopped before the job began\n");
}

TEST_F(TaccctlTest, TheProgressLineKeepsItsEtaIn80Columns) {
  is_terminal_ = true;
  job_.set_max_steps(100000);
  v1::WatchResponse eval;
  eval.set_cursor(1);
  eval.mutable_eval()->set_eval_loss(3.21987);
  items_.push_back(eval);
  AddStep(12345, 3.14159);
  items_.back().mutable_step()->set_loss_scale(65536);
  items_.back().mutable_step()->set_seconds(0.5);
  job_.set_phase(v1::PHASE_FINISHED);
  EXPECT_EQ(Run({"watch", "tiny"}), 0);
  EXPECT_THAT(err_, HasSubstr("\x1b[Kstep 12345/100000  loss 3.1416  held-out 3.2199  8.19k tokens/s  ETA 12:10:28"));
  EXPECT_THAT(out_, Not(HasSubstr("ETA"))) << "it has ended";
  for (absl::string_view drawn : absl::StrSplit(err_, "\x1b[K")) EXPECT_LT(drawn.find_first_of("\r\n"), 80u) << drawn;
}

TEST_F(TaccctlTest, AFailureShowsTheLastLogLines) {
  job_.set_phase(v1::PHASE_FAILED);
  job_.set_failure_code(v1::FAILURE_CODE_RESTARTS);
  job_.add_last_log_lines("boom \x1b[31m");
  EXPECT_EQ(Run({"watch", "tiny"}), 100);
  EXPECT_EQ(err_, "tiny-1 failed\n  | boom  [31m\n");
  job_.set_checkpoint_dir(directory_);
  std::filesystem::create_directory(directory_ + "/logs");
  EXPECT_EQ(Run({"watch", "tiny"}), 100);
  EXPECT_THAT(err_, testing::EndsWith("  | boom  [31m\nrank logs:   " + directory_ + "/logs\n"));
}

TEST_F(TaccctlTest, EveryEndNamesThePageOfTheRun) {
  const std::string line = "report:      " + directory_ + "/report.html\n";
  job_.set_checkpoint_dir(directory_);
  const auto end = [&](v1::Phase phase, v1::FailureCode code) {
    job_.set_phase(phase);
    job_.set_failure_code(code);
    Run({"watch", "tiny"});
    return err_;
  };
  const std::vector<std::pair<v1::Phase, v1::FailureCode>> ends = {{v1::PHASE_FINISHED, v1::FAILURE_CODE_UNSPECIFIED},
                                                                   {v1::PHASE_CANCELLED, v1::FAILURE_CODE_UNSPECIFIED},
                                                                   {v1::PHASE_FAILED, v1::FAILURE_CODE_RESTARTS},
                                                                   {v1::PHASE_FAILED, v1::FAILURE_CODE_STUCK},
                                                                   {v1::PHASE_FAILED, v1::FAILURE_CODE_NONFINITE}};
  for (const auto& [phase, code] : ends) EXPECT_THAT(end(phase, code), Not(HasSubstr("report: "))) << "there is none";
  WriteFile("report.html", "");
  for (const auto& [phase, code] : ends) EXPECT_THAT(end(phase, code), HasSubstr(line)) << phase << " " << code;
  job_.set_submitted_time(static_cast<double>(time(nullptr)) + 100);
  for (const auto& [phase, code] : ends)
    EXPECT_THAT(end(phase, code), Not(HasSubstr("report: "))) << "an earlier run's";
}

TEST_F(TaccctlTest, WatchAsJsonRoundTripsFloats) {
  AddStep(1, 0.1 + 0.2);
  AddEvent("ended", "done");
  job_.set_phase(v1::PHASE_FINISHED);
  EXPECT_EQ(Run({"watch", "tiny-1", "-o", "json"}), 0);
  const std::vector<std::string> lines = absl::StrSplit(out_, '\n');
  ASSERT_EQ(lines.size(), 4u);
  const json step = json::parse(lines[0]);
  EXPECT_EQ(step["kind"], "step");
  EXPECT_EQ(step["step"], 1);
  EXPECT_EQ(step["loss"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(step["learning_rate"].get<double>(), 3e-4);
  EXPECT_EQ(step["mfu"].get<double>(), 0.413);
  EXPECT_TRUE(step.contains("grad_norm") && step.contains("tokens_per_second"));
  EXPECT_EQ(json::parse(lines[1])["type"], "ended");
  EXPECT_EQ(json::parse(lines[2])["phase"], "finished");
}

TEST_F(TaccctlTest, NonFiniteNumbersAreNull) {
  AddStep(1, std::numeric_limits<double>::quiet_NaN());
  job_.set_phase(v1::PHASE_FINISHED);
  EXPECT_EQ(Run({"watch", "tiny-1", "-o", "json"}), 0);
  EXPECT_TRUE(json::parse(std::vector<std::string>(absl::StrSplit(out_, '\n'))[0])["loss"].is_null());
}

TEST_F(TaccctlTest, UnknownJobIsThree) {
  EXPECT_EQ(Run({"get", "other"}), 3);
  EXPECT_EQ(err_, "no job \"other\"\n");
  EXPECT_EQ(Run({"watch", "other"}), 3);
}

TEST_F(TaccctlTest, WatchTimesOutWithSeven) {
  server_.watch = [](grpc::ServerContext* context, const v1::WatchRequest&, grpc::ServerWriter<v1::WatchResponse>*) {
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return grpc::Status::CANCELLED;
  };
  EXPECT_EQ(Run({"watch", "tiny-1", "--timeout", "0.3"}), 7);
  EXPECT_EQ(err_, "tiny-1 has not ended after 0.3 s; it goes on\n");
}

TEST_F(TaccctlTest, AnInterruptDetachesAndDoesNotCancel) {
  server_.cancel = [](const v1::CancelRequest&, v1::CancelResponse*) {
    ADD_FAILURE() << "cancelled";
    return grpc::Status::OK;
  };
  server_.watch = [this](grpc::ServerContext* context, const v1::WatchRequest&,
                         grpc::ServerWriter<v1::WatchResponse>*) {
    interrupt_.Raise();
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return grpc::Status::CANCELLED;
  };
  EXPECT_EQ(Run({"watch", "tiny-1"}), 1);
  EXPECT_THAT(err_, HasSubstr("detached; tiny-1 goes on"));
}

TEST_F(TaccctlTest, WatchReconnectsFromWhereItWas) {
  AddStep(1, 3);
  AddStep(2, 2);
  AddStep(3, 1);
  int calls = 0;
  std::thread restarter;
  server_.watch = [&](grpc::ServerContext* context, const v1::WatchRequest& request,
                      grpc::ServerWriter<v1::WatchResponse>* writer) {
    if (++calls == 1) {
      writer->Write(items_[0]);
      writer->Write(items_[1]);
      restarter = std::thread([this] {
        server_.Stop();
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        server_.StartAgain();
      });
      while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return grpc::Status::CANCELLED;
    }
    EXPECT_EQ(request.cursor(), 2u);
    writer->Write(items_[2]);
    job_.set_phase(v1::PHASE_FINISHED);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"watch", "tiny-1", "-o", "json"}), 0);
  restarter.join();
  std::vector<int> steps;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(out_, '\n', absl::SkipEmpty()))) {
    if (json::parse(line)["kind"] == "step") steps.push_back(json::parse(line)["step"]);
  }
  EXPECT_THAT(steps, ElementsAre(1, 2, 3));
  EXPECT_THAT(err_, HasSubstr("is away"));
  EXPECT_THAT(err_, HasSubstr("is back"));
}

TEST_F(TaccctlTest, ListIsATableOrLines) {
  std::string reason;
  server_.list = [&](const v1::ListRequest& request, v1::ListResponse* response) {
    EXPECT_EQ(request.limit(), 100);
    *response->add_jobs() = job_;
    response->add_jobs()->set_id("longer-name-2");
    response->mutable_jobs(1)->set_reason(reason);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"list"}), 0);
  EXPECT_EQ(out_,
            "JOB            PHASE        STEPS  LOSS  ETA  SUBMITTED  REASON\n"
            "tiny-1         running      0/10   -     -               \n"
            "longer-name-2  unspecified  0      -     -               \n");
  EXPECT_EQ(Run({"-o", "json", "list"}), 0);
  EXPECT_EQ(json::parse(out_.substr(0, out_.find('\n')))["phase"], "running");
  reason = "the model does not fit: a worker needs 101.3 GiB and has 12.4 GiB; more\n  of it: weights";
  EXPECT_EQ(Run({"list"}), 0);
  EXPECT_THAT(out_, testing::EndsWith("  the model does not fit: a worker needs 101.3 GiB and has ...\n"));
}

TEST_F(TaccctlTest, GetShowsWhatIsKnown) {
  job_.set_step(5);
  job_.set_percent(50);
  job_.set_eta_seconds(65);
  job_.set_reason("attempt 2");
  job_.mutable_last_step()->set_step(5);
  job_.mutable_last_step()->set_loss(2.5);
  v1::Restart* restart = job_.add_restarts();
  restart->set_attempt(1);
  restart->set_cause("rank 1 on a: killed by signal 9");
  job_.mutable_plan()->set_predicted_step_seconds(0.5);
  job_.mutable_measured()->set_step_seconds(0.55);
  job_.mutable_last_checkpoint()->set_name("step-00000004.a1");
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  for (const char* text : {"running (attempt 2)", "5/10 (50.0%), ETA 1:05", "loss 2.5", "restart after attempt 1",
                           "killed by signal 9", "step-00000004.a1", "step              0.5 s      0.55 s"}) {
    EXPECT_THAT(out_, HasSubstr(text));
  }
  EXPECT_EQ(Run({"get", "tiny", "-o", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["restarts"][0]["attempt"], 1);
  // A copy of the states is taken by the first checkpoint of an attempt that does not hold training up.
  (*job_.mutable_plan()->mutable_memory_bytes())["total"] = int64_t{100} << 20;
  (*job_.mutable_plan()->mutable_memory_bytes())["checkpoint"] = int64_t{20} << 20;
  job_.set_attempt(2);
  v1::Checkpoint* checkpoint = job_.add_checkpoints();
  checkpoint->set_attempt(2);
  checkpoint->set_seconds(3);
  checkpoint->set_stall_seconds(3);
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, HasSubstr("memory of a rank  100.0 MiB"));
  checkpoint->set_stall_seconds(0.5);
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, HasSubstr("memory of a rank  120.0 MiB"));
  job_.set_attempt(3);
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, HasSubstr("memory of a rank  100.0 MiB"));
  EXPECT_THAT(out_, testing::Not(HasSubstr("GPU idle")));
}

TEST_F(TaccctlTest, GetKeepsTheLinesOfAReason) {
  job_.set_phase(v1::PHASE_FAILED);
  job_.set_reason("the model does not fit: a worker needs 3 GiB\n  of it: weights 2 GiB\n\nuse 2 workers \x1b[31m");
  v1::Restart* restart = job_.add_restarts();
  restart->set_attempt(1);
  restart->set_cause("rank 0 on a: exit 1: this\nand that");
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, HasSubstr("phase: failed (the model does not fit: a worker needs 3 GiB\n"
                              "         of it: weights 2 GiB\n"
                              "       use 2 workers  [31m)\n"
                              "steps: "));
  EXPECT_THAT(out_, HasSubstr(": rank 0 on a: exit 1: this\n  and that\n"));
}

TEST_F(TaccctlTest, GetSaysThatCheckpointsFail) {
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, Not(HasSubstr("not saved")));
  job_.mutable_checkpoint_failure()->set_since_time(1000);
  job_.mutable_checkpoint_failure()->set_message("checkpoint of step 20, rank 0: No space left on device");
  const std::string failed = "all checkpoints since " + FormatTime(1000) +
                             " have failed: checkpoint of step 20, rank 0: No space left on device; ";
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, HasSubstr(failed + "there is none before\n"));
  job_.mutable_last_checkpoint()->set_name("step-00000004.a1");
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, HasSubstr(failed + "the last good one is step-00000004.a1\n"));
  EXPECT_EQ(Run({"get", "tiny", "-o", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["checkpoint_failure"]["since_time"], 1000);
}

// As when train.max_steps was lowered below the checkpoint from which the job goes on.
TEST_F(TaccctlTest, MoreStepsThanAreWantedAreNoFraction) {
  job_.set_step(40);
  job_.set_max_steps(30);
  job_.set_percent(100);
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, testing::ContainsRegex("steps: +40 .30 wanted.\n"));
  server_.list = [&](const v1::ListRequest&, v1::ListResponse* response) {
    *response->add_jobs() = job_;
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"list"}), 0);
  EXPECT_THAT(out_, HasSubstr("tiny-1  running  40 (30 wanted)  -"));
}

TEST_F(TaccctlTest, GetShowsWhatGpusDo) {
  (*job_.mutable_plan()->mutable_memory_bytes())["total"] = int64_t{100} << 20;
  (*job_.mutable_plan()->mutable_memory_bytes())["checkpoint"] = int64_t{20} << 20;
  job_.set_attempt(1);
  v1::Checkpoint* checkpoint = job_.add_checkpoints();
  checkpoint->set_attempt(1);
  checkpoint->set_seconds(3);
  job_.mutable_measured()->set_peak_memory_bytes(int64_t{900} << 20);  // Of the host.
  job_.mutable_measured()->set_device_memory_used_bytes(int64_t{101} << 20);
  job_.mutable_measured()->set_device_idle_share(0.0125);
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, testing::ContainsRegex("memory of a rank +100.0 MiB +101.0 MiB"));
  EXPECT_THAT(out_, testing::ContainsRegex("GPU idle +- +1.[23]%"));
}

TEST_F(TaccctlTest, GetShowsWhoComputesAttention) {
  job_.set_attempt(1);
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, testing::Not(HasSubstr("attention")));
  v1::AttentionChoice* choice = job_.mutable_measured()->add_attention();
  choice->set_shape("bf16[1,8,2,64] of [1,8,2,64] causal");
  choice->set_backend("flash");
  v1::AttentionTiming* tiles = choice->add_timings();
  tiles->set_backend("tiles");
  tiles->set_forward_seconds(0.009);
  tiles->set_backward_seconds(0.03);
  v1::AttentionTiming* flash = choice->add_timings();
  flash->set_backend("flash");
  flash->set_forward_seconds(0.00125);
  flash->set_backward_seconds(0.002);
  v1::AttentionTiming* cudnn = choice->add_timings();
  cudnn->set_backend("cudnn");
  cudnn->set_refused("no plan");
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, testing::ContainsRegex("attention +backend +forward +backward +choice\n"
                                           "bf16.1,8,2,64. of .1,8,2,64. causal +tiles +9 ms +30 ms +-\n"
                                           " +flash +1.25 ms +2 ms +chosen\n"
                                           " +cudnn +- +- +refused: no plan\n"));
  EXPECT_EQ(Run({"get", "tiny", "-o", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["measured"]["attention"][0]["backend"], "flash");
}

TEST_F(TaccctlTest, GetShowsByWhatProductsAreComputed) {
  job_.set_attempt(1);
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, testing::Not(HasSubstr("products")));
  const auto add = [this](const std::string& algorithm, double seconds, double libtorch_seconds) {
    v1::ProductChoice* choice = job_.mutable_measured()->add_products();
    choice->set_shape("bf16 [8," + std::to_string(job_.measured().products_size()) + "] x [4,2]");
    choice->set_algorithm(algorithm);
    choice->set_seconds(seconds);
    choice->set_libtorch_seconds(libtorch_seconds);
  };
  // As an attempt says that has kept an earlier one's choice.
  add("cublaslt-1:42", 0, 0);
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, HasSubstr("\nproducts: 1 of 1 shapes by cuBLASLt's algorithms\n"));
  add("libtorch", 0.5, 0.5);
  add("cublaslt-1:43", 0.75, 1);
  add("cublaslt-1:42", 0.9, 1);
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, HasSubstr("\nproducts: 3 of 4 shapes by cuBLASLt's algorithms, in 10.0% to 25.0% less time than "
                              "LibTorch takes\n"));
  EXPECT_EQ(Run({"get", "tiny", "-o", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["measured"]["products"][2]["algorithm"], "cublaslt-1:43");
}

TEST_F(TaccctlTest, Workers) {
  server_.workers = [](const v1::ListWorkersRequest&, v1::ListWorkersResponse* response) {
    v1::WorkerView* worker = response->add_workers();
    worker->set_name("a");
    worker->set_state("idle");
    worker->set_trouble("cuda:1 cannot be used: no device");
    worker->mutable_device()->set_memory_bytes(int64_t{4} << 30);
    (*worker->mutable_device()->mutable_matmul_flops_per_second())["f32"] = 9.3e10;
    (*worker->mutable_device()->mutable_matmul_flops_per_second())["fp8"] = 1.3e15;
    (*worker->mutable_device()->mutable_attention_flops_per_second())["tiles"] = 5e12;
    (*worker->mutable_device()->mutable_attention_flops_per_second())["flash"] = 3.5e14;
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"workers"}), 0);
  EXPECT_THAT(out_, HasSubstr("4.0 GiB"));
  EXPECT_THAT(out_, testing::ContainsRegex("f32 93GFLOP/s, fp8 1[.]3PFLOP/s +350TFLOP/s"));
  EXPECT_THAT(out_, HasSubstr("\na: cuda:1 cannot be used: no device\n"));
  EXPECT_EQ(Run({"workers", "-o", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["device"]["memory_bytes"], int64_t{4} << 30);
}

TEST_F(TaccctlTest, EventsEndWithoutFollowing) {
  AddEvent("accepted", "one");
  AddEvent("waiting", "needs 2 workers, 0 free");
  server_.watch = [this](grpc::ServerContext*, const v1::WatchRequest& request,
                         grpc::ServerWriter<v1::WatchResponse>* writer) {
    EXPECT_TRUE(request.no_follow() && request.no_metrics());
    for (const auto& item : items_) writer->Write(item);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"events", "tiny-1"}), 0);
  EXPECT_THAT(out_, HasSubstr("-   waiting   needs 2 workers, 0 free\n"));
  // Where training was, which is not what it tells of.
  AddEvent("checkpoint", "checkpoint of step 8: step-00000008.a1, 1 MiB");
  items_.back().mutable_event()->set_attempt(1);
  items_.back().mutable_event()->set_step(11);
  EXPECT_EQ(Run({"events", "tiny-1"}), 0);
  EXPECT_THAT(out_, StartsWith("TIME  ATTEMPT  AT       EVENT       MESSAGE\n"
                               "      -        -        accepted    one\n"));
  EXPECT_THAT(out_, HasSubstr("      1        step 11  checkpoint  checkpoint of step 8: step-00000008.a1, 1 MiB\n"));
}

TEST_F(TaccctlTest, LogsPrintLines) {
  server_.logs = [](grpc::ServerContext*, const v1::LogsRequest& request,
                    grpc::ServerWriter<v1::LogsResponse>* writer) {
    EXPECT_EQ(request.rank(), 1);
    EXPECT_EQ(request.tail(), 5);
    v1::LogsResponse response;
    v1::LogLine* line = response.add_lines();
    line->set_attempt(2);
    line->set_rank(1);
    line->set_text("bind took 1 s");
    writer->Write(response);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"logs", "tiny-1", "--rank", "1", "--tail", "5"}), 0);
  EXPECT_EQ(out_, " [2/1] bind took 1 s\n");
}

TEST_F(TaccctlTest, EmptyLogsPointToTheEvents) {
  EXPECT_EQ(Run({"logs", "tiny-1", "--rank", "3"}), 0);
  EXPECT_EQ(out_, "");
  EXPECT_EQ(err_, "no log lines of rank 3; `taccctl events tiny-1` says what happened to the job\n");
}

// What `command` leaves: its lines, then its exit code.
std::vector<std::string> Bash(const std::string& command) {
  FILE* pipe = popen(("bash -c '" + command + "'").c_str(), "r");
  std::string text(4096, 0);
  text.resize(fread(text.data(), 1, text.size(), pipe));
  pclose(pipe);
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

TEST_F(TaccctlTest, WatchingEndsWithItsReader) {
  AddEvent("accepted", "one");
  server_.watch = [this](grpc::ServerContext* context, const v1::WatchRequest&,
                         grpc::ServerWriter<v1::WatchResponse>* writer) {
    writer->Write(items_[0]);
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return grpc::Status::CANCELLED;
  };
  server_.logs = [](grpc::ServerContext* context, const v1::LogsRequest&,
                    grpc::ServerWriter<v1::LogsResponse>* writer) {
    v1::LogsResponse response;
    response.add_lines()->set_text("one");
    writer->Write(response);
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return grpc::Status::CANCELLED;
  };
  const char* build = getenv("TACC_BUILD");
  ASSERT_NE(build, nullptr) << "CTest sets it";
  const std::string taccctl = std::string("timeout 20 ") + build + "/taccctl --address " + server_.address();
  for (const char* command : {" watch tiny-1", " logs --follow tiny-1"}) {
    const auto lines = Bash(taccctl + command + " 2>/dev/null | head -1; echo ${PIPESTATUS[0]}");
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_THAT(lines[0], testing::EndsWith(" one"));
    EXPECT_EQ(lines[1], std::to_string(128 + SIGPIPE)) << "124: it ran on";
  }
}

TEST_F(TaccctlTest, CancelWritesACheckpointUnlessNow) {
  std::vector<v1::CancelMode> modes;
  server_.cancel = [&](const v1::CancelRequest& request, v1::CancelResponse* response) {
    modes.push_back(request.mode());
    *response->mutable_job() = job_;
    response->mutable_job()->set_phase(v1::PHASE_CANCELLING);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"cancel", "tiny-1"}), 0);
  EXPECT_EQ(out_, "tiny-1: cancelling\n");
  EXPECT_EQ(Run({"cancel", "tiny-1", "--now"}), 0);
  EXPECT_THAT(err_, HasSubstr("watch tiny-1"));
  EXPECT_THAT(modes, ElementsAre(v1::CANCEL_MODE_CHECKPOINT, v1::CANCEL_MODE_NOW));
  server_.cancel = [&](const v1::CancelRequest&, v1::CancelResponse* response) {
    *response->mutable_job() = job_;
    response->mutable_job()->set_phase(v1::PHASE_CANCELLED);
    response->mutable_job()->set_reason("stopped at step 3, last checkpoint step-3.a1");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"cancel", "tiny-1"}), 0);
  EXPECT_EQ(out_, "tiny-1: cancelled (stopped at step 3, last checkpoint step-3.a1)\n");
}

TEST_F(TaccctlTest, PlanPrintsCandidates) {
  server_.plan = [](const v1::PlanRequest&, v1::PlanResponse* response) {
    response->set_candidates_json(
        R"({"candidates": [{"mesh": {"dp": 1, "fsdp": 2}, "axes": ["dp", "fsdp"], "precision": "bf16", "per_device_train_batch_size": 4,
            "accumulation": 2, "fits": true, "keeps_copies": true, "residual_dtype": "bf16",
            "memory": {"weights_bytes": 1048576, "gradients_bytes": 1398101, "optimizer_bytes": 512, "total_bytes": 4194304},
            "predicted_step_seconds": 0.25, "predicted_exposed_communication_seconds": 1e-7, "predicted_mfu": 0.0003}],
            "losers": [{"estimated": true, "mesh": {"pp": 2, "dp": 1, "fsdp": 1},
            "axes": ["pp", "dp", "fsdp"], "schedule": "interleaved",
            "num_chunks": 3, "gc": true, "predicted_step_seconds": 0.5, "predicted_step_seconds_range": [0.46, 0.57],
            "total_bytes_range": [1048576, 2097152], "why_not": "twice the best"}], "num_meshes": 2, "num_layouts": 7})");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"plan", JobFile()}), 0);
  EXPECT_THAT(out_, HasSubstr("dp=1 fsdp=2       bf16       4 x 2  bf16 copies, bf16 residual  1.0 MiB"));
  EXPECT_THAT(out_, testing::ContainsRegex("interleaved x 3, gc +~"));
  // What is shown of memory adds up, and what is small is not shown as nothing.
  EXPECT_THAT(out_, testing::ContainsRegex(" 1[.]0 MiB +1[.]3 MiB +512 B +0 B +1[.]7 MiB +4[.]0 MiB +250 ms +100 ns "));
  EXPECT_THAT(out_, HasSubstr("  0.03%  taken"));
  EXPECT_THAT(out_, HasSubstr("twice the best"));
  EXPECT_THAT(out_, HasSubstr("~500 ms (460 to 570 ms)"));
  EXPECT_THAT(out_, HasSubstr("~0 B (1.0 to 2.0 MiB)"));
  EXPECT_THAT(out_, HasSubstr("2 meshes, 7 layouts estimated"));
  EXPECT_EQ(Run({"plan", JobFile(), "-o", "json"}), 0);
  EXPECT_EQ(json::parse(out_.substr(0, out_.find('\n')))["predicted_step_seconds"], 0.25);
  EXPECT_EQ(json::parse(out_.substr(out_.find('\n')))["why_not"], "twice the best");
  server_.plan = [](const v1::PlanRequest&, v1::PlanResponse*) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "does not fit");
  };
  EXPECT_EQ(Run({"plan", JobFile()}), 2);
}

TEST_F(TaccctlTest, APlanThatDoesNotFitIsTwo) {
  server_.plan = [](const v1::PlanRequest&, v1::PlanResponse* response) {
    response->set_candidates_json(
        R"({"candidates": [{"mesh": {"dp": 1}, "axes": ["dp"], "fits": false, "settings": {"resources": {"workers": 1}},
            "words": ["the model does not fit: a worker needs 101.3 GiB", "  of it: weights 25.0 GiB"]}]})");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"plan", JobFile()}), 2);
  EXPECT_THAT(out_, HasSubstr("\n\nthe model does not fit: a worker needs 101.3 GiB\n\n"));
  EXPECT_THAT(out_, Not(HasSubstr("To keep this plan")));
  EXPECT_EQ(Run({"plan", JobFile(), "-o", "json"}), 2);
  EXPECT_EQ(json::parse(out_)["fits"], false);
}

TEST_F(TaccctlTest, ThePlanEndsWithWhatReproducesIt) {
  server_.plan = [](const v1::PlanRequest&, v1::PlanResponse* response) {
    response->set_candidates_json(
        R"({"candidates": [{"mesh": {"pp": 2, "dp": 1, "fsdp": 2}, "axes": ["pp", "dp", "fsdp"], "fits": true, "settings": {
            "resources": {"workers": 4}, "memory": {"gc": true}, "compute": {"bf16": false},
            "train": {"global_batch_size": 16, "per_device_train_batch_size": 2},
            "dist": {"pp": {"size": 2, "num_micro_batches": 4, "schedule": "1f1b"}, "fsdp": {"size": 2, "zero_stage": 3}}}}]})");
    return grpc::Status::OK;
  };
  const std::string job = "name: tiny\nmodel: {path: m}\ndata: {path: d}\n";
  const std::string own =
      "dist: {fsdp: {wrap_layer_cls: [A, B]}, topology: [fsdp, pp], pins: {\"a.*.b\": \"[tp, -]\"}}\n";
  const std::string train = "train: {max_steps: 10}\n";
  EXPECT_EQ(Run({"plan", WriteFile("open.yaml", job + own + train)}), 0) << err_;
  const std::string mark = "To keep this plan, put into the job file:\n\n";
  ASSERT_THAT(out_, HasSubstr(mark));
  std::string pasted = out_.substr(out_.find(mark) + mark.size());
  const auto spec = ParseJobFile(job + pasted + "  max_steps: 10\n", "pasted.yaml", "/");
  ASSERT_TRUE(spec.ok()) << spec.status() << pasted;
  EXPECT_EQ(spec->resources().workers(), 4);
  EXPECT_EQ(spec->train().global_batch_size(), 16);
  EXPECT_EQ(spec->dist().pp().schedule(), v1::PIPELINE_SCHEDULE_1F1B);
  EXPECT_EQ(spec->dist().pp().num_micro_batches(), 4);
  EXPECT_THAT(spec->dist().fsdp().wrap_layer_cls(), ElementsAre("A", "B"));
  EXPECT_EQ(spec->dist().fsdp().size(), 2);
  EXPECT_THAT(spec->dist().topology(), ElementsAre("fsdp", "pp"));
  EXPECT_EQ(spec->dist().pins().at("a.*.b"), "[tp, -]");
  EXPECT_TRUE(spec->memory().gc() && spec->compute().has_bf16() && !spec->compute().bf16());
}

TEST_F(TaccctlTest, PlanHereRunsTheTools) {
  WriteTool("tacc-rank", R"(echo '{"name": "cpu", "kind": "cpu"}')");
  WriteTool("tacc-data", R"(echo '{"vocab_size": 10, "seq_len": 16}')");
  WriteTool("tacc-plan", R"(cp "$3" "$(dirname "$0")/request.json"; echo '{"candidates": []}')");
  EXPECT_EQ(Run({"plan", "--local", JobFile()}), 0) << err_;
  std::ifstream stream(directory_ + "/request.json");
  const json request = json::parse(stream);
  EXPECT_EQ(request["job"]["train"]["max_steps"], 10);
  EXPECT_EQ(request["job"]["train"]["adam_beta1"], 0.9);
  EXPECT_EQ(request["job"]["data"]["seq_len"], 16);
  EXPECT_GT(request["device"]["memory_bytes"].get<int64_t>(), 0);
  WriteTool("tacc-plan", "echo 'a warning\nerror: does not fit\n  of it: weights' >&2; exit 2");
  EXPECT_EQ(Run({"plan", "--local", JobFile()}), 2);
  EXPECT_EQ(err_, "does not fit\n  of it: weights\n");
  std::filesystem::remove(directory_ + "/tacc-plan");
  EXPECT_EQ(Run({"plan", "--local", JobFile()}), 1);
  EXPECT_THAT(err_, HasSubstr("is missing; it belongs beside taccctl"));
}

// tacc-plan that knows machines, keeps the request and its arguments, and answers with one candidate.
constexpr char kPlanTool[] = R"(
if [ "$1" = machines ]; then echo '{"names": ["a100", "h100"], "cluster_fields": ["machine", "gpus", "nodes"]}'; exit; fi
cp "$3" "$(dirname "$0")/request.json"; echo "$@" > "$(dirname "$0")/arguments"
printf '%s\n' '{"candidates": [{"mesh": {"tp": 2, "dp": 1, "pp": 4}, "axes": ["pp", "dp", "tp"], "words": ["The job trains."], "explanation": "It is split.\n", "fits": true,
  "capture": [{"stage": 0, "graph": "forward.0", "nodes": 812, "first_node": "embedding @model"}, {"stage": 0, "graph": "finish.0", "nodes": 1, "first_node": "finish", "not_captured": "a message"}]},
 {"mesh": {"dp": 8}, "axes": ["dp"], "why_not": "12 % slower", "fits": true}]}')";

TEST_F(TaccctlTest, ThePlanOfAServiceIsDrawnHere) {
  server_.plan = [](const v1::PlanRequest&, v1::PlanResponse* response) {
    response->set_candidates_json(R"({"candidates": []})");
    response->set_request_json(R"({"job": {"name": "tiny"}, "device": {"name": "theirs"}})");
    return grpc::Status::OK;
  };
  WriteTool("tacc-plan", kPlanTool);
  EXPECT_EQ(Run({"plan", JobFile(), "--trace", "t.json"}), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("wrote t.json\n"));
  EXPECT_THAT(out_, HasSubstr("The job trains.\n\n"));
  std::ifstream request(directory_ + "/request.json"), arguments(directory_ + "/arguments");
  EXPECT_EQ(json::parse(request)["device"]["name"], "theirs");
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(arguments), {}), HasSubstr("--trace t.json\n"));
  server_.plan = [](const v1::PlanRequest&, v1::PlanResponse* response) {
    response->set_candidates_json(R"({"candidates": []})");
    return grpc::Status::OK;
  };
  EXPECT_NE(Run({"plan", JobFile(), "--trace", "t.json"}), 0);
  EXPECT_THAT(err_, HasSubstr("add --local"));
}

TEST_F(TaccctlTest, PlanForGpusNeedsNothingElse) {
  WriteTool("tacc-plan", kPlanTool);
  const std::string job =
      WriteFile("job.yaml", "name: tiny\nmodel: {path: m}\ndata: {path: d, seq_len: 16}\ntrain: {max_steps: 10}\n");
  EXPECT_EQ(Run({"plan", job, "--gpus", "128"}), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("--gpus without --cluster: assuming nodes of 8 H100 SXM\n"));
  EXPECT_THAT(out_, HasSubstr("The job trains.\n\n"));
  EXPECT_THAT(out_, HasSubstr("pp=4 dp=1 tp=2"));
  EXPECT_THAT(out_, HasSubstr("12 % slower"));
  EXPECT_THAT(out_, HasSubstr("1 of 2 parts of the step are CUDA graphs (-v lists them).\n\nThe job trains.\n\n"));
  EXPECT_THAT(out_, Not(HasSubstr("forward.0")));
  EXPECT_EQ(Run({"plan", job, "--gpus", "128", "-v"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("0      forward.0  812    embedding @model  captured\n"));
  EXPECT_THAT(out_, HasSubstr("0      finish.0   1      finish            not captured: a message\n"));
  std::ifstream stream(directory_ + "/request.json");
  const json request = json::parse(stream);
  EXPECT_EQ(request["cluster"].dump(), R"({"gpus":128,"machine":"h100"})");
  EXPECT_EQ(request["job"]["model"]["weights"], "WEIGHTS_RANDOM");
  EXPECT_FALSE(request.contains("device"));
  EXPECT_FALSE(request["job"].contains("resources"));
  EXPECT_EQ(Run({"plan", job, "--gpus", "8", "--explain", "all_gather", "--html", "r.html"}), 0) << err_;
  EXPECT_EQ(out_, "It is split.\n");
  EXPECT_THAT(err_, HasSubstr("wrote r.html"));
  std::ifstream arguments(directory_ + "/arguments");
  std::string line;
  std::getline(arguments, line);
  EXPECT_THAT(line, HasSubstr("--explain all_gather --html r.html"));
}

TEST_F(TaccctlTest, PlanForAClusterNamesPlaces) {
  WriteTool("tacc-plan", kPlanTool);
  const std::string cluster = directory_ + "/c.yaml";
  std::ofstream(cluster) << "machine: h10\n";
  EXPECT_EQ(Run({"plan", JobFile(), "--cluster", cluster}), 2);
  EXPECT_THAT(err_, HasSubstr("c.yaml:1:10: machine \"h10\" is not known; did you mean \"h100\"?"));
  std::ofstream(cluster) << "machine: h100\ngpus: 12\n";
  EXPECT_EQ(Run({"plan", JobFile(), "--cluster", cluster}), 2);
  EXPECT_THAT(err_, HasSubstr("give data.seq_len"));
}

TEST_F(TaccctlTest, CalibratePrintsTheClusterFileAnew) {
  WriteTool("tacc-plan", R"(
if [ "$1" = machines ]; then echo '{"names": ["h100"], "cluster_fields": ["machine", "gpus", "nodes", "matmul_depth"]}'; exit; fi
cp "$3" "$(dirname "$0")/request.json"; echo "$1" > "$(dirname "$0")/arguments"
printf '%s\n' '{"num_steps": 2, "error_before": 0.125, "error_after": 0.02,
 "constants": [{"name": "matmul_fraction", "unit": "of peak", "before": 0.73, "after": 0.65, "determined": true},
               {"name": "matmul_depth", "unit": "elements", "before": 300, "after": 300, "determined": false}],
 "steps": [{"place": "m.csv:2", "step_seconds": 2.0, "before": 1.8, "after": 2.02}]}')");
  const std::string job =
      WriteFile("job.yaml", "name: tiny\nmodel: {path: m}\ndata: {path: d, seq_len: 16}\ntrain: {max_steps: 10}\n");
  const std::string cluster = WriteFile("c.yaml", "machine: h100\nnodes: 8\nmatmul_depth: 300\n");
  const std::string table = WriteFile("m.csv", "step_seconds,world,fsdp,tp\n2,64,8,8\n3,8,8,\n");
  EXPECT_EQ(Run({"plan", job, "--cluster", cluster, "--calibrate", table}), 0) << err_;
  EXPECT_EQ(out_, "# Fitted to 2 steps of " + table +
                      ": predictions were off by 12.5% on average, and are by 2.0%.\n"
                      "machine: h100\nmatmul_depth: 300\nnodes: 8\nmatmul_fraction: 0.65  # of peak, was 0.73\n"
                      "# As before, for these steps do not determine them: matmul_depth.\n");
  EXPECT_THAT(err_, HasSubstr("-10.0 %"));
  EXPECT_THAT(err_, HasSubstr("+1.0 %"));
  std::ifstream stream(directory_ + "/request.json");
  const json request = json::parse(stream);
  EXPECT_EQ(request["cluster"]["nodes"], 8);
  ASSERT_EQ(request["steps"].size(), 2u);
  EXPECT_EQ(request["steps"][0]["place"], table + ":2");
  EXPECT_EQ(request["steps"][0]["request"]["cluster"].dump(), R"({"gpus":64,"machine":"h100","matmul_depth":300})");
  EXPECT_EQ(request["steps"][0]["request"]["job"]["dist"]["tp"]["size"], 8);
  EXPECT_EQ(request["steps"][1]["step_seconds"], 3);
  // What is wrong with a row has its place.
  std::ofstream(table) << "step_seconds,world,fsdp,gc\n2,64,64,perhaps\n";
  EXPECT_EQ(Run({"plan", job, "--cluster", cluster, "--calibrate", table}), 2);
  EXPECT_THAT(err_, HasSubstr(table + ":2: "));
  EXPECT_THAT(err_, HasSubstr("memory.gc"));
  std::ofstream(table) << "step_seconds,world,fsdp\n2,64,8\n";
  EXPECT_EQ(Run({"plan", job, "--cluster", cluster, "--calibrate", table}), 2);
  EXPECT_THAT(err_, HasSubstr(table + ":2: world = 64, but the axes multiply to 8\n"));
  EXPECT_EQ(Run({"plan", job, "--calibrate", table}), 2);
  EXPECT_THAT(err_, HasSubstr("--cluster"));
}

TEST_F(TaccctlTest, ExportTakesTheNewestCheckpoint) {
  WriteTool("tacc-data", R"(echo "$@" > "$(dirname "$0")/arguments")");
  EXPECT_EQ(Run({"export", "tiny", "--out", directory_ + "/hf"}), 6);
  EXPECT_EQ(err_, "tiny-1 has no checkpoint yet\n");
  job_.set_checkpoint_dir("/runs/tiny");
  job_.mutable_spec()->mutable_model()->set_path("/m");
  for (int step : {4, 8}) {
    job_.add_checkpoints()->set_step(step);
    job_.mutable_checkpoints(job_.checkpoints_size() - 1)->set_name("step-0000000" + std::to_string(step) + ".a1");
  }
  const auto arguments = [&] {
    std::ifstream stream(directory_ + "/arguments");
    std::string line;
    std::getline(stream, line);
    return line;
  };
  EXPECT_EQ(Run({"export", "tiny", "--out", directory_ + "/hf"}), 0) << err_;
  EXPECT_EQ(out_, directory_ + "/hf\n");
  EXPECT_EQ(arguments(), "export --checkpoint /runs/tiny/step-00000008.a1 --out " + directory_ + "/hf --model /m");
  EXPECT_EQ(Run({"export", "tiny", "--out", "/hf", "--step", "4"}), 0);
  EXPECT_THAT(arguments(), HasSubstr("step-00000004.a1"));
  EXPECT_EQ(Run({"export", "tiny", "--out", "/hf", "--step", "5"}), 3);
  EXPECT_EQ(err_, "tiny-1 has no checkpoint of step 5; there are 4, 8\n");
  EXPECT_EQ(Run({"export", "/runs/other/step-1.a1", "--out", "/hf"}), 0);
  EXPECT_EQ(arguments(), "export --checkpoint /runs/other/step-1.a1 --out /hf");
  EXPECT_EQ(Run({"export", "/runs/other/step-1.a1", "--out", "/hf", "--step", "4"}), 2);
}

TEST_F(TaccctlTest, DataShowAsksForTheBatchOfTheStep) {
  WriteTool("tacc-data", R"(echo "$@")");
  job_.mutable_spec()->mutable_data()->set_path("/d");
  job_.mutable_plan()->set_seq_len(16);
  job_.mutable_plan()->set_global_batch_size(8);
  EXPECT_EQ(Run({"data", "show", "tiny", "--step", "3"}), 0) << err_;
  EXPECT_EQ(out_, "show --data /d --global-batch-size 8 --seed 42 --step 3 --seq-len 16\n");
  EXPECT_EQ(Run({"data", "show", JobFile()}), 2);
  EXPECT_THAT(err_, HasSubstr("--global-batch-size"));
  EXPECT_EQ(Run({"data", "show", JobFile(), "--global-batch-size", "4", "-o", "json"}), 0);
  EXPECT_EQ(out_, "show --data " + directory_ + "/d --global-batch-size 4 --seed 42 --step 1 --json\n");
}

TEST_F(TaccctlTest, DownWithoutUpIsThree) {
  EXPECT_EQ(Run({"down"}), 3);
  EXPECT_EQ(err_, "`taccctl up` has not started anything\n");
}

TEST_F(TaccctlTest, LocalSaysWhatTheCoordinatorSaid) {
  environment_["TMPDIR"] = directory_;
  for (const char* folder : {"/m", "/d"}) std::filesystem::create_directory(directory_ + folder);
  WriteTool("tacc-coordinator", "echo 'error: the state directory is in use' >&2; exit 2");
  EXPECT_EQ(Run({"submit", "--local", JobFile()}), 2);
  EXPECT_EQ(err_, "tacc-coordinator: the state directory is in use\n");
  for (const auto& entry : std::filesystem::directory_iterator(directory_))
    EXPECT_THAT(entry.path().string(), Not(HasSubstr("tacc-local-")));
}

TEST_F(TaccctlTest, LogsThatAMessageNamesAreThere) {
  environment_["TMPDIR"] = directory_;
  for (const char* folder : {"/m", "/d"}) std::filesystem::create_directory(directory_ + folder);
  WriteTool("tacc-coordinator", "echo oops >&2; exit 2");
  const std::string logs = directory_ + "/runs/tiny/logs/local", failed = "tacc-coordinator exited with 2; its log is ";
  EXPECT_EQ(Run({"submit", "--local", JobFile()}), 2);
  EXPECT_EQ(err_, failed + logs + "/coordinator.log and ends with:\n  | oops\nother logs:  " + logs + "\n");
  EXPECT_TRUE(std::filesystem::exists(logs + "/coordinator.log"));
  // Nor can they be written there: they stay where they are.
  std::filesystem::remove_all(directory_ + "/runs/tiny/logs");
  WriteFile("runs/tiny/logs", "");
  for (const char* code : {"2", "1"}) {
    WriteTool("tacc-coordinator", std::string("echo oops >&2; exit ") + code);
    EXPECT_EQ(Run({"submit", "--local", JobFile()}), std::stoi(code));
    const size_t begin = err_.find("other logs:  ") + 13;
    const std::string stayed = err_.substr(begin, err_.find('\n', begin) - begin);
    EXPECT_THAT(stayed, StartsWith(directory_ + "/tacc-local-"));
    EXPECT_THAT(err_, HasSubstr("; its log is " + stayed + "/coordinator.log and ends with"));
    EXPECT_TRUE(std::filesystem::exists(stayed + "/coordinator.log"));
  }
}

}  // namespace
}  // namespace tacc::client
