#include "graph/planner/request.h"

#include <sys/stat.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "graph/ir/text.h"
#include "graph/planner/plan_json.h"
#include "graph/planner/planner.h"
#include "graph/planner/testing/test_request.h"
#include "gtest/gtest.h"
#include "machine/testing/test_directory.h"

namespace tacc::graph {
namespace {

using ::testing::HasSubstr;

TEST(CompileRequest, FactorsAreReadFromFilesAlone) {
  const TestDirectory directory;
  CompileRequest request = Parse(kRequest);
  request.lr_factors_path = directory.File("factors");
  ASSERT_EQ(mkfifo(request.lr_factors_path.c_str(), 0600), 0);  // Which nobody writes.
  EXPECT_EQ(ReadLrFactors(request).message(), absl::StrCat("train.lr_factors_path: ", request.lr_factors_path,
                                                           ": not a file; give a text file of numbers, one a line"));
  request.lr_factors_path = directory.path();
  EXPECT_THAT(std::string(ReadLrFactors(request).message()), HasSubstr("not a file"));
  request.lr_factors_path = directory.File("none");
  EXPECT_THAT(std::string(ReadLrFactors(request).message()), HasSubstr("cannot be read"));
  TestDirectory::Write(request.lr_factors_path, "1\n\n0.5\n");
  ASSERT_TRUE(ReadLrFactors(request).ok());
  EXPECT_EQ(request.plan.training.lr_schedule.factors, (std::vector<double>{1, 0.5}));
}

TEST(CompileRequest, ReadsTheJob) {
  const CompileRequest request = Parse(kRequest);
  EXPECT_EQ(request.weights, "random");
  EXPECT_EQ(request.plan.training.lr_scheduler_type, "cosine");
  EXPECT_EQ(request.plan.device.memory_bytes, 8000000000);
  EXPECT_EQ(request.wrap_layer_cls, std::vector<std::string>{"A"});
  EXPECT_FALSE(request.plan.sizes[Axis::kDp].has_value());
}

// CPUs sum in order anyway: only of GPUs does train.deterministic change what sums cost.
TEST(CompileRequest, DeterminismSumsInOrderOnGpusAlone) {
  const std::string in_order = Replaced(kRequest, "\"train\": {", R"("train": {"deterministic": true, )");
  EXPECT_FALSE(Parse(in_order).plan.cluster.machine.sums_in_order);
  const std::string gpu = R"("device": {"kind": "cuda", "devices_per_machine": 1, )";
  EXPECT_FALSE(Parse(Replaced(kRequest, "\"device\": {", gpu)).plan.cluster.machine.sums_in_order);
  const CompileRequest request = Parse(Replaced(in_order, "\"device\": {", gpu));
  EXPECT_TRUE(request.plan.cluster.machine.sums_in_order);
  EXPECT_TRUE(request.plan.device.sums_in_order);
}

TEST(CompileRequest, ReadsAGpu) {
  const CompileRequest request = Parse(
      Replaced(kRequest, "\"device\": {",
               R"("device": {"kind": "cuda", "peak_flops_per_second": {"bf16": 989e12}, "devices_per_machine": 1, )"));
  EXPECT_EQ(request.plan.device.peak_flops_per_second.at(DType::kBF16), 989e12);
  EXPECT_EQ(request.plan.cluster.num_nodes, 2);
  EXPECT_EQ(request.plan.cluster.machine.CountedPeak(DType::kBF16), 989e12);
  EXPECT_EQ(request.plan.cluster.machine.PeakFlops(DType::kBF16), 2e11);

  // Beside the plan it needs nothing of the memory that its worker offers; of a preset's memory CUDA's part.
  const OpTable ops;
  const auto planned = PlanCandidates(request.plan, TestModel(), ops);
  ASSERT_TRUE(planned.ok()) << planned.status();
  const nlohmann::json gpu = CandidateJson(request, planned->candidates[0]);
  EXPECT_EQ(gpu["peak_source"], "table");
  EXPECT_EQ(gpu["peak_flops_per_second"], 989e12);
  EXPECT_EQ(gpu["memory"]["total_bytes"],
            gpu["memory"]["arena_bytes"].get<int64_t>() + gpu["memory"]["workspace_bytes"].get<int64_t>());
  EXPECT_EQ(IdleBytes(*FindMachine("h100")), int64_t{1} << 30);
  const CompileRequest cpu = Parse(Replaced(kRequest, "\"device\": {", "\"device\": {\"kind\": \"cpu\", "));
  EXPECT_EQ(IdleBytes(cpu.plan.cluster.machine), kIdleBytes);
}

// Whatever the speeds, which are the least of several workers. What oneDNN packs is more than these small products take
// as f32, of large ones their copies are more.
TEST(CompileRequest, AMixedPlanHasRoomForEitherWayOfBf16) {
  const OpTable ops;
  const std::string bf16 = Replaced(kRequest, "\"job\": {", "\"job\": {\"compute\": {\"bf16\": true}, ");
  const auto workspace_bytes = [&](const std::string& text) {
    const auto planned = PlanCandidates(Parse(text).plan, TestModel(), ops);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned->candidates[0].memory.workspace_bytes;
  };
  constexpr int64_t kPacked = int64_t{3} << 19;
  for (const char* speed : {"1e11", "2e11"}) {
    const std::string text = Replaced(bf16, "2e11", speed);
    const auto with = [&](const std::string& fields) {
      return workspace_bytes(Replaced(text, "\"device\": {", absl::StrCat("\"device\": {", fields)));
    };
    const int64_t itself = with("\"multiplies_bf16\": true, "), mixed = with("\"multiplies_bf16\": false, ");
    EXPECT_GE(itself, kPacked);
    EXPECT_GE(mixed, itself);
    EXPECT_EQ(with(""), mixed);  // Not known.
  }
}

TEST(CompileRequest, Bf16IsChosenWhereAllMultiplyIt) {
  const OpTable ops;
  const auto precision = [&](const std::string& field) {
    const CompileRequest request = Parse(Replaced(kRequest, "\"device\": {", "\"device\": {" + field));
    const auto planned = PlanCandidates(request.plan, TestModel(), ops);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return CandidateJson(request, planned->candidates[0])["precision"];
  };
  EXPECT_EQ(precision(""), "bf16");
  EXPECT_EQ(precision("\"multiplies_bf16\": true, "), "bf16");
  EXPECT_EQ(precision("\"multiplies_bf16\": false, "), "f32");
}

TEST(CompileRequest, SaysWhatGpusCapture) {
  const OpTable ops;
  const auto capture = [&](const std::string& kind) {
    CompileRequest request =
        Parse(Replaced(kRequest, "\"device\": {", absl::StrCat("\"device\": {\"kind\": \"", kind, "\", ")));
    request.plan.sizes[Axis::kFsdp] = 2;  // no stages, so no messages
    const auto planned = PlanCandidates(request.plan, TestModel(), ops);
    EXPECT_TRUE(planned.ok()) << planned.status();
    const nlohmann::json summary = nlohmann::json::parse(SummaryJson(request, planned->candidates[0], planned->programs,
                                                                     {.notes = {"read so"},
                                                                      .fingerprint = "1a",
                                                                      .architecture = "LlamaForCausalLM",
                                                                      .facts = {{"norm_eps", "1e-05"}},
                                                                      .fact_keys = {{"norm_eps", "rms_norm_eps"}}}));
    EXPECT_EQ(summary["fingerprint"], "1a");
    EXPECT_EQ(summary["notes"], nlohmann::json({"read so"}));
    EXPECT_EQ(summary["config"], nlohmann::json({{"norm_eps", "1e-05"}}));
    EXPECT_EQ(summary["config_keys"], nlohmann::json({{"norm_eps", "rms_norm_eps"}}));
    return summary.contains("capture") ? summary["capture"] : nlohmann::json();
  };
  const nlohmann::json parts = capture("cuda");
  ASSERT_GE(parts.size(), 2u);
  EXPECT_EQ(parts[0]["stage"], 0);
  EXPECT_GT(parts[0]["nodes"], 0);
  EXPECT_FALSE(parts[0].contains("not_captured")) << parts;
  EXPECT_TRUE(capture("cpu").is_null());
}

TEST(CompileRequest, EpochsBecomeSteps) {
  const OpTable ops;
  const auto planned = [&](const std::string& train, const std::string& data) {
    const CompileRequest request = Parse(Replaced(Replaced(kRequest, "\"max_steps\": 10", train), "\"world\": 2,",
                                                  absl::StrCat("\"world\": 2, ", data)));
    const auto result = PlanCandidates(request.plan, TestModel(), ops);
    if (!result.ok()) return std::string(result.status().message());
    const nlohmann::json summary =
        nlohmann::json::parse(SummaryJson(request, result->candidates[0], result->programs, {}));
    EXPECT_FALSE(summary.contains("config_keys"));
    // The learning rate goes by the same number.
    const std::string attribute = absl::StrCat("max_steps=", summary["max_steps"].dump(), " ");
    EXPECT_NE(Print(result->programs[0]).find(attribute), std::string::npos) << attribute;
    return summary["max_steps"].dump();
  };
  EXPECT_EQ(planned("\"max_steps\": 10", R"("data": {"num_samples": 100},)"), "10");
  // 2.5 x 100 samples in batches of 8.
  EXPECT_EQ(planned("\"num_train_epochs\": 2.5", R"("data": {"num_samples": 100},)"), "32");
  EXPECT_EQ(planned("\"num_train_epochs\": 0.001", R"("data": {"num_samples": 100},)"), "1");
  EXPECT_THAT(planned("\"num_train_epochs\": 1", ""), HasSubstr("train.num_train_epochs needs data"));
  EXPECT_THAT(planned("\"num_train_epochs\": 1, \"warmup_steps\": 14", R"("data": {"num_samples": 100},)"),
              HasSubstr("train.warmup_steps = 14 is more than the 13 steps of train.num_train_epochs = 1"));
}

TEST(CompileRequest, NoSampleIsTwiceInAnUpdate) {
  const auto check = [](int batch) {
    const std::string data = R"("world": 2, "data": {"num_tokens": 200, "num_samples": 12},)";
    const std::string request = Replaced(kRequest, "\"world\": 2,", data);
    return CheckBatchAgainstData(Parse(Replaced(request, "{\"seq_len\"", R"({"path": "/d", "seq_len")")), batch);
  };
  EXPECT_TRUE(check(12).ok());
  EXPECT_TRUE(CheckBatchAgainstData(Parse(kRequest), 16).ok());  // of data that is not known
  EXPECT_EQ(check(16).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(check(16).message(),
            "/d: too little data: 200 tokens make 12 samples of seq_len = 6, but the planned global batch has 16; "
            "prepare more text, lower data.seq_len, or set train.global_batch_size to at most 12");
}

// What a job and its model say is wrong on any device, so it is known without one.
TEST(CheckLayoutTest, NeedsNoDeviceAndSaysWhatPlanningWould) {
  const OpTable ops;
  const std::string text(kRequest);
  const std::string without_device = text.substr(0, text.find("\"device\"")) + R"("data": {}})";
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"dist\": {", "\"dist\": {"},
           {"\"dist\": {", R"("compute": {"fp16": true}, "dist": {)"},
           {"\"dist\": {", R"("dist": {"tp": {"size": 2}, )"},
           {"\"dist\": {", R"("dist": {"ep": {"size": 2}, )"},
           {"\"dist\": {", R"("dist": {"dp": {"size": 3}, )"},
           {"\"dist\": {", R"("dist": {"pp": {"size": 2, "split_points": ["layers.9"]}, )"},
           {"\"dist\": {", R"("memory": {"gc": true, "gc_cnt": 3}, "dist": {)"},
           {"\"global_batch_size\": 8", "\"global_batch_size\": 7"}}) {
    const CompileRequest request = Parse(Replaced(without_device, from, to));
    const absl::Status checked = CheckLayout(request.plan, TestModel(), ops);
    const absl::Status planned = PlanCandidates(request.plan, TestModel(), ops).status();
    EXPECT_EQ(checked.ok(), planned.ok()) << to << ": " << checked << "; " << planned;
    EXPECT_THAT(std::string(planned.message()), testing::EndsWith(std::string(checked.message())));
  }
  CompileRequest small = Parse(Replaced(text, "8000000000", "1"));
  EXPECT_TRUE(CheckLayout(small.plan, TestModel(), ops).ok()) << "memory is the devices'";
}

