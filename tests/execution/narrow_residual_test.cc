// What it costs to keep the residual stream in bf16 for the backward: nothing in the forward, and of the gradient no
// more than bf16 products cost it, in models of several families on the CPU's kernels.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "graph/import/families.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/pipeline.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/execution/training_run.h"

namespace tacc::worker {
namespace {

constexpr RandomTraining kTraining = {.global_batch = 8, .seq_len = 16, .vocabulary = 32, .num_steps = 1};
constexpr int kLayers = 4;
// AdamW whose epsilon is far above any gradient's size moves a weight by the gradient times their ratio, here 1.
constexpr double kEpsilon = 1e4;

struct Case {
  std::string name, family;
  bool recompute = false;
};

absl::StatusOr<graph::DecoderSpec> SpecOf(const std::string& family) {
  nlohmann::json config = {{"model_type", family},
                           {"vocab_size", kTraining.vocabulary},
                           {"hidden_size", 64},
                           {"num_hidden_layers", kLayers},
                           {"num_attention_heads", 4},
                           {"intermediate_size", 96},
                           {"max_position_embeddings", 32},
                           {"num_key_value_heads", 2}};
  if (family == "bloom") {
    config = {{"model_type", family},
              {"vocab_size", kTraining.vocabulary},
              {"hidden_size", 64},
              {"n_layer", kLayers},
              {"n_head", 4}};
  }
  TACC_ASSIGN_OR_RETURN(graph::ReadFamily read, graph::ReadModelConfig(config, kTraining.seq_len));
  return std::move(read.spec);
}

absl::StatusOr<TrainingRun> Train(const Case& job, graph::DType compute, graph::DType residual) {
  TACC_ASSIGN_OR_RETURN(const graph::DecoderSpec spec, SpecOf(job.family));
  const graph::OpTable ops;
  graph::DecoderBuildOptions build;
  build.batch = kTraining.global_batch;
  build.seq_len = kTraining.seq_len;
  TACC_ASSIGN_OR_RETURN(const graph::Graph forward, graph::BuildDecoder(spec, build, ops));
  graph::CompileOptions options;
  options.training.learning_rate = options.training.adam_epsilon = kEpsilon;
  options.training.lr_scheduler_type = "constant";
  options.training.max_grad_norm = 0;
  options.compute_dtype = compute;
  options.residual_dtype = residual;
  options.partition = graph::LayoutOf({{{"fsdp", 1}}}, spec.names.embedding);
  for (int64_t i = 0; i < spec.num_layers; ++i) options.partition.units.push_back(spec.LayerPath(i));
  options.schedule.units = options.partition.units;
  if (job.recompute) options.remat.units = options.partition.units;
  TACC_ASSIGN_OR_RETURN(const graph::Compiled compiled, graph::Compile(forward, ops, options));
  return RunTraining(kTraining, compiled.stages, ops, InProcessRanks::Memory::kPlanned);
}

// Of a run's gradient from that of another, over the other's norm.
double GradientError(const TrainingRun& run, const TrainingRun& from) {
  double squares = 0;
  for (const auto& [name, weight] : from.weights) {
    const std::vector<float>& other = run.weights.at(name);
    for (size_t i = 0; i < weight.size(); ++i) squares += std::pow(static_cast<double>(other.at(i)) - weight[i], 2);
  }
  return std::sqrt(squares) / from.norms[0];
}

class NarrowResidualTest : public testing::TestWithParam<Case> {};

TEST_P(NarrowResidualTest, KeepsTheLossAndNearlyTheGradient) {
  constexpr graph::DType kF32 = graph::DType::kF32, kBF16 = graph::DType::kBF16;
  const auto f32 = Train(GetParam(), kF32, kF32), wide = Train(GetParam(), kBF16, kF32),
             narrow = Train(GetParam(), kBF16, kBF16);
  ASSERT_TRUE(f32.ok()) << f32.status();
  ASSERT_TRUE(wide.ok()) << wide.status();
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  EXPECT_EQ(narrow->losses[0], wide->losses[0]);
  const double error = GradientError(*narrow, *wide), bf16 = GradientError(*wide, *f32);
  std::printf("gradient's error %.2e, that of bf16 products %.2e\n", error, bf16);
  EXPECT_GT(error, 1e-5) << "nothing was rounded";
  EXPECT_LE(error, bf16);
  EXPECT_LE(GradientError(*narrow, *f32), 1.5 * bf16);
}

INSTANTIATE_TEST_SUITE_P(Families, NarrowResidualTest,
                         testing::Values(Case{"llama", "llama"}, Case{"llama_recompute", "llama", true},
                                         Case{"bloom", "bloom"}, Case{"bloom_recompute", "bloom", true},
                                         Case{"olmo2", "olmo2"}, Case{"olmo2_recompute", "olmo2", true}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tacc::worker
