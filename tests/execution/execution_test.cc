// Compiled programs on the executor with the CPU's kernels, ranks being threads of this process: a planned program in a
// poisoned arena against the same program with memory of its own for every value, and every layout against one rank.
#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/testing/test_model.h"
#include "graph/trace/testing/trace_slices.h"
#include "gtest/gtest.h"
#include "tests/execution/training_run.h"

namespace tacc::worker {
namespace {

constexpr int64_t kGlobalBatch = 12, kSeq = 6, kVocab = 13;
constexpr int64_t kSteps = 4;

struct Layout {
  int64_t dp = 1, fsdp = 1, accumulation = 1;
  graph::DType compute_dtype = graph::DType::kF32;
  graph::DType reduce_dtype = graph::DType::kF32;
  int64_t pp = 1;
  graph::PipelineSchedule schedule = graph::PipelineSchedule::k1F1B;
  int chunks = 1;
  int64_t cp = 1, sp = 1;  // ring and Ulysses
  bool reversed = false;   // the axes of the mesh: stages inside a node, tokens between nodes
  bool keeps_copies = false;
  graph::DType residual_dtype = graph::DType::kF32;

  bool splits_sequence() const { return cp * sp > 1; }
};

std::string Name(const Layout& l) {
  return absl::StrCat(l.pp > 1 ? absl::StrCat("pp", l.pp, "_", std::string(graph::Name(l.schedule)), "_") : "", "dp",
                      l.dp, "_fsdp", l.fsdp, "_accumulation", l.accumulation,
                      l.compute_dtype == graph::DType::kF32 ? "" : absl::StrCat("_", graph::Name(l.compute_dtype)),
                      l.reduce_dtype == graph::DType::kBF16 ? "_reduced_in_bf16" : "",
                      l.residual_dtype == graph::DType::kBF16 ? "_residual_in_bf16" : "",
                      l.splits_sequence() ? absl::StrCat("_cp", l.cp, "_sp", l.sp) : "", l.reversed ? "_reversed" : "");
}

// As many layers as there are stages to cut them into, and at least two.
int NumLayers(const Layout& layout) { return layout.pp * layout.chunks > 2 ? 4 : 2; }

absl::StatusOr<std::vector<graph::Program>> CompileLayout(const Layout& layout, const graph::OpTable& ops,
                                                          int layers = 2) {
  graph::ParseOptions parse;
  parse.symbols = {{"B", kGlobalBatch / layout.accumulation}, {"S", kSeq}};
  // Without norms before its MLPs the model's activations grow with its depth.
  const char* init = layers > 2 ? "normal(0.2)" : "normal(0.5)";
  TACC_ASSIGN_OR_RETURN(
      const graph::Graph forward,
      graph::ParseGraph(absl::StrReplaceAll(graph::TestModelText(layers), {{"normal(0.5)", init}}), parse));
  graph::CompileOptions options;
  options.training.accumulation = layout.accumulation;
  options.training.learning_rate = 1e-2;
  options.training.max_steps = 10;
  options.training.weight_decay = 0.1;
  options.training.max_grad_norm = 0.5;
  options.compute_dtype = layout.compute_dtype;
  // A scale at which no gradient of this model overflows: no step is to be skipped.
  if (layout.compute_dtype == graph::DType::kF16) options.training.loss_scale.emplace().init_scale = 8;
  options.training.keep_copies = layout.keeps_copies;
  options.partition.reduce_dtype = layout.reduce_dtype;
  options.residual_dtype = layout.residual_dtype;
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
  TACC_ASSIGN_OR_RETURN(graph::Compiled compiled, graph::Compile(forward, ops, options));
  return std::move(compiled.stages);
}

using Memory = InProcessRanks::Memory;

constexpr RandomTraining kTraining = {kGlobalBatch, kSeq, kVocab, kSteps};

void ExpectSameBits(const TrainingRun& run, const TrainingRun& wanted) {
  EXPECT_EQ(run.losses, wanted.losses);
  EXPECT_EQ(run.norms, wanted.norms);
  EXPECT_EQ(run.eval_loss, wanted.eval_loss);
  EXPECT_EQ(run.weights, wanted.weights);
}

class TracedTest : public testing::TestWithParam<Layout> {};
class PlannedTest : public testing::TestWithParam<Layout> {};
class ExecutionTest : public testing::TestWithParam<Layout> {};
class NarrowTest : public testing::TestWithParam<Layout> {};
class CopiesTest : public testing::TestWithParam<Layout> {};
class QueuedTest : public testing::TestWithParam<Layout> {};
class LibrarySumsTest : public testing::TestWithParam<Layout> {};

// How often the step of a program runs an op, by op and module. Kernels are nodes that neither name or hand on what is
// there already, nor talk to other ranks.
using Counts = std::map<std::pair<std::string, std::string>, int>;
enum class Kind { kKernels, kCollectives };
Counts CountNodes(const graph::Program& program, const graph::OpTable& ops, Kind kind) {
  const std::set<graph::Op::Kind> others = {graph::Op::kRead,   graph::Op::kStore, graph::Op::kInput,
                                            graph::Op::kOutput, graph::Op::kWait,  graph::Op::kFinish};
  Counts counts;
  for (const graph::Call& call : program.step) {
    for (const graph::Node& node : program.FindGraph(call.graph)->nodes) {
      const graph::OpDef& op = *ops.Find(node.op);
      if (op.aliases || others.contains(node.op.kind())) continue;
      if (op.is_collective == (kind == Kind::kCollectives)) ++counts[{std::string(node.op.name()), node.module}];
    }
  }
  return counts;
}

// What a trace shows of one rank.
struct RankSlices {
  Counts kernels, collectives;
  std::vector<std::string> copies;
  int64_t sent_bytes = 0;
  double computed = 0, last_end = 0;  // microseconds
};

// Takes a trace's slices apart by rank, and expects each on a thread of its kind.
std::vector<RankSlices> ByRank(const std::vector<graph::TraceSlice>& slices, int world) {
  std::vector<RankSlices> ranks(world);
  for (const graph::TraceSlice& slice : slices) {
    RankSlices& rank = ranks[slice.process];
    EXPECT_GE(slice.begin, 0);
    rank.last_end = std::max(rank.last_end, slice.end);
    const std::string module = slice.arguments.value("module", "");
    if (slice.category == "node") {
      EXPECT_EQ(slice.thread, "compute");
      rank.computed += slice.end - slice.begin;
      ++rank.kernels[{slice.name, module}];
    } else if (slice.category == "collective") {
      EXPECT_EQ(slice.thread.substr(0, 14), "communication ");
      rank.sent_bytes += slice.arguments.value("sent_bytes", int64_t{0});
      EXPECT_GE(slice.arguments["exposed_us"].get<double>(), 0);
      // A message says with which stage: "send to stage 1".
      ++rank.collectives[{slice.name.substr(0, slice.name.find(' ')), module}];
    } else if (slice.category == "copy") {
      EXPECT_EQ(slice.thread, "copy");
      EXPECT_GT(slice.arguments["bytes"], 0);
      rank.copies.push_back(slice.name);
    }
  }
  return ranks;
}

void ExpectAllThatRan(const RankSlices& rank, const graph::Program& program, const graph::OpTable& ops) {
  for (const auto& [kernel, count] : CountNodes(program, ops, Kind::kKernels)) {
    const auto shown = rank.kernels.find(kernel);
    EXPECT_EQ(shown == rank.kernels.end() ? 0 : shown->second, count) << kernel.first << " @" << kernel.second;
  }
  const Counts collectives = CountNodes(program, ops, Kind::kCollectives);
  EXPECT_FALSE(collectives.empty());
  for (const auto& [collective, count] : collectives) {
    const auto shown = rank.collectives.find(collective);
    EXPECT_EQ(shown == rank.collectives.end() ? 0 : shown->second, count)
        << collective.first << " @" << collective.second;
  }
  EXPECT_GT(rank.sent_bytes, 0);
  EXPECT_GT(rank.computed, 0);
  EXPECT_LE(rank.computed, rank.last_end);
}

// Timing a step does not change it; its trace has all that ran, on the right threads, nothing at the same time.
TEST_P(TracedTest, ShowsEveryKernelAndCollectiveOfTheStep) {
  const graph::OpTable ops;
  const auto stages = CompileLayout(GetParam(), ops, NumLayers(GetParam()));
  ASSERT_TRUE(stages.ok()) << stages.status();
  RandomTraining with_trace = kTraining;
  with_trace.traced_step = 2;
  for (const auto& [memory, where] :
       {std::pair(Memory::kPlanned, "on a CPU"), std::pair(Memory::kSimulatedDevice, "on a simulated device"),
        std::pair(Memory::kSimulatedGpu, "on simulated GPUs")}) {
    SCOPED_TRACE(where);
    const auto untraced = RunTraining(kTraining, *stages, ops, memory);
    const auto traced = RunTraining(with_trace, *stages, ops, memory);
    ASSERT_TRUE(untraced.ok()) << untraced.status();
    ASSERT_TRUE(traced.ok()) << traced.status();
    ExpectSameBits(*traced, *untraced);

    const std::vector<graph::TraceSlice> slices = graph::SlicesOf(traced->trace);
    EXPECT_EQ(graph::WhatOverlaps(slices), "");
    if (memory == Memory::kSimulatedGpu) {
      for (const graph::TraceSlice& slice : slices) EXPECT_NE(slice.thread, "communication all");
    }
    const std::vector<std::string> copies =
        memory == Memory::kPlanned ? std::vector<std::string>() : std::vector<std::string>({"upload", "download"});
    const int world = static_cast<int>(stages->front().mesh.num_ranks());
    const std::vector<RankSlices> ranks = ByRank(slices, world);
    for (int rank = 0; rank < world; ++rank) {
      SCOPED_TRACE(rank);
      ExpectAllThatRan(ranks[rank], ProgramOf(*stages, rank), ops);
      EXPECT_EQ(ranks[rank].copies, copies);
    }
  }
}

// The planner's offsets change where values lie and nothing else; what it planned is what is used.
TEST_P(PlannedTest, GivesTheSameBitsAsMemoryOfItsOwn) {
  const graph::OpTable ops;
  const auto stages = CompileLayout(GetParam(), ops, NumLayers(GetParam()));
  ASSERT_TRUE(stages.ok()) << stages.status();
  const auto planned = RunTraining(kTraining, *stages, ops, Memory::kPlanned);
  const auto own = RunTraining(kTraining, *stages, ops, Memory::kOwn);
  ASSERT_TRUE(planned.ok()) << planned.status();
  ASSERT_TRUE(own.ok()) << own.status();
  ExpectSameBits(*planned, *own);
  // On a device that is apart from the host and behind it.
  const auto apart = RunTraining(kTraining, *stages, ops, Memory::kSimulatedDevice);
  ASSERT_TRUE(apart.ok()) << apart.status();
  ExpectSameBits(*planned, *apart);
  for (int64_t count : apart->num_replays) EXPECT_GT(count, 0);
  for (size_t rank = 0; rank < planned->highest_touched.size(); ++rank) {
    const int64_t arena_bytes = ProgramOf(*stages, static_cast<int64_t>(rank)).arena_bytes;
    EXPECT_LE(planned->highest_touched[rank], arena_bytes);
    EXPECT_GT(planned->highest_touched[rank], arena_bytes - graph::kArenaAlignment);
  }
}

// Collectives and messages that are queued on the devices, and recorded with the rest but for messages, as on GPUs.
TEST_P(QueuedTest, GivesTheSameBitsAsCpus) {
  const graph::OpTable ops;
  const auto stages = CompileLayout(GetParam(), ops, NumLayers(GetParam()));
  ASSERT_TRUE(stages.ok()) << stages.status();
  const auto cpus = RunTraining(kTraining, *stages, ops, Memory::kPlanned);
  const auto gpus = RunTraining(kTraining, *stages, ops, Memory::kSimulatedGpuInOrder);
  ASSERT_TRUE(cpus.ok()) << cpus.status();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ExpectSameBits(*gpus, *cpus);
  ASSERT_FALSE(gpus->num_replays.empty());
  for (int64_t count : gpus->num_replays) EXPECT_GT(count, 0);
}

// With the sums of the GPU's library, whose order is its own.
TEST_P(LibrarySumsTest, GiveWhatCpusGiveUpToTheirOrder) {
  const graph::OpTable ops;
  const auto stages = CompileLayout(GetParam(), ops, NumLayers(GetParam()));
  ASSERT_TRUE(stages.ok()) << stages.status();
  const auto cpus = RunTraining(kTraining, *stages, ops, Memory::kPlanned);
  const auto gpus = RunTraining(kTraining, *stages, ops, Memory::kSimulatedGpu);
  ASSERT_TRUE(cpus.ok()) << cpus.status();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ExpectNear(*gpus, *cpus, {.losses = 1e-6, .norms = 1e-5, .weights = 2e-5});
  for (int64_t count : gpus->num_replays) EXPECT_GT(count, 0);
}

TEST_P(ExecutionTest, EqualsOneRank) {
  const int layers = NumLayers(GetParam());
  const graph::OpTable ops;
  const auto whole = CompileLayout({}, ops, layers), split = CompileLayout(GetParam(), ops, layers);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_TRUE(split.ok()) << split.status();
  const auto one = RunTraining(kTraining, *whole, ops, Memory::kPlanned),
             many = RunTraining(kTraining, *split, ops, Memory::kPlanned);
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_LT(one->losses.back(), one->losses.front());
  // Only the order of sums differs.
  ExpectNear(*many, *one, {.losses = 1e-6, .norms = 1e-5, .weights = 2e-5});
}

constexpr uint64_t kSeeds = 8;

absl::StatusOr<std::vector<TrainingRun>> RunSeeds(const Layout& layout, const graph::OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const std::vector<graph::Program> program, CompileLayout(layout, ops));
  std::vector<TrainingRun> runs;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    TACC_ASSIGN_OR_RETURN(TrainingRun run, RunTraining(kTraining, program, ops, Memory::kPlanned, seed));
    runs.push_back(std::move(run));
  }
  return runs;
}

