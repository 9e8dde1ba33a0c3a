#include "graph/planner/compose.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "graph/ir/text.h"
#include "graph/passes/testing/test_model.h"
#include "graph/planner/compile_plan.h"
#include "graph/planner/simulate/cluster_times.h"
#include "graph/verify/verify.h"

namespace tacc::graph {
namespace {

ForwardModel Model(int num_layers, int64_t rows, int64_t vocabulary = 13) {
  ParseOptions options;
  options.symbols = {{"B", rows}, {"S", 6}};
  const std::string text =
      absl::StrReplaceAll(TestModelText(num_layers),
                          {{"[13,", absl::StrCat("[", vocabulary, ",")}, {",13]", absl::StrCat(",", vocabulary, "]")}});
  auto graph = ParseGraph(text, options);
  EXPECT_TRUE(graph.ok()) << graph.status();
  ForwardModel model;
  model.forward = *graph;
  model.residual_module = "embed";
  for (int i = 0; i < num_layers; ++i) model.units.push_back(absl::StrCat("layers.", i));
  return model;
}

TEST(Compose, KeptLayersAreTheSmallerModel) {
  const ForwardModel large = Model(5, 4);
  const auto kept = KeepLayers(large.forward, large.units, 2);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->nodes.size(), Model(2, 4).forward.nodes.size());
  Program program;
  program.graphs = {*kept};
  const OpTable ops;
  EXPECT_TRUE(Verify(program, ops).ok());
}

TEST(Compose, LayersThatDifferAreRefused) {
  ForwardModel model = Model(4, 4);
  model.forward.nodes.erase(model.forward.nodes.end() - 6);
  EXPECT_EQ(KeepLayers(model.forward, model.units, 2).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Compose, IsWithinOnePercentOfTheRealPlan) {
  const OpTable ops;
  struct Sizes {
    int64_t dp, fsdp, tp;
  };
  for (const auto& [dp, fsdp, tp] : {Sizes{4, 1, 1}, Sizes{1, 4, 1}, Sizes{2, 2, 1}, Sizes{1, 1, 2}, Sizes{1, 2, 2}}) {
    const int64_t micro_batch = 8;
    for (int64_t accumulation : {1, 4}) {
      for (DType dtype : {DType::kF32, DType::kBF16})
        for (int64_t recompute : {0, 16}) {
          PlanRequest request;
          request.world = dp * fsdp * tp;
          request.training.max_steps = 10;
          Plan plan;
          plan.mesh = {{{"dp", dp}, {"fsdp", fsdp}, {"tp", tp}}};
          plan.compute_dtype = dtype;
          plan.seq_len = 6;
          plan.micro_batch = micro_batch;
          plan.accumulation = accumulation;
          plan.recompute_units = recompute;
          const ForwardModel model = Model(16, micro_batch * dp * fsdp);
          const auto composed = ComposePlan(request, plan, model, ops);
          ASSERT_TRUE(composed.ok()) << composed.status();
          PipelineObserver observer;
          observer.verification = PipelineObserver::Verification::kInput;
          const auto real = CompilePlan(request, plan, model, ops, observer);
          ASSERT_TRUE(real.ok()) << real.status();
          const double bytes = static_cast<double>(real->memory[0].arena_bytes + real->memory[0].workspace_bytes);
          EXPECT_NEAR(static_cast<double>(composed->memory.arena_bytes + composed->memory.workspace_bytes), bytes,
                      0.01 * bytes)
              << "dp=" << dp << " fsdp=" << fsdp << " tp=" << tp << " micro-batch " << micro_batch << " x "
              << accumulation << " " << Name(dtype);
        }
    }
  }
}

// With two layers much of the embedding's traffic is exposed, with three less: what is left to hide does not go on
// growing with the layers.
TEST(Compose, FurtherLayersHideNoMoreThanThereIs) {
  const OpTable ops;
  PlanRequest request;
  request.world = 4;
  request.training.max_steps = 10;
  Plan plan;
  plan.mesh = {{{"dp", 1}, {"fsdp", 4}, {"tp", 1}}};
  plan.seq_len = 6;
  plan.micro_batch = 4;
  plan.kept_units = 16;
  const ForwardModel model = Model(16, 4 * plan.micro_batch, 128);
  for (double bytes_per_second : {1e6, 3e6, 1e7, 3e7, 1e8, 3e8, 1e9}) {
    Machine machine = *FindMachine("h100");
    machine.devices_per_node = 1;
    machine.inter_latency_seconds = machine.intra_latency_seconds = 0;
    machine.inter_bytes_per_second = bytes_per_second;
    request.cluster = *MakeCluster(machine, 4);
    const auto composed = ComposePlan(request, plan, model, ops), whole = MeasurePlan(request, plan, model, ops);
    ASSERT_TRUE(composed.ok() && whole.ok()) << composed.status() << whole.status();
    ASSERT_TRUE(composed->composed);
    EXPECT_GE(composed->step_seconds, composed->times.compute_seconds) << bytes_per_second;
    EXPECT_NEAR(composed->step_seconds, whole->step_seconds, 0.05 * whole->step_seconds) << bytes_per_second;
  }
}

TEST(Compose, ALongStepIsAShortOneWithMoreInTheMiddle) {
  const OpTable ops;
  for (PipelineSchedule schedule :
       {PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved, PipelineSchedule::kZeroBubble}) {
    PlanRequest request;
    request.cluster = *MakeCluster(*FindMachine("h100"), 4);
    request.world = 4;
    request.training.max_steps = 10;
    Plan plan;
    plan.mesh = {{{"pp", 2}, {"dp", 1}, {"fsdp", 2}}};
    plan.seq_len = 6;
    plan.micro_batch = 2;
    plan.accumulation = 24;
    plan.schedule = schedule;
    plan.num_chunks = schedule == PipelineSchedule::kInterleaved ? 2 : 1;
    const ForwardModel model = Model(4, 4);
    const auto measured = MeasurePlan(request, plan, model, ops);
    ASSERT_TRUE(measured.ok()) << measured.status();
    const auto real = CompilePlan(request, plan, model, ops, {});
    ASSERT_TRUE(real.ok()) << real.status();
    const std::vector<const Program*> stages = {&real->stages[0], &real->stages[1]};
    const auto simulation = Simulate(stages, TimesOn(request.cluster, stages, ops));
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    EXPECT_NEAR(measured->step_seconds, simulation->step_seconds, 0.01 * simulation->step_seconds) << Name(schedule);
    EXPECT_EQ(measured->memory.stash_bytes, Largest(real->memory).stash_bytes) << Name(schedule);
  }
}

}  // namespace
}  // namespace tacc::graph