TEST(CompileRequest, RecomputesWhatTheJobSays) {
  auto with = [](const std::string& memory) {
    return Parse(Replaced(kRequest, "\"dist\"", absl::StrCat("\"memory\": {", memory, "}, \"dist\"")));
  };
  EXPECT_EQ(with("\"gc\": false").plan.recompute_units, 0);
  EXPECT_EQ(with("\"gc\": true, \"gc_cls\": [\"B\"]").gc_cls, std::vector<std::string>{"B"});
  const OpTable ops;
  auto units = [&](const std::string& memory) {
    const auto planned = PlanCandidates(with(memory).plan, TestModel(), ops);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned->candidates[0].plan.recompute_units;
  };
  EXPECT_EQ(units("\"gc\": true"), 2);
  EXPECT_EQ(units("\"gc\": true, \"gc_cnt\": 1"), 1);
  EXPECT_EQ(PlanCandidates(with("\"gc\": true, \"gc_cnt\": 3").plan, TestModel(), ops).status().message(),
            "memory.gc_cnt = 3, but the model has 2 layers; use at most that");
}

TEST(CompileRequest, ShardsWhatTheJobSays) {
  const OpTable ops;
  const auto candidate = [&](int stage) {
    const CompileRequest request = Parse(Replaced(
        Replaced(kRequest, "\"wrap_layer_cls\"", absl::StrCat("\"zero_stage\": ", stage, ", \"wrap_layer_cls\"")),
        "\"dist\"", "\"compute\": {\"bf16\": false}, \"dist\""));
    PlanRequest plan = request.plan;
    plan.sizes[Axis::kFsdp] = 2;
    plan.micro_batch = 1;  // four micro-batches
    plan.recompute_units = 0;
    plan.reshard_units = PlanRequest::kAllUnits;
    auto planned = PlanCandidates(plan, TestModel(), ops);
    EXPECT_TRUE(planned.ok()) << planned.status();
    EXPECT_EQ(planned->candidates[0].plan.zero_stage, stage);
    EXPECT_EQ(CandidateJson(request, planned->candidates[0])["zero_stage"], stage);
    return planned->candidates[0];
  };
  const Candidate one = candidate(1), two = candidate(2), three = candidate(3);
  EXPECT_EQ(one.memory.optimizer_bytes, three.memory.optimizer_bytes);
  EXPECT_LT(two.memory.gradients_bytes, 0.7 * one.memory.gradients_bytes);
  EXPECT_LT(three.memory.weights_bytes, 0.7 * two.memory.weights_bytes);
  EXPECT_EQ(one.memory.weights_bytes, two.memory.weights_bytes);
  EXPECT_LT(one.cost.sent_bytes, two.cost.sent_bytes);
  EXPECT_LT(two.cost.sent_bytes, three.cost.sent_bytes);
  EXPECT_EQ(Parse(kRequest).plan.zero_stage, std::nullopt);
}

