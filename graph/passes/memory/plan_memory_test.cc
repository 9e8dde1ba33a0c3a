#include "graph/passes/memory/plan_memory.h"

#include <random>

#include "graph/ir/text.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/testing/test_model.h"
#include "graph/targets/targets.h"
#include "graph/verify/verify.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

TEST(AssignOffsets, OverlappingLivesGetDisjointPlaces) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<BufferLife> buffers;
    int64_t most_alive = 0;
    for (int i = 0; i < 100; ++i) {
      const int first = static_cast<int>(random() % 50);
      buffers.push_back({static_cast<int64_t>(random() % 1000), first, first + static_cast<int>(random() % 10)});
    }
    const Assignment a = AssignOffsets(buffers);
    for (int t = 0; t < 60; ++t) {
      int64_t alive = 0;
      for (const BufferLife& b : buffers) alive += b.first <= t && t <= b.last ? b.bytes : 0;
      most_alive = std::max(most_alive, alive);
    }
    EXPECT_GE(a.bytes, most_alive);
    for (size_t i = 0; i < buffers.size(); ++i) {
      EXPECT_EQ(a.offsets[i] % kArenaAlignment, 0);
      EXPECT_LE(a.offsets[i] + buffers[i].bytes, a.bytes);
      for (size_t j = 0; j < i; ++j) {
        const bool same_time = buffers[i].first <= buffers[j].last && buffers[j].first <= buffers[i].last;
        const bool same_place =
            a.offsets[i] < a.offsets[j] + buffers[j].bytes && a.offsets[j] < a.offsets[i] + buffers[i].bytes;
        EXPECT_FALSE(same_time && same_place && buffers[i].bytes > 0 && buffers[j].bytes > 0);
      }
    }
  }
}

TEST(AssignOffsets, OneAfterTheOtherShareAPlace) {
  const Assignment a = AssignOffsets({{100, 0, 1}, {100, 2, 3}, {64, 1, 2}});
  EXPECT_EQ(a.bytes, 128 + 64);
}

// Compiles the test model; one mesh for all tests here.
Compiled CompileTestModel(int64_t dp, int64_t fsdp, int64_t accumulation) {
  const OpTable ops;
  ParseOptions parse;
  parse.symbols = {{"B", 2 * dp * fsdp}, {"S", 6}};
  auto forward = ParseGraph(TestModelText(), parse);
  EXPECT_TRUE(forward.ok()) << forward.status();
  CompileOptions options;
  options.training.accumulation = accumulation;
  options.partition.mesh = {{{"dp", dp}, {"fsdp", fsdp}}};
  options.partition.batch_axes = {0, 1};
  options.partition.at_rest_axes = {1};
  options.schedule.units = {"layers.0", "layers.1"};
  auto compiled = Compile(*forward, ops, options);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return *std::move(compiled);
}

TEST(PlanMemory, StoresAreFree) {
  const Compiled compiled = CompileTestModel(1, 1, 2);
  for (const char* name : {"forward_backward", "update"}) {
    const Graph* graph = compiled.stages[0].FindGraph(name);
    for (const Node& node : graph->nodes) {
      if (node.op != Op::kStore) continue;
      EXPECT_EQ(graph->values[node.operands[0]].offset, compiled.stages[0].FindState(node.symbol)->offset)
          << name << " " << node.symbol;
    }
  }
}

TEST(PlanMemory, GradientsAreReducedInPlace) {
  const Compiled compiled = CompileTestModel(2, 1, 1);
  const Graph* update = compiled.stages[0].FindGraph("update");
  int all_reduces = 0;
  for (const Node& node : update->nodes) {
    if (node.op != Op::kAllReduce || update->type(node.operands[0]).rank() == 0) continue;
    ++all_reduces;
    EXPECT_EQ(update->values[node.operands[0]].offset, update->values[node.results[0]].offset);
  }
  EXPECT_GT(all_reduces, 10);
}

TEST(PlanMemory, ShardsAddUp) {
  const MemoryUse one = CompileTestModel(1, 1, 1).memory[0], two = CompileTestModel(1, 2, 1).memory[0];
  EXPECT_EQ(two.weights_bytes * 2, one.weights_bytes);
  EXPECT_EQ(two.optimizer_bytes, 2 * two.weights_bytes);
  EXPECT_EQ(one.largest.size(), 3u);
  EXPECT_EQ(one.arena_bytes % kArenaAlignment, 0);
}

