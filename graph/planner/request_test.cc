#include "graph/planner/request.h"

#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "graph/ir/text.h"
#include "graph/passes/testing/test_model.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using ::testing::HasSubstr;

constexpr char kRequest[] =
    R"({"job": {"name": "t", "model": {"path": "/m", "weights": "WEIGHTS_RANDOM"}, "data": {"seq_len": 6},
 "train": {"max_steps": 10, "global_batch_size": 8, "learning_rate": 0.001, "lr_scheduler_type": "LR_SCHEDULER_TYPE_COSINE"},
 "dist": {"fsdp": {"wrap_layer_cls": ["A"]}}}, "world": 2,
 "device": {"threads": 1, "memory_bytes": "8000000000", "matmul_flops_per_second": {"f32": 1e11, "bf16": 2e11}, "memory_bytes_per_second": 1e10,
 "link_bytes_per_second": 1e9, "link_latency_seconds": 1e-4}})";

ForwardBuilder TestModel(int num_layers = 2) {
  return [num_layers](int64_t batch, int64_t seq_len) -> absl::StatusOr<ForwardModel> {
    ParseOptions options;
    options.symbols = {{"B", batch}, {"S", seq_len}};
    auto graph = ParseGraph(TestModelText(num_layers), options);
    if (!graph.ok()) return graph.status();
    ForwardModel model;
    model.forward = *std::move(graph);
    for (int i = 0; i < num_layers; ++i) model.units.push_back(absl::StrCat("layers.", i));
    model.residual_module = "embed";
    model.num_parameters = 1;
    return model;
  };
}