TEST(CompileRequest, KeepsGatheredWeightsAsTheJobSays) {
  const OpTable ops;
  const auto plan = [&](const std::string& options) {
    return Parse(Replaced(kRequest, "\"wrap_layer_cls\"", absl::StrCat(options, "\"wrap_layer_cls\""))).plan;
  };
  const auto candidate = [&](const std::string& options) {
    PlanRequest request = plan(options);
    request.sizes[Axis::kFsdp] = 2;
    request.micro_batch = 4;
    request.recompute_units = 0;
    const auto planned = PlanCandidates(request, TestModel(), ops);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned->candidates[0];
  };
  const Candidate again = candidate("\"reshard_after_forward\": true, ");
  const Candidate some = candidate("\"reshard_after_forward\": true, \"reshard_cnt\": 1, ");
  const Candidate kept = candidate("\"reshard_after_forward\": false, ");
  EXPECT_EQ(again.plan.kept_units, 0);
  EXPECT_EQ(some.plan.kept_units, 1);
  EXPECT_EQ(kept.plan.kept_units, 2);
  EXPECT_LT(some.cost.sent_bytes, again.cost.sent_bytes);
  EXPECT_LT(kept.cost.sent_bytes, some.cost.sent_bytes);
  PlanRequest wrong = plan("\"reshard_after_forward\": true, \"reshard_cnt\": 3, ");
  EXPECT_EQ(PlanCandidates(wrong, TestModel(), ops).status().message(),
            "dist.fsdp.reshard_cnt = 3, but the model has 2 layers; use at most that");
  wrong = plan("\"reshard_after_forward\": false, ");
  wrong.sizes[Axis::kPp] = 2;
  EXPECT_EQ(PlanCandidates(wrong, TestModel(), ops).status().message(),
            "dist.fsdp.reshard_after_forward: false does not go with dist.pp.size = 2: weights would be kept for each "
            "micro-batch under way; leave it out, or use dist.fsdp.zero_stage: 2, which gathers no weights");
}