// What shares its place with a value that is stashed moves from copy to copy with it.
TEST(PlanMemory, PartsOfAStashLieInItsCopies) {
  const OpTable ops;
  auto program = ParseProgram(R"(tacc.program 1 scheduled
mesh dp=1
state "stash/y" : f32[8,8] of f32[8,8] shard=[-,-] kind=stash init=zeros slots=2
graph forward.0 {
  %x = constant dtype=f32 shape=[8,8] value=1.0 : f32[8,8] of f32[8,8] shard=[-,-]
  %y = neg %x : f32[8,8] of f32[8,8] shard=[-,-]
  %z = reshape %y shape=[64] : f32[64] of f32[64] shard=[-]
  store "stash/y" %y
}
graph backward.0 {
  %y = read "stash/y" : f32[8,8] of f32[8,8] shard=[-,-]
  %z = reshape %y shape=[64] : f32[64] of f32[64] shard=[-]
}
step {
  call forward.0 micro_batch=0
  call forward.0 micro_batch=1
  call backward.0 micro_batch=0
  call backward.0 micro_batch=1
}
)",
                              {});
  ASSERT_TRUE(program.ok()) << program.status();
  std::vector<MemoryUse> memory;
  ASSERT_TRUE(PlanMemory(*program, ops, CpuTarget().make({}), nullptr, &memory).ok());
  const Graph& forward = *program->FindGraph("forward.0");
  EXPECT_EQ(forward.values[2].offset, program->FindState("stash/y")->offset);
  EXPECT_TRUE(Verify(*program, ops).ok()) << Verify(*program, ops);
}

TEST(PlanMemory, PartsOfOneTensorFollowEachOther) {
  const OpTable ops;
  auto program = ParseProgram(R"(tacc.program 1 scheduled
mesh dp=1
state "weights/b" : f32[8,8] of f32[8,8] shard=[-,-] kind=weight init=zeros
state "weights/c" : f32[8,8] of f32[8,8] shard=[-,-] kind=weight init=zeros
state "weights/a" : f32[8,8] of f32[8,8] shard=[-,-] kind=weight init=zeros
graph forward {
  %x = constant dtype=f32 shape=[4,8] value=1.0 : f32[4,8] of f32[4,8] shard=[-,-]
  %h = constant dtype=bf16 shape=[4,8] value=1.0 : bf16[4,8] of bf16[4,8] shard=[-,-]
  %a = read "weights/a" : f32[8,8] of f32[8,8] shard=[-,-]
  %b = read "weights/b" : f32[8,8] of f32[8,8] shard=[-,-]
  %y = einsum_joined %x, %a, %b spec="mk,nk->mn" : f32[4,16] of f32[4,16] shard=[-,-]
  %d = cast %b dtype=bf16 : bf16[8,8] of bf16[8,8] shard=[-,-]
  %c = cast %a dtype=bf16 : bf16[8,8] of bf16[8,8] shard=[-,-]
  %z = einsum_joined %h, %c, %d spec="mk,nk->mn" : bf16[4,16] of bf16[4,16] shard=[-,-]
}
step {
  call forward micro_batch=0
}
)",
                              {});
  ASSERT_TRUE(program.ok()) << program.status();
  std::vector<MemoryUse> memory;
  ASSERT_TRUE(PlanMemory(*program, ops, CpuTarget().make({}), nullptr, &memory).ok());
  EXPECT_EQ(program->FindState("weights/b")->offset, program->FindState("weights/a")->offset + 256);
  const Graph& graph = program->graphs[0];
  for (const Node& node : graph.nodes) {
    if (node.op != "einsum_joined") continue;
    const Value &first = graph.values[node.operands[1]], &second = graph.values[node.operands[2]];
    EXPECT_EQ(second.offset, first.offset + first.type.bytes());
  }
  EXPECT_TRUE(Verify(*program, ops).ok()) << Verify(*program, ops);
}

}  // namespace
}  // namespace tacc::graph
