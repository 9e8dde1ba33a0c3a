// Graphs that people write and no family makes, on simulated ranks in double precision: weights made of weights, and
// products beside values that stay in f32. On every layout the training of one rank.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/text.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/pipeline.h"
#include "gtest/gtest.h"
#include "tests/layouts/training.h"

namespace tacc::graph {
namespace {

constexpr int64_t kRows = 8, kSeq = 6, kVocab = 13;
constexpr int kSteps = 3;

// `body` makes %y, f32[B,S,12], of the embedded tokens %x and of the params %c and %d, f32[12,12].
std::string ModelOf(const std::string& body) {
  return absl::StrCat(R"(tacc.graph 1
%tokens = input "tokens" : i32[B,S]
%targets = input "targets" : i32[B,S]
%table = param "embed.weight" axes=[vocab,embed] : f32[13,12] @embed
%x = embedding %table, %tokens : f32[B,S,12] @embed
%c = param "layers.0.c" axes=[mlp,embed] : f32[12,12] @layers.0
%d = param "layers.0.d" axes=[mlp,embed] : f32[12,12] @layers.0
)",
                      body, R"(%w = param "head.weight" axes=[vocab,embed] : f32[13,12] @head
%logits = einsum %y, %w spec="bsk,nk->bsn" : f32[B,S,13] @head
%loss, %count, %lse = cross_entropy %logits, %targets : f32[], f32[], f32[B,S] @head
output "loss" %loss
output "target_tokens" %count
)");
}

struct Case {
  const char* name;
  const char* body;
};
const Case kCases[] = {{"weight_times_itself", R"(%t = einsum %c, %c spec="nk,mk->nm" : f32[12,12] @layers.0
%a = einsum %x, %t spec="bsk,nk->bsn" : f32[B,S,12] @layers.0
%y = einsum %a, %d spec="bsk,nk->bsn" : f32[B,S,12] @layers.0
)"},
                       {"weights_added", R"(%t = add %c, %d : f32[12,12] @layers.0
%a = einsum %x, %t spec="bsk,nk->bsn" : f32[B,S,12] @layers.0
%y = einsum %a, %d spec="bsk,nk->bsn" : f32[B,S,12] @layers.0
)"},
                       {"gate_of_a_value_in_f32", R"(%a = einsum %x, %c spec="bsk,nk->bsn" : f32[B,S,12] @layers.0
%s = silu %a : f32[B,S,12] @layers.0
%m = mul %s, %x : f32[B,S,12] @layers.0
%y = einsum %m, %d spec="bsk,nk->bsn" : f32[B,S,12] @layers.0
)"},
                       {"gate_beside_a_value_in_f32", R"(%s = silu %x : f32[B,S,12] @layers.0
%a = einsum %x, %c spec="bsk,nk->bsn" : f32[B,S,12] @layers.0
%m = mul %a, %s : f32[B,S,12] @layers.0
%y = einsum %m, %d spec="bsk,nk->bsn" : f32[B,S,12] @layers.0
)"},
                       {"concat_of_two_types", R"(%a = einsum %x, %c spec="bsk,nk->bsn" : f32[B,S,12] @layers.0
%j = concat %a, %x dim=0 : f32[BB,S,12] @layers.0
%f = slice %j dim=0 start=0 limit=8 : f32[B,S,12] @layers.0
%n = neg %a : f32[B,S,12] @layers.0
%m = add %f, %n : f32[B,S,12] @layers.0
%q = add %m, %x : f32[B,S,12] @layers.0
%y = einsum %q, %d spec="bsk,nk->bsn" : f32[B,S,12] @layers.0
)"}};

struct Layout {
  int64_t dp = 1, fsdp = 1, tp = 1;
};

absl::StatusOr<Compiled> CompileFor(const Case& test, const Layout& layout, DType dtype, const OpTable& ops) {
  ParseOptions parse;
  parse.symbols = {{"B", kRows}, {"S", kSeq}, {"BB", 2 * kRows}};
  auto forward = ParseGraph(ModelOf(test.body), parse);
  if (!forward.ok()) return forward.status();
  CompileOptions options;
  options.training.learning_rate = 1e-2;
  options.training.lr_scheduler_type = "constant";
  options.compute_dtype = dtype;
  options.partition = LayoutOf({{{"dp", layout.dp}, {"fsdp", layout.fsdp}, {"tp", layout.tp}}}, "embed");
  options.partition.units = options.schedule.units = {"layers.0"};
  return Compile(*forward, ops, options);
}

TEST(OddGraphs, TrainOnEveryLayoutAsOnOneRank) {
  const OpTable ops;
  const auto train = [&](const Case& test, const Layout& layout, DType dtype) -> absl::StatusOr<TrainingRun> {
    const auto compiled = CompileFor(test, layout, dtype, ops);
    if (!compiled.ok()) return compiled.status();
    return TrainOnSimulatedRanks(compiled->stages[0], kSteps, 1,
                                 [](int step, int64_t) { return RandomRows(step, 0, kRows, kSeq, kVocab); });
  };
  for (const Case& test : kCases) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto one = train(test, {}, dtype);
      ASSERT_TRUE(one.ok()) << test.name << " " << Name(dtype) << ": " << one.status();
      for (const Layout& layout : {Layout{.dp = 2}, Layout{.fsdp = 2}, Layout{.tp = 2}, Layout{.tp = 4},
                                   Layout{.fsdp = 2, .tp = 2}, Layout{.dp = 2, .tp = 2}}) {
        SCOPED_TRACE(
            absl::StrCat(test.name, " ", Name(dtype), " dp", layout.dp, " fsdp", layout.fsdp, " tp", layout.tp));
        ExpectSame(train(test, layout, dtype), one);
      }
    }
  }
}

}  // namespace
}  // namespace tacc::graph