// Weights that the update casts are those that would be cast where they are used.
TEST_P(CopiesTest, KeepEachBit) {
  const graph::OpTable ops;
  Layout with_copies = GetParam();
  with_copies.keeps_copies = true;
  const auto cast = CompileLayout(GetParam(), ops), kept = CompileLayout(with_copies, ops);
  ASSERT_TRUE(cast.ok()) << cast.status();
  ASSERT_TRUE(kept.ok()) << kept.status();
  const auto num_copies = [](const std::vector<graph::Program>& stages) {
    int64_t count = 0;
    for (const graph::Program& stage : stages) {
      count += std::count_if(stage.states.begin(), stage.states.end(),
                             [](const graph::State& state) { return state.kind == graph::StateKind::kCopy; });
    }
    return count;
  };
  EXPECT_EQ(num_copies(*cast), 0);
  EXPECT_EQ(num_copies(*kept), 2 * 7 + 1);  // of two layers' products and the head
  for (Memory memory : {Memory::kPlanned, Memory::kSimulatedGpu}) {
    const auto run = RunTraining(kTraining, *kept, ops, memory), wanted = RunTraining(kTraining, *cast, ops, memory);
    ASSERT_TRUE(run.ok()) << run.status();
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    EXPECT_NE(wanted->losses.front(), wanted->losses.back());
    ExpectSameBits(*run, *wanted);
  }
}

