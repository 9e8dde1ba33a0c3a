// Usage and submitting.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_replace.h"
#include "client/taccctl/session/up_state.h"
#include "client/taccctl/testing/taccctl_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tacc::client {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST_F(TaccctlTest, BadUsageIsTwo) {
  EXPECT_EQ(Run({}), 2);
  EXPECT_EQ(Run({"get"}), 2);
  EXPECT_EQ(Run({"list", "--no-such-option"}), 2);
  EXPECT_EQ(Run({"list", "-o", "xml"}), 2);
  EXPECT_EQ(Run({"sumbit", "x.yaml"}), 2);
  EXPECT_EQ(err_, "unknown subcommand \"sumbit\"; did you mean \"submit\"?\n");
  EXPECT_EQ(out_, "");
  for (const std::string wrong : {"nowhere", "2001:db8::1:7070"}) {
    EXPECT_EQ(Run({"--address", wrong, "list"}), 2);
    EXPECT_EQ(err_,
              "--address = \"" + wrong + "\" is not HOST:PORT, as 127.0.0.1:7070 or [::1]:7070, nor unix:/PATH\n");
  }
}

TEST_F(TaccctlTest, AnAddressOfTheNetworkWithoutTlsIsWarnedOf) {
  EXPECT_EQ(Run({"list"}), 0);
  EXPECT_EQ(err_, "") << "on loopback";
  const std::string open = absl::StrReplaceAll(server_.address(), {{"127.0.0.1", "0.0.0.0"}});
  EXPECT_EQ(Run({"--address", open, "list"}), 0) << err_;
  EXPECT_THAT(err_, StartsWith("warning: " + open + " is reached without TLS: the network can read and change what"));
  EXPECT_THAT(err_, HasSubstr("give --tls-dir (TACC_TLS_DIR)"));
  EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
}

TEST_F(TaccctlTest, HelpAndVersionAreZero) {
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out_, HasSubstr("submit"));
  EXPECT_EQ(Run({"submit", "--help"}), 0);
  EXPECT_EQ(Run({"--version"}), 0);
  EXPECT_EQ(out_, "taccctl " TACC_VERSION "\n");
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
                              "data", "audit", "up", "down", "version"}) {
    EXPECT_THAT(all, HasSubstr(std::string("\n  ") + command + " ")) << command;
    EXPECT_EQ(Run({"help", command}), 0);
    EXPECT_THAT(out_, HasSubstr("--address HOST:PORT")) << command;
    EXPECT_THAT(out_, HasSubstr("--tls-server-name NAME")) << command;
    EXPECT_THAT(out_, HasSubstr("-o,--output FORM")) << command;
    EXPECT_THAT(out_, HasSubstr(std::string("Examples:\n  taccctl ") + command)) << command;
  }
  EXPECT_EQ(Run({"help", "sumbit"}), 2);
  EXPECT_EQ(err_, "unknown subcommand \"sumbit\"; did you mean \"submit\"?\n");
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
  EXPECT_EQ(Run({"submit", JobFile(), "--op-library", "/opt/a.so"}), 2);
  EXPECT_THAT(err_, HasSubstr("--op-library are of the workers that --local starts; give --local as well"));
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
  EXPECT_EQ(Run({"--tls-server-name", "a host", "submit", JobFile()}), 0);
  EXPECT_THAT(err_, StartsWith("Next:\n  taccctl --tls-server-name 'a host' watch tiny-1\n"));
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
      " --insecure --name extra-1: starts one more; the next as extra-2\n"
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
  // What was given stays in what is pasted.
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

}  // namespace
}  // namespace tacc::client