constexpr char kFp16[] = R"("fp16": true, "grad_scaler": {"init_scale": 1024.0, "growth_interval": 7})";

// kRequest with these fields of `compute`, and these peaks behind that of bf16.
std::string WithCompute(const std::string& compute, const std::string& more_peaks) {
  return Replaced(Replaced(kRequest, "\"dist\"", absl::StrCat("\"compute\": {", compute, "}, \"dist\"")),
                  "\"bf16\": 2e11", absl::StrCat("\"bf16\": 2e11", more_peaks));
}

TEST(CompileRequest, ComputesInTheTypeThatTheJobAsksFor) {
  const OpTable ops;
  const auto summary = [&](const std::string& text) {
    const CompileRequest request = Parse(text);
    const auto planned = PlanCandidates(request.plan, TestModel(), ops);
    EXPECT_TRUE(planned.ok()) << planned.status();
    const State* scale = planned->programs[0].FindState("loss_scale/scale");
    EXPECT_EQ(scale != nullptr, request.plan.fp16);
    if (scale != nullptr) {
      EXPECT_EQ(scale->init, "constant(1024.0)");
    }
    return CandidateJson(request, planned->candidates[0]);
  };
  const auto f16 = summary(WithCompute(kFp16, R"(, "f16": 3e11)"));
  EXPECT_EQ(f16["precision"], "f16");
  EXPECT_EQ(f16["peak_flops_per_second"], 3e11);
  const auto tf32 =
      summary(WithCompute(R"("tf32": true)", R"(, "tf32": 1.5e11)"));  // although bf16 is twice as fast as f32
  EXPECT_EQ(tf32["precision"], "tf32");
  EXPECT_EQ(tf32["peak_flops_per_second"], 1.5e11);
  EXPECT_EQ(summary(WithCompute(R"("bf16": false, "tf32": false)", R"(, "tf32": 1.5e11)"))["precision"], "f32");
}

