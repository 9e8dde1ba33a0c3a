// Residual adds, and casts of gradients, in the norms' kernels change no bit: whole trainings of programs with and
// without the pass fuse-norms.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "graph/import/families.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/pipeline.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/execution/training_run.h"

namespace tacc::worker {
namespace {

constexpr RandomTraining kTraining = {.global_batch = 4, .seq_len = 6, .vocabulary = 22, .num_steps = 3};
constexpr int kLayers = 2;

struct Case {
  std::string name, family;
  // Adds that norms take: of a step's forwards, and of its backwards.
  int forward = 0, backward = 0;
  int copies = 0;  // Casts that norms' gradients take.
  graph::Mesh mesh = {{{"fsdp", 2}}};
  graph::DType compute_dtype = graph::DType::kF32;
  int64_t accumulation = 1;
  bool recompute = false;
  int narrow = 0;  // Norms' gradients that read a narrower x: with a residual stream that is kept in bf16.
};

absl::StatusOr<graph::DecoderSpec> SpecOf(const std::string& family) {
  nlohmann::json config = {{"model_type", family},
                           {"vocab_size", kTraining.vocabulary},
                           {"hidden_size", 16},
                           {"num_hidden_layers", kLayers},
                           {"num_attention_heads", 4},
                           {"intermediate_size", 18},
                           {"max_position_embeddings", 32},
                           {"num_key_value_heads", 2}};
  if (family == "bloom") {
    config = {{"model_type", family},
              {"vocab_size", kTraining.vocabulary},
              {"hidden_size", 16},
              {"n_layer", kLayers},
              {"n_head", 4}};
  }
  if (family == "mixtral") config["num_local_experts"] = 4;
  TACC_ASSIGN_OR_RETURN(graph::ReadFamily read, graph::ReadModelConfig(config, kTraining.seq_len));
  return std::move(read.spec);
}

enum class Norms { kFused, kAlone };

absl::StatusOr<graph::Compiled> CompileCase(const Case& job, Norms norms, const graph::OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const graph::DecoderSpec spec, SpecOf(job.family));
  graph::DecoderBuildOptions build;
  build.batch = kTraining.global_batch / job.accumulation;
  build.seq_len = kTraining.seq_len;
  TACC_ASSIGN_OR_RETURN(const graph::Graph forward, graph::BuildDecoder(spec, build, ops));
  graph::CompileOptions options;
  options.training.learning_rate = 1e-2;
  options.training.lr_scheduler_type = "constant";
  options.training.accumulation = job.accumulation;
  options.compute_dtype = job.compute_dtype;
  options.partition = graph::LayoutOf(job.mesh, spec.names.embedding);
  for (int64_t i = 0; i < spec.num_layers; ++i) options.partition.units.push_back(spec.LayerPath(i));
  options.schedule.units = options.stages.units = options.partition.units;
  if (job.narrow > 0) options.residual_dtype = graph::DType::kBF16;
  if (job.recompute) options.remat.units = options.partition.units;
  graph::Compiled compiled;
  compiled.stages.resize(1);
  compiled.stages[0].graphs = {forward};
  std::vector<graph::Pass> passes = graph::BuildPipeline(options, &compiled.memory);
  if (norms == Norms::kAlone) {
    std::erase_if(passes, [](const graph::Pass& pass) { return pass.name == "fuse-norms"; });
  }
  TACC_RETURN_IF_ERROR(graph::RunPipeline(passes, ops, {}, compiled.stages));
  return compiled;
}

// Of the training step's graphs, nodes whose op begins so and ends so.
int CountNodes(const graph::Compiled& compiled, const char* begin, const char* end) {
  int count = 0;
  for (const graph::Program& stage : compiled.stages) {
    for (const graph::Graph& graph : stage.graphs) {
      if (absl::StartsWith(graph.name, "eval")) continue;
      count += static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const graph::Node& node) {
        return absl::StartsWith(node.op, begin) && absl::EndsWith(node.op, end);
      }));
    }
  }
  return count;
}

// Of the training step's graphs, norms' gradients with this attribute.
int CountGradients(const graph::Compiled& compiled, const char* attr) {
  int count = 0;
  for (const graph::Program& stage : compiled.stages) {
    for (const graph::Graph& graph : stage.graphs) {
      for (const graph::Node& node : graph.nodes)
        count += absl::StrContains(node.op, "norm_grad") && node.attrs.count(attr) > 0;
    }
  }
  return count;
}

class FusedNormsTest : public testing::TestWithParam<Case> {};

