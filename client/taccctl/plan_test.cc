// Plans, and what needs the tools beside taccctl.
#include <filesystem>
#include <fstream>

#include "client/taccctl/testing/taccctl_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jobfile/job_file.h"
#include "nlohmann/json.hpp"

namespace tacc::client {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

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
  const auto spec = jobfile::ParseJobFile(job + pasted + "  max_steps: 10\n", "pasted.yaml", "/");
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

TEST_F(TaccctlTest, UpOpensNoPortUnlessTold) {
  EXPECT_EQ(Run({"up", "--listen", "127.0.0.1:0"}), 2);
  EXPECT_EQ(
      err_,
      "--listen 127.0.0.1:0: every user of this machine can reach a port, and run jobs as you; leave --listen out "
      "for a socket that only you can reach, or add --insecure\n");
  EXPECT_EQ(Run({"up", "--insecure"}), 2);
  EXPECT_THAT(err_, HasSubstr("--insecure requires --listen"));
  for (const char* everywhere : {"0.0.0.0:7071", "[::]:0", "10.0.0.1:7071"}) {
    EXPECT_EQ(Run({"up", "--metrics-listen", everywhere, "--device", "cpu"}), 2);
    EXPECT_THAT(err_, HasSubstr(std::string("--metrics-listen ") + everywhere + ": give an address of loopback"));
  }
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

}  // namespace
}  // namespace tacc::client