// Each layout rounds other things: its own part of a weight's gradient, of a row's statistics. So does where f32
// gradients are rounded to be reduced, and what is kept of the residual stream. None of it may cost more than what bf16
// or f16 costs one rank by itself: measured here.
TEST_P(NarrowTest, IsAsNearToF32AsOneRank) {
  const graph::OpTable ops;
  const graph::DType narrow = GetParam().compute_dtype == graph::DType::kF16 ? graph::DType::kF16 : graph::DType::kBF16;
  const auto f32 = RunSeeds({}, ops), one_rank = RunSeeds({.compute_dtype = narrow}, ops);
  const auto ranks = RunSeeds(GetParam(), ops);
  ASSERT_TRUE(f32.ok()) << f32.status();
  ASSERT_TRUE(one_rank.ok()) << one_rank.status();
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const RunTolerance one = Deviation(*one_rank, *f32), many = Deviation(*ranks, *f32);
  std::printf("losses %.2e (one rank %.2e), norms %.2e (%.2e), weights %.2e (%.2e)\n", many.losses, one.losses,
              many.norms, one.norms, many.weights, one.weights);
  EXPECT_GT(one.losses, 1e-6) << "one rank rounds nothing";
  EXPECT_GT(many.losses, 1e-6) << "nothing was rounded";
  EXPECT_LE(many.losses, 1.5 * one.losses);
  EXPECT_LE(many.norms, 1.5 * one.norms);
  EXPECT_LE(many.weights, 1.5 * one.weights);
}