TEST_P(FusedNormsTest, KeepEachBit) {
  const graph::OpTable ops;
  const auto fused = CompileCase(GetParam(), Norms::kFused, ops), alone = CompileCase(GetParam(), Norms::kAlone, ops);
  ASSERT_TRUE(fused.ok()) << fused.status();
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(CountNodes(*fused, "add_", "norm"), GetParam().forward);
  EXPECT_EQ(CountNodes(*fused, "", "norm_grad_accumulate"), GetParam().backward);
  EXPECT_EQ(CountGradients(*fused, "copy"), GetParam().copies);
  EXPECT_EQ(CountGradients(*fused, "dx"), GetParam().narrow);
  EXPECT_EQ(CountNodes(*alone, "add_", "norm") + CountNodes(*alone, "", "norm_grad_accumulate") +
                CountGradients(*alone, "copy") + CountGradients(*alone, "dx"),
            0);
  constexpr InProcessRanks::Memory kMemory = InProcessRanks::Memory::kPlanned;
  const auto run = RunTraining(kTraining, fused->stages, ops, kMemory);
  const auto wanted = RunTraining(kTraining, alone->stages, ops, kMemory);
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  EXPECT_NE(wanted->losses.front(), wanted->losses.back());
  EXPECT_EQ(run->losses, wanted->losses);
  EXPECT_EQ(run->norms, wanted->norms);
  EXPECT_EQ(run->eval_loss, wanted->eval_loss);
  EXPECT_EQ(run->weights, wanted->weights);
}

// Each layer has two residual adds and two norms; the last add meets the final norm, and no add comes before the first
// norm. In the backward the final norm's gradient is the first to reach the residual stream; but for the first norm's
// each is cast for a product. A stage begins with a sum of the one before, and casts the gradient that it receives.
INSTANTIATE_TEST_SUITE_P(
    Jobs, FusedNormsTest,
    testing::Values(Case{.name = "llama", .family = "llama", .forward = 4, .backward = 4},
                    Case{.name = "llama_bf16_accumulation",
                         .family = "llama",
                         .forward = 4,
                         .backward = 4,
                         .copies = 4,
                         .compute_dtype = graph::DType::kBF16,
                         .accumulation = 2},
                    Case{.name = "llama_tp_bf16",
                         .family = "llama",
                         .forward = 4,
                         .backward = 4,
                         .copies = 4,
                         .mesh = {{{"fsdp", 2}, {"tp", 2}}},
                         .compute_dtype = graph::DType::kBF16},
                    Case{.name = "llama_recompute", .family = "llama", .forward = 6, .backward = 4, .recompute = true},
                    Case{.name = "llama_pp",
                         .family = "llama",
                         .forward = 3,
                         .backward = 4,
                         .copies = 3,
                         .mesh = {{{"pp", 2}, {"fsdp", 2}}},
                         .compute_dtype = graph::DType::kBF16,
                         .accumulation = 2},
                    Case{.name = "bloom_bf16",
                         .family = "bloom",
                         .forward = 4,
                         .backward = 4,
                         .copies = 4,
                         .compute_dtype = graph::DType::kBF16},
                    Case{.name = "llama_narrow_residual",
                         .family = "llama",
                         .forward = 4,
                         .backward = 4,
                         .copies = 4,
                         .compute_dtype = graph::DType::kBF16,
                         .narrow = 5},
                    // Within a layer the stream is made again, and read as it is.
                    Case{.name = "llama_narrow_residual_recompute",
                         .family = "llama",
                         .forward = 6,
                         .backward = 4,
                         .copies = 4,
                         .compute_dtype = graph::DType::kBF16,
                         .recompute = true,
                         .narrow = 3},
                    Case{.name = "llama_narrow_residual_pp",
                         .family = "llama",
                         .forward = 3,
                         .backward = 4,
                         .copies = 3,
                         .mesh = {{{"pp", 2}, {"fsdp", 2}}},
                         .compute_dtype = graph::DType::kBF16,
                         .accumulation = 2,
                         .narrow = 5},
                    // With a norm of the embedding.
                    Case{.name = "bloom_narrow_residual",
                         .family = "bloom",
                         .forward = 4,
                         .backward = 4,
                         .copies = 4,
                         .compute_dtype = graph::DType::kBF16,
                         .narrow = 6},
                    Case{.name = "olmo2", .family = "olmo2", .forward = 1, .backward = 0},
                    Case{.name = "mixtral", .family = "mixtral", .forward = 4, .backward = 4}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tacc::worker
