// What is in natural order beside a ring's: what is taken in its order, and what is refused.
#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/analysis/cost.h"
#include "graph/passes/partition/order_sequence.h"
#include "gtest/gtest.h"
#include "tests/layouts/context_layouts.h"

namespace tacc::graph {
namespace {

// What whole numbers alone are computed of along the sequence stays in natural order until it meets the sequence:
// labels that a model shifts by itself, and positions that are the running sum of a mask.
TEST(Context, WhatModelsComputeOfWholeNumbersEqualsOneRank) {
  const OpTable ops;
  const std::string targets = "%targets = input \"targets\" : i32[B,S]\n";
  const std::string shifted = R"TEXT(%labels = input "targets" : i32[B,S]
%none = constant dtype=i32 shape=[B,1] value=-1.0 : i32[B,1]
%longer = concat %labels, %none dim=1 : i32[B,S+1]
%targets = slice %longer dim=1 limit=S+1 start=1 : i32[B,S]
)TEXT";
  const std::string tokens = "%tokens = input", mask = "%mask = input \"mask\" : i64[B,S]\n%tokens = input";
  const std::string counted = R"TEXT(%sums = cumsum %mask dim=1 : i64[B,S]
%places = cast %sums dtype=i32 : i32[B,S]
%ptable = param "positions.weight" init="normal(0.5)" : f32[17,8]
%e0 = embedding %table, %tokens : f32[B,S,8]
%pe = embedding %ptable, %places : f32[B,S,8]
%h0 = add %e0, %pe : f32[B,S,8] @embed
)TEXT";
  const std::string there = "%there = input \"there\" : f32[B,S]\n";
  const std::string of_mask = "%there = cast %mask dtype=f32 : f32[B,S]\n";
  const auto batch = [](int step) {
    Arrays batch = RandomRows(step, 0, kBatch, kSeq, kVocab);
    batch["mask"] = KeysOfTexts();
    return batch;
  };
  using Lines = std::vector<std::pair<std::string, std::string>>;
  for (const auto& [name, lines, attention] :
       {std::tuple("shifted labels", Lines{{targets, shifted}}, ""),
        std::tuple("counted positions", Lines{{tokens, mask}, {kEmbedding, counted}}, ""),
        std::tuple("both", Lines{{tokens, mask}, {kEmbedding, counted}, {targets, shifted}}, ""),
        std::tuple("the mask hides keys too", Lines{{tokens, mask}, {kEmbedding, counted}, {there, of_mask}},
                   "causal=true key_bias=true")}) {
    const Layout one{.attention = attention, .lines = lines};
    const auto alone = Train(one, ops, batch);
    ASSERT_TRUE(alone.ok()) << name << ": " << alone.status();
    for (const auto& [cp, sp, fsdp] :
         {std::tuple(2, 1, 1), std::tuple(4, 1, 1), std::tuple(2, 2, 1), std::tuple(2, 1, 2)}) {
      Layout layout = one;
      layout.cp = cp, layout.sp = sp, layout.fsdp = fsdp;
      SCOPED_TRACE(absl::StrCat(name, " ", Name(layout)));
      ExpectSame(Train(layout, ops, batch), alone, kTolerance);
      const auto compiled = CompileLayout(layout, ops);
      ASSERT_TRUE(compiled.ok()) << compiled.status();
      for (const Graph& graph : compiled->stages[0].graphs) {
        for (const Value& value : graph.values) {
          if (!value.placement.has_value() || value.placement->global.dims != Dims{kBatch, kSeq, 8}) continue;
          EXPECT_FALSE(value.placement->sharding.dims[1].empty()) << value.name << ": each rank has all tokens";
        }
      }
    }
  }
}

// A bias that is trained, of how far a key is from the query, as T5 has it; and the first token, of which a model makes
// something for all.
TEST(Context, BiasesOfDistancesAndTheFirstTokenEqualOneRank) {
  const OpTable ops;
  const std::string bias = R"TEXT(%to = iota dim=0 dtype=f32 shape=[S,S] : f32[S,S]
%from = iota dim=1 dtype=f32 shape=[S,S] : f32[S,S]
%distance = sub %to, %from : f32[S,S]
%near = clamp %distance max=2.0 min=-3.0 : f32[S,S]
%counted = add_scalar %near value=3.0 : f32[S,S]
%bucket = cast %counted dtype=i32 : i32[S,S]
%btable = param "bias.weight" init="normal(0.5)" : f32[6,4]
%of_pairs = embedding %btable, %bucket : f32[S,S,4]
%of_heads = transpose %of_pairs perm=[2,0,1] : f32[4,S,S]
%bias = reshape %of_heads shape=[1,4,S,S] : f32[1,4,S,S]
%nw0 = )TEXT";
  const std::string first = R"TEXT(%first = slice %h2 dim=1 limit=1 start=0 : f32[B,1,8] @pool