using graph::PipelineSchedule;
constexpr graph::DType kBF16 = graph::DType::kBF16, kF16 = graph::DType::kF16;

constexpr Layout kF32Layouts[] = {
    {},
    {.accumulation = 4},
    {.dp = 2},
    {.fsdp = 2},
    {.fsdp = 3},
    {.fsdp = 3, .accumulation = 4},
    {.dp = 2, .fsdp = 2},
    {.dp = 2, .fsdp = 3, .accumulation = 2},
    {.fsdp = 4},
    {.accumulation = 2, .cp = 3},
    {.fsdp = 2, .cp = 3},
    {.cp = 3},
    {.dp = 2, .sp = 2},
    {.cp = 3, .sp = 2},
};
constexpr Layout kPipelines[] = {
    {.accumulation = 4, .pp = 2},
    {.fsdp = 2, .accumulation = 6, .pp = 2},
    {.accumulation = 6, .pp = 4, .schedule = PipelineSchedule::kZeroBubble},
    {.fsdp = 2, .accumulation = 2, .pp = 2, .schedule = PipelineSchedule::kInterleaved, .chunks = 2},
    {.fsdp = 2, .accumulation = 2, .pp = 2, .cp = 3, .reversed = true},
};
constexpr Layout kBf16Layouts[] = {
    {.accumulation = 4, .compute_dtype = kBF16},
    {.fsdp = 2, .compute_dtype = kBF16},
    {.fsdp = 3, .accumulation = 4, .compute_dtype = kBF16},
    {.dp = 2, .fsdp = 2, .compute_dtype = kBF16},
    {.fsdp = 2, .reduce_dtype = kBF16},
    {.dp = 2, .fsdp = 2, .reduce_dtype = kBF16},
    {.fsdp = 3, .accumulation = 4, .compute_dtype = kBF16, .reduce_dtype = kBF16},
    {.dp = 2, .fsdp = 2, .compute_dtype = kBF16, .reduce_dtype = kBF16},
    {.compute_dtype = kBF16, .cp = 3},
};
constexpr Layout kF16Layouts[] = {
    {.fsdp = 3, .accumulation = 4, .compute_dtype = kF16},
    {.dp = 2, .fsdp = 2, .compute_dtype = kF16},
    {.fsdp = 2, .compute_dtype = kF16, .cp = 3},
};
constexpr Layout kNarrowResidual[] = {
    {.compute_dtype = kBF16, .residual_dtype = kBF16},
    {.dp = 2, .fsdp = 2, .compute_dtype = kBF16, .residual_dtype = kBF16},
    {.fsdp = 3, .accumulation = 4, .compute_dtype = kBF16, .residual_dtype = kBF16},
    {.compute_dtype = kBF16, .cp = 3, .residual_dtype = kBF16},
    {.fsdp = 2, .accumulation = 2, .compute_dtype = kBF16, .pp = 2, .residual_dtype = kBF16},
};
constexpr Layout kQueued[] = {
    {},
    {.fsdp = 3, .accumulation = 4},
    {.dp = 2, .fsdp = 3, .accumulation = 2},
    {.dp = 2, .fsdp = 2, .compute_dtype = kBF16, .reduce_dtype = kBF16},
    {.fsdp = 2, .cp = 3},
    {.cp = 3, .sp = 2},
};
constexpr Layout kF32Queued[] = {
    {.fsdp = 3, .accumulation = 4},
    {.dp = 2, .fsdp = 3, .accumulation = 2},
    {.cp = 3, .sp = 2},
};
constexpr Layout kCopied[] = {
    {.accumulation = 2, .compute_dtype = kBF16},
    {.dp = 2, .fsdp = 2, .compute_dtype = kBF16},
    {.fsdp = 3, .accumulation = 4, .compute_dtype = kF16},
    {.fsdp = 2, .accumulation = 2, .compute_dtype = kBF16, .pp = 2},
    {.fsdp = 2, .compute_dtype = kBF16, .cp = 3},
};
// Two ranks that gather and reduce; several micro-batches; messages; a ring.
constexpr Layout kTraced[] = {
    {.fsdp = 2},
    {.fsdp = 3, .accumulation = 4},
    {.accumulation = 6, .pp = 4, .schedule = PipelineSchedule::kZeroBubble},
    {.fsdp = 2, .accumulation = 2, .pp = 2, .cp = 3, .reversed = true},
};

