#include "graph/ir/text.h"

#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

constexpr char kProgram[] = R"TEXT(tacc.program 1 planned
mesh dp=1 fsdp=2
stage 0 of 1
arena bytes=4096 workspace=64
state "weights/fc.weight" : f32[128,64] of f32[256,64] shard=[fsdp,-] kind=weight init="normal(0.02)" stored=[256,64] at=0
state "counters/loss" : f32[] of f32[] shard=[] pending=[fsdp] kind=counter init=zeros at=256
graph forward_backward {
  %x.0 = input "tokens" : i32[2,8] of i32[4,8] shard=[dp+fsdp,-]
  %w.1 = read "weights/fc.weight" : f32[128,64] of f32[256,64] shard=[fsdp,-] at=0
  %g.2 = all_gather %w.1 dim=0 over=[fsdp] : f32[256,64] of f32[256,64] shard=[-,-] at=512 @layers.0.mlp recompute=3
  %a.3, %b.4 = rms_norm %g.2, %w.1 dtype=bf16 eps=1e-05 : bf16[256,64], f32[256]
  store "counters/loss" %b.4
}
step {
  call forward_backward micro_batch=0
}
)TEXT";

TEST(Text, PrintOfParseIsIdentity) {
  auto program = ParseProgram(kProgram, {});
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(Print(*program), kProgram);
  EXPECT_EQ(program->states[1].placement.sharding.pending, (AxisList{1}));
  EXPECT_EQ(program->graphs[0].nodes[2].recompute, 3);
}

TEST(Text, FloatsRoundTrip) {
  for (double x : {1.0, 0.1, 1e-5, 1e300, -2.5, 1.0 / 3.0}) {
    auto graph = ParseGraph("tacc.graph 1\n%x = constant value=" + Print(Attr(x)) + " : f32[]\n", {});
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(std::get<double>(graph->nodes[0].attrs.at("value")), x);
  }
}

TEST(Text, DimsMayBeNames) {
  ParseOptions options;
  options.symbols["B"] = 4;
  auto graph = ParseGraph("tacc.graph 1\n%x = input \"tokens\" : i32[B,64]\n", options);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->values[0].type.dims, (Dims{4, 64}));
}

struct BadCase {
  const char* text;
  const char* message;
};

TEST(Text, ErrorsNameThePlace) {
  const BadCase cases[] = {
      {"tacc.graph 1\n%x.9223372036854775807 = input \"a\" : f32[2]\n",
       "f:2:1: %x.9223372036854775807 ends with a number that is too large; at most 4611686018427387904\n"
       "%x.9223372036854775807 = input \"a\" : f32[2]\n^"},
      {"tacc.graph 2\n",
       "f:1:12: version 2 of the text form is not known; this program reads version 1\ntacc.graph 2\n           ^"},
      {"tacc.graph 1\n%y = silu %x : f32[2]\n",
       "f:2:11: %x is used before any line defines it\n%y = silu %x : f32[2]\n          ^"},
      {"tacc.graph 1\n%x = input \"a\" : f31[2]\n",
       "f:2:18: unknown dtype 'f31'; use bool, i32, i64, bf16, f16, f32 or f64\n%x = input \"a\" : f31[2]\n            "
       "     ^"},
      {"tacc.graph 1\n%x = input \"a : f32[2]\n",
       "f:2:12: this string has no closing quote\n%x = input \"a : f32[2]\n           ^"},
      {"tacc.graph 1\n%x = input \"a\" : f32[B]\n",
       "f:2:22: the dim 'B' has no value here; known names: none\n%x = input \"a\" : f32[B]\n                     ^"},
      {"tacc.graph 1\n%x = input \"a\" : f32[2]\n%x = input \"b\" : f32[2]\n",
       "f:3:1: %x is already defined\n%x = input \"b\" : f32[2]\n^"},
      {"tacc.graph 1\n%x = input \"a\"\n",
       "f:2:15: input defines 1 results but gives 0 types; write one type after ':' for each\n%x = input \"a\"\n       "
       "       ^"},
      {"tacc.graph 1\n%x = input \"a\" n=1e-080weight=2 : f32[2]\n",
       "f:2:24: a blank is missing behind the number 1e-080\n%x = input \"a\" n=1e-080weight=2 : f32[2]\n              "
       "         ^"},
      {"tacc.graph 1\n%x = input \"a\" : f32[2] @m recompute=9223372036854775807\n",
       "f:2:38: 9223372036854775807 is too large here\n%x = input \"a\" : f32[2] @m recompute=9223372036854775807\n    "
       "                                 ^"},
      {"tacc.graph 1\n“\n", "f:2:1: unexpected character '“'\n“\n^"},
      {"tacc.graph 1\n%x = input \"a\" n=99999999999999999999 : f32[2]\n",
       "f:2:18: '99999999999999999999' is not a number that fits\n%x = input \"a\" n=99999999999999999999 : f32[2]\n   "
       "              ^"},
      {"tacc.graph 1\n%x = input \"a\" : i32[4,8,]\n",
       "f:2:26: wanted a whole number\n%x = input \"a\" : i32[4,8,]\n                         ^"},
      {"tacc.graph 1\n%x = input \"a\" n=[1 2] : f32[2]\n",
       "f:2:21: wanted ',' or ']' in a list\n%x = input \"a\" n=[1 2] : f32[2]\n                    ^"},
      {"tacc.graph 1\n%x = input \"a\" n=[1,\"b\"] : f32[2]\n",
       "f:2:18: the items of a list must be of one kind\n%x = input \"a\" n=[1,\"b\"] : f32[2]\n                 ^"},
      {"hello\n", "f:1:1: the text must start with 'tacc.graph 1'"},
      {"\n  \x01 hello\n", "f:2:3: the text must start with 'tacc.graph 1'"},
      {"\x01tacc.graph 1\n", "f:1:1: the text must start with 'tacc.graph 1'"},  // No token at all.
  };
  for (const BadCase& c : cases) {
    ParseOptions options;
    options.file = "f";
    auto graph = ParseGraph(c.text, options);
    ASSERT_FALSE(graph.ok()) << c.text;
    EXPECT_EQ(std::string(graph.status().message()), c.message);
  }
}

TEST(Graph, NewNamesDoNotClashWithParsedOnes) {
  auto graph = ParseGraph("tacc.graph 1\n%silu.7 = input \"a\" : f32[2]\n", {});
  ASSERT_TRUE(graph.ok());
  for (int i = 0; i < 20; ++i) graph->AddValue("silu", {});
  for (size_t i = 0; i < graph->values.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(graph->values[i].name, graph->values[j].name);
  }
}

}  // namespace
}  // namespace tacc::graph