TEST(CompileRequest, RefusesTypesThatTheDevicesLack) {
  const std::string cpu = R"("device": {"kind": "cpu", "model": "EPYC", )";
  EXPECT_EQ(ParseCompileRequest(Replaced(WithCompute(R"("tf32": true)", ""), "\"device\": {", cpu)).status().message(),
            "compute.tf32: the job's devices (EPYC) have no TF32; leave it out");
  EXPECT_EQ(ParseCompileRequest(Replaced(WithCompute(kFp16, ""), "\"device\": {", cpu)).status().message(),
            "compute.fp16: the job's devices (EPYC) have no products in float16; leave it out");

  const auto on = [&](const std::string& machine, const std::string& compute) {
    const std::string text = WithCompute(compute, "");
    return ParseCompileRequest(absl::StrCat(text.substr(0, text.find("\"world\"")), "\"cluster\": {\"machine\": \"",
                                            machine, "\", \"gpus\": 8}}"));
  };
  const auto v100 = on("v100", kFp16), a100 = on("a100", R"("tf32": true)");
  ASSERT_TRUE(v100.ok() && a100.ok()) << v100.status() << a100.status();
  EXPECT_EQ(v100->plan.cluster.machine.PeakFlops(DType::kF16), 125e12);
  EXPECT_EQ(a100->plan.cluster.machine.PeakFlops(DType::kF32), 156e12);
  EXPECT_EQ(on("v100", R"("tf32": true)").status().message(),
            "compute.tf32: the job's devices (NVIDIA V100 SXM2 32 GB) have no TF32; leave it out");
}