std::string NameOf(const testing::TestParamInfo<Layout>& info) { return Name(info.param); }

INSTANTIATE_TEST_SUITE_P(Layouts, TracedTest, testing::ValuesIn(kTraced), NameOf);
INSTANTIATE_TEST_SUITE_P(F32, PlannedTest, testing::ValuesIn(kF32Layouts), NameOf);
INSTANTIATE_TEST_SUITE_P(Pipelines, PlannedTest, testing::ValuesIn(kPipelines), NameOf);
INSTANTIATE_TEST_SUITE_P(Bf16, PlannedTest, testing::ValuesIn(kBf16Layouts), NameOf);
INSTANTIATE_TEST_SUITE_P(F16, PlannedTest, testing::ValuesIn(kF16Layouts), NameOf);
INSTANTIATE_TEST_SUITE_P(NarrowResidual, PlannedTest, testing::ValuesIn(kNarrowResidual), NameOf);
INSTANTIATE_TEST_SUITE_P(Some, QueuedTest, testing::ValuesIn(kQueued), NameOf);
INSTANTIATE_TEST_SUITE_P(Pipelines, QueuedTest, testing::ValuesIn(kPipelines), NameOf);
INSTANTIATE_TEST_SUITE_P(NarrowResidual, QueuedTest, testing::ValuesIn(kNarrowResidual), NameOf);
INSTANTIATE_TEST_SUITE_P(Some, LibrarySumsTest, testing::ValuesIn(kF32Queued), NameOf);
INSTANTIATE_TEST_SUITE_P(Pipelines, LibrarySumsTest, testing::ValuesIn(kPipelines), NameOf);
INSTANTIATE_TEST_SUITE_P(F32, ExecutionTest, testing::ValuesIn(kF32Layouts), NameOf);
INSTANTIATE_TEST_SUITE_P(Pipelines, ExecutionTest, testing::ValuesIn(kPipelines), NameOf);
INSTANTIATE_TEST_SUITE_P(Some, CopiesTest, testing::ValuesIn(kCopied), NameOf);
INSTANTIATE_TEST_SUITE_P(Bf16, NarrowTest, testing::ValuesIn(kBf16Layouts), NameOf);
INSTANTIATE_TEST_SUITE_P(F16, NarrowTest, testing::ValuesIn(kF16Layouts), NameOf);
INSTANTIATE_TEST_SUITE_P(NarrowResidual, NarrowTest, testing::ValuesIn(kNarrowResidual), NameOf);

}  // namespace
}  // namespace tacc::worker
