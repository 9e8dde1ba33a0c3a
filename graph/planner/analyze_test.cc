#include "graph/planner/analyze.h"

#include <gtest/gtest.h>

#include <cmath>

#include "graph/ir/text.h"
#include "graph/passes/test_model.h"
#include "graph/planner/estimate.h"
#include "graph/planner/planner.h"

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
  const UnitWork& layer = Work().units[1];
  const double stream = 6 * 8 * 4;  // bytes of the residual stream, one row
  // Forward: the inputs of attention and of the MLP are gathered, their outputs summed and scattered.
  EXPECT_EQ(layer.forward.gathers, 2);
  EXPECT_EQ(layer.forward.scatters, 2);
  EXPECT_EQ(layer.forward.gather_bytes, 2 * stream);
  EXPECT_EQ(layer.forward.scatter_bytes, 2 * stream);
  EXPECT_EQ(layer.input_bytes, stream);
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

}  // namespace
}  // namespace tacc::graph