TEST(CompileRequest, AClusterStandsForTheDevice) {
  const std::string text = kRequest;
  const std::string cluster = text.substr(0, text.find("\"world\"")) + R"("cluster": {"machine": "h100", "gpus": 16}})";
  const CompileRequest request = Parse(cluster);
  EXPECT_EQ(request.plan.world, 16);
  EXPECT_EQ(request.plan.cluster.num_nodes, 2);
  EXPECT_EQ(request.plan.device.kind, "cuda");
  EXPECT_EQ(request.plan.device.memory_bytes, int64_t{80} << 30);
  EXPECT_THAT(ParseCompileRequest(Replaced(cluster, "h100", "h10")).status().message(), HasSubstr("h10"));
}

TEST(CompileRequest, RefusesWhatItCannotDo) {
  EXPECT_EQ(ParseCompileRequest("[]").status().message(), "compile request: not a JSON object");
  EXPECT_EQ(ParseCompileRequest(Replaced(kRequest, "\"max_steps\": 10", "\"max_steps\": \"x\"")).status().message(),
            "compile request: job.train.max_steps has a wrong type: \"x\"");
  EXPECT_EQ(ParseCompileRequest(R"({"world": 2, "job": {"train": -1}})").status().message(),
            "compile request: job.train has a wrong type: -1");
  EXPECT_EQ(ParseCompileRequest(R"({"world": 2, "job": []})").status().message(),
            "compile request: job has a wrong type: []");
  const auto error = [](const std::string& from, const std::string& to) {
    return std::string(ParseCompileRequest(Replaced(kRequest, from, to)).status().message());
  };
  EXPECT_EQ(error("\"world\": 2", "\"world\": 9223372036854775807"),
            "compile request: world = 9223372036854775807; wanted 1 to 1000000");
  EXPECT_EQ(error("\"threads\": 1", "\"threads\": 1, \"devices_per_machine\": -2"),
            "compile request: device.devices_per_machine = -2; wanted 0 to 1000000");
  EXPECT_EQ(error("\"dist\": {", R"("dist": {"dp": {"size": 4294967296}, "tp": {"size": 4294967296}, )"),
            "compile request: the sizes under job.dist multiply to more than 64 bits");
}

TEST(CompileRequest, GradientsMayTravelNarrower) {
  const OpTable ops;
  const CompileRequest request = Parse(Replaced(
      kRequest, "\"dist\"", "\"compute\": {\"reduce_dtype\": \"REDUCE_DTYPE_BFLOAT16\", \"bf16\": false}, \"dist\""));
  for (int64_t fsdp : {1, 2}) {
    PlanRequest plan = request.plan;
    plan.sizes[Axis::kFsdp] = fsdp;
    plan.sizes[Axis::kDp] = 2 / fsdp;
    auto narrow = PlanCandidates(plan, TestModel(), ops);
    ASSERT_TRUE(narrow.ok()) << narrow.status();
    plan.reduce_dtype = DType::kF32;
    auto wide = PlanCandidates(plan, TestModel(), ops);
    ASSERT_TRUE(wide.ok()) << wide.status();
    EXPECT_LT(narrow->candidates[0].cost.sent_bytes, 0.9 * wide->candidates[0].cost.sent_bytes);
  }
}

