// Compiled programs on the executor with the CPU's kernels, ranks being threads of this process: a planned program in a
// poisoned arena against the same program with memory of its own for every value, and every layout against one rank.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "graph/ir/sequence_order.h"
#include "graph/ir/text.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/test_model.h"
#include "gtest/gtest.h"
#include "tests/ranks/in_process_ranks.h"

namespace tacc::worker {
namespace {

constexpr int64_t kGlobalBatch = 12, kSeq = 6, kVocab = 13;
constexpr int kSteps = 4;

struct Layout {
  int64_t dp, fsdp, accumulation;
  graph::DType compute_dtype = graph::DType::kF32;
  graph::DType reduce_dtype = graph::DType::kF32;
  int64_t pp = 1;
  graph::PipelineSchedule schedule = graph::PipelineSchedule::k1F1B;
  int chunks = 1;
  int64_t cp = 1, sp = 1;  // ring and Ulysses
  bool reversed = false;   // the axes of the mesh: stages inside a node, tokens between nodes

  bool splits_sequence() const { return cp * sp > 1; }
};

std::string Name(const Layout& l) {
  return absl::StrCat(l.pp > 1 ? absl::StrCat("pp", l.pp, "_", std::string(graph::Name(l.schedule)), "_") : "", "dp",
                      l.dp, "_fsdp", l.fsdp, "_accumulation", l.accumulation,
                      l.compute_dtype == graph::DType::kF32 ? "" : absl::StrCat("_", graph::Name(l.compute_dtype)),
                      l.reduce_dtype == graph::DType::kBF16 ? "_reduced_in_bf16" : "",
                      l.splits_sequence() ? absl::StrCat("_cp", l.cp, "_sp", l.sp) : "", l.reversed ? "_reversed" : "");
}

// Enough to cut.
int NumLayers(const Layout& layout) { return layout.pp * layout.chunks > 2 ? 4 : 2; }

std::vector<graph::Program> CompileLayout(const Layout& layout, const graph::OpTable& ops, int layers = 2) {
  graph::ParseOptions parse;
  parse.symbols = {{"B", kGlobalBatch / layout.accumulation}, {"S", kSeq}};
  // Without norms before its MLPs the model's activations grow with its depth.
  const char* init = layers > 2 ? "normal(0.2)" : "normal(0.5)";
  const auto forward =
      graph::ParseGraph(absl::StrReplaceAll(graph::TestModelText(layers), {{"normal(0.5)", init}}), parse);
  EXPECT_TRUE(forward.ok()) << forward.status();
  graph::CompileOptions options;
  options.training.accumulation = layout.accumulation;
  options.training.learning_rate = 1e-2;
  options.training.max_steps = 10;
  options.training.weight_decay = 0.1;
  options.training.max_grad_norm = 0.5;
  options.compute_dtype = layout.compute_dtype;
  // A scale at which no gradient of this model overflows: no step is to be skipped.
  if (layout.compute_dtype == graph::DType::kF16) options.training.loss_scale.emplace().init_scale = 8;
  options.partition.reduce_dtype = layout.reduce_dtype;
  graph::Mesh& mesh = options.partition.mesh;
  if (layout.pp > 1) mesh.axes.push_back({"pp", layout.pp});
  mesh.axes.push_back({"dp", layout.dp});
  mesh.axes.push_back({"fsdp", layout.fsdp});
  mesh.axes.push_back({"cp", layout.cp});
  mesh.axes.push_back({"sp", layout.sp});
  if (layout.reversed) std::reverse(mesh.axes.begin(), mesh.axes.end());
  options.partition.sequence_axes = {mesh.Find("cp"), mesh.Find("sp")};
  if (layout.splits_sequence()) options.sequence_blocks = layout.cp;
  options.partition.batch_axes = {mesh.Find("dp"), mesh.Find("fsdp")};
  options.partition.at_rest_axes = {mesh.Find("fsdp")};
  for (int i = 0; i < layers; ++i) options.schedule.units.push_back(absl::StrCat("layers.", i));
  options.stages.units = options.schedule.units;
  options.stages.schedule = layout.schedule;
  options.stages.num_chunks = layout.chunks;
  const auto compiled = graph::Compile(*forward, ops, options);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return compiled->stages;
}

// Row r of the global batch of `step`; one target in five is ignored, so ranks hold different counts.
MicroBatch MakeBatch(int step, int64_t first, int64_t rows) {
  MicroBatch batch{first, rows, kSeq, {}, {}};
  for (int64_t r = first; r < first + rows; ++r) {
    std::mt19937 random(static_cast<uint32_t>(step * 1000 + r));
    for (int64_t s = 0; s < kSeq; ++s) {
      batch.tokens.push_back(static_cast<int32_t>(random() % kVocab));
      const uint32_t target = random();
      batch.targets.push_back(target % 5 == 0 ? -1 : static_cast<int32_t>(target % kVocab));
    }
  }
  return batch;
}

using Memory = InProcessRanks::Memory;

struct Result {
  std::vector<double> losses, norms;
  double eval_loss = 0;
  std::map<std::string, std::vector<float>> weights;  // Logical.
  std::vector<int64_t> highest_touched;               // By rank.
  std::vector<int64_t> num_replays;                   // By rank.
};

Result Train(const std::vector<graph::Program>& stages, const graph::OpTable& ops, Memory memory, uint64_t seed = 7) {
  Result result;
  const auto ranks = InProcessRanks::Create(&stages, &ops, memory);
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  if (!ranks.ok()) return result;
  const int64_t rows = kGlobalBatch / (*ranks)->num_micro_batches();
  const BatchSource batches = [rows](int64_t step, int64_t m) {
    return MakeBatch(static_cast<int>(step), m * rows, rows);
  };
  TrainingLog log;
  absl::Status status = (*ranks)->Initialize(seed);
  status.Update((*ranks)->Train(0, kSteps, batches, &log));
  const absl::StatusOr<double> eval_loss = (*ranks)->Evaluate(99, batches);
  status.Update(eval_loss.status());
  EXPECT_TRUE(status.ok()) << status;
  if (!status.ok()) return result;
  result = {log.losses(), log.norms(), *eval_loss, (*ranks)->Weights(), {}};
  if (memory == Memory::kSimulatedDevice) result.num_replays = (*ranks)->NumReplays();
  if (memory == Memory::kPlanned) result.highest_touched = (*ranks)->HighestTouched();
  return result;
}

class PlannedTest : public testing::TestWithParam<Layout> {};
class ExecutionTest : public testing::TestWithParam<Layout> {};
class NarrowTest : public testing::TestWithParam<Layout> {};

// The planner's offsets change where values lie and nothing else; what it planned is what is used.
TEST_P(PlannedTest, GivesTheSameBitsAsMemoryOfItsOwn) {
  const graph::OpTable ops;
  const std::vector<graph::Program> stages = CompileLayout(GetParam(), ops, NumLayers(GetParam()));
  const Result planned = Train(stages, ops, Memory::kPlanned), own = Train(stages, ops, Memory::kOwn);
  ASSERT_EQ(planned.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(planned.losses, own.losses);
  EXPECT_EQ(planned.norms, own.norms);
  EXPECT_EQ(planned.eval_loss, own.eval_loss);
  EXPECT_EQ(planned.weights, own.weights);
  // On a device that is apart from the host and behind it.
  const Result apart = Train(stages, ops, Memory::kSimulatedDevice);
  EXPECT_EQ(planned.losses, apart.losses);
  EXPECT_EQ(planned.norms, apart.norms);
  EXPECT_EQ(planned.eval_loss, apart.eval_loss);
  EXPECT_EQ(planned.weights, apart.weights);
  for (int64_t count : apart.num_replays) EXPECT_GT(count, 0);
  for (size_t rank = 0; rank < planned.highest_touched.size(); ++rank) {
    const int64_t arena_bytes = ProgramOf(stages, static_cast<int64_t>(rank)).arena_bytes;
    EXPECT_LE(planned.highest_touched[rank], arena_bytes);
    EXPECT_GT(planned.highest_touched[rank], arena_bytes - graph::kArenaAlignment);
  }
}

TEST_P(ExecutionTest, EqualsOneRank) {
  const int layers = NumLayers(GetParam());
  const graph::OpTable ops;
  const Result one = Train(CompileLayout({1, 1, 1}, ops, layers), ops, Memory::kPlanned);
  const Result many = Train(CompileLayout(GetParam(), ops, layers), ops, Memory::kPlanned);
  ASSERT_EQ(one.losses.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(many.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(one.losses.back(), one.losses.front());
  // Only the order of sums differs.
  const double loss_tolerance = 1e-6, norm_tolerance = 1e-5, weight_tolerance = 2e-5;
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(many.losses[step], one.losses[step], loss_tolerance * one.losses[step]) << step;
    EXPECT_NEAR(many.norms[step], one.norms[step], norm_tolerance * one.norms[step]) << step;
  }
  EXPECT_NEAR(many.eval_loss, one.eval_loss, loss_tolerance * one.eval_loss);
  ASSERT_EQ(many.weights.size(), one.weights.size());
  for (const auto& [name, weight] : one.weights) {
    const std::vector<float>& other = many.weights.at(name);
    ASSERT_EQ(other.size(), weight.size()) << name;
    for (size_t i = 0; i < weight.size(); ++i)
      ASSERT_NEAR(other[i], weight[i], weight_tolerance) << name << "[" << i << "]";
  }
}

// How far runs are from the same runs in f32 on one rank: root mean squares over all steps, elements and runs.
struct Deviation {
  double losses = 0, norms = 0, weights = 0;
};

constexpr int kSeeds = 8;

Deviation DeviationOf(const Layout& layout, const std::vector<Result>& f32, const graph::OpTable& ops) {
  const std::vector<graph::Program> program = CompileLayout(layout, ops);
  Deviation sum;
  int64_t num_losses = 0, num_weights = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const Result run = Train(program, ops, Memory::kPlanned, seed);
    const auto square = [](double x) { return x * x; };
    for (int step = 0; step < kSteps; ++step) {
      sum.losses += square(run.losses[step] / f32[seed].losses[step] - 1);
      sum.norms += square(run.norms[step] / f32[seed].norms[step] - 1);
      ++num_losses;
    }
    for (const auto& [name, weight] : f32[seed].weights) {
      for (size_t i = 0; i < weight.size(); ++i) sum.weights += square(run.weights.at(name)[i] - weight[i]);
      num_weights += static_cast<int64_t>(weight.size());
    }
  }
  return {std::sqrt(sum.losses / static_cast<double>(num_losses)),
          std::sqrt(sum.norms / static_cast<double>(num_losses)),
          std::sqrt(sum.weights / static_cast<double>(num_weights))};
}

// What a rank rounds differs by layout: its own part of a weight's gradient, of a row's statistics. So does where f32
// gradients are rounded to be reduced. None of it may cost more than what bf16 or f16 costs one rank by itself:
// measured here.
TEST_P(NarrowTest, IsAsNearToF32AsOneRank) {
  const graph::OpTable ops;
  const std::vector<graph::Program> whole = CompileLayout({1, 1, 1}, ops);
  std::vector<Result> f32;
  for (int seed = 0; seed < kSeeds; ++seed) f32.push_back(Train(whole, ops, Memory::kPlanned, seed));
  const graph::DType narrow = GetParam().compute_dtype == graph::DType::kF16 ? graph::DType::kF16 : graph::DType::kBF16;
  const Deviation one = DeviationOf({1, 1, 1, narrow}, f32, ops);
  const Deviation many = DeviationOf(GetParam(), f32, ops);
  std::printf("losses %.2e (one rank %.2e), norms %.2e (%.2e), weights %.2e (%.2e)\n", many.losses, one.losses,
              many.norms, one.norms, many.weights, one.weights);
  EXPECT_GT(one.losses, 1e-6) << "one rank rounds nothing";
  EXPECT_GT(many.losses, 1e-6) << "nothing was rounded";
  EXPECT_LE(many.losses, 1.5 * one.losses);
  EXPECT_LE(many.norms, 1.5 * one.norms);
  EXPECT_LE(many.weights, 1.5 * one.weights);
}

constexpr Layout kF32Layouts[] = {{1, 1, 1},
                                  {1, 1, 4},
                                  {2, 1, 1},
                                  {1, 2, 1},
                                  {1, 3, 1},
                                  {1, 3, 4},
                                  {2, 2, 1},
                                  {2, 3, 2},
                                  {1, 4, 1},
                                  {.dp = 1, .fsdp = 1, .accumulation = 2, .cp = 3},
                                  {.dp = 1, .fsdp = 2, .accumulation = 1, .cp = 3},
                                  {.dp = 1, .fsdp = 1, .accumulation = 1, .cp = 3},
                                  {.dp = 2, .fsdp = 1, .accumulation = 1, .sp = 2},
                                  {.dp = 1, .fsdp = 1, .accumulation = 1, .cp = 3, .sp = 2}};
constexpr graph::DType kF32 = graph::DType::kF32, kBF16 = graph::DType::kBF16;
constexpr Layout kBf16Layouts[] = {
    {1, 1, 4, kBF16},
    {1, 2, 1, kBF16},
    {1, 3, 4, kBF16},
    {2, 2, 1, kBF16},
    {1, 2, 1, kF32, kBF16},
    {2, 2, 1, kF32, kBF16},
    {1, 3, 4, kBF16, kBF16},
    {2, 2, 1, kBF16, kBF16},
    {.dp = 1, .fsdp = 1, .accumulation = 1, .compute_dtype = graph::DType::kBF16, .cp = 3}};
constexpr Layout kF16Layouts[] = {
    {1, 3, 4, graph::DType::kF16},
    {2, 2, 1, graph::DType::kF16},
    {.dp = 1, .fsdp = 2, .accumulation = 1, .compute_dtype = graph::DType::kF16, .cp = 3}};

std::string NameOf(const testing::TestParamInfo<Layout>& info) { return Name(info.param); }

constexpr Layout kPipelines[] = {
    {1, 1, 4, kF32, kF32, 2},
    {1, 2, 6, kF32, kF32, 2},
    {1, 1, 6, kF32, kF32, 4, graph::PipelineSchedule::kZeroBubble},
    {1, 2, 2, kF32, kF32, 2, graph::PipelineSchedule::kInterleaved, 2},
    {.dp = 1, .fsdp = 2, .accumulation = 2, .pp = 2, .cp = 3, .reversed = true},
};

INSTANTIATE_TEST_SUITE_P(Pipelines, ExecutionTest, testing::ValuesIn(kPipelines), NameOf);
INSTANTIATE_TEST_SUITE_P(Pipelines, PlannedTest, testing::ValuesIn(kPipelines), NameOf);
INSTANTIATE_TEST_SUITE_P(F32, ExecutionTest, testing::ValuesIn(kF32Layouts), NameOf);
INSTANTIATE_TEST_SUITE_P(Bf16, PlannedTest, testing::ValuesIn(kBf16Layouts), NameOf);
INSTANTIATE_TEST_SUITE_P(F32, PlannedTest, testing::ValuesIn(kF32Layouts), NameOf);
INSTANTIATE_TEST_SUITE_P(F16, PlannedTest, testing::ValuesIn(kF16Layouts), NameOf);
INSTANTIATE_TEST_SUITE_P(F16, NarrowTest, testing::ValuesIn(kF16Layouts), NameOf);
INSTANTIATE_TEST_SUITE_P(Bf16, NarrowTest, testing::ValuesIn(kBf16Layouts), NameOf);

}  // namespace
}  // namespace tacc::worker
