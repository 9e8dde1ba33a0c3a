// A mixture of experts in layouts of dp, fsdp, ep, cp and tp against one rank, on simulated ranks in double precision.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/import/families.h"
#include "graph/passes/pipeline.h"
#include "gtest/gtest.h"
#include "tests/layouts/training.h"

namespace tacc::graph {
namespace {

constexpr int64_t kGlobalBatch = 8, kSeq = 4, kVocab = 13, kExperts = 4, kSteps = 2;
constexpr double kNoOverflow = 2.0;  // experts / experts of a token

struct Layout {
  std::string family = "mixtral";
  int64_t dp = 1, fsdp = 1, ep = 1, cp = 1, tp = 1;
  int64_t pp = 1;
  int64_t accumulation = 1;
  double buffer_factor = kNoOverflow;
  int64_t expert_ranks = 0;     // of the buffers; 0: ep
  int64_t sequence_groups = 0;  // 0: cp x tp
  int num_repeated = 0;         // layers whose activations the backward computes again

  int64_t ranks() const { return dp * fsdp * ep * cp * tp; }
};

std::string Name(const Layout& l) {
  std::vector<std::string> parts;
  if (l.family != Layout().family) parts.push_back(l.family);
  for (const auto& [name, size] : std::vector<std::pair<std::string, int64_t>>{{"dp", l.dp},
                                                                               {"fsdp", l.fsdp},
                                                                               {"ep", l.ep},
                                                                               {"cp", l.cp},
                                                                               {"tp", l.tp},
                                                                               {"accumulation", l.accumulation},
                                                                               {"gc", l.num_repeated}}) {
    if (size > 1) parts.push_back(absl::StrCat(name, size));
  }
  return parts.empty() ? "one" : absl::StrJoin(parts, "_");
}

nlohmann::json Config(const std::string& family, int64_t experts) {
  nlohmann::json config = {{"model_type", family},         {"vocab_size", kVocab},         {"hidden_size", 8},
                           {"intermediate_size", 6},       {"num_hidden_layers", 2},       {"num_attention_heads", 4},
                           {"num_key_value_heads", 2},     {"num_local_experts", experts}, {"num_experts_per_tok", 2},
                           {"output_router_logits", true}, {"router_aux_loss_coef", 0.3}};
  if (absl::StartsWith(family, "deepseek")) {
    config.update({{"n_routed_experts", experts},
                   {"n_shared_experts", 1},
                   {"moe_intermediate_size", 6},
                   {"first_k_dense_replace", 0},
                   {"kv_lora_rank", 5},
                   {"q_lora_rank", 6},
                   {"qk_nope_head_dim", 4},
                   {"qk_rope_head_dim", 2},
                   {"v_head_dim", 3},
                   {"num_key_value_heads", 4}});
    for (const char* key : {"num_local_experts", "router_aux_loss_coef", "output_router_logits"}) config.erase(key);
  }
  if (family == "deepseek_v3") config.update({{"n_group", 2}, {"topk_group", 1}});
  if (family == "gpt_oss") config.update({{"head_dim", 2}, {"sliding_window", 2}, {"swiglu_limit", 0.5}});
  if (family == "qwen2_moe") {
    config["moe_intermediate_size"] = 6;
    config["shared_expert_intermediate_size"] = 10;
  }
  return config;
}

absl::StatusOr<Graph> BuildForward(int64_t rows, const OpTable& ops, int64_t seq_len = kSeq, int64_t experts = kExperts,
                                   const std::string& family = Layout().family) {
  auto read = ReadModelConfig(Config(family, experts), seq_len);
  if (!read.ok()) return read.status();
  DecoderBuildOptions build;
  build.batch = rows;
  build.seq_len = seq_len;
  return BuildDecoder(read->spec, build, ops);
}

absl::StatusOr<Compiled> CompileLayout(const Layout& layout, const OpTable& ops) {
  auto forward = BuildForward(kGlobalBatch / layout.accumulation, ops, kSeq, kExperts, layout.family);
  if (!forward.ok()) return forward.status();
  CompileOptions options;
  options.training.accumulation = layout.accumulation;
  options.training.learning_rate = 1e-2;
  options.training.lr_scheduler_type = "constant";
  options.training.max_steps = 10;
  options.training.max_grad_norm = 0.5;
  options.experts.ranks = layout.expert_ranks > 0 ? layout.expert_ranks : layout.ep;
  options.experts.buffer_factor = layout.buffer_factor;
  options.experts.sequence_groups = layout.sequence_groups > 0 ? layout.sequence_groups : layout.cp * layout.tp;
  options.partition.mesh = {
      {{"dp", layout.dp}, {"fsdp", layout.fsdp}, {"ep", layout.ep}, {"cp", layout.cp}, {"tp", layout.tp}}};
  if (layout.pp > 1) options.partition.mesh.axes.push_back({"pp", layout.pp});
  options.partition.batch_axes = {0, 1, 2};
  options.partition.sequence_axes = {3};
  options.partition.at_rest_axes = {1, 3};
  for (const char* axis : {"vocab", "heads", "kv_heads", "mlp"}) options.partition.in_use_axes[axis] = {4};
  options.partition.in_use_axes["experts"] = {2};
  options.partition.residual = {"model.embed_tokens", {{0, 1, 2}, {3, 4}, {}}};
  options.partition.units = options.schedule.units = options.stages.units = {"model.layers.0", "model.layers.1"};
  options.remat.units.assign(options.partition.units.begin(), options.partition.units.begin() + layout.num_repeated);
  return Compile(*forward, ops, options);
}

absl::StatusOr<TrainingRun> Train(const Layout& layout, const OpTable& ops) {
  auto compiled = CompileLayout(layout, ops);
  if (!compiled.ok()) return compiled.status();
  const int64_t rows = kGlobalBatch / layout.accumulation;
  return TrainOnSimulatedRanks(compiled->stages[0], kSteps, layout.accumulation, [&](int step, int64_t micro_batch) {
    return RandomRows(step, micro_batch * rows, rows, kSeq, kVocab);
  });
}

class MixtureTest : public testing::TestWithParam<Layout> {};

// The load-balancing loss is that of a micro-batch, so the one rank has the same micro-batches.
TEST_P(MixtureTest, EqualsOneRank) {
  const OpTable ops;
  Layout one = {.family = GetParam().family};
  one.accumulation = GetParam().accumulation;
  const auto many = Train(GetParam(), ops);
  ExpectSame(many, Train(one, ops));
  if (many.ok() && GetParam().ep > 1) {
    EXPECT_EQ(many->overflows, std::vector<double>(kSteps, 0.0));
  }
}

TEST_P(MixtureTest, SharesWorkAndMemory) {
  const OpTable ops;
  const Layout layout = GetParam();
  Layout one = {.family = layout.family};
  one.accumulation = layout.accumulation;
  one.num_repeated = layout.num_repeated;
  const auto whole = CompileLayout(one, ops), part = CompileLayout(layout, ops);
  ASSERT_TRUE(whole.ok() && part.ok());
  auto expert_flops = [&](const Program& program) {
    double flops = 0;
    for (const Call& call : program.step) {
      const Graph& graph = *program.FindGraph(call.graph);
      for (const Node& node : graph.nodes) {
        if (absl::StartsWith(node.op.name(), "expert_matmul")) flops += ops.Find(node.op)->flops(CallOf(graph, node));
      }
    }
    return flops;
  };
  EXPECT_LE(expert_flops(part->stages[0]), 1.05 * expert_flops(whole->stages[0]) / static_cast<double>(layout.ranks()));
  int num_states = 0;
  for (const State& state : part->stages[0].states) {
    // Granite's are called input_linear and output_linear.
    const bool of_experts = absl::StrContains(state.name, ".experts.") || absl::StrContains(state.name, "put_linear");
    // A bias of what ranks sum is whole on each.
    const bool is_bias = absl::EndsWith(state.name, "_bias");
    if (!of_experts || is_bias || state.kind != StateKind::kOptimizer) continue;
    ++num_states;
    EXPECT_EQ(state.type.num_elements() * layout.fsdp * layout.ep * layout.cp * layout.tp,
              state.placement.global.num_elements())
        << state.name;
  }
  // Two moments of three matrices in each of two layers; gpt-oss has gate and up in one.
  EXPECT_EQ(num_states, 2 * 2 * (layout.family == "gpt_oss" ? 2 : 3));
}

INSTANTIATE_TEST_SUITE_P(Layouts, MixtureTest,
                         testing::Values(Layout{.dp = 2}, Layout{.fsdp = 2}, Layout{.tp = 2}, Layout{.cp = 2},
                                         Layout{.ep = 2}, Layout{.ep = 4}, Layout{.ep = 2, .accumulation = 2},
                                         Layout{.dp = 2, .ep = 2}, Layout{.fsdp = 2, .ep = 2, .accumulation = 2},
                                         Layout{.ep = 2, .tp = 2}, Layout{.ep = 2, .cp = 2},
                                         Layout{.fsdp = 2, .ep = 2, .cp = 2}, Layout{.dp = 2, .ep = 2, .tp = 2},
                                         Layout{.ep = 2, .num_repeated = 2}),
                         [](const testing::TestParamInfo<Layout>& info) { return Name(info.param); });

std::vector<Layout> LayoutsOfOtherFamilies() {
  std::vector<Layout> layouts;
  for (const char* family : {"qwen2_moe", "granitemoe", "gpt_oss", "deepseek_v2", "deepseek_v3"}) {
    for (Layout layout :
         {Layout{.fsdp = 2}, Layout{.tp = 2}, Layout{.cp = 2}, Layout{.ep = 2, .accumulation = 2}, Layout{.ep = 4},
          Layout{.fsdp = 2, .ep = 2, .cp = 2}, Layout{.dp = 2, .ep = 2, .tp = 2}, Layout{.ep = 2, .num_repeated = 2}}) {
      layout.family = family;
      layouts.push_back(layout);
    }
  }
  return layouts;
}
INSTANTIATE_TEST_SUITE_P(Families, MixtureTest, testing::ValuesIn(LayoutsOfOtherFamilies()),
                         [](const testing::TestParamInfo<Layout>& info) { return Name(info.param); });

// What overflows depends on the buffers alone, not on where they lie.
TEST(Overflow, IsCountedAndTheSameOnOneRank) {
  const OpTable ops;
  Layout one = {.buffer_factor = 0.5, .expert_ranks = 2, .sequence_groups = 1};
  const auto whole = Train(one, ops);
  const auto many = Train({.dp = 2, .ep = 2, .buffer_factor = 0.5}, ops);
  ExpectSame(many, whole);
  ASSERT_TRUE(many.ok() && whole.ok());
  EXPECT_EQ(many->overflows, whole->overflows);
  // Buffers for half of the slots of each of two layers.
  EXPECT_GE(many->overflows[0], kGlobalBatch * kSeq * 2);
  const auto none = Train({}, ops);
  ASSERT_TRUE(none.ok());
  EXPECT_GT(std::abs(none->losses[0] - many->losses[0]), 1e-6);
}

TEST(Overflow, CannotBeWhereBuffersSuffice) {
  const OpTable ops;
  const auto forward = BuildForward(1, ops);  // four experts, two of a token
  ASSERT_TRUE(forward.ok()) << forward.status();
  EXPECT_TRUE(BuffersSuffice(*forward, {.ranks = 1, .buffer_factor = 1}));
  // Room without end is as much as there can be slots.
  Graph shared = *forward;
  EXPECT_TRUE(ExpertParallel(shared, ops, {.ranks = 2, .buffer_factor = 1e30}).ok());
  EXPECT_TRUE(BuffersSuffice(*forward, {.ranks = 2, .buffer_factor = 2}));
  EXPECT_FALSE(BuffersSuffice(*forward, {.ranks = 2, .buffer_factor = 1.9}));
  EXPECT_TRUE(BuffersSuffice(*forward, {.ranks = 4, .buffer_factor = 2}));
}

// Tokens that choose at random, as often as it takes to see what is rare.
TEST(Overflow, AtRandomIsAsSimulated) {
  constexpr int64_t kTokens = 256, kManyExperts = 8, kChosen = 2, kRanks = 4, kTrials = 20000;
  const OpTable ops;
  const auto forward = BuildForward(1, ops, kTokens, kManyExperts);
  ASSERT_TRUE(forward.ok()) << forward.status();
  std::mt19937 random(3);
  std::vector<std::vector<int64_t>> slots(kTrials, std::vector<int64_t>(kRanks));
  for (std::vector<int64_t>& of_rank : slots) {
    for (int64_t token = 0; token < kTokens; ++token) {
      const int64_t first = random() % kManyExperts, other = random() % (kManyExperts - 1);
      ++of_rank[first * kRanks / kManyExperts];
      ++of_rank[(other + (other >= first ? 1 : 0)) * kRanks / kManyExperts];
    }
  }
  for (const double factor : {1.0, 1.1, 1.2}) {
    const auto capacity = static_cast<int64_t>(std::ceil(factor * kTokens * kChosen / kRanks));
    int64_t left_out = 0;
    for (const std::vector<int64_t>& of_rank : slots) {
      for (int64_t count : of_rank) left_out += std::max<int64_t>(0, count - capacity);
    }
    const double share = static_cast<double>(left_out) / (kTrials * kTokens * kChosen);
    EXPECT_GT(left_out, 100) << factor;
    // Of the rarest some hundred are seen, which are exact to a tenth; a sum of 256 tokens is nearly normal.
    EXPECT_NEAR(OverflowAtRandom(*forward, {.ranks = kRanks, .buffer_factor = factor}), share, 0.15 * share) << factor;
  }
  // Two groups of half of the tokens vary more, and where there is room for all nothing is left out.
  EXPECT_GT(OverflowAtRandom(*forward, {.ranks = kRanks, .buffer_factor = 1.1, .sequence_groups = 2}),
            2 * OverflowAtRandom(*forward, {.ranks = kRanks, .buffer_factor = 1.1}));
  EXPECT_EQ(OverflowAtRandom(*forward, {.ranks = kRanks, .buffer_factor = 4}), 0);
  EXPECT_EQ(OverflowAtRandom(*forward, {.ranks = 1, .buffer_factor = 1}), 0);
}

// Losses of each step, on ranks of all stages.
absl::StatusOr<std::vector<double>> TrainStages(const Layout& layout, const OpTable& ops) {
  const auto compiled = CompileLayout(layout, ops);
  if (!compiled.ok()) return compiled.status();
  interpreter::PipelineSimulation simulation(compiled->stages);
  std::map<std::string, interpreter::Array> weights;
  for (const Program& program : compiled->stages) {
    for (const State& state : program.states) {
      if (state.kind != StateKind::kWeight) continue;
      std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>()(state.name)));
      std::normal_distribution<double> normal(state.init == "ones" ? 1.0 : 0.0, 0.4);
      interpreter::Array& weight = weights[state.name] = interpreter::Array::Filled(state.logical_dims(), 0);
      for (double& x : weight.values) x = normal(random);
    }
  }
  for (const auto& [name, weight] : weights) {
    if (auto status = simulation.SetState(name, weight); !status.ok()) return status;
  }
  const int64_t rows = kGlobalBatch / layout.accumulation;
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const auto status = simulation.RunStep(
        [&](int64_t micro_batch) { return RandomRows(step, micro_batch * rows, rows, kSeq, kVocab); });
    if (!status.ok()) return status;
    losses.push_back(simulation.outputs(0).at("loss").values[0]);
  }
  return losses;
}

