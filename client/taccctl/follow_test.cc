// Following and watching a job, and interrupts of it.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <future>
#include <memory>
#include <thread>

#include "absl/strings/str_split.h"
#include "client/taccctl/testing/taccctl_test.h"
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

// With scripts for the processes of --local: the coordinator is the fake one, by a link in its socket's place.
class LocalTest : public TaccctlTest {
 protected:
  LocalTest() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket_, grpc::InsecureServerCredentials());
    builder.RegisterService(&server_);
    at_socket_ = builder.BuildAndStart();
    const std::string until_parent_ends = "cat <&3 >/dev/null\n";
    WriteTool("tacc-coordinator", "while [ \"$1\" != --listen ]; do shift; done\nln -s " + socket_ +
                                      " \"${2#unix:}\"\necho listening \"$2\"\n" + until_parent_ends);
    WriteTool("tacc-worker", until_parent_ends);
    for (const char* folder : {"/m", "/d"}) std::filesystem::create_directories(directory_ + folder);
    WriteFile("m/config.json", "{}");
  }

 private:
  const std::string socket_ = directory_ + ".sock";
  std::unique_ptr<grpc::Server> at_socket_;
};

TEST_F(LocalTest, AnInterruptBeforeTheFirstStepSpeaksOfNoCheckpoint) {
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
TEST_F(LocalTest, AWishToStopThatWasNotHeardIsToldAgain) {
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

// Of a job whose number of steps comes from its epochs, which is asked for at the first step.
TEST_F(TaccctlTest, AnInterruptEndsAStreamThatAnotherCallWasMadeIn) {
  job_.set_max_steps(0);
  server_.watch = [](grpc::ServerContext* context, const v1::WatchRequest&,
                     grpc::ServerWriter<v1::WatchResponse>* writer) {
    for (int step = 1; step <= 10; ++step) {
      v1::WatchResponse item;
      item.set_cursor(step);
      item.mutable_step()->set_step(step);
      writer->Write(item);
    }
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return grpc::Status::CANCELLED;
  };
  std::atomic<int> num_gets = 0;
  server_.get = [&](const v1::GetRequest&, v1::GetResponse* response) {
    *response->mutable_job() = job_;
    ++num_gets;
    return grpc::Status::OK;
  };
  std::thread user([&] {
    while (num_gets < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    interrupt_.Raise();
  });
  EXPECT_EQ(Run({"watch", "tiny"}), 1);
  user.join();
  EXPECT_GE(num_gets, 2);
  EXPECT_LT(num_gets, 10) << "not again at each step: a client's job may never say a number";
}

TEST_F(TaccctlTest, AnInterruptEndsAnyCallThatIsNotAnswered) {
  std::promise<void> ended;
  const std::shared_future<void> end = ended.get_future().share();
  const auto stall = [&, end](const auto&, auto*) {
    interrupt_.Raise();
    end.wait();
    return grpc::Status::OK;
  };
  server_.list = stall;
  server_.get = stall;
  server_.cancel = stall;
  server_.plan = stall;
  server_.workers = stall;
  WriteTool("tacc-plan", "exit 0");
  WriteTool("tacc-data", "exit 0");
  for (const char* folder : {"/m", "/d"}) std::filesystem::create_directories(directory_ + folder);
  const std::vector<std::vector<std::string>> commands = {
      {"list"}, {"get", "toy-1"}, {"cancel", "toy-1"}, {"workers"}, {"plan", JobFile()}};
  for (const std::vector<std::string>& command : commands) {
    EXPECT_EQ(Run(command), 1) << command[0];
    EXPECT_EQ(err_, "interrupted\n") << command[0];
  }
  ended.set_value();
}

TEST_F(TaccctlTest, AnInterruptOfASubmitThatIsNotAnsweredSaysWhereToLook) {
  std::promise<void> ended;
  server_.submit = [&](const auto&, auto*) {
    interrupt_.Raise();
    ended.get_future().wait();
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", JobFile()}), 1);
  EXPECT_EQ(err_, "interrupted: the job may be submitted, `taccctl list` shows it then\n");
  ended.set_value();
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

}  // namespace
}  // namespace tacc::client
