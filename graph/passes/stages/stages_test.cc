#include "graph/passes/stages/stages.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/text.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/testing/test_model.h"
#include "graph/verify/verify.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

std::string Text(const std::vector<PassCall>& passes) {
  return absl::StrJoin(passes, " ", [](std::string* out, const PassCall& pass) {
    absl::StrAppend(out,
                    pass.kind == PassKind::kForward    ? "f"
                    : pass.kind == PassKind::kBackward ? "b"
                                                       : "w",
                    pass.micro_batch, pass.chunk > 0 ? absl::StrCat(".", pass.chunk) : "");
  });
}

TEST(PipelineCalls, OneForwardOneBackward) {
  const PipelineShape shape{PipelineSchedule::k1F1B, 3, 1, 4};
  EXPECT_EQ(Text(*PassesOf(shape, 0)), "f0 f1 f2 b0 f3 b1 b2 b3");
  EXPECT_EQ(Text(*PassesOf(shape, 1)), "f0 f1 b0 f2 b1 f3 b2 b3");
  EXPECT_EQ(Text(*PassesOf(shape, 2)), "f0 b0 f1 b1 f2 b2 f3 b3");
}

TEST(PipelineCalls, FewMicroBatches) { EXPECT_EQ(Text(*PassesOf({PipelineSchedule::k1F1B, 4, 1, 1}, 0)), "f0 b0"); }

TEST(PipelineCalls, Interleaved) {
  const PipelineShape shape{PipelineSchedule::kInterleaved, 2, 2, 2};
  EXPECT_EQ(Text(*PassesOf(shape, 0)), "f0 f1 f0.1 f1.1 b0.1 b1.1 b0 b1");
  EXPECT_EQ(Text(*PassesOf(shape, 1)), "f0 f1 f0.1 b0.1 f1.1 b1.1 b0 b1");
  EXPECT_EQ(PassesOf({PipelineSchedule::kInterleaved, 2, 2, 5}, 0).status().message(),
            "the interleaved schedule needs a number of micro-batches that 2 stages divide, got 5; use 4 or 6");
}

TEST(PipelineCalls, ZeroBubbleDelaysWeightsWhereTheStageWouldWait) {
  const PipelineShape shape{PipelineSchedule::kZeroBubble, 3, 1, 4};
  EXPECT_EQ(Text(*PassesOf(shape, 0)), "f0 f1 f2 b0 f3 b1 b2 b3");
  EXPECT_EQ(Text(*PassesOf(shape, 1)), "f0 f1 b0 f2 b1 w0 f3 b2 w1 b3 w2 w3");
  EXPECT_EQ(Text(*PassesOf(shape, 2)), "f0 b0 f1 b1 f2 b2 w0 f3 b3 w1 w2 w3");
}

CompileOptions Options(int64_t stages) {
  CompileOptions options;
  options.training.accumulation = 4;
  options.partition.mesh = {{{"pp", stages}, {"dp", 1}, {"fsdp", 1}}};
  options.schedule.units = {"layers.0", "layers.1"};
  options.stages.units = options.schedule.units;
  return options;
}

absl::StatusOr<Compiled> CompileStages(const CompileOptions& options) {
  ParseOptions parse;
  parse.symbols = {{"B", 2}, {"S", 6}};
  auto forward = ParseGraph(TestModelText(), parse);
  if (!forward.ok()) return forward.status();
  return Compile(*forward, OpTable(), options);
}

bool HasState(const Program& program, const std::string& name) { return program.FindState(name) != nullptr; }

TEST(Stages, CutsAtTheSplitPoints) {
  CompileOptions options = Options(2);
  options.stages.split_points = {"layers.1.mlp"};
  const auto compiled = CompileStages(options);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_TRUE(HasState(compiled->stages[0], "weights/layers.1.q.weight"));
  EXPECT_FALSE(HasState(compiled->stages[1], "weights/layers.1.q.weight"));
  EXPECT_TRUE(HasState(compiled->stages[1], "weights/layers.1.gate.weight"));
  EXPECT_TRUE(HasState(compiled->stages[1], "weights/head.weight"));
  EXPECT_FALSE(HasState(compiled->stages[0], "weights/head.weight"));
}

