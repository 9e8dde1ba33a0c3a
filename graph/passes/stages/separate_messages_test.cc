#include "graph/passes/stages/separate_messages.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/capture.h"
#include "graph/ir/text.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/testing/test_model.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using Texts = std::vector<std::string>;

// A graph of these lines.
Graph GraphOf(const std::string& lines) {
  const auto program = ParseProgram(absl::StrCat(R"(tacc.program 1 partitioned
mesh fsdp=2 pp=2
stage 0 of 2
state "weights/w" : f32[2,4] of f32[4,4] shard=[fsdp,-] kind=weight init=ones stored=[4,4]
state "stash/a" : f32[4,4] of f32[4,4] shard=[-,-] kind=stash init=zeros
state "stash/b" : f32[4,4] of f32[4,4] shard=[-,-] kind=stash init=zeros
graph g {
)",
                                                 lines, "}\n"),
                                    {});
  EXPECT_TRUE(program.ok()) << program.status();
  return program.ok() ? program->graphs[0] : Graph();
}

// Its nodes after the pass: op and name of the first result, or of the state.
Texts Separated(const std::string& lines) {
  const OpTable ops;
  Graph graph = GraphOf(lines);
  SeparateMessages(graph, ops);
  Texts texts;
  for (const Node& node : graph.nodes)
    texts.push_back(
        absl::StrCat(node.op.name(), " ", node.symbol.empty() ? graph.values[node.results[0]].name : node.symbol));
  return texts;
}

TEST(SeparateMessages, OnlyGathersOfTheFirstProductAreUnderWayWhereMessagesEnd) {
  EXPECT_EQ(Separated(R"(  %w = read "weights/w" : f32[2,4] of f32[4,4] shard=[fsdp,-]
  %g = all_gather %w async=true dim=0 over=[fsdp] : f32[4,4] of f32[4,4] shard=[-,-]
  %h = all_gather %w async=true dim=0 over=[fsdp] : f32[4,4] of f32[4,4] shard=[-,-]
  finish "stash/a" channel=0
  %a = read "stash/a" : f32[4,4] of f32[4,4] shard=[-,-]
  %n = neg %a : f32[4,4] of f32[4,4] shard=[-,-]
  %gw = wait %g : f32[4,4] of f32[4,4] shard=[-,-]
  %x = einsum %n, %gw spec="ij,jk->ik" : f32[4,4] of f32[4,4] shard=[-,-]
  %hw = wait %h : f32[4,4] of f32[4,4] shard=[-,-]
  %y = einsum %x, %hw spec="ij,jk->ik" : f32[4,4] of f32[4,4] shard=[-,-]
  finish "stash/b" channel=1
  %b = read "stash/b" : f32[4,4] of f32[4,4] shard=[-,-]
)"),
            (Texts{"read weights/w", "all_gather g", "finish stash/a", "finish stash/b", "read stash/a", "neg n",
                   "wait gw", "all_gather h", "einsum x", "wait hw", "einsum y", "read stash/b"}));
}

// The first reduction has the second product to hide behind, and is waited for. The second one has nothing.
TEST(SeparateMessages, NothingIsUnderWayAtASend) {
  EXPECT_EQ(Separated(R"(  %a = read "stash/a" : f32[4,4] of f32[4,4] shard=[-,-]
  %p = einsum %a, %a spec="ij,jk->ik" : f32[4,4] of f32[4,4] shard=[-,-]
  %r = reduce_scatter %p async=true dim=0 over=[fsdp] : f32[2,4] of f32[4,4] shard=[fsdp,-]
  %b = einsum %a, %a spec="ij,kj->ik" : f32[4,4] of f32[4,4] shard=[-,-]
  %s = reduce_scatter %b async=true dim=0 over=[fsdp] : f32[2,4] of f32[4,4] shard=[fsdp,-]
  store "stash/b" %b
  send "stash/b" channel=0 to=1
  %rw = wait %r : f32[2,4] of f32[4,4] shard=[fsdp,-]
  store "weights/w" %rw
  %sw = wait %s : f32[2,4] of f32[4,4] shard=[fsdp,-]
  %e = neg %sw : f32[2,4] of f32[4,4] shard=[fsdp,-]
)"),
            (Texts{"read stash/a", "einsum p", "reduce_scatter r", "einsum b", "store stash/b", "wait rw",
                   "send stash/b", "reduce_scatter s", "store weights/w", "wait sw", "neg e"}));
}

