// Pipelines against one rank with the same micro-batches, on simulated ranks in double precision: stages are threads,
// padding and what no message has brought are NaN.
#include "graph/passes/pipeline.h"

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "graph/analysis/cost.h"
#include "graph/ir/text.h"
#include "graph/passes/partition/pins.h"
#include "graph/passes/testing/test_model.h"
#include "gtest/gtest.h"
#include "tests/interpreter/simulation.h"
#include "tests/layouts/training.h"

namespace tacc::graph {
namespace {

using interpreter::Array;
using interpreter::Arrays;

constexpr int64_t kGlobalBatch = 24, kSeq = 6, kVocab = 13;
constexpr int kSteps = 3;

struct Layout {
  int64_t pp = 1, dp = 1, fsdp = 1, micro_batches = 4;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int chunks = 1;
  bool tied = false;  // one table for embedding and head
  DType compute_dtype = DType::kF32;
  int64_t tp = 1;
  int zero_stage = 3;
  int num_repeated = 0;  // layers whose activations the backward computes again
  bool inside = false;   // the stages lie inside a node: pp is the last axis of the mesh
  Pins pins;
  bool padded = false;  // attention sees all keys that are there
};

std::string Name(const Layout& l) {
  return absl::StrCat("pp", l.pp, "_dp", l.dp, "_fsdp", l.fsdp, "_m", l.micro_batches, "_",
                      std::string(Name(l.schedule)), l.chunks > 1 ? absl::StrCat(l.chunks) : "", l.tied ? "_tied" : "",
                      l.compute_dtype == DType::kF32 ? "" : absl::StrCat("_", Name(l.compute_dtype)),
                      l.tp > 1 ? absl::StrCat("_tp", l.tp) : "",
                      l.zero_stage < 3 ? absl::StrCat("_zero", l.zero_stage) : "",
                      l.num_repeated > 0 ? absl::StrCat("_gc", l.num_repeated) : "", l.inside ? "_inside" : "",
                      l.pins.empty() ? "" : "_pinned", l.padded ? "_padded" : "");
}

absl::StatusOr<Compiled> CompileLayout(const Layout& layout, const OpTable& ops) {
  ParseOptions parse;
  parse.symbols = {{"B", kGlobalBatch / layout.micro_batches}, {"S", kSeq}};
  std::string text = TestModelText(4);
  if (layout.tied) {
    const size_t head = text.find("%wh = param");
    text.erase(head, text.find('\n', head) + 1 - head);
    text = absl::StrReplaceAll(text, {{"%wh spec", "%table spec"}});
  }
  if (layout.padded) {
    text = absl::StrReplaceAll(text, {{"%targets = ", "%there = input \"there\" : f32[B,S]\n%targets = "}});
    for (int i = 0; i < 4; ++i) {
      text = absl::StrReplaceAll(
          text, {{absl::StrCat("%a", i, ", %l"),
                  absl::StrCat("%b", i, " = log %there : f32[B,S] @layers.", i, ".attn\n%a", i, ", %l")},
                 {absl::StrCat(", %v", i, " causal=true"),
                  absl::StrCat(", %v", i, ", %b", i, " causal=false key_bias=true")}});
    }
  }
  auto forward = ParseGraph(text, parse);
  if (!forward.ok()) return forward.status();
  CompileOptions options;
  options.training.accumulation = layout.micro_batches;
  options.training.learning_rate = 1e-2;
  options.training.warmup_steps = 1;
  options.training.max_steps = 10;
  options.training.weight_decay = 0.1;
  options.training.max_grad_norm = 0.5;  // below the norm at hand, so that clipping matters
  options.compute_dtype = layout.compute_dtype;
  if (layout.compute_dtype == DType::kF16) options.training.loss_scale.emplace();
  Mesh& mesh = options.partition.mesh;
  mesh = {{{"dp", layout.dp}, {"fsdp", layout.fsdp}, {"tp", layout.tp}}};
  if (layout.pp > 1) mesh.axes.insert(layout.inside ? mesh.axes.end() : mesh.axes.begin(), {"pp", layout.pp});
  const AxisList batch = {mesh.Find("dp"), mesh.Find("fsdp")}, tp = {mesh.Find("tp")};
  options.partition.batch_axes = batch;
  options.partition.at_rest_axes = {mesh.Find("fsdp")};
  options.partition.zero_stage = layout.zero_stage;
  for (const char* axis : {"vocab", "heads", "kv_heads", "mlp"}) options.partition.in_use_axes[axis] = tp;
  options.partition.residual = {"embed", {batch, tp, {}}};
  if (auto status = ApplyPins(layout.pins, *forward, options.partition); !status.ok()) return status;
  options.schedule.units = {"layers.0", "layers.1", "layers.2", "layers.3"};
  options.partition.units = options.schedule.units;
  options.remat.units.assign(options.schedule.units.begin(), options.schedule.units.begin() + layout.num_repeated);
  options.stages.units = options.schedule.units;
  options.stages.schedule = layout.schedule;
  options.stages.num_chunks = layout.chunks;
  return Compile(*forward, ops, options);
}

// Row r of a batch has r % (kSeq + 1) tokens, on the left or on the right.
Arrays PaddedRows(int step, int64_t first, int64_t rows) {
  Arrays batch = RandomRows(step, first, rows, kSeq, kVocab);
  Array there = Array::Filled({rows, kSeq}, 0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t s = 0; s < (first + r) % (kSeq + 1); ++s) there.at({r, r % 2 == 0 ? s : kSeq - 1 - s}) = 1;
  }
  batch["there"] = there;
  return batch;
}

absl::StatusOr<TrainingRun> Train(const Layout& layout, const OpTable& ops) {
  auto compiled = CompileLayout(layout, ops);
  if (!compiled.ok()) return compiled.status();
  interpreter::PipelineSimulation simulation(compiled->stages);
  std::map<std::string, Array> weights;
  for (const Program& program : compiled->stages) {
    for (const State& state : program.states) {
      if (state.kind == StateKind::kWeight) weights[state.name] = Array::Filled(state.logical_dims(), 0);
    }
  }
  for (auto& [name, weight] : weights) {
    std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>()(name)));
    std::normal_distribution<double> normal(0, 0.5);
    const bool is_norm = weight.dims.size() == 1;
    for (double& x : weight.values) x = is_norm ? 1.0 : normal(random);
    if (auto status = simulation.SetState(name, weight); !status.ok()) return status;
    // Where the model reads a narrower copy.
    (void)simulation.SetState(absl::StrCat("copies/", name.substr(8)), weight).ok();
  }
  TrainingRun result;
  const int64_t rows = kGlobalBatch / layout.micro_batches;
  for (int step = 0; step < kSteps; ++step) {
    auto status = simulation.RunStep([&](int64_t micro_batch) { return PaddedRows(step, micro_batch * rows, rows); });
    if (!status.ok()) return status;
    for (size_t stage = 0; stage < compiled->stages.size(); ++stage) {
      for (const auto& [name, value] : simulation.outputs(0))
        EXPECT_EQ(simulation.outputs(static_cast<int>(stage)).at(name).values[0], value.values[0]) << name;
    }
    result.losses.push_back(simulation.outputs(0).at("loss").values[0]);
    result.norms.push_back(simulation.outputs(0).at("grad_norm").values[0]);
    EXPECT_EQ(simulation.outputs(0).at("skipped").values[0], 0.0);
  }
  for (const auto& [name, weight] : weights) {
    auto trained = simulation.GetState(name);
    if (!trained.ok()) return trained.status();
    result.weights[name] = *std::move(trained);
  }
  for (int64_t m = 0; m < layout.micro_batches; ++m) {
    auto status = simulation.RunEval([&](int64_t) { return PaddedRows(kEvalStep, m * rows, rows); });
    if (!status.ok()) return status;
    result.eval_loss += simulation.outputs(0).at("loss").values[0];
  }
  return result;
}