// As many copies of a stash as micro-batches are in flight: stage s of P holds P - s.
TEST(Stages, AStashHasTheCopiesThatItsCallsNeed) {
  CompileOptions options = Options(2);
  const auto compiled = CompileStages(options);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  for (int stage = 0; stage < 2; ++stage) {
    int64_t most = 0;
    for (const State& state : compiled->stages[stage].states) most = std::max(most, state.slots);
    EXPECT_EQ(most, 2) << stage;  // on the last stage: what comes a pass ahead
  }
}

TEST(Stages, SaysWhatCannotBeCut) {
  CompileOptions options = Options(2);
  options.stages.split_points = {"layer.1"};
  EXPECT_EQ(CompileStages(options).status().message(),
            "stages: dist.pp.split_points: the model has no module 'layer.1'; the nearest is 'layers.1'");
  options.stages.split_points = {"layers.0", "layers.1"};
  EXPECT_EQ(CompileStages(options).status().message(),
            "stages: dist.pp.split_points names 2 modules, but 2 parts (2 stages x 1 chunks) need 1");
  options = Options(3);
  options.stages.split_points = {"layers.1", "layers.0"};
  EXPECT_EQ(CompileStages(options).status().message(),
            "stages: dist.pp.split_points: 'layers.0' does not come after the split point before it; name them in the "
            "order in which the model runs");
  options.stages.split_points = {};
  EXPECT_EQ(CompileStages(options).status().message(),
            "stages: dist.pp.size = 3 needs 3 parts, but the model has 2 layers to cut between; use at most 2, or name "
            "dist.pp.split_points");
}

// What the verifier sees when one stage's program is changed.
std::string Broken(const std::function<void(std::vector<Program>&)>& change) {
  auto compiled = CompileStages(Options(2));
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  change(compiled->stages);
  for (Program& program : compiled->stages) program.level = Level::kScheduled;  // not the memory's checks
  return std::string(VerifyStages(compiled->stages, OpTable()).message());
}

TEST(VerifyStages, FindsACircle) {
  const std::string message = Broken([](std::vector<Program>& stages) {
    // The first stage waits until its second activation is wanted, the last until its first gradient is.
    stages[0].step = {{"begin", 0},
                      {"forward.0", 0},
                      {"forward.0", 1},
                      {"finish.forward.0", 0},
                      {"finish.forward.0", 1},
                      {"receive.backward.0", 0},
                      {"backward.0", 0},
                      {"update", 0}};
    stages[1].step = {{"begin", 0},
                      {"receive.forward.0", 0},
                      {"forward.0", 0},
                      {"backward.0", 0},
                      {"finish.backward.0", 0},
                      {"receive.forward.0", 1},
                      {"forward.0", 1},
                      {"update", 0}};
  });
  EXPECT_NE(message.find("the stages wait for each other: stage 0: graph finish.forward.0, micro-batch 1"),
            std::string::npos)
      << message;
}

TEST(VerifyStages, FindsAChannelWithTwoReceivers) {
  const std::string message = Broken([](std::vector<Program>& stages) {
    for (Graph& graph : stages[1].graphs) {
      for (Node& node : graph.nodes) {
        if (node.op == Op::kRecv) node.attrs["channel"] = int64_t{77};
      }
    }
  });
  EXPECT_NE(message.find("another line has channel=77"), std::string::npos) << message;
}

TEST(VerifyStages, FindsAStashThatHoldsAnotherMicroBatch) {
  const std::string message = Broken([](std::vector<Program>& stages) {
    for (State& state : stages[0].states) state.slots = 1;
  });
  EXPECT_NE(message.find("of the stash holds micro-batch 1"), std::string::npos) << message;
}

}  // namespace
}  // namespace tacc::graph
