// Products that are one train as several do: whole trainings of programs with and without the pass join-products, over
// layouts; and where their weights lie.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "graph/analysis/cost.h"
#include "graph/import/families.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/rewrite/join_products.h"
#include "graph/verify/verify.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/execution/training_run.h"

namespace tacc::worker {
namespace {

constexpr RandomTraining kTraining = {.global_batch = 4, .seq_len = 8, .vocabulary = 22, .num_steps = 3};
constexpr int kLayers = 2;

struct Case {
  std::string name;
  graph::Mesh mesh;
  // Products that are joined: those of a step's graphs that stand in the program. Of a layer gate and up are one, and
  // q, k and v, and so are the gradients of what they read.
  int joined = 4 * kLayers;
  graph::DType compute_dtype = graph::DType::kF32;
  int64_t accumulation = 1;
  bool recompute = false;
  int zero_stage = 3;
  std::string family = "llama";
  int64_t width = 32;  // of the MLP
  int64_t kv_heads = 2;
  double seconds_of_joined = 1;  // others take one
};

absl::StatusOr<graph::DecoderSpec> SpecOf(const Case& job) {
  nlohmann::json config = {{"model_type", job.family},
                           {"vocab_size", kTraining.vocabulary},
                           {"hidden_size", 16},
                           {"num_hidden_layers", kLayers},
                           {"num_attention_heads", 4},
                           {"intermediate_size", job.width},
                           {"max_position_embeddings", 32},
                           {"num_key_value_heads", job.kv_heads},
                           {"head_dim", 4}};
  if (job.family == "bloom") {
    config = {{"model_type", "bloom"},
              {"vocab_size", kTraining.vocabulary},
              {"hidden_size", 16},
              {"n_layer", kLayers},
              {"n_head", 4}};
  }
  TACC_ASSIGN_OR_RETURN(graph::ReadFamily read, graph::ReadModelConfig(config, kTraining.seq_len));
  return std::move(read.spec);
}

bool IsJoined(const graph::Node& node) { return node.op == "einsum_joined"; }

enum class Products { kJoined, kApart };

absl::StatusOr<graph::Compiled> CompileCase(const Case& job, Products products, const graph::OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const graph::DecoderSpec spec, SpecOf(job));
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
  options.partition.zero_stage = job.zero_stage;
  options.sequence_blocks = graph::SequenceBlocks(job.mesh);
  for (int64_t i = 0; i < spec.num_layers; ++i) options.partition.units.push_back(spec.LayerPath(i));
  options.schedule.units = options.stages.units = options.partition.units;
  if (job.recompute) options.remat.units = options.partition.units;
  if (products == Products::kJoined) {
    options.product_seconds = [seconds = job.seconds_of_joined](const graph::Node& node, const graph::OpCall&) {
      return IsJoined(node) ? seconds : 1.0;
    };
  }
  return graph::Compile(forward, ops, options);
}

int NumJoined(const graph::Compiled& compiled) {
  int count = 0;
  for (const graph::Program& stage : compiled.stages) {
    for (const graph::Graph& graph : stage.graphs) {
      if (absl::StartsWith(graph.name, "eval")) continue;
      count += static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(), IsJoined));
    }
  }
  return count;
}

// Joined products whose kernels would have to copy their weights first.
int NumCopied(const graph::Compiled& compiled) {
  int count = 0;
  for (const graph::Program& stage : compiled.stages) {
    for (const graph::Graph& graph : stage.graphs) {
      for (const graph::Node& node : graph.nodes) {
        if (!IsJoined(node)) continue;
        for (size_t i = 2; i < node.operands.size(); ++i) {
          const graph::Value &before = graph.values[node.operands[i - 1]], &next = graph.values[node.operands[i]];
          count += before.offset + before.type.bytes() != next.offset;
        }
      }
    }
  }
  return count;
}

// Stores whose value is not made in its state's place.
int NumCopyingStores(const graph::Compiled& compiled) {
  int count = 0;
  for (const graph::Program& stage : compiled.stages) {
    for (const graph::Graph& graph : stage.graphs) {
      for (const graph::Node& node : graph.nodes) {
        if (node.op != graph::Op::kStore) continue;
        count += graph.values[node.operands[0]].offset != stage.FindState(node.symbol)->offset;
      }
    }
  }
  return count;
}

