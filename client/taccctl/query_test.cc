// Commands that ask about jobs and workers.
#include <chrono>
#include <filesystem>
#include <string>

#include "absl/strings/str_replace.h"
#include "audit_log/audit_log.h"
#include "client/taccctl/show/units.h"
#include "client/taccctl/testing/taccctl_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "machine/testing/test_directory.h"
#include "nlohmann/json.hpp"

namespace tacc::client {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST_F(TaccctlTest, AuditVerifyNamesTheLineThatWasChanged) {
  const TestDirectory state;
  const std::string folder = state.File("audit");
  std::string kept;
  {
    auto log = AuditLog::Open(folder, {});
    ASSERT_TRUE(log.ok()) << log.status();
    for (int i = 0; i < 3; ++i) {
      AuditEntry entry;
      entry.method = "Submit";
      (*log)->Append(entry, [] {});
    }
    log->reset();
    kept = VerifyAuditLog(folder, "")->hash;
  }
  EXPECT_EQ(Run({"audit", "verify", state.path(), "--kept", kept}), 0);
  EXPECT_THAT(out_, HasSubstr("3 entries, one chain, with --kept\nlast hash: " + kept));
  EXPECT_EQ(Run({"-o", "json", "audit", "verify", folder}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_)["entries"], 3);
  const std::string file = folder + "/000001.jsonl";
  const std::string changed = absl::StrReplaceAll(TestDirectory::Read(file), {{"\"number\":1,", "\"number\":1, "}});
  TestDirectory::Write(file, changed);
  EXPECT_EQ(Run({"audit", "verify", state.path()}), 1);
  EXPECT_THAT(err_, HasSubstr("000001.jsonl:2: the line before it was changed"));
  EXPECT_EQ(Run({"audit", "verify", state.File("missing")}), 3);
  EXPECT_EQ(Run({"audit", "verify", state.path(), "--kept", "zz"}), 2);
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

TEST_F(TaccctlTest, GetSaysWhatIsNotEncrypted) {
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, Not(HasSubstr("traffic")));
  job_.add_unencrypted("between ranks: not encrypted (Gloo over TCP, at 10.0.0.1)");
  EXPECT_EQ(Run({"get", "tiny"}), 0);
  EXPECT_THAT(out_, HasSubstr("\ntraffic: between ranks: not encrypted (Gloo over TCP, at 10.0.0.1)\n"));
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
