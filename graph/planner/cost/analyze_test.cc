#include "graph/planner/cost/analyze.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_replace.h"
#include "graph/ir/text.h"
#include "graph/passes/testing/test_model.h"
#include "graph/planner/compile_plan.h"
#include "graph/planner/cost/estimate.h"
#include "graph/planner/planner.h"
#include "graph/planner/simulate/cluster_times.h"

namespace tacc::graph {
namespace {

Graph TestModel(int64_t rows) {
  ParseOptions options;
  options.symbols = {{"B", rows}, {"S", 6}};
  auto graph = ParseGraph(TestModelText(), options);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *graph;
}

ModelWork Work() {
  const OpTable ops;
  auto work = AnalyzeModel(TestModel(1), {"layers.0", "layers.1"}, DType::kF32, ops);
  EXPECT_TRUE(work.ok()) << work.status();
  return *work;
}

TEST(Analyze, EqualLayersBecomeOneUnit) {
  const ModelWork work = Work();
  ASSERT_EQ(work.units.size(), 3u);
  EXPECT_FALSE(work.units[0].is_layer);
  EXPECT_EQ(work.units[1].count, 2);
  EXPECT_TRUE(work.units[1].is_layer);
  EXPECT_EQ(work.seq_len, 6);
  EXPECT_EQ(work.num_layers, 2);
  EXPECT_EQ(work.num_heads, 4);
  EXPECT_EQ(work.num_kv_heads, 2);
}

TEST(Analyze, CountsParametersBySplit) {
  const ModelWork work = Work();
  // Embedding and head, 13 x 8, are split over the vocabulary; of a layer all but the norm: q and o 8 x 8, k and v
  // 4 x 8, three of the MLP 7 x 8.
  EXPECT_EQ(work.units[0].parameters.tensor, 13 * 8);
  EXPECT_EQ(work.units[1].parameters.tensor, 2 * 64 + 2 * 32 + 3 * 56);
  EXPECT_EQ(work.units[1].parameters.whole, 8);
  EXPECT_EQ(work.units[2].parameters.tensor, 13 * 8);
}

TEST(Analyze, FindsWhatTensorParallelismSends) {
  const UnitWork layer = Work().units[1];
  const double stream = 6 * 8 * 4;  // bytes of the residual stream, one row
  // Forward: the inputs of attention and of the MLP are gathered, their outputs summed and scattered.
  for (const auto& transfers : {layer.forward.gathers, layer.forward.scatters}) {
    ASSERT_EQ(transfers.size(), 2u);
    for (const TransferWork& transfer : transfers) EXPECT_EQ(transfer.bytes, stream);
  }
  EXPECT_EQ(layer.input_bytes, stream);
}

// What recomputation makes again: all but the product behind the MLP, whose result only the residual stream takes.
TEST(Analyze, RepeatsWhatTheBackwardReads) {
  const UnitWork layer = Work().units[1];
  double left_out = 0, all = 0;
  for (const KernelWork& k : layer.forward.kernels) {
    all += k.flops;
    if (!k.is_repeated) left_out += k.flops;
  }
  EXPECT_EQ(left_out, 2.0 * 6 * 7 * 8);
  EXPECT_GT(all, 7 * left_out);
}

TEST(Analyze, HalvesWhatIsKeptOfANarrowResidual) {
  const OpTable ops;
  const auto unit = [&](DType residual) {
    const auto work = AnalyzeModel(TestModel(1), {"layers.0", "layers.1"}, DType::kBF16, ops, residual);
    EXPECT_TRUE(work.ok()) << work.status();
    return work->units[1];
  };
  const UnitWork wide = unit(DType::kF32), narrow = unit(DType::kBF16);
  const double stream = 6 * 8 * 4;
  EXPECT_EQ(wide.narrowed_bytes, 0);
  EXPECT_EQ(narrow.input_bytes, stream);  // what is sent
  EXPECT_EQ(narrow.narrowed_bytes, stream / 2);
  // Of each layer what its norm is taken of; its product's input is bf16 anyway.
  EXPECT_EQ(wide.saved_home_bytes - narrow.saved_home_bytes, stream / 2);
  Layout gc;
  gc.recompute = true;
  const auto activations = [&](DType residual) {
    const auto work = AnalyzeModel(TestModel(1), {"layers.0", "layers.1"}, DType::kBF16, ops, residual);
    return EstimateMemory(*work, gc, {}).activations;
  };
  EXPECT_GE(activations(DType::kF32) - activations(DType::kBF16), stream);  // of two layers
}

TEST(Analyze, FlopsAreThoseOfTheProgram) {
  const ModelWork work = Work();
  double flops = 0;
  for (const UnitWork& unit : work.units) {
    for (const PhaseWork* phase : {&unit.forward, &unit.backward}) {
      for (const KernelWork& k : phase->kernels) flops += static_cast<double>(unit.count) * k.flops;
    }
  }
  EXPECT_EQ(flops, work.model_flops);
}

// Of a layer in bf16: seven weights are cast, and of each a gradient is added to those before; so is the norm's, which
// no product makes.
TEST(Analyze, FindsPassesOverWeights) {
  const OpTable ops;
  const auto work = AnalyzeModel(TestModel(1), {"layers.0", "layers.1"}, DType::kBF16, ops);
  ASSERT_TRUE(work.ok()) << work.status();
  const UnitWork& layer = work->units[1];
  double cast = 0, of_products = 0, of_others = 0;
  for (const KernelWork& k : layer.forward.kernels) {
    if (k.purpose == KernelWork::Purpose::kCast) cast += k.weight_bytes;
  }
  for (const KernelWork& k : layer.backward.kernels) {
    if (k.purpose == KernelWork::Purpose::kAccumulation) (k.is_of_product ? of_products : of_others) += k.weight_bytes;
  }
  EXPECT_EQ(cast, (4 + 2) * layer.parameters.tensor);
  EXPECT_EQ(of_products, 12 * layer.parameters.tensor);
  EXPECT_EQ(of_others, 12 * layer.parameters.whole);
}

// A layer's input is gathered again for the backward, unless the forward has just run again.
TEST(Analyze, TellsWhatARepeatedForwardHasGathered) {
  const UnitWork layer = Work().units[1];
  const auto shared = std::count_if(layer.backward.gathers.begin(), layer.backward.gathers.end(),
                                    [](const TransferWork& t) { return t.is_shared; });
  EXPECT_EQ(shared, 2);
  // What the product behind the MLP made goes to the residual stream alone.
  EXPECT_TRUE(layer.forward.scatters[0].is_repeated);
  EXPECT_FALSE(layer.forward.scatters[1].is_repeated);
}

// With a large vocabulary.
Graph TestModel(int64_t rows, bool tied) {
  std::string text =
      absl::StrReplaceAll(TestModelText(), {{"f32[13,8]", "f32[500000,8]"}, {"f32[B,S,13]", "f32[B,S,500000]"}});
  if (tied) {
    const size_t head = text.find("%wh = param");
    text.erase(head, text.find('\n', head) + 1 - head);
    text = absl::StrReplaceAll(text, {{"%wh spec", "%table spec"}});
  }
  ParseOptions options;
  options.symbols = {{"B", rows}, {"S", 6}};
  auto graph = ParseGraph(text, options);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *graph;
}

// What a backward needs falls as its gradients come; at the most it is not all that is saved with all temporaries.
TEST(Analyze, InstantsOfABackwardNeedLessAsGradientsCome) {
  const ModelWork work = Work();
  for (const UnitWork& unit : work.units) {
    if (!unit.is_layer) continue;
    ASSERT_FALSE(unit.instants.empty());
    double bytes =
        unit.saved_home_bytes + unit.saved_tensor_bytes + unit.working_home_bytes + unit.working_tensor_bytes;
    double gradients = -1;
    for (const Instant& instant : unit.instants) {
      EXPECT_LE(instant.home_bytes + instant.tensor_bytes, bytes);
      EXPECT_GT(instant.gradients, gradients);
      bytes = instant.home_bytes + instant.tensor_bytes;
      gradients = instant.gradients;
    }
    EXPECT_NEAR(gradients, 1, 1e-9);
    EXPECT_GE(unit.instants[0].home_bytes + unit.instants[0].tensor_bytes,
              0.5 * (unit.saved_home_bytes + unit.saved_tensor_bytes));
  }
}

TEST(Analyze, FindsATiedEmbedding) {
  const OpTable ops;
  for (DType compute : {DType::kF32, DType::kBF16}) {
    const auto tied = AnalyzeModel(TestModel(1, true), {"layers.0", "layers.1"}, compute, ops);
    ASSERT_TRUE(tied.ok()) << tied.status();
    EXPECT_EQ(tied->tied.tensor, 500000 * 8);
    EXPECT_EQ(tied->units.back().parameters.total(), 0);
  }
  EXPECT_EQ(Work().tied.total(), 0);
}

// Each of two stages has a tied embedding: as many bytes as an untied model's, and the sum of the gradient over stages
// beside its seconds.
TEST(Analyze, ATiedEmbeddingOnTwoStagesIsThatOfThePrograms) {
  const OpTable ops;
  Machine machine = *FindMachine("h100");
  machine.devices_per_node = 2;
  PlanRequest request;
  request.world = 4;
  request.training.max_steps = 10;
  request.cluster = *MakeCluster(machine, 4);
  request.device = ProfileOf(machine);
  Layout layout;
  layout.sizes[Axis::kPp] = layout.sizes[Axis::kFsdp] = 2;
  layout.accumulation = 4;
  Plan plan;
  plan.mesh = layout.mesh();
  plan.compute_dtype = DType::kBF16;
  plan.seq_len = 6;
  plan.micro_batch = 1;
  plan.accumulation = layout.accumulation;
  const Execution execution = ExecutionOf(machine, plan.compute_dtype);
  double estimated[2], longest_sum[2] = {0, 0};
  for (int tied = 0; tied < 2; ++tied) {
    ForwardModel model;
    model.forward = TestModel(2, tied == 1);
    model.units = {"layers.0", "layers.1"};
    model.residual_module = "embed";
    const auto compiled = CompilePlan(request, plan, model, ops);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    std::vector<const Program*> stages;
    for (const Program& program : compiled->stages) stages.push_back(&program);
    const auto simulation = Simulate(stages, TimesOn(request.cluster, stages, ops));
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    for (const Span& span : simulation->timeline) {
      const Graph& graph = *stages[span.stage]->FindGraph(stages[span.stage]->step[span.call].graph);
      if (graph.nodes[span.first_node].op == Op::kStageSum)
        longest_sum[tied] = std::max(longest_sum[tied], span.end - span.begin);
    }
    const auto work = AnalyzeModel(TestModel(1, tied == 1), model.units, plan.compute_dtype, ops);
    ASSERT_TRUE(work.ok()) << work.status();
    estimated[tied] = EstimateStep(*work, request.cluster, layout, execution).seconds;
    const MemoryUse& real = Largest(compiled->memory);
    const MemoryEstimate memory = EstimateMemory(*work, layout, execution);
    const auto states = static_cast<double>(real.weights_bytes + real.gradients_bytes + real.optimizer_bytes);
    EXPECT_NEAR(memory.weights + memory.gradients + memory.optimizer, states, 0.01 * states) << tied;
  }
  EXPECT_GT(longest_sum[1], 5 * longest_sum[0]);  // those of scalars
  EXPECT_NEAR(estimated[1] - estimated[0], longest_sum[1], 0.01 * longest_sum[1]);
}

}  // namespace
}  // namespace tacc::graph