double Flops(const graph::Compiled& compiled, const graph::OpTable& ops) {
  double flops = 0;
  for (const graph::Program& stage : compiled.stages) flops += graph::StepCostOf(stage, ops, {}).matmul_flops;
  return flops;
}

class JoinedProductsTest : public testing::TestWithParam<Case> {};

TEST_P(JoinedProductsTest, TrainAlike) {
  const Case& job = GetParam();
  const graph::OpTable ops;
  const auto joined = CompileCase(job, Products::kJoined, ops), apart = CompileCase(job, Products::kApart, ops);
  ASSERT_TRUE(joined.ok()) << joined.status();
  ASSERT_TRUE(apart.ok()) << apart.status();
  EXPECT_EQ(NumJoined(*joined), job.joined);
  EXPECT_EQ(NumCopied(*joined), 0);
  EXPECT_EQ(NumJoined(*apart), 0);
  EXPECT_EQ(NumCopyingStores(*joined), NumCopyingStores(*apart));
  EXPECT_EQ(Flops(*joined, ops), Flops(*apart, ops));
  constexpr InProcessRanks::Memory kMemory = InProcessRanks::Memory::kPlanned;
  const auto run = RunTraining(kTraining, joined->stages, ops, kMemory);
  const auto wanted = RunTraining(kTraining, apart->stages, ops, kMemory);
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  EXPECT_NE(wanted->losses.front(), wanted->losses.back());
  if (job.joined == 0) {
    EXPECT_EQ(run->losses, wanted->losses);
    EXPECT_EQ(run->weights, wanted->weights);
  } else if (job.compute_dtype == graph::DType::kF32) {
    ExpectNear(*run, *wanted, {.losses = 1e-6, .norms = 1e-5, .weights = 2e-5});  // as with the order of sums
  } else {
    // bf16's steps are 2^-8; a gradient that is rounded once more may move a weight by a whole update.
    ExpectNear(*run, *wanted, {.losses = 2e-3, .norms = 3e-2, .weights = 3e-2});
  }
}

// Where products of more columns take longer than one by one.
TEST(JoinedProducts, AreNotWhereThatIsSlower) {
  const graph::OpTable ops;
  Case job{.name = "slow", .mesh = {{{"fsdp", 1}}}};
  for (const auto& [seconds_of_joined, joined] : {std::pair(1.9, 4 * kLayers), {2.1, 2 * kLayers}, {3.1, 0}}) {
    job.seconds_of_joined = seconds_of_joined;
    const auto compiled = CompileCase(job, Products::kJoined, ops);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    EXPECT_EQ(NumJoined(*compiled), joined) << seconds_of_joined;
  }
}