class MixturePipelineTest : public testing::TestWithParam<std::string> {};

TEST_P(MixturePipelineTest, EqualsOneRank) {
  const OpTable ops;
  const auto one = TrainStages({.family = GetParam(), .accumulation = 2}, ops);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_NE(one->front(), one->back());
  for (const Layout& layout : {Layout{.pp = 2}, Layout{.fsdp = 2, .tp = 2, .pp = 2}, Layout{.ep = 2, .pp = 2}}) {
    Layout many = layout;
    many.family = GetParam();
    many.accumulation = 2;
    const auto losses = TrainStages(many, ops);
    ASSERT_TRUE(losses.ok()) << losses.status();
    for (int64_t i = 0; i < kSteps; ++i) ExpectNear((*losses)[i], (*one)[i], 1e-11, Name(many));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, MixturePipelineTest,
                         testing::Values("mixtral", "qwen2_moe", "granitemoe", "gpt_oss", "deepseek_v2", "deepseek_v3"),
                         [](const auto& info) { return info.param; });

// Of gpt-oss: what is sent of a layer is its tokens, and the slots' weights, of which two products make something; what
// comes back is one sum.
TEST(ExpertBias, IsNotSentAndSharesTheWayBack) {
  const OpTable ops;
  auto forward = BuildForward(kGlobalBatch, ops, kSeq, kExperts, "gpt_oss");
  ASSERT_TRUE(forward.ok()) << forward.status();
  ASSERT_TRUE(ExpertParallel(*forward, ops, {.ranks = 2, .buffer_factor = kNoOverflow}).ok());
  std::map<std::string, int> counts;
  std::multiset<int64_t> sent;  // features
  for (const Node& node : forward->nodes) {
    ++counts[std::string(node.op.name())];
    if (node.op == "dispatch") sent.insert(forward->type(node.results[0]).dims.back());
  }
  EXPECT_EQ(counts["expert_matmul"], 2 * 4);
  EXPECT_EQ(counts["combine"], 2 * 1);
  EXPECT_EQ(sent, (std::multiset<int64_t>{1, 1, 1, 1, 8, 8}));
}

TEST(ChoiceBias, IsABufferThatNothingTrains) {
  const OpTable ops;
  const auto compiled = CompileLayout({.family = "deepseek_v3", .fsdp = 2}, ops);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  int num_buffers = 0;
  for (const State& state : compiled->stages[0].states) {
    if (!absl::EndsWith(state.name, ".e_score_correction_bias")) {
      EXPECT_EQ(state.role, WeightRole::kTrained) << state.name;
      continue;
    }
    EXPECT_EQ(state.kind, StateKind::kWeight) << state.name;
    EXPECT_EQ(state.role, WeightRole::kBuffer) << state.name;
    ++num_buffers;
  }
  EXPECT_EQ(num_buffers, 2);
}

TEST(Overflow, RanksMustDivideExperts) {
  const OpTable ops;
  Graph graph;
  EXPECT_EQ(ExpertParallel(graph, ops, {.ranks = 2}).status(),
            absl::InvalidArgumentError("dist.ep.size = 2: the model has no experts to share; use 1"));
  EXPECT_EQ(CompileLayout({.ep = 3}, ops).status(),
            absl::InvalidArgumentError("expert-parallel: dist.ep.size = 3 does not divide the 4 experts of "
                                       "model.layers.0.block_sparse_moe.experts"));
}

}  // namespace
}  // namespace tacc::graph