TEST(CompileRequest, TheResidualMayBeKeptNarrower) {
  const OpTable ops;
  const CompileRequest request = Parse(Replaced(kRequest, "\"dist\"",
                                                "\"memory\": {\"gc\": true}, \"compute\": {\"residual_dtype\": "
                                                "\"RESIDUAL_DTYPE_BFLOAT16\", \"bf16\": true}, \"dist\""));
  EXPECT_EQ(request.plan.residual_dtype, DType::kBF16);
  PlanRequest plan = request.plan;
  plan.sizes[Axis::kFsdp] = 2;
  const auto narrow = PlanCandidates(plan, TestModel(8), ops);
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  plan.residual_dtype = DType::kF32;
  const auto wide = PlanCandidates(plan, TestModel(8), ops);
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_EQ(narrow->candidates[0].layout, wide->candidates[0].layout);
  EXPECT_LT(narrow->candidates[0].memory.temporaries_bytes, wide->candidates[0].memory.temporaries_bytes);
}

// With `auto`: bf16 only where it earns something, for which memory must be short.
class AutoResidualTest : public ::testing::Test {
 protected:
  AutoResidualTest()
      : request_(Parse(Replaced(kRequest, "\"dist\"",
                                "\"compute\": {\"residual_dtype\": \"RESIDUAL_DTYPE_AUTO\", "
                                "\"bf16\": true}, \"dist\""))) {
    plan_ = request_.plan;
    plan_.sizes[Axis::kFsdp] = 2;
    plan_.recompute_units = 0;
    plan_.device.memory_bytes = 0;
  }
  // The best with this type, which is left to the planner where it is absent.
  Candidate Best(std::optional<DType> residual_dtype) {
    plan_.residual_dtype = residual_dtype;
    const auto planned = PlanCandidates(plan_, TestModel(8), ops_);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned.ok() ? planned->candidates[0] : Candidate();
  }

  const OpTable ops_;
  const CompileRequest request_;
  PlanRequest plan_;
};

TEST_F(AutoResidualTest, IsWideWhereThereIsRoom) {
  EXPECT_EQ(request_.plan.residual_dtype, std::nullopt);
  const Candidate taken = Best(std::nullopt);
  EXPECT_EQ(taken.plan.residual_dtype, DType::kF32);
  EXPECT_EQ(CandidateJson(request_, taken)["settings"]["compute"]["residual_dtype"], "float32");
}

// Memory for just the best layout with the narrow one: the wide one must do with a slower layout.
TEST_F(AutoResidualTest, IsNarrowWhereThatIsFaster) {
  const Candidate wide = Best(std::nullopt);
  plan_.micro_batch = wide.plan.micro_batch;
  plan_.device.memory_bytes = Best(DType::kBF16).plan.total_bytes;
  ASSERT_LT(plan_.device.memory_bytes, wide.plan.total_bytes);
  const Candidate taken = Best(std::nullopt), slower = Best(DType::kF32);
  EXPECT_TRUE(taken.fits);
  EXPECT_EQ(taken.plan.residual_dtype, DType::kBF16);
  EXPECT_EQ(CandidateJson(request_, taken)["settings"]["compute"]["residual_dtype"], "bfloat16");
  EXPECT_EQ(CandidateJson(request_, taken)["residual_dtype"], "bf16");
  EXPECT_DOUBLE_EQ(taken.narrow_residual_saves_seconds, slower.plan.step_seconds - taken.plan.step_seconds);
}

TEST_F(AutoResidualTest, IsNarrowWhereNothingElseFits) {
  plan_.micro_batch = Best(std::nullopt).plan.micro_batch;
  plan_.reshard_units = PlanRequest::kAllUnits;
  plan_.device.memory_bytes = Best(DType::kBF16).plan.total_bytes;
  const Candidate only = Best(std::nullopt);
  EXPECT_TRUE(only.fits);
  EXPECT_EQ(only.narrow_residual_saves_seconds, std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace tacc::graph
