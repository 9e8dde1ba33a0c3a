// The coordinator in this process, with real sockets and disk, against a played daemon.
#include "coordinator/service/server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "coordinator/testing/fake_daemon.h"
#include "nlohmann/json.hpp"

namespace tacc::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.version = "0.1.0";
    options_.listen = "127.0.0.1:0";
    options_.exposure = ServerOptions::Exposure::kInsecure;
    options_.state_dir = dir_.path() + "/state";
    options_.plan_binary = dir_.Script("tacc-plan", FakePlan(1));
    options_.data_binary = dir_.Script("tacc-data", FakeData());
    Start();
  }
  void Start() {
    auto server = Server::Start(options_, &failpoints_, [](const absl::Status&) {});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ =
        v1::CoordinatorService::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  grpc::Status Submit(const v1::JobSpec& spec, const std::string& request_id, v1::SubmitResponse* response) {
    grpc::ClientContext context;
    v1::SubmitRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    return stub_->Submit(&context, request, response);
  }
  v1::Job Get(const std::string& id) {
    grpc::ClientContext context;
    v1::GetRequest request;
    request.set_job(id);
    v1::GetResponse response;
    const grpc::Status status = stub_->Get(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job();
  }
  bool WaitForPhase(const std::string& id, v1::Phase phase) {
    const bool came = WaitUntil([&] { return Get(id).phase() == phase; });
    if (!came) ADD_FAILURE() << Get(id).ShortDebugString();
    return came;
  }
  std::vector<v1::WatchResponse> WatchAll(const std::string& id, uint64_t cursor) {
    grpc::ClientContext context;
    v1::WatchRequest request;
    request.set_job(id);
    request.set_cursor(cursor);
    auto reader = stub_->Watch(&context, request);
    std::vector<v1::WatchResponse> all;
    v1::WatchResponse item;
    while (reader->Read(&item)) all.push_back(item);
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return all;
  }
  std::vector<int64_t> Steps(const std::vector<v1::WatchResponse>& items) {
    std::vector<int64_t> steps;
    for (const auto& item : items) {
      if (item.has_step()) steps.push_back(item.step().step());
    }
    return steps;
  }

  TestDirectory dir_;
  Failpoints failpoints_;
  ServerOptions options_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
};

TEST_F(ServerTest, TrainsAJobFromSubmitToFinish) {
  v1::SubmitResponse submitted;
  ASSERT_TRUE(Submit(TestSpec("toy", dir_.path() + "/runs", 1), "r1", &submitted).ok());
  EXPECT_EQ(submitted.job().id(), "toy-1");
  EXPECT_EQ(submitted.job().phase(), v1::PHASE_WAITING);
  EXPECT_THAT(submitted.job().reason(), testing::StartsWith("needs 1 worker, 0 free; none is attached: "));

  FakeDaemon daemon("w0");
  ASSERT_TRUE(daemon.Connect(server_->address()).ok());
  const v1::RankId rank = daemon.WaitForRank(1);
  const v1::StartRank start = daemon.Starts()[0];
  EXPECT_THAT(start.program(), HasSubstr("tacc.program 1 planned"));
  const auto file = nlohmann::json::parse(start.start());
  EXPECT_EQ(file["job"], "toy-1");
  EXPECT_EQ(file["weights"], "random");
  EXPECT_EQ(file["data"]["seq_len"], 64);
  EXPECT_EQ(file["checkpoint"]["export"], dir_.path() + "/runs/hf");
  EXPECT_EQ(file["identity"]["model"].get<std::string>().substr(0, 16), "32768 parameters");

  daemon.Ready(rank, 0);
  ASSERT_TRUE(WaitForPhase("toy-1", v1::PHASE_RUNNING));
  for (int step = 1; step <= 10; ++step) daemon.Step(rank, step);
  daemon.Log(rank, "a line of the log");
  daemon.Checkpoint(rank, 10);
  daemon.Event(rank, R"({"event":"exported","time":1,"path":"/runs/hf"})");
  daemon.Finish(rank, 10);
  ASSERT_TRUE(WaitForPhase("toy-1", v1::PHASE_FINISHED));

  const v1::Job job = Get("toy");
  EXPECT_EQ(job.step(), 10);
  EXPECT_DOUBLE_EQ(job.percent(), 100);
  EXPECT_EQ(job.last_checkpoint().name(), "step-10.a1");
  EXPECT_EQ(job.exported_path(), "/runs/hf");
  EXPECT_DOUBLE_EQ(job.last_step().mfu(), 1e9 / (0.5 * 1e10));
  EXPECT_DOUBLE_EQ(job.plan().predicted_step_seconds(), 0.5);
  EXPECT_DOUBLE_EQ(job.measured().step_seconds(), 0.5);
  EXPECT_EQ(job.measured().arena_bytes(), 4096);
  EXPECT_TRUE(WaitUntil([&] { return daemon.NumUnacknowledged() == 0; }));

  const std::vector<v1::WatchResponse> all = WatchAll("toy-1", 0);
  EXPECT_THAT(Steps(all), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  EXPECT_EQ(all.back().event().type(), "ended");
  EXPECT_EQ(all.back().cursor(), job.cursor());
  // From the middle on: nothing twice, nothing lost.
  const std::vector<v1::WatchResponse> rest = WatchAll("toy-1", all[5].cursor());
  EXPECT_EQ(rest.size(), all.size() - 6);

  grpc::ClientContext context;
  v1::LogsRequest logs;
  logs.set_job("toy-1");
  logs.set_follow(true);
  auto reader = stub_->Logs(&context, logs);
  v1::LogsResponse lines;
  std::vector<std::string> texts;
  while (reader->Read(&lines)) {
    for (const v1::LogLine& line : lines.lines())
      texts.push_back(absl::StrCat(line.attempt(), "/", line.rank(), " ", line.text()));
  }
  EXPECT_TRUE(reader->Finish().ok());
  // What ranks wrote, between the job's events.
  EXPECT_EQ(texts.front(), "0/-1 accepted as toy-1");
  EXPECT_THAT(texts, testing::Contains("1/0 a line of the log"));
  EXPECT_THAT(texts, testing::Contains("1/-1 running from step 0"));
  EXPECT_THAT(texts.back(), testing::StartsWith("1/-1 finished"));
}

TEST_F(ServerTest, SubmitIsIdempotentByRequestId) {
  const v1::JobSpec spec = TestSpec("toy", dir_.path() + "/runs", 1);
  v1::SubmitResponse first, second, other;
  ASSERT_TRUE(Submit(spec, "r1", &first).ok());
  ASSERT_TRUE(Submit(spec, "r1", &second).ok());
  EXPECT_FALSE(first.existed());
  EXPECT_TRUE(second.existed());
  EXPECT_EQ(first.job().id(), second.job().id());
  v1::JobSpec changed = spec;
  changed.mutable_train()->set_max_steps(11);
  EXPECT_EQ(Submit(changed, "r1", &other).error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(ServerTest, RefusesABadSpecAndNamesAllFields) {
  v1::JobSpec spec = TestSpec("toy", dir_.path() + "/runs", 1);
  spec.mutable_train()->set_max_steps(0);
  spec.set_name("../etc");
  v1::SubmitResponse response;
  const grpc::Status status = Submit(spec, "r1", &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("train.max_steps"));
  EXPECT_THAT(status.error_message(), HasSubstr("name"));
}

TEST_F(ServerTest, ACompilerThatRefusesFailsTheJobAsBadInput) {
  dir_.Script("tacc-plan", "echo 'error: model does not fit: needs 9 GB, has 4 GB' >&2\nexit 2\n");
  v1::SubmitResponse submitted;
  ASSERT_TRUE(Submit(TestSpec("toy", dir_.path() + "/runs", 1), "r1", &submitted).ok());
  FakeDaemon daemon("w0");
  ASSERT_TRUE(daemon.Connect(server_->address()).ok());
  ASSERT_TRUE(WaitForPhase("toy-1", v1::PHASE_FAILED));
  EXPECT_EQ(Get("toy-1").reason(), "model does not fit: needs 9 GB, has 4 GB");
  EXPECT_EQ(Get("toy-1").failure_code(), v1::FAILURE_CODE_BAD_INPUT);
}

TEST_F(ServerTest, ACompilerThatCrashesFailsOnlyItsJob) {
  dir_.Script("tacc-plan", "kill -SEGV $$\n");
  v1::SubmitResponse submitted;
  ASSERT_TRUE(Submit(TestSpec("toy", dir_.path() + "/runs", 1), "r1", &submitted).ok());
  FakeDaemon daemon("w0");
  ASSERT_TRUE(daemon.Connect(server_->address()).ok());
  ASSERT_TRUE(WaitForPhase("toy-1", v1::PHASE_FAILED));
  EXPECT_THAT(Get("toy-1").reason(), HasSubstr("tacc-plan compile crashed by signal 11 (SIGSEGV)"));
  EXPECT_EQ(Get("toy-1").failure_code(), v1::FAILURE_CODE_COMPILE);
}

TEST_F(ServerTest, CancelWithCheckpointStopsTheRanks) {
  v1::SubmitResponse submitted;
  ASSERT_TRUE(Submit(TestSpec("toy", dir_.path() + "/runs", 1), "r1", &submitted).ok());
  FakeDaemon daemon("w0");
  ASSERT_TRUE(daemon.Connect(server_->address()).ok());
  const v1::RankId rank = daemon.WaitForRank(1);
  daemon.Ready(rank, 0);
  daemon.Step(rank, 1);
  ASSERT_TRUE(WaitForPhase("toy-1", v1::PHASE_RUNNING));
  grpc::ClientContext context;
  v1::CancelRequest cancel;
  cancel.set_job("toy-1");
  cancel.set_mode(v1::CANCEL_MODE_CHECKPOINT);
  v1::CancelResponse cancelled;
  ASSERT_TRUE(stub_->Cancel(&context, cancel, &cancelled).ok());
  EXPECT_EQ(cancelled.job().phase(), v1::PHASE_CANCELLING);
  ASSERT_TRUE(WaitUntil([&] { return !daemon.Commands().empty(); }));
  EXPECT_EQ(daemon.Commands()[0], R"({"command":"stop"})");
  daemon.Checkpoint(rank, 2);
  daemon.Event(rank, R"({"event":"stopped","time":1,"step":2})");
  daemon.Exit(rank, 0);
  ASSERT_TRUE(WaitForPhase("toy-1", v1::PHASE_CANCELLED));
  EXPECT_EQ(Get("toy-1").reason(), "stopped at step 2, last checkpoint step-2.a1");
}

TEST_F(ServerTest, RefusesAWorkerWithoutAProtocolInCommon) {
  FakeDaemon daemon("w0");
  daemon.version = "0.9.0";
  daemon.protocol = 9;
  const grpc::Status status = daemon.Connect(server_->address());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(),
              HasSubstr("worker w0 is version 0.9.0 (protocol 9), the coordinator is version 0.1.0"));
}

TEST_F(ServerTest, KeepsJobsOverARestartAndAdoptsTheRank) {
  v1::SubmitResponse submitted;
  ASSERT_TRUE(Submit(TestSpec("toy", dir_.path() + "/runs", 1), "r1", &submitted).ok());
  FakeDaemon daemon("w0");
  ASSERT_TRUE(daemon.Connect(server_->address()).ok());
  const v1::RankId rank = daemon.WaitForRank(1);
  daemon.Ready(rank, 0);
  for (int step = 1; step <= 3; ++step) daemon.Step(rank, step);
  ASSERT_TRUE(WaitUntil([&] { return Get("toy-1").step() == 3; }));
  server_.reset();
  daemon.Disconnect();
  for (int step = 4; step <= 7; ++step) daemon.Step(rank, step);  // Training goes on.
  Start();
  ASSERT_TRUE(daemon.Connect(server_->address()).ok());
  for (int step = 8; step <= 10; ++step) daemon.Step(rank, step);
  daemon.Finish(rank, 10);
  ASSERT_TRUE(WaitForPhase("toy-1", v1::PHASE_FINISHED));
  EXPECT_THAT(Steps(WatchAll("toy-1", 0)), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  EXPECT_EQ(daemon.Starts().size(), 1u);
  EXPECT_EQ(Get("toy-1").attempt(), 1);
}

TEST_F(ServerTest, RefusesAMessageThatIsTooLong) {
  v1::JobSpec spec = TestSpec("toy", dir_.path() + "/runs", 1);
  spec.mutable_model()->set_path("/" + std::string(2 << 20, 'm'));
  v1::SubmitResponse response;
  const grpc::Status spec_too_long = Submit(spec, "long", &response);
  EXPECT_EQ(spec_too_long.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(spec_too_long.error_message(), HasSubstr("bytes, at most 1048576"));
  spec.mutable_model()->set_path("/" + std::string(9 << 20, 'm'));
  EXPECT_EQ(Submit(spec, "longer", &response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ServerTest, AnswersHealthChecks) {
  grpc::GenericStub stub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::Slice empty("", 0);
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::ByteBuffer(&empty, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  ASSERT_TRUE(status.ok()) << status.error_message();
  grpc::Slice bytes;
  ASSERT_TRUE(response.DumpToSingleSlice(&bytes).ok());
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "\x08\x01");  // status: SERVING
}

TEST_F(ServerTest, ReflectionListsTheServices) {
  grpc::GenericStub stub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(nullptr);
  ASSERT_TRUE(next());
  grpc::Slice list_services("\x3a\x00", 2);  // list_services: ""
  call->Write(grpc::ByteBuffer(&list_services, 1), nullptr);
  ASSERT_TRUE(next());
  grpc::ByteBuffer response;
  call->Read(&response, nullptr);
  ASSERT_TRUE(next());
  grpc::Slice bytes;
  ASSERT_TRUE(response.DumpToSingleSlice(&bytes).ok());
  const std::string text(bytes.begin(), bytes.end());
  EXPECT_THAT(text, HasSubstr("tacc.v1.CoordinatorService"));
  EXPECT_THAT(text, HasSubstr("tacc.v1.WorkerService"));
  call->WritesDone(nullptr);
  ASSERT_TRUE(next());
  grpc::Status status;
  call->Finish(&status, nullptr);
  ASSERT_TRUE(next());
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(ServerTest, AProgramThatDoesNotFitOnTheFreeWorkersWaitsForOthers) {
  v1::SubmitResponse submitted;
  ASSERT_TRUE(Submit(TestSpec("toy", dir_.path() + "/runs", 1), "r1", &submitted).ok());
  FakeDaemon large("large");
  ASSERT_TRUE(large.Connect(server_->address()).ok());
  const v1::RankId rank = large.WaitForRank(1);
  dir_.Script("tacc-plan", "echo 'error: model does not fit: needs 2000 B, has 1000 B' >&2\nexit 2\n");
  FakeDaemon small("small");
  small.memory_bytes = 1000;
  ASSERT_TRUE(small.Connect(server_->address()).ok());
  large.Disconnect();
  FakeDaemon reborn("large");  // Its daemon died and comes back; the rank is gone.
  reborn.instance = "i2";
  reborn.memory_bytes = 1000;
  ASSERT_TRUE(WaitUntil([&] { return reborn.Connect(server_->address()).ok(); }));
  ASSERT_TRUE(WaitUntil([&] { return Get("toy-1").reason().find("needs other workers") == 0; }))
      << Get("toy-1").ShortDebugString();
  EXPECT_EQ(Get("toy-1").reason(),
            "needs other workers than those that are free: model does not fit: needs 2000 B, has 1000 B");
}

// A program that was torn (the machine lost power before it was on the disk) or is missing is made again; never is an
// empty one sent.
TEST_F(ServerTest, AProgramThatIsLostIsCompiledAgain) {
  FakeDaemon daemon("w0");
  ASSERT_TRUE(daemon.Connect(server_->address()).ok());
  v1::SubmitResponse submitted;
  ASSERT_TRUE(Submit(TestSpec("toy", dir_.path() + "/runs", 1), "r1", &submitted).ok());
  daemon.Ready(daemon.WaitForRank(1), 0);
  const std::string whole = daemon.Starts().at(0).program();
  std::filesystem::resize_file(options_.state_dir + "/jobs/toy-1/compile-1/stage0.program", whole.size() / 2);
  daemon.Exit(daemon.WaitForRank(1), 1);
  daemon.Ready(daemon.WaitForRank(3), 0);
  std::filesystem::remove(options_.state_dir + "/jobs/toy-1/compile-2/stage0.program");
  daemon.Exit(daemon.WaitForRank(3), 1);
  const v1::RankId last = daemon.WaitForRank(5);
  for (const v1::StartRank& start : daemon.Starts()) EXPECT_EQ(start.program(), whole);
  EXPECT_EQ(daemon.Starts().size(), 3u);
  daemon.Ready(last, 0);
  daemon.Finish(last, 10);
  EXPECT_TRUE(WaitForPhase("toy-1", v1::PHASE_FINISHED));
}

TEST_F(ServerTest, OneStateDirectoryHasOneCoordinator) {
  auto second = Server::Start(options_, &failpoints_, [](const absl::Status&) {});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("is in use by another coordinator"));
}

TEST_F(ServerTest, APortInUseIsSaid) {
  ServerOptions options = options_;
  options.state_dir = dir_.path() + "/state2";
  options.listen = server_->address();
  auto second = Server::Start(options, &failpoints_, [](const absl::Status&) {});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("cannot listen on 127.0.0.1:"));
}

TEST_F(ServerTest, TheFirstRankGetsThePredictedTrace) {
  FakeDaemon daemon("w0");
  ASSERT_TRUE(daemon.Connect(server_->address()).ok());
  v1::JobSpec spec = TestSpec("toy", dir_.path() + "/runs", 1);
  spec.mutable_train()->set_trace_step(3);
  v1::SubmitResponse submitted;
  ASSERT_TRUE(Submit(spec, "r1", &submitted).ok());
  daemon.WaitForRank(1);
  EXPECT_EQ(nlohmann::json::parse(daemon.Starts()[0].start())["trace"]["predicted"], "{\"traceEvents\": []}\n");
}

TEST_F(ServerTest, PlansOnTheAttachedWorkers) {
  grpc::ClientContext context;
  v1::PlanRequest request;
  *request.mutable_spec() = TestSpec("toy", dir_.path() + "/runs", 1);
  v1::PlanResponse response;
  EXPECT_EQ(stub_->Plan(&context, request, &response).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  FakeDaemon daemon("w0");
  ASSERT_TRUE(daemon.Connect(server_->address()).ok());
  grpc::ClientContext again;
  ASSERT_TRUE(stub_->Plan(&again, request, &response).ok());
  EXPECT_EQ(response.candidates_json(), "[{\"world\": 1}]\n");
  const auto planned = nlohmann::json::parse(response.request_json());
  EXPECT_EQ(planned["job"]["name"], "toy");
  EXPECT_EQ(planned["device"]["kind"], "cpu");
}

TEST_F(ServerTest, PlansForAClusterThatIsNotThere) {
  v1::PlanRequest request;
  *request.mutable_spec() = TestSpec("toy", dir_.path() + "/runs", 1);
  request.set_cluster_json(R"({"machine": "h100", "gpus": 16})");
  v1::PlanResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->Plan(&context, request, &response).ok());
  EXPECT_EQ(nlohmann::json::parse(response.request_json())["cluster"]["gpus"], 16);
  request.set_cluster_json("16 GPUs");
  grpc::ClientContext again;
  EXPECT_EQ(stub_->Plan(&again, request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServerTest, ReadsAJobFile) {
  v1::ReadJobRequest request;
  request.set_text("name: toy\nmodel: {path: m}\ndata: {path: /d}\ntrain: {max_steps: 5}\n");
  request.set_directory("/home/ada");
  v1::ReadJobResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->ReadJob(&context, request, &response).ok());
  EXPECT_EQ(response.problems_size(), 0);
  EXPECT_EQ(response.spec().model().path(), "/home/ada/m");
  EXPECT_EQ(response.spec().checkpoint().dir(), "/home/ada/runs/toy");

  request.set_text("name: toy\nmodel: {path: m}\ndata: {path: /d}\ntrain:\n  max_stepz: 5\n");
  grpc::ClientContext again;
  ASSERT_TRUE(stub_->ReadJob(&again, request, &response).ok());
  EXPECT_FALSE(response.has_spec());
  ASSERT_EQ(response.problems_size(), 1);
  EXPECT_EQ(response.problems(0).field(), "train.max_stepz");
  EXPECT_EQ(response.problems(0).line(), 5);
  EXPECT_EQ(response.problems(0).column(), 3);
  EXPECT_THAT(response.problems(0).message(), HasSubstr("did you mean \"max_steps\"?"));

  request.set_directory("here");
  grpc::ClientContext relative;
  EXPECT_EQ(stub_->ReadJob(&relative, request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  request.set_directory("/");
  request.set_text("");
  for (int i = 0; i < 150; ++i) request.set_text(absl::StrCat(request.text(), "x", i, ": 1\n"));
  grpc::ClientContext many;
  ASSERT_TRUE(stub_->ReadJob(&many, request, &response).ok());
  EXPECT_EQ(response.problems_size(), 101);
  EXPECT_THAT(response.problems(100).message(), HasSubstr("more"));
}

TEST_F(ServerTest, AClientThatGoesAwayEndsItsPlan) {
  const std::string began = dir_.path() + "/began";
  dir_.Script("tacc-plan", absl::StrCat("[ -e ", began, " ] || { touch ", began, "; exec sleep 600; }\n", FakePlan(1)));
  FakeDaemon daemon("w0");
  ASSERT_TRUE(daemon.Connect(server_->address()).ok());
  v1::PlanRequest request;
  *request.mutable_spec() = TestSpec("toy", dir_.path() + "/runs", 1);
  v1::PlanResponse response;
  grpc::ClientContext left;
  std::thread leaves([&] {
    while (!std::filesystem::exists(began)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    left.TryCancel();
  });
  EXPECT_EQ(stub_->Plan(&left, request, &response).error_code(), grpc::StatusCode::CANCELLED);
  leaves.join();
  // Its planner would keep the next one waiting.
  grpc::ClientContext next;
  next.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  EXPECT_TRUE(stub_->Plan(&next, request, &response).ok());
}

}  // namespace
}  // namespace tacc::coordinator
