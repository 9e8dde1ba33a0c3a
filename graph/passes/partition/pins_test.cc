#include "graph/passes/partition/pins.h"

#include "graph/ir/text.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/testing/test_model.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

const Mesh kMesh{{{"dp", 2}, {"fsdp", 2}, {"tp", 2}, {"tpq", 2}}};

Graph TestModel() {
  ParseOptions parse;
  parse.symbols = {{"B", 8}, {"S", 6}};
  auto graph = ParseGraph(TestModelText(), parse);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

std::string ErrorOf(const Pins& pins, const Mesh& mesh = kMesh) {
  PartitionOptions options = LayoutOf(mesh, "embed");
  return std::string(ApplyPins(pins, TestModel(), options).message());
}

TEST(Pins, PinWhatTheirPatternsMatch) {
  PartitionOptions options = LayoutOf(kMesh, "embed");
  const absl::Status status =
      ApplyPins({{"layers.*.down.weight", "[tp, -]"}, {"layers.1.attn", "[fsdp + dp, -, tp]"}, {"embed", "[dp,-,-]"}},
                TestModel(), options);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(options.pinned_weights.size(), 2u);
  EXPECT_EQ(options.pinned_weights.at("layers.0.down.weight"), (Sharding{{{2, 3}, {}}, {}}));
  EXPECT_EQ(options.pinned_weights.at("layers.1.down.weight"), (Sharding{{{2, 3}, {}}, {}}));
  ASSERT_EQ(options.pinned_results.size(), 2u);
  EXPECT_EQ(options.pinned_results.at("layers.1.attn"), (std::vector<AxisList>{{1, 0}, {}, {2, 3}}));
  // The residual stream begins there.
  EXPECT_EQ(options.residual->dims, (std::vector<AxisList>{{0}, {}, {}}));
}

// The name of a fused weight stands for its parts; axes of size 1 split nothing.
TEST(Pins, StandForPartsOfAWeight) {
  ParseOptions parse;
  auto graph = ParseGraph(R"(tacc.graph 1
%x = input "tokens" : f32[4,6]
%a = param "qkv.weight[0:8]" init=ones : f32[8,6]
%b = param "qkv.weight[8:16]" init=ones : f32[8,6]
%y = einsum %x, %a spec="bk,nk->bn" : f32[4,8] @qkv
%z = einsum %y, %b spec="bn,nk->bk" : f32[4,6]
output "loss" %z
)",
                          parse);
  ASSERT_TRUE(graph.ok()) << graph.status();
  PartitionOptions options = LayoutOf({{{"dp", 2}, {"tp", 1}}}, "");
  ASSERT_TRUE(ApplyPins({{"*.weight", "[tp,-]"}}, *graph, options).ok());
  ASSERT_EQ(options.pinned_weights.size(), 2u);
  EXPECT_EQ(options.pinned_weights.at("qkv.weight[8:16]"), Sharding::Replicated(2));
}

TEST(Pins, LieAsTheySay) {
  const OpTable ops;
  CompileOptions options;
  options.partition = LayoutOf(kMesh, "embed");
  const Graph forward = TestModel();
  ASSERT_TRUE(
      ApplyPins({{"layers.*.down.weight", "[tp, -]"}, {"layers.*.mlp", "[dp, -, tp]"}}, forward, options.partition)
          .ok());
  const auto compiled = Compile(forward, ops, options);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const Program& program = compiled->stages[0];
  EXPECT_EQ(program.FindState("exp_avg/layers.1.down.weight")->placement.sharding.dims[0], (AxisList{2, 3, 1}));
  // The sum after the MLP reads its result where the pin has put it, in the training graph and in the eval graph.
  for (const char* name : {"forward_backward", "eval"}) {
    const Graph& graph = *program.FindGraph(name);
    int num_pinned = 0;
    for (const Value& value : graph.values)
      num_pinned += value.placement->sharding == Sharding{{{0}, {}, {2, 3}}, {}} ? 1 : 0;
    EXPECT_GE(num_pinned, 2) << name;
  }
}

TEST(Pins, ThatCannotHoldSayWhy) {
  EXPECT_EQ(ErrorOf({{"head", "tp"}}),
            "dist.pins: \"head\": 'tp' is no sharding; give its dims in brackets, each - or axes joined by +, as "
            "[tp, -] or [dp+fsdp, -, tp]");
  EXPECT_EQ(ErrorOf({{"head", "[x]"}}),
            "dist.pins: \"head\": 'x' is no axis that splits tensors; there are dp, fsdp, ep, cp, tp, and - for none");
  EXPECT_EQ(ErrorOf({{"head", "[-, tp, tp]"}}), "dist.pins: \"head\": tp is given twice");
  EXPECT_EQ(ErrorOf({{"layers.*.down_weight", "[tp, -]"}}),
            "dist.pins: \"layers.*.down_weight\": no parameter and no module of the model has such a name; the nearest "
            "is \"layers.0.down.weight\"");
  EXPECT_EQ(ErrorOf({{"layers.0.q.weight", "[tp, -]"}}),
            "dist.pins: \"layers.0.q.weight\": it has 2 dims, but layers.0.q.weight has 3: 4 x 2 x 8 (heads, head_dim, "
            "embed)");
  EXPECT_EQ(ErrorOf({{"layers.0.mlp", "[dp, -]"}}),
            "dist.pins: \"layers.0.mlp\": it has 2 dims, but results of layers.0.mlp have 3");
  EXPECT_EQ(ErrorOf({{"head.weight", "[fsdp, -]"}}),
            "dist.pins: \"head.weight\": fsdp may not split head.weight in use: its workers have samples or tokens of "
            "their own and need all of it; tp may (at rest fsdp splits all parameters)");
  EXPECT_EQ(ErrorOf({{"head.weight", "[ep, -]"}}),
            "dist.pins: \"head.weight\": ep may not split head.weight in use: its workers have samples or tokens of "
            "their own and need all of it; tp may (and ep the experts)");
  EXPECT_EQ(ErrorOf({{"layers.0.mlp", "[tp, -, dp]"}}),
            "dist.pins: \"layers.0.mlp\": tp may not split dim 0 of a result of layers.0.mlp; dim 0 may be split over "
            "dp, fsdp and ep, the others over cp and tp");
  EXPECT_EQ(ErrorOf({{"layers.0.k.weight", "[tp, -, -]"}}),
            "dist.pins: \"layers.0.k.weight\": dim 0 of layers.0.k.weight, 2, cannot be split into 4; it can be split "
            "into 1, 2");
  EXPECT_EQ(ErrorOf({{"layers.0.mlp", "[-, tp, -]"}}),
            "dist.pins: \"layers.0.mlp\": dim 1 of a result of layers.0.mlp, 6, cannot be split into 4; it can be "
            "split into 1, 2, 3, 6");
  EXPECT_EQ(ErrorOf({{"layers.*.up.weight", "[tp, -]"}, {"layers.1.up.weight", "[-, tp]"}}),
            "dist.pins: \"layers.*.up.weight\" and \"layers.1.up.weight\" contradict each other: layers.1.up.weight is "
            "[tp+tpq,-] by the one and [-,tp+tpq] by the other; narrow one of them");
  // Alike they do not.
  EXPECT_EQ(ErrorOf({{"layers.*.up.weight", "[tp, -]"}, {"layers.1.up.weight", "[tp,-]"}}), "");
}

}  // namespace
}  // namespace tacc::graph
