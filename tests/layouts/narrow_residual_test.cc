// A residual stream that is kept in a narrower type, in every kind of layout, on simulated ranks in double precision.
// The simulation rounds nothing, so all of them must give what one rank gives that keeps the stream as it is: what
// differs is the order of sums. What rounding costs is shown on the executor (tests/execution).
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "graph/ir/text.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/testing/test_model.h"
#include "gtest/gtest.h"
#include "tests/interpreter/simulation.h"
#include "tests/layouts/training.h"

namespace tacc::graph {
namespace {

using interpreter::Array;

constexpr int64_t kGlobalBatch = 12, kSeq = 8, kVocab = 13;
constexpr int kSteps = 2, kLayers = 4;

struct Layout {
  std::vector<Mesh::Axis> axes;
  int64_t accumulation = 1;
  int num_repeated = 0;  // of the layers
  int zero_stage = 3;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int chunks = 1;

  Mesh mesh() const {
    Mesh whole{{{"dp", 1}, {"fsdp", 1}}};
    for (const Mesh::Axis& axis : axes) {
      const int at = whole.Find(axis.name);
      if (at >= 0) {
        whole.axes[at] = axis;
      } else {
        whole.axes.insert(axis.name == "pp" ? whole.axes.begin() : whole.axes.end(), axis);
      }
    }
    return whole;
  }
};

std::string NameOf(const testing::TestParamInfo<Layout>& info) {
  const Layout& l = info.param;
  std::string name = absl::StrCat("accumulation", l.accumulation, "_gc", l.num_repeated, "_zero", l.zero_stage);
  for (const Mesh::Axis& axis : l.axes) absl::StrAppend(&name, "_", axis.name, axis.size);
  if (l.mesh().Find("pp") >= 0) absl::StrAppend(&name, "_", Name(l.schedule));
  return name;
}

absl::StatusOr<Compiled> CompileLayout(const Layout& layout, DType residual, const OpTable& ops) {
  ParseOptions parse;
  parse.symbols = {{"B", kGlobalBatch / layout.accumulation}, {"S", kSeq}};
  auto forward =
      ParseGraph(absl::StrReplaceAll(TestModelText(kLayers), {{"length=6", absl::StrCat("length=", kSeq)}}), parse);
  if (!forward.ok()) return forward.status();
  CompileOptions options;
  options.training.accumulation = layout.accumulation;
  options.training.learning_rate = 1e-2;
  options.training.max_steps = 10;
  options.training.max_grad_norm = 0.5;
  options.compute_dtype = DType::kBF16;
  options.residual_dtype = residual;
  const Mesh mesh = layout.mesh();
  options.partition = LayoutOf(mesh, "embed");
  options.partition.zero_stage = layout.zero_stage;
  options.sequence_blocks = SequenceBlocks(mesh);
  for (int i = 0; i < kLayers; ++i) options.partition.units.push_back(absl::StrCat("layers.", i));
  options.schedule.units = options.stages.units = options.partition.units;
  options.remat.units.assign(options.partition.units.begin(), options.partition.units.begin() + layout.num_repeated);
  options.stages.schedule = layout.schedule;
  options.stages.num_chunks = layout.chunks;
  return Compile(*forward, ops, options);
}

absl::StatusOr<TrainingRun> Train(const Layout& layout, DType residual, const OpTable& ops) {
  auto compiled = CompileLayout(layout, residual, ops);
  if (!compiled.ok()) return compiled.status();
  interpreter::PipelineSimulation simulation(compiled->stages);
  std::map<std::string, Array> weights;
  for (const Program& program : compiled->stages) {
    for (const State& state : program.states) {
      if (state.kind == StateKind::kWeight) weights[state.name] = Array::Filled(state.logical_dims(), 1);
    }
  }
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, 0.5);
  for (auto& [name, weight] : weights) {
    if (weight.dims.size() > 1) {
      for (double& x : weight.values) x = normal(random);
    }
    if (auto status = simulation.SetState(name, weight); !status.ok()) return status;
    // Where the model reads a narrower copy.
    (void)simulation.SetState(absl::StrCat("copies/", name.substr(8)), weight).ok();
  }
  TrainingRun run;
  const int64_t rows = kGlobalBatch / layout.accumulation;
  for (int step = 0; step < kSteps; ++step) {
    auto status = simulation.RunStep([&](int64_t m) { return RandomRows(step, m * rows, rows, kSeq, kVocab); });
    if (!status.ok()) return status;
    run.losses.push_back(simulation.outputs(0).at("loss").values[0]);
    run.norms.push_back(simulation.outputs(0).at("grad_norm").values[0]);
  }
  for (const auto& [name, weight] : weights) {
    auto trained = simulation.GetState(name);
    if (!trained.ok()) return trained.status();
    run.weights[name] = *std::move(trained);
  }
  return run;
}

// What lives from forward to backward, of all stages: temporaries at their peak, and stashes.
int64_t KeptBytes(const Compiled& compiled) {
  int64_t bytes = 0;
  for (const MemoryUse& memory : compiled.memory) bytes += memory.temporaries_bytes;
  for (const Program& program : compiled.stages) {
    for (const State& state : program.states) {
      if (state.kind == StateKind::kStash) bytes += state.type.bytes() * state.slots;
    }
  }
  return bytes;
}

class NarrowResidualTest : public testing::TestWithParam<Layout> {};

TEST_P(NarrowResidualTest, EqualsOneRankWithTheStreamAsItIs) {
  const OpTable ops;
  static const auto one = Train({}, DType::kF32, ops);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_GT(one->norms[0], 0.5);  // clipping is on
  EXPECT_NE(one->losses[0], one->losses[kSteps - 1]);
  // Around a ring keys go through the softmax in parts.
  ExpectSame(Train(GetParam(), DType::kBF16, ops), one, {.losses = 1e-11, .weights = 1e-10});
}

TEST_P(NarrowResidualTest, KeepsLess) {
  const OpTable ops;
  const auto wide = CompileLayout(GetParam(), DType::kF32, ops), narrow = CompileLayout(GetParam(), DType::kBF16, ops);
  ASSERT_TRUE(wide.ok()) << wide.status();
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  EXPECT_LT(KeptBytes(*narrow), KeptBytes(*wide));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, NarrowResidualTest,
    testing::Values(
        Layout{}, Layout{.num_repeated = 4}, Layout{.accumulation = 2, .num_repeated = 2},
        Layout{.axes = {{"dp", 2}, {"fsdp", 2}}}, Layout{.axes = {{"fsdp", 3}}, .num_repeated = 4},
        Layout{.axes = {{"fsdp", 2}}, .accumulation = 2, .zero_stage = 1},
        Layout{.axes = {{"fsdp", 2}}, .accumulation = 2, .num_repeated = 4, .zero_stage = 2},
        Layout{.axes = {{"tp", 2}}}, Layout{.axes = {{"tp", 2}, {"tpq", 2}}, .num_repeated = 4},
        Layout{.axes = {{"fsdp", 2}, {"tp", 2}}, .accumulation = 2},
        Layout{.axes = {{"cp", 2}, {"tp", 2}}, .num_repeated = 4}, Layout{.axes = {{"cp", 2}, {"sp", 2}}},
        Layout{.axes = {{"pp", 2}}, .accumulation = 4},
        Layout{.axes = {{"pp", 2}, {"fsdp", 2}}, .accumulation = 3, .num_repeated = 4},
        Layout{.axes = {{"pp", 2}, {"tp", 2}}, .accumulation = 4},
        Layout{.axes = {{"pp", 4}}, .accumulation = 6, .num_repeated = 4, .schedule = PipelineSchedule::kZeroBubble},
        Layout{.axes = {{"pp", 2}, {"fsdp", 2}},
               .accumulation = 6,
               .schedule = PipelineSchedule::kInterleaved,
               .chunks = 2}),
    NameOf);

}  // namespace
}  // namespace tacc::graph