TEST(SeparateMessages, LeavesAGraphWithoutMessages) {
  EXPECT_EQ(Separated(R"(  %w = read "weights/w" : f32[2,4] of f32[4,4] shard=[fsdp,-]
  %g = all_gather %w async=true dim=0 over=[fsdp] : f32[4,4] of f32[4,4] shard=[-,-]
  %n = neg %w : f32[2,4] of f32[4,4] shard=[fsdp,-]
  %h = wait %g : f32[4,4] of f32[4,4] shard=[-,-]
  %x = einsum %h, %h spec="ij,jk->ik" : f32[4,4] of f32[4,4] shard=[-,-]
)"),
            (Texts{"read weights/w", "all_gather g", "neg n", "wait h", "einsum x"}));
}

struct Pipeline {
  std::string name;
  PipelineSchedule schedule;
  int64_t chunks, tp;
  bool recompute;
};
class CaptureOfAPipeline : public testing::TestWithParam<Pipeline> {};

Compiled CompilePipeline(const Pipeline& pipeline, const OpTable& ops) {
  constexpr int kLayers = 8;
  ParseOptions parse;
  parse.symbols = {{"B", 4}, {"S", 6}};
  const auto forward = ParseGraph(TestModelText(kLayers), parse);
  EXPECT_TRUE(forward.ok()) << forward.status();
  CompileOptions options;
  options.training.accumulation = 4;
  options.partition = LayoutOf({{{"pp", 2}, {"fsdp", 2}, {"tp", pipeline.tp}}}, "embed");
  for (int i = 0; i < kLayers; ++i) options.schedule.units.push_back(absl::StrCat("layers.", i));
  options.partition.units = options.stages.units = options.schedule.units;
  options.stages.schedule = pipeline.schedule;
  options.stages.num_chunks = static_cast<int>(pipeline.chunks);
  if (pipeline.recompute) options.remat.units = options.schedule.units;
  auto compiled = Compile(*forward, ops, options);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return compiled.ok() ? *std::move(compiled) : Compiled();
}

// Of the graphs of passes and evaluations all is captured but messages and what comes between the first gathers and the
// first product, where what has been sent arrives.
TEST_P(CaptureOfAPipeline, LeavesOutMessagesOnly) {
  const OpTable ops;
  const Compiled compiled = CompilePipeline(GetParam(), ops);
  ASSERT_EQ(compiled.stages.size(), 2u);
  for (const Program& program : compiled.stages) {
    for (const Graph& graph : program.graphs) {
      bool is_past_product = false;
      int num_others = 0;
      for (const GraphPart& part : CutForCapture(graph, program.mesh, TalkPlace::kDevice)) {
        for (int i = part.begin; i < part.end; ++i) {
          const Node& node = graph.nodes[i];
          is_past_product |= ops.Find(node.op)->is_matmul;
          if (part.not_captured.empty() || IsMessage(node.op)) continue;
          if (node.op == Op::kRead || node.op == Op::kStore) continue;  // run nothing
          EXPECT_FALSE(is_past_product) << "stage " << program.stage << ", " << graph.name << ": " << node.op.name()
                                        << " @" << node.module;
          ++num_others;
        }
      }
      EXPECT_LE(num_others, 8) << "stage " << program.stage << ", " << graph.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, CaptureOfAPipeline,
                         testing::Values(Pipeline{"OneForwardOneBackward", PipelineSchedule::k1F1B, 1, 1, false},
                                         Pipeline{"Recomputed", PipelineSchedule::k1F1B, 1, 1, true},
                                         Pipeline{"TensorParallel", PipelineSchedule::k1F1B, 1, 2, false},
                                         Pipeline{"Interleaved", PipelineSchedule::kInterleaved, 2, 1, false},
                                         Pipeline{"ZeroBubble", PipelineSchedule::kZeroBubble, 1, 1, false}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tacc::graph