CompileRequest Parse(const std::string& text) {
  auto request = ParseCompileRequest(text);
  EXPECT_TRUE(request.ok()) << request.status();
  return *std::move(request);
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(CompileRequest, ReadsTheJob) {
  const CompileRequest request = Parse(kRequest);
  EXPECT_EQ(request.weights, "random");
  EXPECT_EQ(request.plan.training.lr_scheduler_type, "cosine");
  EXPECT_EQ(request.plan.device.memory_bytes, 8000000000);
  EXPECT_EQ(request.wrap_layer_cls, std::vector<std::string>{"A"});
  EXPECT_FALSE(request.plan.sizes[Axis::kDp].has_value());
}

// Of which sums cost what the ranks' own do.
TEST(CompileRequest, SumsInOrderAreThoseOfGpus) {
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
    const nlohmann::json summary =
        nlohmann::json::parse(SummaryJson(request, planned->candidates[0], planned->programs, {"read so"}, "1a",
                                          "LlamaForCausalLM", {{"norm_eps", "1e-05"}}, {{"norm_eps", "rms_norm_eps"}}));
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
        nlohmann::json::parse(SummaryJson(request, result->candidates[0], result->programs, {}, "1a", "", {}, {}));
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

TEST(CompileRequest, ComputesInTheTypeThatTheJobAsksFor) {
  const OpTable ops;
  const auto with = [](const std::string& compute, const std::string& more_peaks) {
    return Replaced(Replaced(kRequest, "\"dist\"", absl::StrCat("\"compute\": {", compute, "}, \"dist\"")),
                    "\"bf16\": 2e11", absl::StrCat("\"bf16\": 2e11", more_peaks));
  };
  const std::string half = R"("fp16": true, "grad_scaler": {"init_scale": 1024.0, "growth_interval": 7})";
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
  const auto f16 = summary(with(half, R"(, "f16": 3e11)"));
  EXPECT_EQ(f16["precision"], "f16");
  EXPECT_EQ(f16["peak_flops_per_second"], 3e11);
  const auto tf32 = summary(with(R"("tf32": true)", R"(, "tf32": 1.5e11)"));  // although bf16 is twice as fast as f32
  EXPECT_EQ(tf32["precision"], "tf32");
  EXPECT_EQ(tf32["peak_flops_per_second"], 1.5e11);
  EXPECT_EQ(summary(with(R"("bf16": false, "tf32": false)", R"(, "tf32": 1.5e11)"))["precision"], "f32");

  const std::string cpu = R"("device": {"kind": "cpu", "model": "EPYC", )";
  EXPECT_EQ(ParseCompileRequest(Replaced(with(R"("tf32": true)", ""), "\"device\": {", cpu)).status().message(),
            "compute.tf32: the job's devices (EPYC) have no TF32; leave it out");
  EXPECT_EQ(ParseCompileRequest(Replaced(with(half, ""), "\"device\": {", cpu)).status().message(),
            "compute.fp16: the job's devices (EPYC) have no products in float16; leave it out");

  const auto on = [&](const std::string& machine, const std::string& compute) {
    const std::string text = with(compute, "");
    return ParseCompileRequest(absl::StrCat(text.substr(0, text.find("\"world\"")), "\"cluster\": {\"machine\": \"",
                                            machine, "\", \"gpus\": 8}}"));
  };
  const auto v100 = on("v100", half), a100 = on("a100", R"("tf32": true)");
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

// With `auto`, bf16 only where it earns something: where memory is short.
TEST(CompileRequest, ThePlannerMayKeepTheResidualNarrower) {
  const OpTable ops;
  const CompileRequest request = Parse(Replaced(kRequest, "\"dist\"",
                                                "\"compute\": {\"residual_dtype\": \"RESIDUAL_DTYPE_AUTO\", "
                                                "\"bf16\": true}, \"dist\""));
  EXPECT_EQ(request.plan.residual_dtype, std::nullopt);
  PlanRequest plan = request.plan;
  plan.sizes[Axis::kFsdp] = 2;
  plan.recompute_units = 0;
  plan.device.memory_bytes = 0;
  const auto roomy = PlanCandidates(plan, TestModel(8), ops);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  const Candidate& wide = roomy->candidates[0];
  EXPECT_EQ(wide.plan.residual_dtype, DType::kF32);
  EXPECT_EQ(CandidateJson(request, wide)["settings"]["compute"]["residual_dtype"], "float32");

  // Memory for just that layout with the narrow one: the wide one must do with a slower layout,
  plan.residual_dtype = DType::kBF16;
  plan.micro_batch = wide.plan.micro_batch;
  const auto narrow = PlanCandidates(plan, TestModel(8), ops);
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  plan.device.memory_bytes = narrow->candidates[0].plan.total_bytes;
  ASSERT_LT(plan.device.memory_bytes, wide.plan.total_bytes);
  plan.residual_dtype.reset();
  const auto tight = PlanCandidates(plan, TestModel(8), ops);
  ASSERT_TRUE(tight.ok()) << tight.status();
  const Candidate& taken = tight->candidates[0];
  EXPECT_TRUE(taken.fits);
  EXPECT_EQ(taken.plan.residual_dtype, DType::kBF16);
  EXPECT_EQ(CandidateJson(request, taken)["settings"]["compute"]["residual_dtype"], "bfloat16");
  EXPECT_EQ(CandidateJson(request, taken)["residual_dtype"], "bf16");
  plan.residual_dtype = DType::kF32;
  const auto slower = PlanCandidates(plan, TestModel(8), ops);
  ASSERT_TRUE(slower.ok()) << slower.status();
  EXPECT_DOUBLE_EQ(taken.narrow_residual_saves_seconds,
                   slower->candidates[0].plan.step_seconds - taken.plan.step_seconds);

  // or there is none.
  plan.reshard_units = PlanRequest::kAllUnits;
  plan.residual_dtype = DType::kBF16;
  const auto least = PlanCandidates(plan, TestModel(8), ops);
  ASSERT_TRUE(least.ok()) << least.status();
  plan.device.memory_bytes = least->candidates[0].plan.total_bytes;
  plan.residual_dtype.reset();
  const auto only = PlanCandidates(plan, TestModel(8), ops);
  ASSERT_TRUE(only.ok()) << only.status();
  EXPECT_TRUE(only->candidates[0].fits);
  EXPECT_EQ(only->candidates[0].narrow_residual_saves_seconds, std::numeric_limits<double>::infinity());
}

// What is planned must be.
Planned MustPlan(const PlanRequest& request, const ForwardBuilder& model = TestModel()) {
  static const OpTable& ops = *new OpTable();
  auto planned = PlanCandidates(request, model, ops);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planned.ok() ? *std::move(planned) : Planned{{Candidate()}, {}, {}, 0, 0};
}

std::string Refusal(const PlanRequest& request) {
  static const OpTable& ops = *new OpTable();
  return std::string(PlanCandidates(request, TestModel(), ops).status().message());
}

void SetWorkers(PlanRequest& plan, int64_t workers) {
  plan.world = workers;
  plan.cluster = *MakeCluster(MachineOf(plan.device), workers);
}

PlanRequest DataParallelOnly() {
  PlanRequest plan = Parse(kRequest).plan;
  plan.sizes[Axis::kPp] = plan.sizes[Axis::kEp] = plan.sizes[Axis::kCp] = plan.sizes[Axis::kTp] = 1;
  return plan;
}

// Axes of size 1 left out.
std::string MeshText(const Layout& layout) {
  const std::string text = layout.ToString();
  return text.substr(0, text.find(','));
}

TEST(Planner, WeighsEveryMesh) {
  const Planned planned = MustPlan(Parse(kRequest).plan);
  std::set<std::string> meshes;
  for (const Candidate& c : planned.candidates) {
    meshes.insert(MeshText(c.layout));
    EXPECT_EQ(c.plan.global_batch(), 8);
    EXPECT_EQ(c.plan.compute_dtype, DType::kBF16);  // twice as fast on this device
    EXPECT_EQ(c.model_flops, planned.candidates[0].model_flops);
    EXPECT_LE(planned.candidates[0].plan.step_seconds, c.plan.step_seconds * (1 + 4 * kKindMustEarn));
  }
  for (const Loser& loser : planned.losers) {
    EXPECT_FALSE(loser.why.empty());
    meshes.insert(MeshText(loser.scored.layout));
  }
  EXPECT_THAT(meshes, ::testing::UnorderedElementsAre("dp=2", "fsdp=2", "tp=2", "pp=2"));
  EXPECT_EQ(planned.num_meshes, 4);
}

TEST(Planner, KeepsCopiesOfWeightsWhereThereIsRoomAndTheyPay) {
  CompileRequest request = Parse(kRequest);
  PlanRequest& plan = request.plan;
  SetWorkers(plan, 1);
  plan.global_batch = plan.micro_batch = 1;
  plan.recompute_units = 0;
  const Planned with = MustPlan(plan);
  const Candidate& kept = with.candidates[0];
  EXPECT_EQ(kept.plan.keeps_copies, 1);
  EXPECT_GE(kept.copies_save_seconds, kCopiesMustEarn * kept.plan.step_seconds);
  EXPECT_NE(with.programs[0].FindState("copies/layers.0.q.weight"), nullptr);
  EXPECT_GT(kept.memory.copies_bytes, 0);
  EXPECT_TRUE(CandidateJson(request, kept)["keeps_copies"]);
  EXPECT_EQ(CandidateJson(request, kept)["memory"]["copies_bytes"], kept.memory.copies_bytes);

  PlanRequest less = plan;
  less.device.memory_bytes = kept.plan.total_bytes - 1;
  const Planned without = MustPlan(less);
  EXPECT_TRUE(without.candidates[0].fits);
  EXPECT_EQ(without.candidates[0].plan.keeps_copies, 0);
  EXPECT_EQ(without.candidates[0].copies_save_seconds, 0);
  EXPECT_EQ(without.programs[0].FindState("copies/layers.0.q.weight"), nullptr);
  EXPECT_GT(without.candidates[0].plan.step_seconds, kept.plan.step_seconds);

  PlanRequest fast = plan;  // that casts take no time of
  fast.device.memory_bytes_per_second = 1e15;
  fast.cluster = *MakeCluster(MachineOf(fast.device), 1);
  EXPECT_EQ(MustPlan(fast).candidates[0].plan.keeps_copies, 0);

  PlanRequest cpu = plan;
  cpu.device.kind = "cpu";
  cpu.cluster = *MakeCluster(MachineOf(cpu.device), 1);
  EXPECT_EQ(MustPlan(cpu).candidates[0].plan.keeps_copies, 0);

  PlanRequest wide = plan;
  wide.bf16 = false;
  EXPECT_EQ(MustPlan(wide).candidates[0].plan.keeps_copies, 0);
}

TEST(Planner, KeepsWhatTheJobSays) {
  PlanRequest plan = Parse(kRequest).plan;
  SetWorkers(plan, 8);
  plan.sizes[Axis::kPp] = 2;
  plan.sizes[Axis::kFsdp] = 2;
  plan.micro_batch = 1;
  plan.recompute_units = 1;
  plan.schedule = PipelineSchedule::kZeroBubble;
  for (const Candidate& c : MustPlan(plan).candidates) {
    EXPECT_EQ(c.layout.sizes[Axis::kPp], 2);
    EXPECT_EQ(c.layout.sizes[Axis::kFsdp], 2);
    EXPECT_EQ(c.plan.micro_batch, 1);
    EXPECT_EQ(c.plan.recompute_units, 1);
    EXPECT_EQ(c.plan.schedule, PipelineSchedule::kZeroBubble);
  }
}

TEST(Planner, NamesTheNearestLegalSizes) {
  PlanRequest plan = DataParallelOnly();
  plan.global_batch = 7;
  EXPECT_EQ(Refusal(plan), "train.global_batch_size = 7 does not divide over 2 workers; nearest legal values: 6 and 8");
  plan.global_batch = 8;
  plan.micro_batch = 3;
  EXPECT_EQ(Refusal(plan),
            "train.per_device_train_batch_size = 3 does not divide the 4 samples of a worker (global_batch_size 8 over "
            "2 workers); nearest legal values: 2 and 4");
  plan.micro_batch = 2;
  plan.num_micro_batches = 4;
  EXPECT_EQ(
      Refusal(plan),
      "dist.pp.num_micro_batches = 4 do not divide the 4 samples of a worker (global_batch_size 8 over 2 workers, "
      "train.per_device_train_batch_size 2); nearest legal values: 2");
  plan.micro_batch = 4;
  plan.num_micro_batches.reset();
  plan.sizes[Axis::kFsdp] = 3;
  EXPECT_EQ(Refusal(plan), "dist.fsdp.size = 3 does not divide the 2 workers; nearest legal values: 2");
  plan.sizes[Axis::kFsdp] = plan.sizes[Axis::kDp] = 2;
  EXPECT_THAT(Refusal(plan), HasSubstr("dist.dp.size 2 x dist.fsdp.size 2 x dist.ep.size 1 x dist.cp.size 1 x "
                                       "dist.tp.size 1 = 4 does not divide the 2 workers; the product may be 1, 2"));
  // What no data parallelism can deal out, another layout can.
  plan = Parse(kRequest).plan;
  plan.global_batch = 7;
  EXPECT_EQ(MustPlan(plan).candidates[0].plan.num_data_ranks(), 1);
}

TEST(Planner, CutsTensorParallelismByTheModelsHeads) {
  PlanRequest plan = Parse(kRequest).plan;
  SetWorkers(plan, 8);
  plan.sizes[Axis::kTp] = 4;
  plan.sizes[Axis::kPp] = 1;
  for (const Candidate& c : MustPlan(plan).candidates) {
    // 4 heads and 2 kv heads: each kv head is held by two ranks.
    EXPECT_THAT(c.plan.mesh.ToString(), testing::AnyOf("dp=2 fsdp=1 tp=2 tpq=2", "dp=1 fsdp=2 tp=2 tpq=2"));
    EXPECT_EQ(c.plan.global_batch(), 8);
  }
  plan.sizes[Axis::kTp] = 8;
  EXPECT_EQ(Refusal(plan), "dist.tp.size = 8 does not divide the model's 4 heads and 2 kv heads; use 1, 2, 4");
  plan.sizes[Axis::kTp] = 3;
  EXPECT_EQ(Refusal(plan), "dist.tp.size = 3 does not divide the 8 workers; nearest legal values: 2 and 4");
}

TEST(Planner, OrdersTheAxesAsTheJobSays) {
  const OpTable ops;
  PlanRequest plan =
      Parse(Replaced(kRequest, "\"dist\": {", "\"dist\": {\"topology\": [\"tp\", \"fsdp\", \"pp\"], ")).plan;
  EXPECT_EQ(plan.topology, (std::vector<std::string>{"tp", "fsdp", "pp"}));
  SetWorkers(plan, 16);
  plan.sizes[Axis::kTp] = 4;
  plan.sizes[Axis::kPp] = 2;
  const Planned planned = MustPlan(plan);
  // dp, which is not named, is 1; tp stands for its parts.
  for (const Candidate& c : planned.candidates) EXPECT_EQ(c.plan.mesh.ToString(), "dp=1 tp=2 tpq=2 fsdp=2 pp=2");
  EXPECT_EQ(CandidateJson(Parse(kRequest), planned.candidates[0])["axes"].dump(),
            "[\"dp\",\"tp\",\"tpq\",\"fsdp\",\"pp\"]");
  // The job leaves most axes open, its order few.
  PlanRequest open = plan;
  open.sizes[Axis::kTp] = open.sizes[Axis::kPp] = std::nullopt;
  open.topology = {"tp", "fsdp"};
  for (const Candidate& c : MustPlan(open).candidates) {
    EXPECT_EQ(
        c.layout.sizes[Axis::kDp] * c.layout.sizes[Axis::kPp] * c.layout.sizes[Axis::kCp] * c.layout.sizes[Axis::kEp],
        1)
        << c.plan.mesh.ToString();
  }
  plan.topology = {"pp", "fsdp"};
  EXPECT_EQ(PlanCandidates(plan, TestModel(), ops).status().message(),
            "dist.topology leaves out tp, which splits 2 ways; name all axes that are split, from between nodes to "
            "inside a node; unless said otherwise they lie as pp, dp, fsdp, ep, cp, tp");
  plan.topology = {"pp", "x"};
  EXPECT_EQ(PlanCandidates(plan, TestModel(), ops).status().message(),
            "dist.topology: 'x' is no axis; there are pp, dp, fsdp, ep, cp, tp");
}

TEST(Planner, PinsWhatTheJobPins) {
  const OpTable ops;
  const std::string text =
      Replaced(kRequest, "\"dist\": {", "\"dist\": {\"pins\": {\"layers.*.mlp\": \"[dp, -, tp]\"}, ");
  PlanRequest plan = Parse(text).plan;
  EXPECT_EQ(plan.pins, (Pins{{"layers.*.mlp", "[dp, -, tp]"}}));
  plan.sizes[Axis::kTp] = 2;
  const auto pinned = PlanCandidates(plan, TestModel(), ops);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  plan.pins.clear();
  const auto free = PlanCandidates(plan, TestModel(), ops);
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_NE(pinned->candidates[0].cost.num_collectives, free->candidates[0].cost.num_collectives);
  // A deep model is not put together from a few of its layers: it is these that are pinned.
  plan.pins = {{"layers.15.mlp", "[dp, -, tp]"}};
  EXPECT_TRUE(PlanCandidates(plan, TestModel(16), ops).ok());
  plan.pins = {{"layers.*.mlp", "[dp, tp]"}};
  EXPECT_EQ(PlanCandidates(plan, TestModel(), ops).status().message(),
            "dist.pins: \"layers.*.mlp\": it has 2 dims, but results of layers.0.mlp have 3");
  EXPECT_EQ(ParseCompileRequest(Replaced(text, "\"[dp, -, tp]\"", "3")).status().message(),
            "compile request: job.dist.pins has a wrong type: {\"layers.*.mlp\":3}");
}

TEST(Planner, PredictsWithTheAttentionThatWasMeasured) {
  const auto predict = [](const std::string& measured) {
    return MustPlan(
               Parse(Replaced(kRequest, "\"device\": {", absl::StrCat("\"device\": {\"kind\": \"cuda\", ", measured)))
                   .plan)
        .candidates[0]
        .plan.step_seconds;
  };
  EXPECT_GT(predict(R"("attention_flops_per_second": {"tiles": 1e6}, )"), 2 * predict(""));
}

// What lost by estimate lost without the pins.
TEST(Planner, SaysThatEstimatesLeaveOutPins) {
  PlanRequest plan = Parse(kRequest).plan;
  SetWorkers(plan, 8);
  for (const Pins& pins : {Pins(), Pins{{"layers.*.mlp", "[dp, -, tp]"}}}) {
    plan.pins = pins;
    const Planned planned = MustPlan(plan);
    EXPECT_FALSE(planned.losers.empty());
    for (const Loser& loser : planned.losers)
      EXPECT_EQ(loser.why.find(" (estimated without dist.pins)") == std::string::npos, pins.empty()) << loser.why;
  }
}

TEST(Planner, CutsTheSequence) {
  PlanRequest plan = Parse(kRequest).plan;
  SetWorkers(plan, 6);
  plan.sizes[Axis::kCp] = 3;
  plan.sizes[Axis::kPp] = plan.sizes[Axis::kTp] = 1;
  for (const Candidate& c : MustPlan(plan).candidates) {
    EXPECT_THAT(c.plan.mesh.ToString(), testing::AnyOf("dp=2 fsdp=1 cp=3", "dp=1 fsdp=2 cp=3"));
    EXPECT_EQ(c.plan.global_batch(), 8);
  }
  SetWorkers(plan, 2);
  plan.sizes[Axis::kCp] = plan.sp = 2;
  EXPECT_EQ(MustPlan(plan).candidates[0].plan.mesh.ToString(), "dp=1 fsdp=1 sp=2");
  plan.sp = 1;
  EXPECT_EQ(Refusal(plan),
            "dist.cp.size = 2 with dist.sp.size = 1 does not fit a sequence of 6 tokens, 4 heads and 2 kv heads; "
            "dist.sp.size must divide dist.cp.size and the heads, and data.seq_len be a multiple of 2 x dist.cp.size; "
            "dist.sp.size may be 2");
  plan.sizes[Axis::kCp] = 4;
  // 2 divides them, but not the sequence.
  EXPECT_EQ(Refusal(plan), "dist.cp.size = 4 does not divide the 2 workers; nearest legal values: 1");
}

// What a candidate says of itself, put into the job, gives the candidate.
TEST(Planner, SettingsReproduceACandidate) {
  const nlohmann::json request = nlohmann::json::parse(kRequest);
  for (const int world : {1, 2, 4}) {
    nlohmann::json open = request;
    open["world"] = world;
    const CompileRequest asked = Parse(open.dump());
    const Planned planned = MustPlan(asked.plan);
    ASSERT_GE(planned.candidates.size(), world == 1 ? 1u : 2u);
    for (const Candidate& candidate : planned.candidates) {
      nlohmann::json pasted = open;
      pasted["job"].merge_patch(CandidateJson(asked, candidate)["settings"]);
      nlohmann::json& schedule = pasted["job"]["dist"]["pp"];
      if (schedule.is_object() && schedule.contains("schedule"))  // as protobuf writes it
        schedule["schedule"] = "PIPELINE_SCHEDULE_" + absl::AsciiStrToUpper(schedule["schedule"].get<std::string>());
      EXPECT_EQ(MustPlan(Parse(pasted.dump()).plan).candidates[0].layout.ToString(), candidate.layout.ToString())
          << pasted["job"].dump();
    }
  }
}

// The least memory of a rank with which some layout runs: with a little more than that the planner must find one.
TEST(Planner, FindsWhatFitsWhenMemoryIsShort) {
  PlanRequest plan = Parse(kRequest).plan;
  plan.global_batch = 64;
  plan.bf16 = false;
  plan.sizes[Axis::kFsdp] = 2;  // with staging of collectives, which is more than all of this model
  const Planned rich = MustPlan(plan);
  plan.device.memory_bytes = 1;  // nothing fits; the smallest comes first
  const int64_t least = MustPlan(plan).candidates[0].plan.total_bytes;
  ASSERT_LT(least, rich.candidates[0].plan.total_bytes);
  plan.device.memory_bytes = least + 64;
  const Planned poor = MustPlan(plan);
  EXPECT_TRUE(poor.candidates[0].fits);
  EXPECT_GT(poor.candidates[0].plan.recompute_units, 0);
}

}  // namespace
}  // namespace tacc::graph