%pooled = reshape %first shape=[B,8] : f32[B,8] @pool
%spread = broadcast %pooled dims=[0,2] shape=[B,S,8] : f32[B,S,8] @pool
%with = add %h2, %spread : f32[B,S,8] @pool
%logits = einsum %with)TEXT";
  using Lines = std::vector<std::pair<std::string, std::string>>;
  const Lines of_bias = {{"%nw0 = ", bias},
                         {", %v0 causal=true ", ", %v0, %bias causal=true bias=true "},
                         {", %v1 causal=true ", ", %v1, %bias causal=true bias=true "}};
  for (const auto& [name, lines] :
       {std::pair("bias", of_bias), {"first token", Lines{{"%logits = einsum %h2", first}}}}) {
    const Layout one{.ordered = false, .lines = lines};
    const auto alone = Train(one, ops);
    ASSERT_TRUE(alone.ok()) << name << ": " << alone.status();
    for (const Layout& layout :
         {Layout{.cp = 2, .lines = lines}, Layout{.cp = 4, .lines = lines}, Layout{.sp = 2, .lines = lines},
          Layout{.tp = 2, .fsdp = 2, .lines = lines}, Layout{.cp = 2, .sp = 2, .tp = 2, .lines = lines},
          Layout{.dp = 4, .lines = lines}, Layout{.cp = 2, .fsdp = 2, .compute_dtype = DType::kBF16, .lines = lines}}) {
      SCOPED_TRACE(absl::StrCat(name, " ", Name(layout)));
      ExpectSame(Train(layout, ops), alone, kTolerance);
    }
  }
  // Attention goes on in shares of heads, and one token goes over the ring.
  const DeviceProfile device;
  const auto one = CompileLayout({.ordered = false, .lines = of_bias}, ops),
             two = CompileLayout({.cp = 2, .lines = of_bias}, ops);
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  EXPECT_LE(StepCostOf(two->stages[0], ops, device).matmul_flops,
            0.53 * StepCostOf(one->stages[0], ops, device).matmul_flops);
}

// A table of positions in natural order would be added to the wrong tokens.
TEST(Context, RefusesWhatKeepsItsOwnOrder) {
  const OpTable ops;
  Program program;
  auto graph = ParseGraph(R"(tacc.graph 1
%x = input "x" : f32[2,8]
%p = param "positions" : f32[8]
%y = add %x, %p : f32[2,8] @embed
)",
                          {});
  ASSERT_TRUE(graph.ok()) << graph.status();
  program.graphs = {*graph};
  EXPECT_TRUE(OrderSequence(program, ops, 1).ok());
  EXPECT_EQ(OrderSequence(program, ops, 2).status().message(),
            "add at embed: dim 0 of %p meets the sequence, but context parallelism holds the sequence in another order "
            "than it; make what depends on positions from the op `positions`");
}

// A running sum over tokens in the ring's order is another one.
TEST(Context, RefusesWhatWorksAlongTheSequence) {
  const OpTable ops;
  for (const auto& [node, message] : {std::pair{"cumsum %x dim=1 : f32[2,8]",
                                                "cumsum at mixer: dim 1 of %x is the sequence, which context "
                                                "parallelism holds in another order"},
                                      {"slice %x dim=1 start=1 limit=8 : f32[2,7]",
                                       "slice at mixer: dim 1 of %x is the sequence, which context "
                                       "parallelism holds in another order"},
                                      {"cumsum %x dim=0 : f32[2,8]", ""},
                                      {"reshape %x shape=[16] : f32[16]", ""}}) {
    const std::string text = absl::StrCat("tacc.graph 1\n%x = input \"x\" : f32[2,8]\n%y = ", node, " @mixer\n");
    auto graph = ParseGraph(text, {});
    ASSERT_TRUE(graph.ok()) << graph.status();
    Program program;
    program.graphs = {*graph};
    EXPECT_EQ(OrderSequence(program, ops, 2).status().message(), message) << node;
  }
}

// Random numbers of the sequence are those of the tokens' positions; others are taken by their positions.
TEST(Context, RandomNumbersOfTheSequenceFollowItsOrder) {
  const OpTable ops;
  const auto order = [&](const std::string& attr, Program& program) {
    auto graph = ParseGraph(absl::StrCat(R"(tacc.graph 1
%step = input "step" : i64[]
%sample = input "sample" : i64[2]
%x = input "x" : f32[2,8]
%r = random %step, %sample distribution=normal dtype=f32 key=0 seed=42 shape=[2,8])",
                                         attr, " : f32[2,8]\n%y = add %x, %r : f32[2,8] @noise\n"),
                            {});
    EXPECT_TRUE(graph.ok()) << graph.status();
    program.graphs = {*graph};
    return std::string(OrderSequence(program, ops, 2).status().message());
  };
  Program program;
  EXPECT_EQ(order(" sequence=true", program), "");
  EXPECT_EQ(GetAttr<int64_t>(program.graphs[0].nodes[3].attrs, "zigzag"), 2);
  EXPECT_EQ(order("", program), "");
  const Graph& graph = program.graphs[0];
  const Node& add = graph.nodes.back();
  EXPECT_EQ(add.op, "add");
  const auto ordered = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                    [&](const Node& node) { return node.results[0] == add.operands[1]; });
  ASSERT_NE(ordered, graph.nodes.end());
  EXPECT_EQ(ordered->op, "gather");
}

}  // namespace
}  // namespace tacc::graph