// Also where the graph's values move while they are added.
TEST(JoinedProducts, LieAsTheirPartsDo) {
  const graph::OpTable ops;
  for (int room = 0; room < 8; ++room) {
    absl::StatusOr<graph::Program> program = graph::ParseProgram(R"(tacc.program 1 partitioned
mesh dp=1
graph forward {
  %x = constant dtype=f32 shape=[2,8,64] value=1.0 : f32[2,8,64] of f32[2,8,64] shard=[-,-,-]
  %cos = constant dtype=f32 shape=[8,8] value=1.0 : f32[8,8] of f32[8,8] shard=[-,-]
  %q = constant dtype=bf16 shape=[4,16,64] value=1.0 : bf16[4,16,64] of bf16[4,16,64] shard=[-,-,-]
  %k = constant dtype=bf16 shape=[2,16,64] value=1.0 : bf16[2,16,64] of bf16[2,16,64] shard=[-,-,-]
  %wq = cast %q dtype=f32 : f32[4,16,64] of f32[4,16,64] shard=[-,-,-]
  %wk = cast %k dtype=f32 : f32[2,16,64] of f32[2,16,64] shard=[-,-,-]
  %wv = cast %k dtype=f32 : f32[2,16,64] of f32[2,16,64] shard=[-,-,-]
  %xq = einsum %x, %wq spec="bse,hde->bshd" : f32[2,8,4,16] of f32[2,8,4,16] shard=[-,-,-,-]
  %rq = rotary %xq, %cos, %cos style=half : f32[2,8,4,16] of f32[2,8,4,16] shard=[-,-,-,-]
  %xk = einsum %x, %wk spec="bse,hde->bshd" : f32[2,8,2,16] of f32[2,8,2,16] shard=[-,-,-,-]
  %rk = rotary %xk, %cos, %cos style=half : f32[2,8,2,16] of f32[2,8,2,16] shard=[-,-,-,-]
  %xv = einsum %x, %wv spec="bse,hde->bshd" : f32[2,8,2,16] of f32[2,8,2,16] shard=[-,-,-,-]
  %o, %lse = attention %rq, %rk, %xv causal=true scale=0.25 : f32[2,8,4,16] of f32[2,8,4,16] shard=[-,-,-,-], f32[2,4,8] of f32[2,4,8] shard=[-,-,-]
  output "o" %o
}
step {
  call forward micro_batch=0
}
)",
                                                                 {});
    ASSERT_TRUE(program.ok()) << program.status();
    graph::Graph& joined = program->graphs[0];
    joined.values.shrink_to_fit();
    joined.values.reserve(joined.values.size() + room);
    ASSERT_TRUE(graph::JoinProducts(
        *program, ops, [](const graph::Node& node, const graph::OpCall&) { return IsJoined(node) ? 1.5 : 1.0; }));
    for (const graph::Value& value : joined.values) EXPECT_TRUE(value.placement.has_value()) << value.name << room;
    EXPECT_TRUE(graph::Verify(*program, ops).ok()) << graph::Verify(*program, ops);
  }
}

constexpr graph::DType kBf16 = graph::DType::kBF16;
INSTANTIATE_TEST_SUITE_P(
    Jobs, JoinedProductsTest,
    testing::Values(
        Case{.name = "alone", .mesh = {{{"fsdp", 1}}}},
        Case{.name = "alone_bf16", .mesh = {{{"fsdp", 1}}}, .compute_dtype = kBf16},
        Case{.name = "dp", .mesh = {{{"dp", 2}}}}, Case{.name = "fsdp", .mesh = {{{"fsdp", 2}}}},
        Case{.name = "fsdp_bf16_accumulation", .mesh = {{{"fsdp", 2}}}, .compute_dtype = kBf16, .accumulation = 2},
        Case{.name = "zero1_bf16", .mesh = {{{"fsdp", 2}}}, .compute_dtype = kBf16, .zero_stage = 1},
        Case{.name = "fsdp_tp", .mesh = {{{"fsdp", 2}, {"tp", 2}}}},
        Case{.name = "tp_bf16", .mesh = {{{"tp", 2}}}, .compute_dtype = kBf16},
        // Heads are exchanged for tokens between q, k, v and attention.
        Case{.name = "sp", .mesh = {{{"fsdp", 2}, {"sp", 2}}}, .joined = 2 * kLayers},
        Case{.name = "recompute", .mesh = {{{"fsdp", 2}}}, .joined = 6 * kLayers, .recompute = true},
        Case{.name = "pp", .mesh = {{{"pp", 2}, {"fsdp", 2}}}, .accumulation = 2},
        Case{.name = "accumulation", .mesh = {{{"fsdp", 1}}}, .accumulation = 2},
        Case{.name = "no_groups", .mesh = {{{"tp", 2}}}, .kv_heads = 4},
        // Of whose one kv head each rank has a copy: it does not lie as q does.
        Case{.name = "tp_beyond_kv_heads", .mesh = {{{"tp", 4}}}, .joined = 2 * kLayers},
        // Keys and values go around.
        Case{.name = "cp", .mesh = {{{"cp", 2}}}, .joined = 2 * kLayers},
        // Weights of 1,056 bytes do not end where the next may begin.
        Case{.name = "odd_width", .mesh = {{{"fsdp", 2}}}, .joined = 2 * kLayers, .compute_dtype = kBf16, .width = 33},
        // q and k are normed before they are turned.
        Case{.name = "normed", .mesh = {{{"fsdp", 2}}}, .joined = 2 * kLayers, .family = "qwen3"},
        // Biases, and no gate.
        Case{.name = "biased", .mesh = {{{"fsdp", 2}}}, .joined = 0, .family = "bloom"}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tacc::worker