class PipelineTest : public testing::TestWithParam<Layout> {};

TEST_P(PipelineTest, EqualsOneRank) {
  const OpTable ops;
  Layout alone;
  alone.micro_batches = GetParam().micro_batches;
  alone.tied = GetParam().tied;
  alone.padded = GetParam().padded;
  const auto one = Train(alone, ops);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_GT(one->norms[0], 0.5);  // clipping is on
  EXPECT_NE(one->losses[0], one->losses[kSteps - 1]);
  ExpectSame(Train(GetParam(), ops), one);
}

constexpr PipelineSchedule kInterleaved = PipelineSchedule::kInterleaved, kZeroBubble = PipelineSchedule::kZeroBubble;

INSTANTIATE_TEST_SUITE_P(
    Layouts, PipelineTest,
    testing::Values(
        Layout{.pp = 2}, Layout{.pp = 2, .micro_batches = 1}, Layout{.pp = 4}, Layout{.pp = 3, .micro_batches = 6},
        Layout{.pp = 2, .tied = true}, Layout{.pp = 3, .tied = true}, Layout{.pp = 2, .dp = 2},
        Layout{.pp = 2, .fsdp = 2, .tied = true}, Layout{.pp = 2, .dp = 2, .fsdp = 2, .micro_batches = 2, .tied = true},
        Layout{.pp = 2, .fsdp = 3}, Layout{.pp = 2, .schedule = kZeroBubble},
        Layout{.pp = 4, .micro_batches = 6, .schedule = kZeroBubble, .tied = true},
        Layout{.pp = 2, .fsdp = 2, .schedule = kZeroBubble}, Layout{.pp = 2, .schedule = kInterleaved, .chunks = 2},
        Layout{.pp = 2, .fsdp = 2, .micro_batches = 6, .schedule = kInterleaved, .chunks = 2, .tied = true},
        Layout{.pp = 2, .fsdp = 2, .compute_dtype = DType::kBF16},
        Layout{.pp = 2,
               .fsdp = 2,
               .micro_batches = 2,
               .schedule = kZeroBubble,
               .tied = true,
               .compute_dtype = DType::kF16,
               .zero_stage = 1},
        Layout{.pp = 2, .tied = true, .tp = 2}, Layout{.pp = 2, .fsdp = 2, .schedule = kZeroBubble, .tp = 2},
        Layout{.pp = 2,
               .dp = 2,
               .fsdp = 2,
               .micro_batches = 2,
               .schedule = kInterleaved,
               .chunks = 2,
               .tied = true,
               .zero_stage = 1},
        Layout{.pp = 2, .fsdp = 2, .tied = true, .zero_stage = 2},
        Layout{.pp = 2, .fsdp = 2, .schedule = kZeroBubble, .num_repeated = 4}, Layout{.pp = 2, .padded = true},
        Layout{.tp = 2, .num_repeated = 4, .padded = true},
        Layout{.pp = 2, .fsdp = 2, .tp = 2, .num_repeated = 2, .padded = true},
        Layout{.pp = 2, .dp = 2, .fsdp = 2, .micro_batches = 2, .tied = true, .tp = 2, .inside = true},
        // What crosses stages is pinned, and what is computed again.
        Layout{.pp = 2,
               .fsdp = 2,
               .micro_batches = 2,
               .schedule = kZeroBubble,
               .tp = 2,
               .num_repeated = 2,
               .pins = {{"layers.*", "[fsdp, -, tp]"}, {"layers.*.attn", "[-, tp, -]"}}}),
    [](const testing::TestParamInfo<Layout>& info) { return Name(info.param); });

}  // namespace
}  // namespace tacc::graph
